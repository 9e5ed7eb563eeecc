//! Parity with kl.py, on files it wrote and numbers it printed (see `fixtures/README.md`).

use std::fs;

use crate::numbers::{close, number};
use crate::session::{Session, fixture};

/// On another CPU the last bits of a model's logits differ, and a KL moves with them. On the kind
/// of machine that wrote the fixtures the numbers agree to 3e-5; with ggml's kernels for AVX2 to 2e-2,
/// and with those for SSE2 an end of a quantile's interval to 0.13.
const OTHER_CPU: f64 = 0.2;

/// Line `name: value ...` of the unrounded part of kl.py's output.
fn printed(quant: &str, name: &str) -> Vec<f64> {
    let text = fs::read_to_string(fixture(&format!("peers/kl_py-{quant}.txt"))).unwrap();
    let unrounded = text.split("unrounded").nth(1).unwrap();
    let name = format!("{name}: ");
    let mut lines = unrounded.lines();
    let line = lines.find_map(|line| line.strip_prefix(&name)).unwrap();
    let line = line.split('(').next().unwrap();
    let words = line.split(['[', ']', ',', ' ', '=']);
    words.filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn reading_kl_pys_reference_gives_kl_pys_numbers() {
    let session = Session::new();
    for quant in ["q4_K_M", "q2_K"] {
        // kl.py gives the mean at 99 % and quantiles at 95 %.
        let at = |confidence: &str| {
            let line = format!("-m @tiny-{quant}.gguf -r @klpy --confidence {confidence}");
            session.result(&line)
        };
        let close = |ours: &serde_json::Value, theirs: f64, what: &str| {
            let what = format!("{quant} {what}");
            close(number(ours), theirs, OTHER_CPU * theirs.abs(), &what);
        };
        let result = at("0.99");
        assert_eq!(result["n_tokens"], 264);
        let reverse = &result["reverse_kld"];
        for (key, theirs) in ["value", "lo", "hi"].iter().zip(printed(quant, "mean")) {
            close(&reverse["mean"][key], theirs, &format!("mean {key}"));
        }
        close(&reverse["max"], printed(quant, "max")[0], "max");

        let quantiles = &at("0.95")["reverse_kld"]["quantiles"];
        for (i, name) in [(1, "q90"), (2, "q95"), (3, "q99")] {
            for (key, theirs) in ["value", "mj_lo", "mj_hi"].iter().zip(printed(quant, name)) {
                close(&quantiles[i][key], theirs, &format!("{name} {key}"));
            }
        }
        for name in "ref_top1 ref_top5 ref_top10 eval_top5 eval_top10".split(' ') {
            let theirs = *printed(quant, name).last().unwrap();
            close(&result["agreement"][name]["value"], theirs, name);
        }
    }
}

#[test]
fn every_token_is_kl_pys() {
    let session = Session::new();
    // The context in kl.py's header is padded by llama.cpp: it is not a window's size.
    let run = session.ok("-m @q4 -r @klpy -q -c 128");
    run.warns(&["tokenizer"]);
    let ours = session.records("tiny-q4_K_M@kl_py-f16-c128.kls");
    // A .npy file: a header padded to 64 bytes, then float64.
    let bytes = fs::read(fixture("peers/kl_py-q4_K_M.npy")).unwrap();
    let theirs = bytes[bytes.len() - 8 * ours.len()..].chunks_exact(8);
    let theirs = theirs.map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap()));
    let (mut worst, mut total) = (0.0f64, 0.0);
    for (ours, theirs) in ours.iter().zip(theirs) {
        worst = worst.max((ours.reverse_kld - theirs).abs());
        total += (ours.reverse_kld - theirs).abs();
    }
    // kl.py's softmax of the stored row is float32: 4e-7 off by itself. The rest is room for
    // another CPU, which moves some tokens by a few per cent.
    let mean = total / ours.len() as f64;
    assert!(worst < 5e-3 && mean < 5e-5, "worst {worst}, mean {mean}");
}
