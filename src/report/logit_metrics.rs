//! What the logits differ in, as printed.

use super::number::kld;
use super::text::{Sheet, range, significant_percent};
use crate::stats::{LogitSummary, Metric};

/// The sections of one model's report on its logits, Jensen-Shannon and smoothed KLD; empty without
/// tokens that count.
#[must_use]
pub fn logit_section(summary: &LogitSummary) -> String {
    let mut out = Sheet(String::new());
    if let Some(logits) = &summary.logits {
        metric(
            &mut out,
            "Mean absolute difference of logits",
            &logits.mean_abs_diff,
        );
        metric(
            &mut out,
            "Greatest absolute difference of logits",
            &logits.max_abs_diff,
        );
        metric(
            &mut out,
            "Cosine distance of logits",
            &logits.cosine_distance,
        );
    } else if let Some(why) = summary.logits_not_available {
        out.title("Differences of logits");
        out.line("not available", &why.to_string());
    }
    if let Some(divergence) = &summary.jensen_shannon {
        metric(&mut out, "Jensen-Shannon divergence, nats", divergence);
    }
    if let Some(divergence) = &summary.smoothed_kld {
        metric(
            &mut out,
            "KL divergence smoothed with 1e-10, nats",
            divergence,
        );
    }
    out.0
}

fn metric(out: &mut Sheet, title: &str, metric: &Metric) {
    out.title(title);
    let mean = &metric.mean;
    out.estimate("mean", &mean.estimate, at_least_0);
    if let (Some(lo), Some(hi)) = (mean.cluster_lo, mean.cluster_hi) {
        out.line(
            "  windows, not tokens, independent",
            &format!("{:>12}  {}", "", range(lo, hi, at_least_0)),
        );
    }
    for quantile in &metric.quantiles {
        let name = if quantile.p == 0.5 {
            "median".to_owned()
        } else {
            format!("{} %", significant_percent(quantile.p))
        };
        out.estimate(&name, &quantile.estimate, at_least_0);
    }
    let at = &metric.max_at;
    out.value(
        "maximum",
        &format!(
            "{:>12}  window {}, position {}",
            kld(metric.max),
            at.window,
            at.position
        ),
    );
}

/// An interval's end, cut at 0: a symmetric one may reach below it, none of these numbers can.
fn at_least_0(value: f64) -> String {
    kld(value.max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::score::LogitMetrics;
    use crate::stats::{Confidence, NotAvailable, TokenLocation};

    fn summary() -> LogitSummary {
        let metrics: Vec<LogitMetrics> = (1..=200)
            .map(|i| {
                let x = f64::from(i) / 1024.0;
                LogitMetrics {
                    mean_abs_diff: x,
                    max_abs_diff: 4.0 * x,
                    cosine_distance: x * x,
                    jensen_shannon: x * x / 8.0,
                    smoothed_kld: x * x / 2.0,
                }
            })
            .collect();
        let places: Vec<TokenLocation> = (0..200)
            .map(|i| TokenLocation {
                window: i / 50,
                position: i % 50,
                token: None,
            })
            .collect();
        LogitSummary::from_metrics(&metrics, &places, Confidence::default())
    }

    #[test]
    fn all_sections() {
        assert_eq!(logit_section(&summary()), TEXT);
    }

    const TEXT: &str = "\
Mean absolute difference of logits
  mean                                  0.0981445  [0.0902631, 0.106026]
    windows, not tokens, independent               [0, 0.198450]
  median                                0.0981445  [0.0845992, 0.111690]
  95 %                                   0.185596  [0.180535, 0.192414]
  99 %                                   0.193369  [0.191582, 0.197070]
  maximum                                0.195312  window 3, position 49

Greatest absolute difference of logits
  mean                                   0.392578  [0.361052, 0.424104]
    windows, not tokens, independent               [0, 0.793801]
  median                                 0.392578  [0.338397, 0.446759]
  95 %                                   0.742383  [0.722142, 0.769655]
  99 %                                   0.773477  [0.766328, 0.788282]
  maximum                                0.781250  window 3, position 49

Cosine distance of logits
  mean                                  0.0128112  [0.0112139, 0.0144085]
    windows, not tokens, independent               [0, 0.0329815]
  median                               0.00963259  [0.00698369, 0.0122815]
  95 %                                  0.0344458  [0.0325737, 0.0369719]
  99 %                                  0.0373916  [0.0367039, 0.0388214]
  maximum                               0.0381470  window 3, position 49

Jensen-Shannon divergence, nats
  mean                                 0.00160140  [0.00140174, 0.00180106]
    windows, not tokens, independent               [0, 0.00412269]
  median                               0.00120407  [0.000872961, 0.00153519]
  95 %                                 0.00430573  [0.00407172, 0.00462149]
  99 %                                 0.00467395  [0.00458799, 0.00485268]
  maximum                              0.00476837  window 3, position 49

KL divergence smoothed with 1e-10, nats
  mean                                 0.00640559  [0.00560696, 0.00720423]
    windows, not tokens, independent               [0, 0.0164908]
  median                               0.00481629  [0.00349185, 0.00614074]
  95 %                                  0.0172229  [0.0162869, 0.0184860]
  99 %                                  0.0186958  [0.0183520, 0.0194107]
  maximum                               0.0190735  window 3, position 49
";

    #[test]
    fn what_log_probabilities_leave() {
        let text = logit_section(&summary().without_logits(NotAvailable::LogProbabilitiesOnly));
        let (head, rest) = text.split_once("\n\n").unwrap();
        assert_eq!(
            head,
            "Differences of logits\n  \
             not available                      the stored rows are log-probabilities, not logits"
        );
        let divergences = TEXT.find("Jensen-Shannon").unwrap();
        assert_eq!(rest, &TEXT[divergences..]);
    }

    #[test]
    fn nothing_without_tokens() {
        let none = LogitSummary::from_metrics(&[], &[], Confidence::default());
        assert_eq!(logit_section(&none), "");
    }
}
