//! Answers that the reference model gives: chosen by chance, ended, kept, and shared out.

use std::fs;

use serde_json::json;

use crate::gguf::{Pair, set_value, with_pairs};
use crate::session::{Session, has};
use crate::shards::check_parts;

/// The arguments of a run that writes `name` with answers of at most 40 tokens.
fn call(model: &str, name: &str, flags: &str) -> String {
    format!("-m {model} -w {name} -q --prompts @prompts --generate 40 {flags}")
}

/// The answers that a reference holds, in the order of its windows.
pub fn answers(session: &Session, name: &str) -> Vec<Vec<u32>> {
    let prompts = session.header(name).prompts.unwrap();
    let specs = session.specs(name);
    let answer = |spec: &kl_formats::WindowSpec| {
        let n_prompt = prompts[spec.window as usize].n_tokens as usize;
        assert_eq!(spec.first_scored as usize, n_prompt - 1);
        assert_eq!(spec.n_rows as usize, spec.tokens.len() - n_prompt);
        spec.tokens[n_prompt..].to_vec()
    };
    specs.iter().map(answer).collect()
}

/// Writes a copy of the fixture `name` that ends an answer with `token`, as `name` with `.gguf`.
fn with_end(session: &Session, name: &str, token: u32) {
    session.change(&format!("@{name}"), &format!("{name}.gguf"), |model| {
        set_value(model, "tokenizer.ggml.eos_token_id", token.to_le_bytes());
    });
}

#[test]
fn a_seed_gives_the_same_file_and_another_one_another() {
    let session = Session::new();
    let sampled = "--temp 0.9 --top-k 50 --top-p 0.95 --min-p 0.02 --seed";
    session.ok(&call("@f16", "one.gz", &format!("{sampled} 7")));
    session.ok(&call("@f16", "same.gz", &format!("{sampled} 7")));
    session.ok(&call("@f16", "other.gz", &format!("{sampled} 8")));
    assert!(session.read("one.gz") == session.read("same.gz"));
    let one = answers(&session, "one.gz");
    let other = answers(&session, "other.gz");
    assert!(one.iter().zip(&other).all(|(one, other)| one != other));

    let sampling = session.info("one.gz")["prompts"]["sampling"].take();
    let given = json!({"temp": 0.9, "top_k": 50, "top_p": 0.95, "min_p": 0.02, "seed": 7});
    has(&sampling, &given);
    // Whoever misses identical output is told why.
    let how = "at temperature 0.9 (top-k 50, top-p 0.95, min-p 0.02, seed 7)";
    let answers = format!("an answer of at most 40 tokens to each, generated {how}");
    session.ok("info one.gz").prints(&[&answers]);
    let sampled = format!("sampled {how}: no identical output");
    for line in [
        "-m @q4 -r one.gz",
        "-m @q2 -r one.gz",
        "report tiny-q4_K_M@one.kls",
        "info tiny-q4_K_M@one.kls",
        "report . --html page.html",
        "report . --markdown",
    ] {
        session.ok(line).prints(&[&sampled]);
    }
    let page = session.read_text("page.html");
    assert!(page.contains(&format!("The answers were {sampled}")));
    assert_eq!(session.json("report .")["reference"]["sampling"]["seed"], 7);
    session.ok(&call("@f16", "zero.gz", "--temp 0"));
    assert_eq!(session.header("zero.gz").sampling, None);
    // Without --temp, --top-k lists tokens.
    let listed = session.result("-m @q4 -r one.gz --no-sidecar --top-k 3");
    assert_eq!(listed["top"].as_array().unwrap().len(), 3);
}

#[test]
fn answers_that_grow_together_are_those_that_grow_alone() {
    let session = Session::new();
    for (sampled, name) in [("", "greedy"), ("--temp 1 --seed 3", "sampled")] {
        let tokens = |np: u32| {
            let name = format!("{name}.{np}.gz");
            session.ok(&call("@f16", &name, &format!("{sampled} -np {np}")));
            session.tokens(&name)
        };
        let alone = tokens(1);
        for np in [2, 8] {
            assert_eq!(tokens(np), alone, "{name} -np {np}");
        }
    }
}

/// Without `-np`, several answers grow at a time, and they are those of one at a time.
#[test]
fn answers_grow_together_by_default_where_that_changes_nothing() {
    let session = Session::new();
    for model in ["@f16", "@q4"] {
        session.ok(&call(model, "alone.gz", "--temp 1 --seed 3 -np 1 --force"));
        session.ok(&call(model, "default.gz", "--temp 1 --seed 3 --force"));
        // Other CPUs may give other last bits to rows, but the tokens are those of one at a time.
        let [alone, default] = ["alone.gz", "default.gz"].map(|name| session.tokens(name));
        assert_eq!(alone, default, "{model}");
    }
}

