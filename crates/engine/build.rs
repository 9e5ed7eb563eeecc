//! Compiles the functions of C++ that `kl` adds to llama.cpp's bindings.

fn main() {
    const SOURCE: &str = "src/llama_cpp/shim.cpp";
    println!("cargo::rerun-if-changed={SOURCE}");
    // The bindings link the library of C++.
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").cpp_link_stdlib(None);
    build.file(SOURCE).compile("kl_shim");
}
