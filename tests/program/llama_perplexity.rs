//! `--stats llama-perplexity`: the block that llama-perplexity prints, against its own output and
//! against a plain float64 computation from both models' rows.

use std::fs;

use kl_formats::{Kind, RowLayout, Values};
use serde_json::Value;

use crate::numbers::{Window, close, log_softmax, max, mean, number};
use crate::session::{Session, fixture};

/// How far a number may differ: by this share of it, plus this much as printed (nats, percent). On
/// the kind of machine that wrote the fixtures every digit is the same; on another CPU the last
/// bits of the logits differ, and the tails move: with ggml's kernels for AVX2 the largest Δp by a
/// quarter.
const OTHER_CPU: (f64, f64, f64) = (0.3, 5e-4, 0.05);

/// The same for perplexities and the correlation, which move less.
const PERPLEXITY: (f64, f64, f64) = (2e-3, 2e-3, 0.1);

/// Lines of the block: name, numbers.
fn block(text: &str) -> Vec<(String, Vec<f64>)> {
    let text = &text[text.find("====== Perplexity").unwrap()..];
    let line = |line: &str| {
        let (name, values) = line.rsplit_once(": ").unwrap_or((line, ""));
        let values = values.split([' ', '%', '±']);
        let numbers = values.filter_map(|word| word.replace("-nan", "0").parse().ok());
        (name.to_owned(), numbers.collect())
    };
    text.trim_end().lines().map(line).collect()
}

#[test]
fn the_block_is_what_llama_perplexity_printed() {
    let session = Session::new();
    for quant in ["f16", "q8_0", "q4_K_M", "q2_K"] {
        let line = format!(
            "-m @tiny-{quant}.gguf -r @base -q --no-sidecar --full --stats llama-perplexity"
        );
        let ours = session.ok(&line);
        ours.prints(&["renormalises"]);
        let theirs = fixture(&format!("peers/llama-perplexity-kld-{quant}.txt"));
        let theirs = fs::read_to_string(theirs).unwrap();
        let (ours, theirs) = (block(&ours.stdout), block(&theirs));
        assert_eq!(ours.len(), 39);
        assert_eq!(ours.len(), theirs.len());
        for ((name, ours), (their_name, theirs)) in ours.iter().zip(&theirs) {
            assert_eq!((name, ours.len()), (their_name, theirs.len()));
            let is_percent = name.contains(" p") || name.contains("Δp") || name.contains("Cor");
            let is_ppl = name.contains("PPL");
            let (share, nats, percent) = if is_ppl { PERPLEXITY } else { OTHER_CPU };
            for (&ours, &theirs) in ours.iter().zip(theirs) {
                let bound = share * theirs.abs() + if is_percent { percent } else { nats };
                close(ours, theirs, bound, &format!("{quant}, {name}"));
            }
        }
    }
}

/// The windows that llama-perplexity scores of a text, with exact logits: whole ones, and their
/// rows but the last.
fn windows(session: &Session, model: &str, name: &str) -> Vec<Window> {
    let text = fs::read_to_string(fixture("eval")).unwrap();
    session.write("text.txt", &text[..3000]);
    session.ok(&format!(
        "-m {model} -t text.txt -w {name} -q -c 128 --score half --encoding f32"
    ));
    let mut windows = session.windows(name);
    windows.retain(|window| window.spec.tokens.len() == 128);
    for window in &mut windows {
        window.rows.pop();
        window.spec.n_rows -= 1;
    }
    windows
}

/// ln p as the base file holds it, in float64.
fn stored(row: &[f32]) -> Vec<f64> {
    let layout = RowLayout::LlamaCpp { is_floored: true };
    let mut bytes = vec![0; layout.row_bytes(row.len())];
    layout.encode(row, &mut bytes);
    let float = |at: usize| f64::from(f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()));
    let codes = bytes[8..].chunks_exact(2).take(row.len());
    codes
        .map(|code| float(0) * f64::from(u16::from_le_bytes([code[0], code[1]])) + float(4))
        .collect()
}

