//! How a model is run: what it cannot do is refused, and a warning names each setting that moves
//! results, and no other.

use crate::session::{Session, program, table};

/// The line's warnings about settings that differ from the reference's.
fn differences(session: &Session, line: &str) -> Vec<String> {
    let json = session.json(line);
    let warnings = json["warnings"].as_array().unwrap().iter();
    let differences = warnings.filter(|warning| warning["kind"] == "set_up_differs");
    let messages = differences.map(|warning| warning["message"].to_string());
    messages.collect()
}

#[test]
fn a_setting_that_moves_results_is_one_warning() {
    let session = Session::with_reference("-b 32");
    let part = "-m @f16 -r ref.gz -n 64 --no-sidecar";
    assert!(differences(&session, part).is_empty());
    let cases = "
        -b 16 => the batch is 16 | 32 for the reference | --n-batch 32
        -ub 8 => the physical batch is 8 | 32 for the reference | --n-ubatch 32
        -fa off => flash attention is off | auto for the reference | --flash-attn auto
        -ctk q8_0 => keys is q8_0 | f16 for the reference | --cache-type-k f16
        -ctv f32 => values is f32 | f16 for the reference | --cache-type-v f16";
    for (flags, what) in table(cases) {
        let found = differences(&session, &format!("{part} {flags}"));
        let is_named = what.iter().all(|what| found[0].contains(what));
        assert!(found.len() == 1 && is_named, "{flags}: {found:?}");
    }
    let run = session.ok(&format!("{part} --threads 2"));
    run.warns(&["threads", "2 here", "1"]);
}

#[test]
fn a_setting_without_effect_is_not_a_warning() {
    let session = Session::new();
    let moves_nothing = |model: &str, written: &str, flags: &str| {
        let exact = format!("--encoding f32 {written} --force");
        session.reference_of(model, "ref.gz", &exact);
        let line = format!("-m {model} -r ref.gz {flags} --no-sidecar");
        assert_eq!(differences(&session, &line), [""; 0], "{line}");
        assert_eq!(session.result(&line)["kld"]["max"], 0.0, "{line}");
    };
    moves_nothing("@f16", "-b 16", "-fa on");
    // The same tokens are computed at once, in more or fewer calls.
    moves_nothing("@f16", "-b 16", "-b 64 -ub 16");
    moves_nothing("@q4", "-b 64 -ub 16", "-b 32 -ub 16");
    moves_nothing("@mamba", "-b 16", "-fa off -ctk q8_0 -ctv f32");
}

#[test]
fn a_window_beyond_the_learned_positions_is_refused() {
    let session = Session::with_text();
    session.write("prompt.txt", "Once upon a time there was a dog.");
    let write = "-m @gpt2 -t short.txt -w ref.gz -q -c";
    let beyond = ["gpt2.gguf", "48 learned positions"];
    let run = session.fails(&format!("{write} 64"), 1, &beyond);
    run.warns(&["warning", "tokenizer.ggml.pre"]);
    session.ok(&format!("{write} 48"));
    session.ok("-m @gpt2 -r ref.gz -q");

    // The same tokens from a model with room for more, and from a file that does not list its windows.
    session.reference_of("@mamba", "long.gz", "-c 64");
    session.reference_of("@mamba", "stream.gz", "-c 64 --format kl.py");
    let cases = "
        -r long.gz --no-sidecar => 48 learned positions | 64 tokens
        -r stream.gz --no-sidecar => 48 learned positions | 64 tokens
        --prompts prompt.txt -w p.gz --generate 30 => 48 learned positions | 62 tokens";
    session.fails_each(1, "-m @gpt2 -q", cases);
}

/// A thread that spins at ggml's barriers instead makes two runs at once take many times as long. That is
/// measured by benches/busy.py; here, only whether the program has what avoids it.
#[test]
#[cfg(target_os = "linux")]
fn ggmls_threads_sleep_while_they_wait() {
    if std::env::var_os("KL_TEST_BIN").is_some() {
        eprintln!("skipped: another program's names may be stripped");
        return;
    }
    let program = std::fs::read(program()).unwrap();
    let name = b"ggml_barrier_n_sleeping";
    let is_there = program.windows(name.len()).any(|bytes| bytes == name);
    let what_to_do = "cargo clean --release -p llama-cpp-sys-2";
    assert!(
        is_there,
        "scripts/llama-cpp.cmake was not used: {what_to_do}"
    );
}
