//! References of hidden states: smaller files with the same rows, which every command computes from them.

use kl_formats::{About, Encoding, Float, Kind, Target, WindowSpec};
use serde_json::{Value, json};

use crate::session::{Run, Session, has, short_text};

/// The text of what a run prints before it starts, by the name of the line.
#[track_caller]
fn plan<'r>(run: &'r Run, name: &str) -> &'r str {
    let mut lines = run.stderr.lines();
    let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}: {}", run.stderr))
        .trim_start()
}

#[test]
fn rows_are_those_of_f32_to_the_bit_whatever_the_input() {
    let session = Session::with_text();
    session.write("code.txt", short_text().to_uppercase());
    // Others are in `architectures.rs`.
    for flags in [
        "-t short.txt -c 64 -b 50 -ub 16",
        "-t short.txt -c 64 --score half",
        "-t short.txt -c 64 --stride 20 --score new",
        "-t short.txt -c 64 -n 333",
        "-t wiki=short.txt -t code=code.txt -c 100",
        "--prompts @prompts --generate 3 --score all -n 50",
    ] {
        for encoding in ["f32", "hidden"] {
            let write = format!("-m @f16 {flags} -w {encoding}.gz -q --force");
            session.ok(&format!("{write} --encoding {encoding}"));
        }
        let result = session.result("compare f32.gz hidden.gz --no-sidecar");
        has(&result, &json!({"n_excluded": 0, "kld": {"max": 0}}));
        session.ok("info hidden.gz --verify -q");
    }
}

/// References of one text: the rows in `f32.gz`, their hidden states in `hidden.gz`.
fn both(more: &str) -> Session {
    let session = Session::new();
    for encoding in ["f32", "hidden"] {
        let more = format!("{more} --encoding {encoding}");
        session.reference_of("@f16", &format!("{encoding}.gz"), &more);
    }
    session
}

/// Every number of every token, which JSON gives to the bit.
#[track_caller]
fn tokens(session: &Session, line: &str) -> Value {
    let mut result = session.result(&format!("{line} --json-tokens --no-sidecar"));
    let tokens = result["tokens"].take();
    assert!(!tokens["kld"].as_array().unwrap().is_empty());
    tokens
}

#[test]
fn a_quant_gets_the_bits_that_stored_rows_give_in_batches_of_any_size() {
    for written in ["-b 7", "-b 48 -ub 16"] {
        let session = both(written);
        for read in [
            "",
            "-b 7",
            "-b 64 -ub 5",
            "--contexts 2",
            "-n 100",
            "--shard 1/3",
        ] {
            let of = |encoding: &str| tokens(&session, &format!("-m @q4 -r {encoding}.gz {read}"));
            assert_eq!(of("hidden"), of("f32"), "{written}, {read}");
        }
    }
}

#[test]
fn conversions_and_comparisons_are_those_of_stored_rows() {
    let session = both("--score all");
    session.reference_of("@q2", "q2.gz", "--score all --encoding hidden");
    session.ok("convert hidden.gz rows.gz --format kl --encoding f32 -q");
    assert!(session.read("rows.gz") == session.read("f32.gz"));
    for format in ["kl", "kl.py", "llama.cpp"] {
        let convert = |from: &str| {
            let line = format!("convert {from}.gz out --format {format} --force -q");
            session.ok(&line);
            session.read("out")
        };
        assert!(convert("hidden") == convert("f32"), "{format}");
    }
    let evaluated = tokens(&session, "-m @q2 -r f32.gz");
    for reference in ["f32", "hidden"] {
        let mut compared = tokens(&session, &format!("compare {reference}.gz q2.gz"));
        // A comparison has no vocabulary to name tokens with.
        compared["text"] = evaluated["text"].clone();
        assert_eq!(compared, evaluated, "{reference}");
    }
    let hidden = "convert f32.gz no --format kl --encoding hidden";
    session.fails(hidden, 2, &["only a run of the model"]);
}

#[test]
fn a_run_prints_all_sizes_and_what_it_has_checked() {
    let session = Session::with_text();
    let write = "-t short.txt -c 64 --force -w ref.gz";
    for encoding in ["u16", "f32", "hidden"] {
        let run = session.ok(&format!("-m @f16 {write} --encoding {encoding}"));
        run.warns(&["sizes ", "u16 ", ", f32 ", ", hidden "]);
        let is_wide = |line: &str| line.starts_with("sizes ") && line.chars().count() > 80;
        assert!(!run.stderr.lines().any(is_wide), "{}", run.stderr);
        if encoding == "hidden" {
            let tried = "hidden (f16): 126 rows computed again, all to the bit";
            assert_eq!(plan(&run, "encoding"), tried);
            let checked = plan(&run, "checked");
            assert!(checked.ends_with("computed from the hidden states: all to the bit"));
            let most = plan(&run, "file").split("at most ").nth(1).unwrap();
            let size = plan(&run, "sizes").split("hidden ").nth(1).unwrap();
            assert_eq!(most.split(';').next(), size.split(',').next());
        }
    }
    // A quantized head needs f32.
    let run = session.ok(&format!("-m @q8 {write} --encoding hidden"));
    assert!(plan(&run, "encoding").starts_with("hidden (f32): "));
    let cases = "
        --format kl.py => --encoding | --format kl
        --format llama.cpp => --encoding | --format kl";
    session.fails_each(2, &format!("-m @f16 {write} --encoding hidden"), cases);
}

