//! Samples in, estimates with intervals out: pure functions, no I/O.
//!
//! [`Summary::from_records`] computes the statistics of one evaluation from its per-token records;
//! the other modules hold one estimator each. Every result depends only on the samples and their
//! order, never on threads or the clock.
//!
//! An undefined number is `None` (null in JSON), never NaN: a mean without samples, an interval
//! from one sample, a clustered interval from one cluster.
//!
//! The values pinned in the tests come from numpy and scipy: `oracle.py` in this folder prints
//! them.

pub mod breakdown;
pub mod cluster;
pub mod clustered_error;
pub mod clustered_mean;
mod columns;
#[cfg(test)]
#[path = "tests/coverage.rs"]
mod coverage_tests;
pub mod curves;
pub mod delta_p;
pub mod distribution;
pub mod estimate;
pub mod exclusion;
pub mod llama_perplexity;
pub mod logit_metrics;
pub mod mean;
pub mod most_divergent;
#[cfg(test)]
#[path = "tests/oracle.rs"]
pub mod oracle;
pub mod pair;
pub mod paired;
pub mod perplexity;
pub mod probability;
pub mod prompts;
pub mod proportion;
pub mod quantile;
mod running;
pub mod significance;
mod strata;
pub mod summary;
mod until;

pub use breakdown::{Bin, Breakdown};
pub use cluster::{
    ClusterKind, ClusterRule, Clustering, Clusters, MIN_CLUSTERS, MIN_WINDOWS_IN_BLOCKS,
};
pub use clustered_error::ClusteredInterval;
pub use clustered_mean::{ClusteredMean, ClusteredValue};
pub use columns::{Columns, Run};
pub use curves::Point;
pub use delta_p::DeltaP;
pub use distribution::{Distribution, Tail, TokenLocation};
pub use estimate::{Confidence, ConfidenceError, Estimate};
pub use exclusion::{ExcludedToken, ExclusionReason, is_counted};
pub use llama_perplexity::LlamaPerplexity;
pub use logit_metrics::{LogitDistances, LogitSummary, LogitsNotAvailable, Metric};
pub use most_divergent::MostDivergent;
pub use pair::{EntropyBin, Nearer, PairedComparison, PairedToken};
pub use paired::PairedDifference;
pub use perplexity::Perplexity;
pub use prompts::{MeanMax, PromptLogits, PromptStats};
pub use proportion::Share;
pub use quantile::QuantileEstimate;
pub use running::{RunningInterval, RunningMean};
pub use significance::{McNemar, SignTest, holm};
pub use strata::Cluster;
pub use summary::{Agreement, Statistics, Summary, UnknownP};
pub use until::{Until, UntilInfo};
