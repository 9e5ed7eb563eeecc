//! Samples in, estimates with intervals out: pure functions, no I/O.
//!
//! [`Tokens::summarise`] computes the statistics of one evaluation from its per-token records, in this
//! order, and no module uses one that comes after it:
//!
//! 1. `token`: whether a record is counted; `columns`: the numbers of those that are, with their
//!    `runs`, `spans` and greedy `answers`;
//! 2. `windows`: the sums of each window; `parts`, `neighbours`, `clusters`: tokens in clusters;
//! 3. `spread`: the error of a mean by cluster, and its interval;
//! 4. `clustered_mean`, `quantile`, `proportion`: estimates that have such intervals;
//! 5. `distribution`, `acceptance`, `perplexity`, `delta_p`, `identical_output`, `breakdown`: the
//!    parts of a report;
//! 6. `summary`: all of them.
//!
//! Two models on the same tokens are compared by `ratio`, `paired`, `span_ratio`, `significance` and
//! `pair`. Every result depends only on the samples and their order, never on threads or the clock.
//!
//! An undefined number is `None` (null in JSON), never NaN: a mean without samples, an interval
//! from one sample, a clustered interval from one cluster.
//!
//! The values pinned in the tests come from numpy and scipy: `oracle.py` in this folder prints
//! them.

mod acceptance;
mod answers;
mod breakdown;
mod cluster;
mod clustered_mean;
mod clusters;
mod columns;
#[cfg(test)]
#[path = "tests/coverage.rs"]
mod coverage_tests;
mod curves;
mod delta_p;
mod distribution;
mod estimate;
mod identical_output;
mod jackknife;
pub mod llama_perplexity;
mod logit_metrics;
mod mean;
mod most_divergent;
mod neighbours;
#[cfg(test)]
#[path = "tests/oracle.rs"]
pub mod oracle;
mod pair;
mod paired;
mod parts;
mod perplexity;
pub mod probability;
mod prompts;
mod proportion;
mod quantile;
mod ratio;
mod runs;
mod significance;
mod span_ratio;
mod spans;
mod spread;
mod summary;
mod token;
mod until;
mod windows;

pub use acceptance::{Acceptance, DEFAULT_DRAFTED, Drafted};
pub use breakdown::{Bin, Breakdown, FEW_TOKENS};
pub use cluster::Cluster;
pub use clustered_mean::ClusteredMean;
pub use clusters::{ClusterKind, ClusterRule, Clustering, Clusters, WINDOWS_FOR_MOST_BLOCKS};
pub use columns::Columns;
pub use curves::Point;
pub use delta_p::DeltaP;
pub use distribution::{Distribution, MIN_WINDOWS_TO_PLAN};
pub use estimate::{Confidence, Estimate, share};
pub use identical_output::{IdenticalOutput, SharePoint};
pub use llama_perplexity::LlamaPerplexity;
pub use logit_metrics::{LogitSummary, LogitsNotAvailable, Metric};
pub use mean::MeanMax;
pub use most_divergent::MostDivergent;
pub use pair::{PairedComparison, PairedToken};
pub use paired::Paired;
pub use perplexity::Perplexity;
pub use prompts::{PromptLogits, PromptStats};
pub use quantile::QuantileEstimate;
pub use ratio::{PairSums, Ratio};
pub use runs::Run;
pub use significance::{ShareDifference, holm};
pub use span_ratio::SpanRatio;
pub use spans::{PartNames, TokenSpans};
pub use spread::ClusteredInterval;
pub use summary::{Agreement, Statistics, Summary, Tokens};
pub use token::{TokenLocation, is_counted};
pub use until::{KldSoFar, Until, UntilInfo};
pub use windows::Windows;
