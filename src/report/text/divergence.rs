//! The section on the KL divergence: its mean, what the mean rests on, and its tail.

use super::sheet::Sheet;
use crate::report::number::{count, kld, percent, significant};
use crate::stats::{Distribution, Summary};

/// Adds the section. `unit`: what a window is called; `max_at_text`: the text of the token after the
/// largest divergence.
pub fn divergence(out: &mut Sheet, summary: &Summary, unit: &str, max_at_text: Option<&str>) {
    if summary.n_tokens == 0 {
        return;
    }
    out.title("KL divergence, nats");
    if let Some(kld) = &summary.kld {
        mean(out, kld, summary, unit);
        distribution(out, kld, max_at_text);
    }
    infinite(out, "infinite", summary.n_infinite());
    if let Some(reverse) = &summary.reverse_kld {
        out.mean("reverse KLD, mean", &reverse.mean);
        infinite(out, "reverse KLD, infinite", reverse.n_infinite);
    }
}

/// The mean, and below it how far to trust it.
fn mean(out: &mut Sheet, distribution: &Distribution, summary: &Summary, unit: &str) {
    let mean = &distribution.mean;
    out.mean("mean", mean);
    if let (Some(n), Some(deff)) = (mean.clustered.n_effective, mean.clustered.design_effect) {
        let effect = format!("design effect {}", significant(deff, 3));
        out.value_and("  effective tokens", &count(n as u64), &effect);
    }
    if let (Some(n), Some(here)) = (
        distribution.windows_for_5_percent,
        mean.relative_half_width(),
    ) {
        let here = percent(here);
        let here = format!("these {}: ± {here}", count(summary.n_windows));
        let name = format!("  {unit}s for ± 5 %");
        out.value_and(&name, &format!("about {}", count(n)), &here);
    }
    let tail = &distribution.tail;
    if let Some(share) = tail.top_1_percent {
        let top_0_1 = tail.top_0_1_percent;
        let top_0_1 = top_0_1.map_or(String::new(), |share| {
            format!("top 0.1 %: {}", percent(share))
        });
        out.value_and(
            "  share of the top 1 % of tokens",
            &percent(share),
            &top_0_1,
        );
    }
    if let Some(rest) = tail.mean_without_max {
        out.value("  without the largest token", &kld(rest));
    }
}

fn distribution(out: &mut Sheet, distribution: &Distribution, max_at_text: Option<&str>) {
    if let Some(std) = distribution.std {
        out.value("standard deviation", &kld(std));
    }
    out.quantiles(&distribution.quantiles);
    out.maximum(distribution.max, &distribution.max_at, max_at_text);
    out.value("minimum", &kld(distribution.min));
}

/// Tokens that one model finds impossible where the other does not.
fn infinite(out: &mut Sheet, name: &str, n: u64) {
    if n > 0 {
        out.value_and(name, &count(n), "tokens, left out of the numbers above");
    }
}
