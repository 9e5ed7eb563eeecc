//! `kl convert`: rows and tokens arrive as they are, as far as the new kind can hold them.

mod common;

use std::fs;
use std::path::Path;

use common::{Session, fixture};
use kl_formats::{LlamaCppReader, NativeReader, RowBlock, WindowHead};

/// Each window with its rows.
type Contents = Vec<(WindowHead, Vec<Vec<f32>>)>;

fn decoded(block: &RowBlock) -> impl Iterator<Item = Vec<f32>> + '_ {
    block.rows().map(|row| {
        let mut logits = vec![0.0; row.len()];
        row.decode_into(&mut logits);
        logits
    })
}

fn native(path: &Path) -> Contents {
    let reader = NativeReader::open(path).unwrap();
    let window = |place: usize| {
        let pieces = (0..reader.n_pieces(place)).map(|piece| reader.piece(place, piece, None));
        let rows = pieces.flat_map(|block| decoded(&block.unwrap()).collect::<Vec<_>>());
        (reader.head(place).unwrap(), rows.collect())
    };
    (0..reader.windows().len()).map(window).collect()
}

/// ln p of each entry, in float64.
fn log_softmax(row: &[f32]) -> Vec<f64> {
    let max = row.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = row.iter().map(|&x| f64::from(x - max).exp()).sum();
    let log_sum = f64::from(max) + sum.ln();
    row.iter().map(|&x| f64::from(x) - log_sum).collect()
}

#[test]
fn kl_py_holds_every_bit_of_f32_rows() {
    let session = Session::new();
    session.reference(&["--encoding", "f32"]);
    let run = session.ok(&["convert", "ref.gz", "klpy.gz", "--format", "kl.py"]);
    assert_eq!(run.stdout, "");
    assert!(run.stderr.contains("loses all checksums"), "{}", run.stderr);
    let back = [
        "convert",
        "klpy.gz",
        "back.gz",
        "--format",
        "kl",
        "--encoding",
        "f32",
    ];
    session.ok(&back);
    assert_eq!(
        native(&session.path("ref.gz")),
        native(&session.path("back.gz"))
    );
    // And a model scores the same against both, as it would against kl.py's.
    let score = |reference| {
        let args = ["-m", "@tiny-q2_K.gguf", "-fa", "off", "-r", reference];
        session.json(&args)["models"][0]["kld"].clone()
    };
    assert_eq!(score("back.gz"), score("klpy.gz"));
    assert_eq!(score("back.gz"), score("ref.gz"));
    let run = session.ok(&["-m", "@tiny-q2_K.gguf", "-r", "back.gz"]);
    assert!(!run.stderr.contains("was  when"), "{}", run.stderr);
    assert!(!run.stdout.contains("0 bytes"), "{}", run.stdout);
}

#[test]
fn u16_is_within_half_a_step() {
    let session = Session::new();
    session.reference(&["--encoding", "f32"]);
    let run = session.ok(&["convert", "ref.gz", "u16.gz", "--format", "kl"]);
    assert!(run.stderr.contains("1/131,070"), "{}", run.stderr);
    let (exact, coded) = (
        native(&session.path("ref.gz")),
        native(&session.path("u16.gz")),
    );
    for ((head, rows), (coded_head, coded_rows)) in exact.iter().zip(&coded) {
        assert_eq!(head, coded_head);
        for (row, coded) in rows.iter().zip(coded_rows) {
            let (min, max) = row
                .iter()
                .fold((f32::MAX, f32::MIN), |(a, b), &x| (a.min(x), b.max(x)));
            let half_a_step = (max - min) / 131_070.0;
            for (x, y) in row.iter().zip(coded) {
                assert!((x - y).abs() <= 1.05 * half_a_step, "{x} {y}");
            }
        }
    }
    // The reference that is written at once as u16 is the same file but for nothing.
    session.reference(&["--force"]);
    assert_eq!(coded, native(&session.path("ref.gz")));
}

#[test]
fn a_base_file_holds_half_of_each_window_to_its_step() {
    let session = Session::new();
    session.reference(&["--encoding", "f32"]);
    let run = session.ok(&["convert", "ref.gz", "base.kld", "--format", "llama.cpp"]);
    for said in [
        "floored at 16",
        "positions 32 to 62",
        "windows: those without 64 tokens",
    ] {
        assert!(run.stderr.contains(said), "{said}: {}", run.stderr);
    }
    // Every window begins with BOS: nothing has to be told.
    let back = [
        "convert",
        "base.kld",
        "back.gz",
        "--format",
        "kl",
        "--encoding",
        "f32",
    ];
    session.ok(&back);
    let whole = native(&session.path("ref.gz"));
    let back = native(&session.path("back.gz"));
    assert_eq!(
        back.len(),
        whole.len() - 1,
        "the short last window is left out"
    );
    for ((head, rows), (back_head, back_rows)) in whole.iter().zip(&back) {
        assert_eq!(back_head.tokens, head.tokens);
        assert_eq!((back_head.first_scored, back_head.n_rows), (32, 31));
        for (row, back) in rows[32..63].iter().zip(back_rows) {
            let expected = log_softmax(row);
            let max = expected.iter().copied().fold(f64::MIN, f64::max);
            for (expected, found) in expected.iter().zip(back) {
                let floored = expected.max(max - 16.0);
                // Half a step of 16/65535, and f32's rounding.
                assert!(
                    (floored - f64::from(*found)).abs() < 1.3e-4,
                    "{floored} {found}"
                );
            }
        }
    }
}

