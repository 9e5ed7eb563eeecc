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
    on_its_own_rows: bool,
    /// True if distances in logit space are wanted.
    logits: bool,
    /// True if rows are log-probabilities, from which the logits cannot be recovered.
    only_log_probabilities: bool,
}

/// The measures at one position.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    llama_perplexity: Option<LlamaPerplexityScore>,
    logits: Option<LogitMetrics>,
}

impl Measures {
    /// `evaluated` describes the file whose rows are evaluated, if no model computes them.
    pub fn new(stats: &[Stats], reference: &About, evaluated: Option<&About>) -> Self {
        let llama_perplexity = stats.contains(&Stats::LlamaPerplexity);
        Self {
            llama_perplexity,
            on_its_own_rows: llama_perplexity
                && reference.values == Values::FlooredLogProbabilities,
            logits: stats.contains(&Stats::Logits),
            only_log_probabilities: reference.holds_log_probabilities()
                || evaluated.is_some_and(About::holds_log_probabilities),
        }
    }

    /// True if anything is measured besides records.
    pub fn any(self) -> bool {
        self.on_its_own_rows || self.logits
    }

    /// Measures a pair of rows.
    pub fn measure(self, pair: &RowPair<'_>) -> Measured {
        Measured {
            llama_perplexity: self
                .on_its_own_rows
                .then(|| LlamaPerplexityScore::new(pair.reference, pair.eval, pair.next)),
            logits: self.logits.then(|| logit_metrics(pair)),
        }
    }

    /// llama-perplexity's statistics, if they are wanted and there are enough tokens.
    pub fn llama_perplexity(
        self,
        records: &[TokenRecord],
        measured: &[Measured],
    ) -> Option<LlamaPerplexity> {
        if !self.llama_perplexity {
            return None;
        }
        if !self.on_its_own_rows {
            return LlamaPerplexity::of_records(records);
        }
        let measured = records.iter().zip(measured);
        let as_stored = measured.map(|(record, measured)| match measured.llama_perplexity {
            Some(LlamaPerplexityScore { kld, ref_nll }) => TokenRecord {
                kld,
                ref_nll,
                ..*record
            },
            None => *record,
        });
        LlamaPerplexity::of_records(&as_stored.collect::<Vec<_>>())
    }

    /// The distances in logit space of each record, if they are wanted.
    pub fn logit_metrics(self, measured: &[Measured]) -> Option<Vec<LogitMetrics>> {
        let metrics_of = |of: &Measured| of.logits.unwrap_or(LogitMetrics::EXCLUDED);
        self.logits
            .then(|| measured.iter().map(metrics_of).collect())
    }

    /// Summarises the distances in logit space, of the tokens that the statistics count.
    pub fn summarise(
        self,
        records: &[TokenRecord],
        metrics: &[LogitMetrics],
        confidence: Confidence,
        rule: ClusterRule,
    ) -> LogitSummary {
        let metrics = records.iter().zip(metrics);
        let counted = metrics.filter(|(record, _)| is_counted(record));
        let metrics: Vec<LogitMetrics> = counted.map(|(_, metrics)| *metrics).collect();
        let (table, only) = (
            TokenTable::from_records(records),
            self.only_log_probabilities,
        );
        LogitSummary::from_metrics(&table, &metrics, only, confidence, rule)
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
