//! Estimates in; text, tables and JSON out. Nothing here prints.

mod condition;
mod llama_perplexity;
mod logit_metrics;
mod model;
pub mod number;
mod prompts;
mod table;
mod text;
mod tokens;
mod top;

pub use condition::{Condition, ConditionError, Verdict, judge};
pub use model::{
    Failure, Interrupted, Lacking, ModelInfo, ModelReport, PromptsInfo, ReferenceInfo, Report,
    TimingInfo,
};
pub use prompts::PromptReport;
pub use table::summary_table;
pub use text::text_report;
pub use tokens::TokenColumns;
pub use top::{Choice, Surroundings, TopToken};
