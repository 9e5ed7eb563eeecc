// The memory of a context, as llama.cpp itself counts it. The function that counts is C++, declared in
// llama.cpp's src/llama-ext.h, which the bindings do not have; so what it needs is declared here again, as
// it stands in the release that Cargo.toml pins. A test compares the result with the sizes of the tensors.
// No exception passes to Rust: out of memory for the map, the program ends.

#include <cstddef>
#include <cstdint>
#include <map>

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
// recurrent layers. With `computes`, those in which it computes a physical batch too.
extern "C" uint64_t kl_context_bytes(const struct llama_context * ctx, bool computes) noexcept {
    uint64_t bytes = 0;
    for (const auto & of_device : llama_get_memory_breakdown(ctx)) {
        bytes += of_device.second.context + (computes ? of_device.second.compute : 0);
    }
    return bytes;
}