#[test]
fn the_time_of_generating_is_told() {
    let session = Session::new();
    let line = call("@f16", "ref.gz", "").replace(" -q", "");
    let run = session.ok(&line);
    // Lines break where the numbers' lengths say.
    let said = Vec::from_iter(run.stderr.split_whitespace()).join(" ");
    for what in ["(tokenize ", ", generate ", " tokens/s, decode "] {
        assert!(said.contains(what), "{said}");
    }
    assert!(
        !session
            .ok(&format!("{line} --resume"))
            .stderr
            .contains("generate")
    );
    let prompts = "--prompts @prompts --generate 4 --no-chat-template --max-windows 3 --no-sidecar";
    let timing = |line: &str| session.result(line)["timing"].take();
    let with_model = timing(&format!("-m @q8 --ref-model @f16 {prompts}"));
    let of_file = timing("-m @q8 -r ref.gz --no-sidecar");
    for what in ["tokenize_s", "generate_s"] {
        assert!(with_model[what].as_f64() > Some(0.0), "{with_model}");
        assert!(of_file[what].is_null());
    }
}

#[test]
fn an_answer_ends_where_the_model_ends_it() {
    let session = Session::new();
    session.ok(&call("@f16", "long.gz", ""));
    let long = answers(&session, "long.gz");
    assert!(long.iter().all(|answer| answer.len() == 40));
    let end = long[0][9];
    with_end(&session, "f16", end);
    session.ok(&call("f16.gguf", "short.gz", "--encoding f32"));
    let short = answers(&session, "short.gz");
    assert!(short[0].len() <= 10);
    for (long, short) in long.iter().zip(&short) {
        let n = long.iter().position(|&token| token == end);
        assert_eq!(short[..], long[..n.map_or(40, |n| n + 1)]);
    }
    let n_rows = short.iter().map(|answer| answer.len() as u64).sum::<u64>();
    assert_eq!(session.header("short.gz").n_rows, n_rows);
    let itself = session.result("-m f16.gguf -r short.gz --no-sidecar");
    has(&itself, &json!({"kld": {"max": 0}, "n_tokens": n_rows}));

    // No part knows how long the answers of the others are.
    for flags in ["--temp 1 --seed 4", "--encoding hidden"] {
        let run = format!("-m f16.gguf --prompts @prompts --generate 40 {flags} -w");
        check_parts(&session, &run, "gz", 3);
        session.ok("info part.1.gz").prints(&["at most"]);
    }
}

