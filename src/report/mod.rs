//! Estimates in; text, tables and JSON out. Nothing here prints.

mod llama_perplexity;
mod model;
pub mod number;
mod table;
mod text;

pub use model::{Failure, ModelInfo, ModelReport, ReferenceInfo, Report, TimingInfo};
pub use table::summary_table;
pub use text::text_report;
