//! The measures at each position besides its record, where the user asks for them.

use kl_formats::{About, TokenRecord, Values};
use kl_stats::score::{LlamaPerplexityScore, LogitMetrics, RowPair, logit_metrics};
use kl_stats::stats::{
    ClusterRule, Confidence, LlamaPerplexity, LogitSummary, TokenTable, is_counted,
};

use crate::commands::settings::Stats;

/// The wanted statistics, and the passes over a pair of rows that they need besides the kernel's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measures {
    /// True if llama-perplexity's statistics are wanted.
    llama_perplexity: bool,
    /// Set if they are computed from the log-probabilities that llama-perplexity stored: a record
    /// has other numbers of such rows.
    from_floored_rows: bool,
    /// True if distances in logit space are wanted.
    logits: bool,
    /// True if rows are log-probabilities, from which the logits cannot be recovered.
    only_log_probabilities: bool,
}

/// The measures at one position.
#[derive(Clone, Copy, Debug)]
pub struct PositionMeasures {
    llama_perplexity: Option<LlamaPerplexityScore>,
    logits: Option<LogitMetrics>,
}

impl Measures {
    /// `evaluated` describes the file whose rows are evaluated, if no model computes them.
    pub fn new(stats: &[Stats], reference: &About, evaluated: Option<&About>) -> Self {
        let llama_perplexity = stats.contains(&Stats::LlamaPerplexity);
        Self {
            llama_perplexity,
            from_floored_rows: llama_perplexity
                && reference.values == Values::FlooredLogProbabilities,
            logits: stats.contains(&Stats::Logits),
            only_log_probabilities: reference.holds_log_probabilities()
                || evaluated.is_some_and(About::holds_log_probabilities),
        }
    }

    /// True if anything is measured besides records.
    pub fn any(self) -> bool {
        self.from_floored_rows || self.logits
    }

    /// Measures a pair of rows.
    pub fn measure(self, pair: &RowPair<'_>) -> PositionMeasures {
        PositionMeasures {
            llama_perplexity: self
                .from_floored_rows
                .then(|| LlamaPerplexityScore::new(pair.reference, pair.eval, pair.next)),
            logits: self.logits.then(|| logit_metrics(pair)),
        }
    }

    /// llama-perplexity's statistics, if they are wanted and there are enough tokens.
    pub fn llama_perplexity(
        self,
        records: &[TokenRecord],
        measured: &[PositionMeasures],
    ) -> Option<LlamaPerplexity> {
        if !self.llama_perplexity {
            return None;
        }
        if !self.from_floored_rows {
            return LlamaPerplexity::of_records(records);
        }
        let records_as_stored: Vec<TokenRecord> = records
            .iter()
            .zip(measured)
            .map(|(record, measured)| match measured.llama_perplexity {
                Some(LlamaPerplexityScore { kld, ref_nll }) => TokenRecord {
                    kld,
                    ref_nll,
                    ..*record
                },
                None => *record,
            })
            .collect();
        LlamaPerplexity::of_records(&records_as_stored)
    }

    /// The distances in logit space of each record, if they are wanted.
    pub fn logit_metrics(self, measured: &[PositionMeasures]) -> Option<Vec<LogitMetrics>> {
        self.logits.then(|| {
            measured
                .iter()
                .map(|measures| measures.logits.unwrap_or(LogitMetrics::EXCLUDED))
                .collect()
        })
    }

    /// Summarises the distances in logit space, of the tokens that the statistics count.
    pub fn summarise(
        self,
        records: &[TokenRecord],
        metrics: &[LogitMetrics],
        confidence: Confidence,
        rule: ClusterRule,
    ) -> LogitSummary {
        let counted_metrics: Vec<LogitMetrics> = records
            .iter()
            .zip(metrics)
            .filter(|(record, _)| is_counted(record))
            .map(|(_, metrics)| *metrics)
            .collect();
        LogitSummary::from_metrics(
            &TokenTable::from_records(records),
            &counted_metrics,
            self.only_log_probabilities,
            confidence,
            rule,
        )
    }
}

#[cfg(test)]
mod tests {
    use kl_formats::Kind;

    use super::*;

    #[test]
    fn distances_are_of_the_tokens_that_the_statistics_count() {
        let reference = About::new(Kind::Kl, "ref", 1, 1);
        let measures = Measures::new(&[Stats::Logits], &reference, None);
        let metrics = |x: f64| LogitMetrics {
            mean_abs_diff: x,
            max_abs_diff: x,
            cosine_distance: x,
            jensen_shannon: x,
            smoothed_kld: x,
        };
        let summary = |records: &[TokenRecord], all: &[LogitMetrics]| {
            let rule = ClusterRule::Window;
            measures.summarise(records, all, Confidence::default(), rule)
        };
        let record = |i: u32| TokenRecord {
            window: i / 10,
            position: i % 10,
            ref_top_rank: 1,
            eval_top_rank: 1,
            ..TokenRecord::default()
        };
        let mut records: Vec<TokenRecord> = (0..20).map(record).collect();
        let mut all: Vec<LogitMetrics> = (0..20_u8).map(|i| metrics(f64::from(i))).collect();
        let counted = summary(&records, &all);
        // A probability of e^1000 is impossible, though no logit is marked.
        let (eval_nll, flags) = (-1000.0, 0);
        records.push(TokenRecord {
            eval_nll,
            flags,
            ..records[0]
        });
        all.push(metrics(1e6));
        assert_eq!(summary(&records, &all), counted);
    }
}