#[test]
fn a_converted_base_is_evaluated_against() {
    let session = Session::new();
    session.reference(&["--encoding", "f32", "--score", "half"]);
    session.ok(&["convert", "ref.gz", "a.kld", "--format", "llama.cpp", "-q"]);
    let mean = |reference: &str| {
        let json = session.json(&["-m", "@tiny-q4_K_M.gguf", "-r", reference]);
        let model = &json["models"][0];
        model["kld"]["mean"]["value"].as_f64().unwrap()
    };
    // Without each window's last row, and the short window.
    assert!((mean("a.kld") / mean("ref.gz") - 1.0).abs() < 0.1);
}

#[test]
fn write_mode_gives_the_base_file_of_llama_perplexity() {
    let session = Session::new();
    let text = fixture("peers/short.txt");
    let args = ["-m", "@tiny-f16.gguf", "-c", "128", "-w", "base.kld"];
    let more = ["--format", "llama.cpp", "-q", "-t", text.to_str().unwrap()];
    let run = session.ok(&[&args[..], &more].concat());
    assert!(run.stderr.contains("last 5 token(s)"), "{}", run.stderr);
    let theirs = fixture("peers/llama-perplexity-f16-c128.kld");
    let (ours, theirs) = (
        LlamaCppReader::open(&session.path("base.kld")).unwrap(),
        LlamaCppReader::open(&theirs).unwrap(),
    );
    assert_eq!(ours.header(), theirs.header());
    for place in 0..ours.n_windows() {
        assert_eq!(
            ours.head(place, None).unwrap(),
            theirs.head(place, None).unwrap(),
            "the text's own tokens, the first of a window too"
        );
        let n_rows = ours.header().rows_per_window();
        let rows = |reader: &LlamaCppReader| {
            decoded(&reader.block(place, 0, n_rows, None).unwrap()).collect::<Vec<_>>()
        };
        for (ours, theirs) in rows(&ours).iter().zip(rows(&theirs)) {
            for (x, y) in ours.iter().zip(theirs) {
                // To the bit on the kind of machine that wrote the fixture; another CPU sums in
                // another order.
                assert!((x - y).abs() < 0.05, "{x} {y}");
            }
        }
    }
}

#[test]
fn a_base_file_that_does_not_tell_its_bos_is_asked_about() {
    let session = Session::new();
    let base = "@peers/llama-perplexity-f16-c128.kld";
    let to_kl = ["convert", base, "a.gz", "--format", "kl", "-q"];
    session.fails(&to_kl, 1, &["--bos", "begins with token 1"]);
    assert!(session.files().is_empty(), "nothing is left");
    session.ok(&[&to_kl[..], &["--bos", "1"]].concat());
    // What is read directly, with the model's word, is what the converted file gives.
    let score = |reference: &str| {
        let args = ["-m", "@tiny-q4_K_M.gguf", "-r", reference, "--no-sidecar"];
        session.json(&args)["models"][0]["kld"]["mean"]["value"]
            .as_f64()
            .unwrap()
    };
    assert!((score("a.gz") - score(base)).abs() < 1e-8);
    session.ok(&[
        "convert", base, "b.gz", "--format", "kl", "-q", "--bos", "none",
    ]);
    assert_ne!(score("b.gz"), score("a.gz"));
}

#[test]
fn what_cannot_be_expressed_is_an_error_and_leaves_nothing() {
    let session = Session::new();
    session.reference(&["--score", "40"]);
    for (from, format, said) in [
        ("ref.gz", "kl.py", "position 40"),
        ("ref.gz", "llama.cpp", "from 32 on"),
        ("ref.gz", "kl", "already"),
        ("@peers/kl_py-f16-c128.gz", "kl.py", "already"),
        (
            "@peers/llama-perplexity-f16-c128.kld",
            "llama.cpp",
            "already",
        ),
        ("@tiny-f16.gguf", "kl", "a model"),
        ("no-such-file", "kl", "no-such-file"),
    ] {
        session.fails(
            &["convert", from, "out", "--format", format, "-q"],
            1,
            &[said],
        );
    }
    let base = "@peers/llama-perplexity-f16-c128.kld";
    let more = ["--format", "kl.py"];
    session.fails(
        &[&["convert", base, "out"], &more[..]].concat(),
        1,
        &["position 64"],
    );
    assert_eq!(session.files(), ["ref.gz", "short.txt"]);
}

#[test]
fn files_that_are_there_are_respected() {
    let session = Session::new();
    session.reference(&["--encoding", "f32"]);
    session.write("there", "precious");
    session.fails(
        &["convert", "ref.gz", "there", "--format", "kl"],
        1,
        &["--force"],
    );
    session.fails(
        &["convert", "ref.gz", "ref.gz", "--format", "kl", "--force"],
        2,
        &["input"],
    );
    assert_eq!(fs::read(session.path("there")).unwrap(), b"precious");
    session.ok(&[
        "convert", "ref.gz", "there", "--format", "kl", "--force", "-q",
    ]);
    session.ok(&["info", "there", "--verify", "-q"]);
    session.fails(&["convert", "ref.gz"], 2, &["OUT", "kl convert --help"]);
    let encoding = [
        "convert",
        "ref.gz",
        "a",
        "--format",
        "kl.py",
        "--encoding",
        "f32",
    ];
    session.fails(&encoding, 2, &["--encoding"]);
}
