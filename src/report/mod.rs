//! Turns the numbers of an evaluation into text, tables and JSON.
//!
//! Nothing here prints. [`Report`] and all that it holds serialize to the JSON: their fields are
//! its keys.

pub mod comparison;
mod condition;
mod doubts;
mod info;
pub mod layout;
mod named_numbers;
pub mod number;
mod one_line;
pub mod page;
mod result;
pub mod set_up;
#[cfg(test)]
pub(crate) mod tests;
mod text;
mod warning;

pub use condition::{Condition, Reason, Verdict, judge};
pub use doubts::{doubts_of_model, doubts_of_models};
pub use info::{GgufInfo, GroupInfo, Info, TensorTypeInfo, Verified, info_text, verified_text};
pub use one_line::one_line;
pub use result::{
    DivergentToken, Failure, HeadInfo, Interrupted, ModelInfo, ModelReport, ModelResult,
    NotAvailable, PromptReport, PromptsInfo, ReferenceInfo, Report, StatesInfo, TimingInfo,
    TokenColumns, TopToken, Versions, WorstText, WorstToken, WorstTop, json_text,
    notable_core_wait, unit, without_part,
};
pub use text::text_report;
pub use warning::Warning;
