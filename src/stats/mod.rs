//! Samples in, estimates with intervals out: pure functions, no I/O.
//!
//! [`Summary::from_records`] turns the per-token records of one evaluation into every number the
//! report and the JSON show; the other modules hold one estimator each. Every result depends on
//! the samples and their order alone, never on threads or the clock.
//!
//! What is undefined is `None` (null in JSON), never NaN: no samples, no interval from one sample,
//! no clustered interval from one window.
//!
//! The values pinned in the tests come from numpy and scipy; `oracle.py`, beside this file, prints
//! them.

mod beta;
pub mod cluster;
pub mod delta_p;
pub mod distribution;
pub mod estimate;
pub mod llama_perplexity;
pub mod logit_metrics;
pub mod mean;
#[cfg(test)]
mod oracle;
pub mod perplexity;
pub mod prompts;
pub mod proportion;
pub mod quantile;
pub mod student;
pub mod summary;
pub mod worst;

pub use cluster::ClusteredMean;
pub use delta_p::DeltaP;
pub use distribution::{Distribution, TokenLocation};
pub use estimate::{Confidence, ConfidenceError, Estimate, Uncertain};
pub use llama_perplexity::LlamaPerplexity;
pub use logit_metrics::{LogitDistances, LogitSummary, Metric, NotAvailable};
pub use mean::Running;
pub use perplexity::Perplexity;
pub use prompts::{MeanMax, PromptLogits, PromptStats};
pub use quantile::QuantileEstimate;
pub use summary::{Agreement, Cause, ExcludedToken, Summary};
pub use worst::Worst;
