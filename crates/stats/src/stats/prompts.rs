//! The statistics of each prompt by itself.

use kl_formats::TokenRecord;
use serde::Serialize;

use super::mean::{MeanMax, MeanMaxSoFar};
use super::token::is_counted;
use crate::score::LogitMetrics;

/// The statistics of one prompt.
///
/// A part is `None` (null) without counted tokens. Where prompts differ in length, the mean of
/// their means is not the mean over all tokens.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct PromptStats {
    /// The prompt's number, from 0.
    pub window: u32,
    /// The number of scored tokens that are counted.
    pub n_tokens: u64,
    /// Counted tokens whose KLD is infinite; `kld` is over the others.
    pub n_infinite: u64,
    /// KL(reference ‖ model), in nats.
    pub kld: Option<MeanMax>,
    /// The mean of KL(model ‖ reference), in nats, over the tokens where it is finite.
    pub reverse_kld_mean: Option<f64>,
    /// The share of tokens where both models have the same top token.
    pub ref_top1: Option<f64>,
    /// Distances in logit space; absent unless measured.
    #[serde(flatten)]
    pub logits: Option<PromptLogits>,
}

/// The distances between logits at one prompt: the columns of MAX's table.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct PromptLogits {
    /// The mean of |l − m| over vocabulary and tokens.
    pub mean_abs_diff: Option<f64>,
    /// The mean of 1 − cos of the angle between the two rows.
    pub cosine_distance: Option<f64>,
    /// KL(p'‖q') of the smoothed distributions, in nats.
    pub smoothed_kld: Option<MeanMax>,
}

impl PromptStats {
    /// Computes the statistics of each prompt that has records, in the order of the prompts'
    /// numbers.
    ///
    /// `metrics`, if measured, has one entry per record.
    pub fn of_each(records: &[TokenRecord], metrics: Option<&[LogitMetrics]>) -> Vec<Self> {
        let mut prompts = Vec::new();
        let mut start = 0;
        for records in TokenRecord::windows(records) {
            let end = start + records.len();
            let metrics = metrics.map(|metrics| metrics.get(start..end).unwrap_or_default());
            prompts.extend(Self::of_prompt(records, metrics));
            start = end;
        }
        prompts.sort_by_key(|prompt| prompt.window);
        prompts
    }

    /// Computes the statistics of one prompt from its records.
    fn of_prompt(records: &[TokenRecord], metrics: Option<&[LogitMetrics]>) -> Option<Self> {
        let counted = || records.iter().filter(|record| is_counted(record));
        let mean_max =
            |value: fn(&TokenRecord) -> f64| counted().map(value).collect::<MeanMaxSoFar>().value();
        let mean = |mean_max: Option<MeanMax>| mean_max.map(|mean_max| mean_max.mean);
        Some(Self {
            window: records.first()?.window,
            n_tokens: counted().count() as u64,
            n_infinite: counted().filter(|record| !record.kld.is_finite()).count() as u64,
            kld: mean_max(|record| record.kld),
            reverse_kld_mean: mean(mean_max(|record| record.reverse_kld)),
            ref_top1: mean(mean_max(|record| {
                u8::from(record.ref_top == record.eval_top).into()
            })),
            logits: metrics.map(|metrics| {
                let measured = records.iter().zip(metrics);
                let counted =
                    measured.filter(|(record, metrics)| is_counted(record) && metrics.is_finite());
                let mean_max = |value: fn(&LogitMetrics) -> f64| {
                    let values = counted.clone().map(|(_, metrics)| value(metrics));
                    values.collect::<MeanMaxSoFar>().value()
                };
                PromptLogits {
                    mean_abs_diff: mean(mean_max(|metrics| metrics.mean_abs_diff)),
                    cosine_distance: mean(mean_max(|metrics| metrics.cosine_distance)),
                    smoothed_kld: mean_max(|metrics| metrics.smoothed_kld),
                }
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(window: u32, kld: f64, eval_top: u32) -> TokenRecord {
        TokenRecord {
            window,
            token: u32::MAX,
            ref_top: 7,
            eval_top,
            kld,
            reverse_kld: 2.0 * kld,
            ..TokenRecord::default()
        }
    }

    fn metrics(x: f64) -> LogitMetrics {
        LogitMetrics {
            mean_abs_diff: x,
            max_abs_diff: 4.0 * x,
            cosine_distance: 0.5 * x,
            jensen_shannon: 0.25 * x,
            smoothed_kld: 2.0 * x,
        }
    }

    #[test]
    fn each_prompt_has_its_own_numbers_in_the_order_of_the_file() {
        let left_out = TokenRecord {
            flags: TokenRecord::EVAL_NOT_FINITE,
            ..record(5, f64::NAN, 7)
        };
        let records = [
            record(5, 0.25, 7),
            left_out,
            record(5, 0.75, 8),
            record(2, 1.0, 7),
            TokenRecord {
                window: 3,
                ..left_out
            },
        ];
        let measured = [
            metrics(1.0),
            LogitMetrics::EXCLUDED,
            metrics(3.0),
            metrics(4.0),
            LogitMetrics::EXCLUDED,
        ];
        let prompts = PromptStats::of_each(&records, Some(&measured));
        let expected = json!([
            {"window": 2, "n_tokens": 1, "n_infinite": 0, "kld": {"mean": 1.0, "max": 1.0}, "reverse_kld_mean": 2.0,
             "ref_top1": 1.0, "mean_abs_diff": 4.0, "cosine_distance": 2.0,
             "smoothed_kld": {"mean": 8.0, "max": 8.0}},
            {"window": 3, "n_tokens": 0, "n_infinite": 0, "kld": null, "reverse_kld_mean": null, "ref_top1": null,
             "mean_abs_diff": null, "cosine_distance": null, "smoothed_kld": null},
            {"window": 5, "n_tokens": 2, "n_infinite": 0, "kld": {"mean": 0.5, "max": 0.75}, "reverse_kld_mean": 1.0,
             "ref_top1": 0.5, "mean_abs_diff": 2.0, "cosine_distance": 1.0,
             "smoothed_kld": {"mean": 4.0, "max": 6.0}},
        ]);
        assert_eq!(serde_json::to_value(prompts).unwrap(), expected);
        let plain = serde_json::to_value(PromptStats::of_each(&records, None)).unwrap();
        assert_eq!(
            plain[0].get("mean_abs_diff"),
            None,
            "absent unless measured"
        );
        assert!(PromptStats::of_each(&[], None).is_empty());
    }
}
