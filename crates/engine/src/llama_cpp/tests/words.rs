//! The words of llama.cpp and ggml by which kl finds its advice: another release may change them.

use std::path::PathBuf;
use std::process::Command;

/// Words by the files of llama.cpp that hold them.
const WORDS: [(&str, &[&str]); 9] = [
    (
        "src/llama-context.cpp",
        &[
            "quantized V cache requires",
            "model does not support different K",
            "with block size %u does not divide",
        ],
    ),
    (
        "src/llama-model.cpp",
        &[
            "does not support split buffers",
            "unknown model architecture",
        ],
    ),
    ("src/llama-mmap.cpp", &["warning: failed to mlock"]),
    ("src/llama.cpp", &["error loading model: %s"]),
    (
        "src/llama-vocab.cpp",
        &["unknown tokenizer: ", "unknown pre-tokenizer type: "],
    ),
    (
        "src/llama-model-loader.cpp",
        &[
            "missing tensor '%s'",
            "tensor '%s' has wrong shape",
            "wrong number of tensors; expected",
            "has wrong type %s but expected",
            "has wrong array length; expected",
            "key not found in model: ",
        ],
    ),
    ("ggml/src/ggml-backend.cpp", &["failed to allocate"]),
    ("ggml/src/ggml-cpu/ggml-cpu.c", &["GGML_ASSERT(rc == 0)"]),
    (
        "ggml/src/ggml-rpc/ggml-rpc.cpp",
        &["GGML_ABORT(\"Remote RPC server crashed"],
    ),
];

/// The folder of the llama.cpp that was compiled; `None` if cargo does not have all packages.
fn sources() -> Option<PathBuf> {
    let output = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output().ok()?;
        String::from_utf8(output.stdout).ok()
    };
    let version = output("rustc", &["-vV"])?;
    let host = version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))?;
    let args = "metadata --format-version 1 --locked --offline --filter-platform";
    let args: Vec<&str> = args.split(' ').chain([host]).collect();
    let metadata: serde_json::Value = serde_json::from_str(&output(env!("CARGO"), &args)?).ok()?;
    let mut packages = metadata["packages"].as_array()?.iter();
    let bindings = packages.find(|package| package["name"] == "llama-cpp-sys-2")?;
    let manifest = PathBuf::from(bindings["manifest_path"].as_str()?);
    Some(manifest.with_file_name("llama.cpp"))
}

#[test]
fn llama_cpp_still_has_the_words() {
    let Some(folder) = sources() else {
        return;
    };
    for (file, words) in WORDS {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        for word in words {
            assert!(text.contains(word), "{file} has no {word:?}");
        }
    }
}
