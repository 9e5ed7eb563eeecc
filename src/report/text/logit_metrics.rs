//! The sections on the distances between logits, as printed.

use super::sheet::Sheet;
use crate::stats::{LogitSummary, Metric};

/// Adds one model's sections on logits, Jensen-Shannon divergence and smoothed KLD; none without
/// counted tokens.
pub fn logit_sections(out: &mut Sheet, summary: &LogitSummary) {
    if let Some(logits) = &summary.logits {
        section(
            out,
            "Mean absolute difference of logits",
            &logits.mean_abs_diff,
        );
        section(
            out,
            "Largest absolute difference of logits",
            &logits.max_abs_diff,
        );
        section(out, "Cosine distance of logits", &logits.cosine_distance);
    } else if let Some(why) = summary.logits_not_available {
        out.title("Differences of logits");
        out.line("not available", &why.to_string());
    }
    if let Some(divergence) = &summary.jensen_shannon {
        section(out, "Jensen-Shannon divergence, nats", divergence);
    }
    if let Some(divergence) = &summary.smoothed_kld {
        section(out, "KL divergence smoothed with 1e-10, nats", divergence);
    }
}

fn section(out: &mut Sheet, title: &str, metric: &Metric) {
    out.title(title);
    out.mean("mean", &metric.mean);
    out.quantiles(&metric.quantiles);
    out.maximum(metric.max, &metric.max_at, None);
}