/// An answer in a file of answers is used as it is, so nothing that is kept is generated again.
#[test]
fn a_run_that_is_killed_keeps_the_answers_that_are_finished() {
    let session = Session::new();
    let lines = (0..40).map(|i| format!("Once there were {i} dogs."));
    let lines: Vec<String> = lines.collect();
    session.write("many.txt", lines.join("\n"));
    let line = "-m @f16 -w ref.gz -q --prompts many.txt --generate 90 --temp 1";
    let kept = "ref.gz.answers.partial";
    let lines_of = |bytes: Vec<u8>| bytes.into_iter().filter(|byte| *byte == b'\n').count();
    let n_kept = || fs::read(session.path(kept)).map_or(0, lines_of);
    session.cut_off(line, "-KILL", || n_kept() >= 4);
    let n = n_kept();
    assert!((4..40).contains(&n), "{n}");
    let run = session.ends(line, 1);
    run.warns(&[kept, "--resume continues it"]);
    let other = ["another run", ": none there, 3 here)"];
    session.fails(&format!("{line} -np 3 --resume"), 1, &other);
    let answers_there = session.read(kept);
    session.write(kept, "my own notes\n");
    session.fails(&format!("{line} --resume"), 1, &[kept, "--force"]);
    assert_eq!(session.read(kept), b"my own notes\n");
    session.write(kept, answers_there);

    // A mark that no run would leave shows that what is kept is used.
    let text = session.read_text(kept);
    let mut all: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut first: serde_json::Value = serde_json::from_str(&all[1]).unwrap();
    let true_answer = first["answer"].take();
    first["answer"] = vec![5; 90].into();
    first.as_object_mut().unwrap().remove("crc32");
    let marked_line = kl_formats::with_checksum(first.to_string().as_bytes()).unwrap();
    all[1] = String::from_utf8(marked_line)
        .unwrap()
        .trim_end()
        .to_owned();
    // A digit of another answer has changed: that one is generated again.
    let digit = all[2].rfind("],").unwrap() - 1;
    let other_digit = if all[2].as_bytes()[digit] == b'1' {
        "2"
    } else {
        "1"
    };
    all[2].replace_range(digit..=digit, other_digit);
    session.write(kept, all.join("\n") + "\n{\"window\":");
    let resumed = session.ok(&format!("{line} --resume"));
    resumed.warns(&["1 line not as kl wrote it"]);
    assert!(!session.exists(kept));
    assert_eq!(session.files(), ["many.txt", "ref.gz"]);
    let marked = answers(&session, "ref.gz");
    session.ok(&line.replace("ref.gz", "whole.gz"));
    let whole = answers(&session, "whole.gz");
    let window = first["window"].as_u64().unwrap() as usize;
    assert_eq!(serde_json::to_value(&whole[window]).unwrap(), true_answer);
    for (i, (marked, whole)) in marked.iter().zip(&whole).enumerate() {
        let expected = if i == window { &[5; 90][..] } else { whole };
        assert_eq!(marked, expected, "{i}");
    }

    // What a reference holds already needs no file of answers.
    session.cut("ref.gz", "ref.gz.partial", 0.5);
    session.remove("ref.gz");
    // Another run is refused before its first answer, which would be in a file of answers.
    let refused = |line: &str, what: &str| {
        let run = session.fails(&format!("{line} --resume"), 1, &["another run", what]);
        run.warns_not("--resume continues it");
        let left = ["many.txt", "other.txt", "ref.gz.partial", "whole.gz"];
        assert_eq!(session.files(), left);
    };
    session.write("other.txt", lines.join("\n").replace("39 dogs", "93 dogs"));
    refused(&format!("{line} --seed 9"), "seed");
    refused(&line.replace("many.txt", "other.txt"), "text.");
    refused(&format!("{line} --shard 0/2"), "shard");
    session.ok(&format!("{line} --resume"));
    let resumed = answers(&session, "ref.gz");
    assert_eq!(resumed[window] == [5; 90], window < 10);
    assert_eq!(resumed[39], whole[39]);
}

#[test]
fn recurrent_models_answer_one_prompt_at_a_time() {
    let session = Session::new();
    for model in ["@mamba", "@architectures/falcon-h1.gguf"] {
        let flags = "--temp 1 --seed 2 --no-chat-template --force";
        let line = call(model, "ref.gz", flags);
        session.ok(&line);
        assert_eq!(answers(&session, "ref.gz").len(), 5);
        session.fails(&format!("{line} -np 2"), 1, &["recurrent"]);
    }
}

#[test]
fn tokens_that_the_models_file_forbids_are_not_generated() {
    let session = Session::new();
    for sampling in ["", "--temp 1 --top-k 3"] {
        session.ok(&call("@q2", "free.gz", &format!("{sampling} --force")));
        let token = answers(&session, "free.gz").concat()[0];
        // llama.cpp leaves out those beyond the vocabulary.
        let tokens = [token as i32, -1, 70_000];
        let pair = Pair::numbers("tokenizer.ggml.suppress_tokens", &tokens);
        session.write("m.gguf", with_pairs(&session.read("@q2"), &[pair]));
        session.ok(&call(
            "m.gguf",
            "obeying.gz",
            &format!("{sampling} --force"),
        ));
        let obeying = answers(&session, "obeying.gz").concat();
        assert!(
            !obeying.is_empty() && !obeying.contains(&token),
            "{sampling}"
        );
    }
}

#[test]
fn sampling_that_the_models_file_asks_for_is_a_warning() {
    let session = Session::new();
    let pairs = [
        Pair::float("general.sampling.temp", 0.6),
        Pair::number("general.sampling.top_k", 20),
    ];
    session.write("m.gguf", with_pairs(&session.read("@q2"), &pairs));
    let run = session.ok(&call("m.gguf", "a.gz", ""));
    let asked =
        "(temp 0.6, top_k 20, in general.sampling): to obey the file, use --temp 0.6 --top-k 20";
    assert!(run.stderr.contains(asked), "{}", run.stderr);
    let run = session.ok(&call("m.gguf", "b.gz", "--temp 0.6 --top-k 20"));
    assert!(!run.stderr.contains("general.sampling"), "{}", run.stderr);
    session
        .ok("-m m.gguf -t @eval -c 64 -n 100 -w c.gz -q")
        .prints_not("general.sampling");
}
