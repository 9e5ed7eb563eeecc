// The functions of C++ that kl adds to llama.cpp's bindings. No exception passes to Rust: `guard.rs` runs what may
// throw through `kl_guarded`.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <regex>
#include <stdexcept>

// The memory of a context, as llama.cpp itself counts it. The function that counts is declared in llama.cpp's
// src/llama-ext.h, which the bindings do not have; so what it needs is declared here again, as it stands in the
// release that Cargo.toml pins. A test compares the result with the sizes of the tensors.

struct llama_context;
typedef struct ggml_backend_buffer_type * ggml_backend_buffer_type_t;

struct llama_memory_breakdown_data {
    size_t model;
    size_t context;
    size_t compute;
};

std::map<ggml_backend_buffer_type_t, llama_memory_breakdown_data>
llama_get_memory_breakdown(const struct llama_context * ctx);

// Returns the bytes in which a context keeps the tokens that it has decoded: its KV cache, and the states of
// recurrent layers. With `computes`, those in which it computes a physical batch too. May throw.
extern "C" uint64_t kl_context_bytes(const struct llama_context * ctx, bool computes) {
    uint64_t bytes = 0;
    for (const auto & of_device : llama_get_memory_breakdown(ctx)) {
        bytes += of_device.second.context + (computes ? of_device.second.compute : 0);
    }
    return bytes;
}

// Runs `call(data)`. Returns false if it throws, and writes the exception's message, cut to `size` bytes and ended
// with a NUL byte, into `message`.
extern "C" bool kl_guarded(void (*call)(void *), void * data, char * message, size_t size) noexcept {
    try {
        call(data);
        return true;
    } catch (const std::exception & exception) {
        snprintf(message, size, "%s", exception.what());
    } catch (...) {
        snprintf(message, size, "an exception without a message");
    }
    return false;
}

// Throws, with the reason, if a pattern is not a regular expression of the kind that llama.cpp matches the names of
// tensors with (`llama_model_loader::create_tensor`).
extern "C" void kl_check_pattern(const char * pattern) {
    std::regex compiled(pattern);
}

// Throws an exception with this message: for the test of `kl_guarded`.
extern "C" void kl_throw(const char * message) {
    throw std::runtime_error(message);
}

static void (*reporter)(const char *) = nullptr;

// Reports the exception that ends the process: one on a thread of llama.cpp's or ggml's own, where nothing catches it.
[[noreturn]] static void terminated() {
    char message[512] = "C++ exception: none is known";
    if (const auto current = std::current_exception()) {
        try {
            std::rethrow_exception(current);
        } catch (const std::exception & exception) {
            snprintf(message, sizeof message, "C++ exception: %s", exception.what());
        } catch (...) {
            snprintf(message, sizeof message, "C++ exception: one without a message");
        }
    }
    if (reporter) {
        reporter(message);
    }
    std::abort();
}

// Hands the message of an exception that ends the process to `report`, in place of ggml's handler, which starts a
// debugger. `report` is expected to end the process.
extern "C" void kl_report_terminate(void (*report)(const char *)) noexcept {
    reporter = report;
    std::set_terminate(terminated);
}
