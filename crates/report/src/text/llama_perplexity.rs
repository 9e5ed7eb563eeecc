//! llama-perplexity's own block of statistics, printed as it prints them.

use std::fmt::Write as _;

use kl_stats::stats::LlamaPerplexity;
use kl_stats::stats::llama_perplexity::WithError;

use crate::number::fixed;

/// The block under llama-perplexity's names, in its order, with its digits.
///
/// Source: `kl_divergence` in llama.cpp's `tools/perplexity/perplexity.cpp`.
pub fn llama_perplexity_block(statistics: &LlamaPerplexity) -> String {
    let s = statistics;
    let mut out = "====== Perplexity statistics ======\n".to_owned();
    wide(&mut out, "Mean PPL(Q)                   ", s.mean_ppl_q);
    wide(&mut out, "Mean PPL(base)                ", s.mean_ppl_base);
    let correlation = fixed(100.0 * s.cor_ln_ppl.unwrap_or(f64::NAN), 2);
    let _ = writeln!(out, "Cor(ln(PPL(Q)), ln(PPL(base))): {correlation:>6}%");
    for (name, value) in [
        ("Mean ln(PPL(Q)/PPL(base))", s.mean_ln_ppl_ratio),
        ("Mean PPL(Q)/PPL(base)", s.mean_ppl_ratio),
        ("Mean PPL(Q)-PPL(base)", s.mean_ppl_difference),
    ] {
        wide(&mut out, &format!("{name:<30}"), value);
    }
    out.push('\n');

    out.push_str("====== KL divergence statistics ======\n");
    wide(&mut out, "Mean    KLD", s.mean_kld);
    for (name, value) in [
        ("Maximum", s.maximum_kld),
        ("99.9%  ", s.kld_99_9),
        ("99.0%  ", s.kld_99),
        ("95.0%  ", s.kld_95),
        ("90.0%  ", s.kld_90),
        ("Median ", s.median_kld),
        ("10.0%  ", s.kld_10),
        (" 5.0%  ", s.kld_5),
        (" 1.0%  ", s.kld_1),
        (" 0.1%  ", s.kld_0_1),
        ("Minimum", s.minimum_kld),
    ] {
        let _ = writeln!(out, "{name} KLD: {:>10}", fixed(value, 6));
    }
    out.push('\n');

    out.push_str("====== Token probability statistics ======\n");
    percent(&mut out, "Mean    Δp", s.mean_delta_p);
    for (name, value) in [
        ("Maximum", s.maximum_delta_p),
        ("99.9%  ", s.delta_p_99_9),
        ("99.0%  ", s.delta_p_99),
        ("95.0%  ", s.delta_p_95),
        ("90.0%  ", s.delta_p_90),
        ("75.0%  ", s.delta_p_75),
        ("Median ", s.median_delta_p),
        ("25.0%  ", s.delta_p_25),
        ("10.0%  ", s.delta_p_10),
        (" 5.0%  ", s.delta_p_5),
        (" 1.0%  ", s.delta_p_1),
        (" 0.1%  ", s.delta_p_0_1),
        ("Minimum", s.minimum_delta_p),
    ] {
        let _ = writeln!(out, "{name} Δp: {:>6}%", fixed(100.0 * value, 3));
    }
    percent(&mut out, "RMS Δp    ", s.rms_delta_p);
    percent(&mut out, "Same top p", s.same_top_p);
    out
}

/// A line of a number with six decimals and its error.
fn wide(out: &mut String, name: &str, number: WithError) {
    let [value, err] = [number.value, number.err].map(|x| fixed(x, 6));
    let _ = writeln!(out, "{name}: {value:>10} ± {err:>10}");
}

/// A line of a share in percent and its error.
fn percent(out: &mut String, name: &str, share: WithError) {
    let [value, err] = [share.value, share.err].map(|x| fixed(100.0 * x, 3));
    let _ = writeln!(out, "{name}: {value:>6} ± {err:>5} %");
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The block at the end of llama-perplexity's output.
    fn printed(quant: &str) -> String {
        let name = format!("../../fixtures/peers/llama-perplexity-kld-{quant}.txt");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        let text = std::fs::read_to_string(path).unwrap();
        let block = &text[text.find("====== Perplexity").unwrap()..];
        block.trim_end().to_owned() + "\n"
    }

    /// The block's numbers, in order.
    fn numbers(block: &str) -> Vec<f64> {
        block
            .lines()
            .filter_map(|line| line.rsplit_once(": "))
            .flat_map(|(_, values)| values.split([' ', '%', '±']))
            .filter_map(|word| word.parse().ok())
            .collect()
    }

    /// Statistics that print as these numbers.
    fn statistics(numbers: &[f64]) -> LlamaPerplexity {
        let mut numbers = numbers.iter().copied();
        let mut next = |scale: f64| numbers.next().unwrap() / scale;
        macro_rules! take {
            (plain $scale:expr) => {
                next($scale)
            };
            (with_error $scale:expr) => {
                WithError {
                    value: next($scale),
                    err: next($scale),
                }
            };
        }
        LlamaPerplexity {
            mean_ppl_q: take!(with_error 1.0),
            mean_ppl_base: take!(with_error 1.0),
            cor_ln_ppl: Some(take!(plain 100.0)),
            mean_ln_ppl_ratio: take!(with_error 1.0),
            mean_ppl_ratio: take!(with_error 1.0),
            mean_ppl_difference: take!(with_error 1.0),
            mean_kld: take!(with_error 1.0),
            maximum_kld: take!(plain 1.0),
            kld_99_9: take!(plain 1.0),
            kld_99: take!(plain 1.0),
            kld_95: take!(plain 1.0),
            kld_90: take!(plain 1.0),
            median_kld: take!(plain 1.0),
            kld_10: take!(plain 1.0),
            kld_5: take!(plain 1.0),
            kld_1: take!(plain 1.0),
            kld_0_1: take!(plain 1.0),
            minimum_kld: take!(plain 1.0),
            mean_delta_p: take!(with_error 100.0),
            maximum_delta_p: take!(plain 100.0),
            delta_p_99_9: take!(plain 100.0),
            delta_p_99: take!(plain 100.0),
            delta_p_95: take!(plain 100.0),
            delta_p_90: take!(plain 100.0),
            delta_p_75: take!(plain 100.0),
            median_delta_p: take!(plain 100.0),
            delta_p_25: take!(plain 100.0),
            delta_p_10: take!(plain 100.0),
            delta_p_5: take!(plain 100.0),
            delta_p_1: take!(plain 100.0),
            delta_p_0_1: take!(plain 100.0),
            minimum_delta_p: take!(plain 100.0),
            rms_delta_p: take!(with_error 100.0),
            same_top_p: take!(with_error 100.0),
        }
    }

    #[test]
    fn the_layout_is_llama_perplexitys_to_the_byte() {
        for quant in ["q8_0", "q4_K_M", "q2_K"] {
            let printed = printed(quant);
            let numbers = numbers(&printed);
            assert_eq!(numbers.len(), 43, "{quant}");
            assert_eq!(llama_perplexity_block(&statistics(&numbers)), printed);
        }
    }
}
