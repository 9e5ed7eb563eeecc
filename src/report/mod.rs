//! Estimates in; text, tables and JSON out. Nothing here prints.

mod logit_metrics;
mod model;
pub mod number;
mod table;
mod text;

pub use logit_metrics::logit_section;
pub use model::{Failure, ModelInfo, ModelReport, ReferenceInfo, Report, TimingInfo};
pub use table::summary_table;
pub use text::text_report;