#[test]
fn without_an_encoding_a_long_text_is_stored_as_hidden_states() {
    let session = Session::new();
    let eval = session.read_text("@eval");
    // 2,200,000 rows of 259 entries: what counts is the whole text, not the part.
    session.write("long.txt", eval.repeat(160));
    let write = "-m @gpt2 -t long.txt -c 48 --force";
    let mut parts = Vec::new();
    for part in [0, 4999] {
        let run = session.ok(&format!("{write} -w {part}.gz --shard {part}/5000"));
        let encoding = plan(&run, "encoding");
        let (kept, other) = encoding.split_once("; ").unwrap();
        assert_eq!(kept, "hidden (f16): 96 rows computed again, all to the bit");
        assert!(other.starts_with("u16 would take 1.") && other.ends_with(" GiB for all parts"));
        session.ok(&format!("info {part}.gz --verify -q"));
        parts.push(format!("{part}.gz"));
    }
    // They are parts of one file, of which others are missing.
    let merge = format!("merge all.gz {}", parts.join(" "));
    session.fails(&merge, 1, &["of 5000 are missing beside 0.gz"]);
    let run = session.ok(&format!("{write} -w some.gz -n 200"));
    assert!(plan(&run, "encoding").starts_with("u16, the default up to 1 GiB; hidden would take "));
    // What was asked for needs no reason.
    let run = session.ok(&format!("{write} -w some.gz -n 200 --encoding u16"));
    assert!(!run.stderr.contains("encoding "));
}

/// The sizes in a row of the table in REFERENCES.md that begins so: 8B and 70B, in GB.
fn on_paper(row: &str) -> [f64; 2] {
    let mut rows = REFERENCES.lines().filter(|line| line.ends_with(" GB |"));
    let row = rows.find(|line| line.starts_with(row)).unwrap();
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    [2, 3].map(|cell| cells[cell].strip_suffix(" GB").unwrap().parse().unwrap())
}

const REFERENCES: &str = include_str!("../../docs/REFERENCES.md");

#[test]
fn the_sizes_on_paper_are_those_of_the_formats() {
    const N_VOCAB: u32 = 128_256;
    // 290,000 tokens, in windows of a BOS and 511 of them.
    let window = |window| WindowSpec {
        window,
        tokens: vec![0; 512],
        first_scored: 1,
        n_rows: 511,
    };
    let windows: Vec<WindowSpec> = (0..290_000 / 511).map(window).collect();
    let size = |kind: Kind, encoding, n_embd: u32, state_type, head_bits: u64| {
        let mut about = About::new(kind, "", 512, N_VOCAB);
        let head_bytes = u64::from(N_VOCAB) * u64::from(n_embd) * head_bits / 256 / 8;
        let row = json!({"window": 0, "position": 1});
        let states = json!({"n_embd": n_embd, "type": state_type, "then": [],
            "head": {"name": "", "type": "", "type_id": 0, "bytes": head_bytes, "sha256": ""},
            "n_batch": 128, "n_ubatch": 128, "is_equal": false,
            "check": {"n_rows": 0, "mean_kld": 0, "max_kld": 0, "rows": vec![row; 8]}});
        about.states = Some(serde_json::from_value(states).unwrap());
        let target = Target::new(kind, Some(encoding)).unwrap();
        target.projected_bytes(&about, &windows) as f64 / 1e9
    };
    let (f16, f32) = (Float::F16, Float::F32);
    let (of_f16, of_q8_0, of_q6_k) = (16 * 256, 34 * 8 * 8, 210 * 8);
    let chunk = |window: usize| WindowSpec {
        first_scored: 256,
        n_rows: 255,
        ..windows[window].clone()
    };
    let chunks: Vec<WindowSpec> = (0..290_000 / 512).map(chunk).collect();
    let about = About::new(Kind::LlamaCpp, "", 512, N_VOCAB);
    let base = Target::new(Kind::LlamaCpp, None).unwrap();
    let base = base.projected_bytes(&about, &chunks) as f64 / 1e9;
    let is_near = |row: &str, found: f64, stated: f64| {
        let off = (found / stated - 1.0).abs();
        assert!(off < 0.005, "{row}: {found}, not {stated}");
    };
    for stated in on_paper("| llama-perplexity") {
        is_near("llama-perplexity", base, stated);
    }
    for (row, kind, encoding, state_type, head_bits) in [
        ("| kl.py", Kind::KlPy, Encoding::F32, f32, 0),
        ("| `f32`", Kind::Kl, Encoding::F32, f32, 0),
        ("| `u16`", Kind::Kl, Encoding::U16, f32, 0),
        ("| `hidden`, f16", Kind::Kl, Encoding::Hidden, f16, of_f16),
        ("| `hidden`, q8_0", Kind::Kl, Encoding::Hidden, f32, of_q8_0),
        ("| `hidden`, q6_K", Kind::Kl, Encoding::Hidden, f32, of_q6_k),
    ] {
        for (stated, n_embd) in on_paper(row).into_iter().zip([4096, 8192]) {
            let found = size(kind, encoding, n_embd, state_type, head_bits);
            is_near(row, found, stated);
        }
    }
}
