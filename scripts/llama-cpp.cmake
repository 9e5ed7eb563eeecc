# Changes llama.cpp's build in three ways. .cargo/config.toml names this file, and the build script of
# llama-cpp-sys-2 passes the name on to cmake. cargo does not see a change to it: after one, run
# `cargo clean --release -p llama-cpp-sys-2`.
#
# 1. ggml's threads sleep while they wait for each other: scripts/ggml-barrier.h. Without this, results are
# the same, but on a machine with other work a run takes many times as long.
#
# 2. What kl does not use is left out: nearly half of the compiler's time. llama-cpp-sys-2 always builds
# llama.cpp's library `common`, for a wrapper of which kl calls one function: the fit of `-ngl auto`. No part
# of the wrapper needs the chat parsers, Jinja, downloads or the command line. What is left of the library is
# compiled with -O1, because it runs only once, before a model is loaded. All other files are compiled as
# ever. If a later llama.cpp needs one of these files, the program does not link: remove the file from the
# pattern.
#
# 3. The libraries of `make dist` run on systems with an older libstdc++ than this one: scripts/older-libstdcxx.h.

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

# Replaces `from` in the variable `source`, where it has to be once.
function(replace_once from to)
    string(FIND "${source}" "${from}" first)
    string(FIND "${source}" "${from}" last REVERSE)
    if(first EQUAL -1 OR NOT first EQUAL last)
        message(FATAL_ERROR "scripts/llama-cpp.cmake: ggml_barrier has changed in ggml-cpu.c: look at it again")
    endif()
    string(REPLACE "${from}" "${to}" source "${source}")
    set(source "${source}" PARENT_SCOPE)
endfunction()

# There is one target for each generation of CPUs where backends are loaded.
function(sleep_at_barriers)
    if(NOT TARGET ggml)
        return()
    endif()
    get_target_property(folder ggml SOURCE_DIR)
    file(READ "${folder}/ggml-cpu/ggml-cpu.c" source)
    replace_once("void ggml_barrier(struct ggml_threadpool * tp) {"
        "#include \"${BARRIER}\"\nvoid ggml_barrier(struct ggml_threadpool * tp) {")
    replace_once("atomic_fetch_add_explicit(&tp->n_barrier_passed, 1, memory_order_seq_cst);"
        "atomic_fetch_add_explicit(&tp->n_barrier_passed, 1, memory_order_seq_cst); ggml_barrier_wake(tp);")
    replace_once("    while (atomic_load_explicit(&tp->n_barrier_passed, memory_order_relaxed) == n_passed) {
        ggml_thread_cpu_relax();
    }"
        "    ggml_barrier_wait(tp, n_passed);")
    set(changed "${CMAKE_BINARY_DIR}/sleeps-at-barriers/ggml-cpu.c")
    file(WRITE "${changed}" "${source}")
    get_property(targets DIRECTORY "${folder}" PROPERTY BUILDSYSTEM_TARGETS)
    list(FILTER targets INCLUDE REGEX "^ggml-cpu")
    set(n_changed 0)
    foreach(target ${targets})
        get_target_property(sources ${target} SOURCES)
        list(FIND sources ggml-cpu/ggml-cpu.c place)
        if(NOT place EQUAL -1)
            list(REMOVE_AT sources ${place})
            set_target_properties(${target} PROPERTIES SOURCES "${sources};${changed}")
            math(EXPR n_changed "${n_changed} + 1")
        endif()
    endforeach()
    if(n_changed EQUAL 0)
        message(FATAL_ERROR "scripts/llama-cpp.cmake: no library compiles ggml-cpu.c: look at it again")
    endif()
endfunction()

# Those that use what the header is about.
function(need_older_libstdcxx)
    if(NOT GGML_BACKEND_DL)
        return()
    endif()
    foreach(library llama-common ggml-rpc)
        if(TARGET ${library})
            target_compile_options(${library} PRIVATE "SHELL:-include \"${OLDER_LIBSTDCXX}\"")
        endif()
    endforeach()
endfunction()

# After all targets are defined.
set(BARRIER "${CMAKE_CURRENT_LIST_DIR}/ggml-barrier.h")
set(OLDER_LIBSTDCXX "${CMAKE_CURRENT_LIST_DIR}/older-libstdcxx.h")
cmake_language(DEFER CALL leave_out_unused)
cmake_language(DEFER CALL sleep_at_barriers)
cmake_language(DEFER CALL need_older_libstdcxx)
