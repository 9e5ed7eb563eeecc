//! Parity with kl.py, on files it wrote and numbers it printed (see `fixtures/README.md`).

mod common;

use std::fs;

use common::{Session, fixture};
use kl_formats::sidecar::SidecarReader;
use kl_formats::{KlPyReader, NativeReader, Row};

const KLPY: &str = "@peers/kl_py-f16-c128.gz";

/// Another CPU computes a model's logits to other last bits, and a KL moves with them. On the kind
/// of machine that wrote the fixtures the numbers agree to 3e-5.
const OTHER_CPU: f64 = 1e-2;

/// Line `name: value ...` of the unrounded part of kl.py's output.
fn printed(quant: &str, name: &str) -> Vec<f64> {
    let text = fs::read_to_string(fixture(&format!("peers/kl_py-{quant}.txt"))).unwrap();
    let unrounded = text.split("unrounded").nth(1).unwrap();
    let line = unrounded
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name}: ")))
        .unwrap();
    let line = line.split('(').next().unwrap();
    let words = line
        .split(['[', ']', ',', ' ', '='])
        .filter_map(|word| word.parse().ok());
    words.collect()
}

fn close(ours: &serde_json::Value, theirs: f64, what: &str) {
    let ours = ours.as_f64().unwrap();
    assert!(
        (ours - theirs).abs() <= OTHER_CPU * theirs.abs(),
        "{what}: {ours}, kl.py {theirs}"
    );
}

#[test]
fn reading_kl_pys_reference_gives_kl_pys_numbers() {
    let session = Session::new();
    for quant in ["q4_K_M", "q2_K"] {
        let model = format!("@tiny-{quant}.gguf");
        // kl.py gives the mean at 99 % and quantiles at 95 %.
        let at = |confidence| {
            let args = ["-m", model.as_str(), "-r", KLPY, "--confidence", confidence];
            session.json(&args)["models"][0].clone()
        };
        let result = at("0.99");
        assert_eq!(result["n_tokens"], 264);
        let reverse = &result["reverse_kld"];
        let mean = printed(quant, "mean");
        for (key, theirs) in ["value", "lo", "hi"].iter().zip(&mean) {
            close(
                &reverse["mean"][key],
                *theirs,
                &format!("{quant} mean {key}"),
            );
        }
        close(
            &reverse["max"],
            printed(quant, "max")[0],
            &format!("{quant} max"),
        );

        let quantiles = &at("0.95")["reverse_kld"]["quantiles"];
        for (place, name) in [(1, "q90"), (2, "q95"), (3, "q99")] {
            for (key, theirs) in ["value", "lo", "hi"].iter().zip(printed(quant, name)) {
                close(
                    &quantiles[place][key],
                    theirs,
                    &format!("{quant} {name} {key}"),
                );
            }
        }
        for name in [
            "ref_top1",
            "ref_top5",
            "ref_top10",
            "eval_top5",
            "eval_top10",
        ] {
            let theirs = *printed(quant, name).last().unwrap();
            close(
                &result["agreement"][name]["value"],
                theirs,
                &format!("{quant} {name}"),
            );
        }
    }
}

#[test]
fn every_token_is_kl_pys() {
    let session = Session::new();
    session.ok(&["-m", "@tiny-q4_K_M.gguf", "-r", KLPY, "-q"]);
    let ours = SidecarReader::open(&session.path("tiny-q4_K_M.gguf.kls"))
        .unwrap()
        .read_all()
        .unwrap();
    // A .npy file: a header padded to 64 bytes, then float64.
    let bytes = fs::read(fixture("peers/kl_py-q4_K_M.npy")).unwrap();
    let theirs: Vec<f64> = bytes[bytes.len() - 8 * ours.len()..]
        .chunks_exact(8)
        .map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap()))
        .collect();
    let (mut worst, mut total) = (0.0f64, 0.0);
    for (ours, theirs) in ours.iter().zip(&theirs) {
        worst = worst.max((ours.reverse_kld - theirs).abs());
        total += (ours.reverse_kld - theirs).abs();
    }
    // kl.py's softmax of the stored row is float32: 4e-7 off by itself. The rest is room for
    // another CPU, which moves some tokens by a few per cent.
    assert!(
        worst < 5e-3 && total / (ours.len() as f64) < 5e-5,
        "worst {worst}, total {total}"
    );
}

#[test]
fn a_kl_py_file_carries_the_bits_of_a_native_one() {
    let session = Session::new();
    session.reference(&["--encoding", "f32", "-fa", "off"]);
    fs::rename(session.path("ref.gz"), session.path("native.gz")).unwrap();
    session.reference(&["--format", "kl.py"]);

    let native = NativeReader::open(&session.path("native.gz")).unwrap();
    let mut klpy = KlPyReader::open(&session.path("ref.gz")).unwrap();
    for place in 0..native.windows().len() {
        let expected = native.head(place).unwrap();
        let head = klpy.next_window().unwrap().unwrap();
        assert_eq!(
            (&head.tokens, head.n_rows),
            (&expected.tokens, expected.n_rows)
        );
        let mut rows = Vec::new();
        while let Some(block) = klpy.next_rows(5).unwrap() {
            rows.extend((0..block.n_rows()).map(|row| bits(block.row(row))));
        }
        let mut native_rows = Vec::new();
        for piece in 0..native.n_pieces(place) {
            let block = native.piece(place, piece, None).unwrap();
            native_rows.extend((0..block.n_rows()).map(|row| bits(block.row(row))));
        }
        assert_eq!(rows, native_rows);
    }
    assert!(klpy.next_window().unwrap().is_none());
}

fn bits(row: Row<'_>) -> Vec<u32> {
    (0..row.len())
        .map(|entry| row.get(entry).to_bits())
        .collect()
}

#[test]
fn results_against_kl_pys_and_the_native_file_of_one_run_are_equal() {
    let session = Session::new();
    // What a kl.py file is evaluated with, as kl.py does.
    let off = ["-fa", "off"];
    let read =
        || session.json(&["-m", "@tiny-q2_K.gguf", "-r", "ref.gz"])["models"][0]["kld"].clone();
    session.reference(&[&off[..], &["--encoding", "f32"]].concat());
    let native = read();
    session.reference(&[&off[..], &["--format", "kl.py", "--force"]].concat());
    assert_eq!(read(), native);
}

#[test]
fn kl_pys_file_is_read_with_a_warning_that_its_tokenizer_is_unknown() {
    let session = Session::new();
    let run = session.ok(&["-m", "@tiny-q8_0.gguf", "-r", KLPY, "-q"]);
    assert!(run.stderr.contains("tokenizer"), "{}", run.stderr);
    // The context that kl.py's header states is padded by llama.cpp, and no window's size.
    session.ok(&["-m", "@tiny-q8_0.gguf", "-r", KLPY, "-q", "-c", "128"]);
}
