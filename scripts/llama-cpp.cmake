# Leaves out of llama.cpp's build what kl does not use: nearly half of the compiler's time.
#
# llama-cpp-sys-2 always builds llama.cpp's library `common`, for a wrapper of which kl calls one
# function: the fit of `-ngl auto`. No part of the wrapper needs the chat parsers, Jinja, downloads or the
# command line. What is left of the library is compiled with -O1, because it runs only once, before
# a model is loaded. ggml and llama.cpp itself are compiled as ever.
#
# .cargo/config.toml names this file, and the crate's build script passes the name on to cmake. Without
# it everything is compiled, and the program is the same. If a later llama.cpp needs one of these files,
# the program does not link: remove the file from the pattern.

if(NOT PROJECT_NAME STREQUAL "llama.cpp" OR CMAKE_VERSION VERSION_LESS 3.19)
    return()
endif()

function(leave_out_unused)
    if(NOT TARGET llama-common)
        return()
    endif()
    get_target_property(sources llama-common SOURCES)
    list(FILTER sources EXCLUDE REGEX
        "(^|/)(arg|chat[^/]*|console|debug|download|hf-cache|imatrix-loader|llguidance|peg-parser|preset|subproc)\\.(cpp|h)$|(^|/)(jinja|parsers)/")
    get_target_property(libraries llama-common LINK_LIBRARIES)
    list(REMOVE_ITEM libraries cpp-httplib)
    set_target_properties(llama-common PROPERTIES SOURCES "${sources}" LINK_LIBRARIES "${libraries}")
    if(NOT MSVC)
        target_compile_options(llama-common PRIVATE -O1)
    endif()
    foreach(unused cpp-httplib vendor-hash)
        if(TARGET ${unused})
            set_target_properties(${unused} PROPERTIES EXCLUDE_FROM_ALL ON)
        endif()
    endforeach()
endfunction()

# After all targets are defined.
cmake_language(DEFER CALL leave_out_unused)
