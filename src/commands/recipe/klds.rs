//! The KLDs of a model's tokens, and what two models' come to.

use kl_formats::TokenRecord;

use crate::stats::{
    ClusterRule, Clusters, Confidence, Estimate, Paired, Run, WindowSums, is_counted, usable_kld,
};

/// The KLD of each token of some windows, in nats: NaN where it is not counted or not finite.
#[derive(Debug, Clone, Default)]
pub struct Klds {
    runs: Vec<Run>,
    klds: Vec<f64>,
    /// Tokens with a row that is not finite.
    pub n_excluded: u64,
    /// Tokens with an infinite KLD.
    pub n_infinite: u64,
}

impl Klds {
    /// Adds the tokens of a window.
    pub fn add(&mut self, records: &[TokenRecord]) {
        for record in records {
            Run::add(&mut self.runs, record);
            let is_counted = is_counted(record);
            self.n_excluded += u64::from(!is_counted);
            self.n_infinite += u64::from(is_counted && !record.kld.is_finite());
            self.klds.push(usable_kld(record));
        }
    }

    /// The tokens that are counted.
    pub fn n_tokens(&self) -> u64 {
        self.klds.iter().filter(|kld| kld.is_finite()).count() as u64
    }

    /// The windows.
    pub fn n_windows(&self) -> u64 {
        WindowSums::from_tokens(&self.runs, &self.klds).count() as u64
    }

    /// The mean KLD; `None` without tokens.
    pub fn mean(&self) -> Option<f64> {
        let counted = self.klds.iter().filter(|kld| kld.is_finite());
        let (n, sum) = counted.fold((0_u64, 0.0), |(n, sum), kld| (n + 1, sum + kld));
        (n > 0).then(|| sum / n as f64)
    }

    /// The clusters of these tokens: chosen once for all that is measured on them.
    pub fn clusters(&self, rule: ClusterRule) -> Clusters {
        Clusters::by_rule(&WindowSums::from_tokens(&self.runs, &self.klds), rule)
    }

    /// The mean KLD with its clustered interval; `None` without tokens.
    pub fn estimate(&self, clusters: &Clusters, confidence: Confidence) -> Option<Estimate> {
        let estimator = clusters.estimator(&self.runs, confidence);
        let mean = estimator.mean_of_positive(self.klds.iter().copied())?;
        Some(mean.estimate())
    }

    /// This model over another, on the tokens that both count; `None` without any.
    pub fn over(
        &self,
        other: &Self,
        clusters: &Clusters,
        confidence: Confidence,
    ) -> Option<Paired> {
        let estimator = clusters.estimator(&self.runs, confidence);
        Paired::compare(&estimator, &self.klds, &other.klds)
    }
}
