//! Samples in, estimates with intervals out: pure functions, no I/O.
//!
//! The statistics of one evaluation go from its records to a [`Summary`] in these steps, and no module uses
//! one of a later step:
//!
//! 0. `probability`, `mean`, `estimate`: quantiles of distributions, sums with the interval of independent samples, and
//!    a value with its ends;
//! 1. `token`: whether a record is counted;
//! 2. `windows`: the sums of each window; `clusters`: tokens in clusters, as an [`Estimator`];
//! 3. `spread`: the error of a mean by cluster, and its interval, which is the one that is printed
//!    (`Spread::interval`);
//! 4. `clustered`, `quantile`: estimates that have such intervals, from a column of numbers that has NaN
//!    where a token does not count;
//! 5. `identical_output`, `table`: the counted tokens, which give the columns;
//! 6. `distribution`, `acceptance`, `perplexity`, `breakdown`: the parts of a report;
//! 7. `summary`: all of them.
//!
//! Two models on the same tokens are compared by `ratio` and, in depth, by `pair`. Every result depends only
//! on the samples and their order, never on threads or the clock.
//!
//! An undefined number is `None` (null in JSON), never NaN: a mean without samples, an interval
//! from one sample, a clustered interval from one cluster.
//!
//! The values pinned in the tests come from numpy and scipy: `oracle.py` in this folder, and then
//! `llama_perplexity_oracle.py`, print `tests/pinned.txt`.

mod acceptance;
mod breakdown;
mod clustered;
mod clusters;
#[cfg(test)]
#[path = "tests/coverage.rs"]
mod coverage_tests;
mod distribution;
mod estimate;
mod identical_output;
pub mod llama_perplexity;
mod logit_metrics;
mod mean;
#[cfg(test)]
#[path = "tests/oracle.rs"]
pub mod oracle;
mod pair;
mod perplexity;
pub mod probability;
mod prompts;
mod quantile;
mod ratio;
mod spread;
mod summary;
mod table;
mod token;
mod until;
mod windows;

pub use acceptance::{Acceptance, DEFAULT_DRAFTED, Drafted};
pub use breakdown::{Bin, Breakdown, FEW_TOKENS};
pub use clustered::ClusteredMean;
pub use clusters::{
    ClusterKind, ClusterRule, Clustering, Clusters, Estimator, WINDOWS_FOR_MOST_BLOCKS,
};
pub use distribution::{DeltaP, Distribution, Point};
pub use estimate::{Confidence, Estimate, share};
pub use identical_output::{IdenticalOutput, SharePoint};
pub use llama_perplexity::LlamaPerplexity;
pub use logit_metrics::{LogitSummary, LogitsNotAvailable, Metric};
pub use mean::{MeanMax, Totals};
pub use pair::{PairedComparison, PairedToken};
pub use perplexity::Perplexity;
pub use prompts::{PromptLogits, PromptStats};
pub use quantile::{QuantileEstimate, linear, sorted};
pub use ratio::{Paired, Ratio, SpanRatio, holm, p_no_farther};
pub use spread::{ClusteredInterval, ShareDifference};
pub use summary::{Agreement, Statistics, Summary};
pub use table::{PartNames, TokenTable};
pub use token::{
    ExcludedTokens, MostDivergent, TokenLocation, is_counted, usable_kld, usable_klds,
};
pub use until::{KldSoFar, MIN_WINDOWS_TO_PLAN, UntilInfo};
pub use windows::{Cluster, Run, WindowPiece, WindowSums};
