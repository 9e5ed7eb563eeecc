// What is compiled with this runs with the libstdc++ of GCC 11 too, as RHEL 9 has it, not only with GCC 12's:
// see docs/RELEASING.md. scripts/llama-cpp.cmake includes it first of all.
//
// GCC 12 gave condition_variable::wait a new version, and kept the older one, which does the same.

#include <cstddef>

#if defined(__GLIBCXX__) && defined(__linux__) && defined(__x86_64__)
__asm__(".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE, "
        "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
#endif