fn value(result: &Value, key: &str) -> f64 {
    let value = &result["llama_perplexity"][key];
    number(value.get("value").unwrap_or(value))
}

#[test]
fn a_base_file_is_scored_as_stored_and_a_native_reference_exactly() {
    let session = Session::new();
    let base = windows(&session, "@f16", "ref.gz");
    let evaluated = windows(&session, "@q2", "eval.gz");
    session.write_windows("base.kld", Kind::LlamaCpp, Values::Logits, 128, &base);

    let (mut klds, mut base_nll, mut eval_nll) = (Vec::new(), Vec::new(), Vec::new());
    let mut least: f64 = 0.0;
    for (base, evaluated) in base.iter().zip(&evaluated) {
        let nexts = base.spec.tokens[64 + 1..].iter();
        let rows = base.rows.iter().zip(&evaluated.rows);
        for (&next, (base, evaluated)) in nexts.zip(rows) {
            let (ln_p, ln_q) = (stored(base), log_softmax(evaluated));
            least = ln_p.iter().copied().fold(least, f64::min);
            let known = ln_p.iter().zip(&ln_q).filter(|(p, _)| **p > -16.0);
            klds.push(known.map(|(p, q)| p.exp() * (p - q)).sum());
            base_nll.push(-ln_p[next as usize]);
            eval_nll.push(-ln_q[next as usize]);
        }
    }
    let n = klds.len();
    assert!(n > 300 && least < -16.0, "{n} tokens, {least}");

    let score = |reference: &str| {
        session.result(&format!("-m @q2 -r {reference} --stats llama-perplexity"))
    };
    let result = score("base.kld");
    let probabilities = base_nll.iter().zip(&eval_nll);
    let changes: Vec<f64> = probabilities
        .map(|(b, e): (&f64, &f64)| (-e).exp() - (-b).exp())
        .collect();
    for (key, exact, bound) in [
        ("mean_kld", mean(&klds), 1e-7),
        ("maximum_kld", max(&klds), 1e-5),
        ("mean_ppl_base", mean(&base_nll).exp(), 1e-5),
        ("mean_ppl_q", mean(&eval_nll).exp(), 1e-5),
        ("mean_delta_p", mean(&changes), 1e-7),
    ] {
        close(value(&result, key), exact, bound, key);
    }

    // For a native reference the block repeats the report's own numbers.
    let result = score("ref.gz");
    let (perplexity, delta_p) = (&result["perplexity"], &result["delta_p"]);
    for (key, own) in [
        ("mean_ppl_q", &perplexity["eval"]),
        ("mean_ppl_base", &perplexity["ref"]),
        ("mean_ppl_ratio", &perplexity["ratio"]["value"]),
        ("mean_ln_ppl_ratio", &perplexity["ln_ratio"]["value"]),
        ("mean_ppl_difference", &perplexity["difference"]["value"]),
        ("cor_ln_ppl", &perplexity["correlation"]),
        ("mean_delta_p", &delta_p["mean"]["value"]),
        ("rms_delta_p", &delta_p["rms"]["value"]),
        ("minimum_delta_p", &delta_p["min"]),
        ("delta_p_99", &delta_p["quantiles"][9]["value"]),
    ] {
        close(value(&result, key), number(own), 1e-12, key);
    }

    // It changes nothing else in the report.
    let mut with = session.result("-m @q4 -r @base --stats llama-perplexity");
    let mut without = session.result("-m @q4 -r @base --stats kl");
    assert!(without["llama_perplexity"].is_null() && with["llama_perplexity"].is_object());
    for model in [&mut with, &mut without] {
        model["timing"] = Value::Null;
        model["llama_perplexity"] = Value::Null;
    }
    assert_eq!(with, without);
    let few = session.ok("-m @q4 -r @base -n 99 -q --stats llama-perplexity --no-sidecar");
    few.warns(&["fewer than 100"]).prints_not("======");
    session.fails("-m @q4 -r @base -n 99 -q --stats none", 2, &[]);
}
