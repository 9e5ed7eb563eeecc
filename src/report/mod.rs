//! Turns the numbers of an evaluation into text, tables and JSON.
//!
//! Nothing here prints. [`Report`] and all that it holds serialize to the JSON: their fields are
//! its keys.

mod breakdown;
pub mod comparison;
mod condition;
mod info;
mod json;
mod named_numbers;
pub mod number;
pub mod page;
mod result;
#[cfg(test)]
mod schema;
#[cfg(test)]
mod tests;
mod text;
mod versions;
mod warning;
pub mod wrap;

pub use condition::{Condition, ConditionError, judge};
pub use info::{GroupInfo, Info, Verified, info_text, verified_text};
pub use json::json_text;
pub use result::{
    DeviceInfo, DivergentToken, Failure, HeadInfo, HereInfo, Interrupted, ModelInfo, ModelReport,
    NotAvailable, PromptReport, PromptsInfo, Reason, ReferenceInfo, Report, RowError, StatesInfo,
    TimingInfo, TokenColumns, TokenContext, TopToken, UntilInfo, Verdict, without_part,
};
pub use text::text_report;
pub use versions::Versions;
pub use warning::{DeviceWait, Warning};
