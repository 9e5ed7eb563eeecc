//! Results, and what they look like: text, tables, Markdown, CSV, JSON and pages. Nothing here prints, or knows how a
//! result was measured.
//!
//! Each JSON document is one struct, whose fields are its keys: [`Report`] is that of an evaluation,
//! [`comparison::Comparison`] that of `kl report`, [`comparison::InDepth`] that of `kl report --pair`,
//! [`check::Check`] that of `kl check`, and [`Info`] that of `kl info`. A model of the first two is a [`ModelResult`] and
//! more. All other outputs show the values of these structs. [`Warning`]s are values too, which all above give.
//!
//! Begin with [`comparison::Comparison`] for a table or a page of several models, with [`text_report`] for one.

mod band;
pub mod check;
pub mod comparison;
mod condition;
mod device_time;
mod doubts;
pub mod identical_output;
mod info;
pub mod layout;
mod named_numbers;
pub mod names;
pub mod number;
pub mod page;
pub mod pick;
mod result;
pub mod set_up;
mod speed;
pub mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod text;
mod warning;

pub use condition::{Condition, Reason, Verdict, judge, judge_pair};
pub use device_time::DeviceTime;
pub use doubts::{
    doubts_of_model, doubts_of_models, empty_groups, faulty_rows, few_windows, left_out_tokens,
    unknown_caches,
};
pub use info::{
    COMPARED_ROWS, FileKind, Finding, FindingKind, GgufInfo, GroupInfo, Info, MapInfo, PromptText,
    TensorTypeInfo, Verification, Verified, WeightError, info_text, planned_lines, prompts_text,
    verified_text,
};
pub use result::{
    ContextMemory, DivergentToken, Failure, Interrupted, ModelInfo, ModelReport, ModelResult,
    NotAvailable, PromptReport, PromptsInfo, ReferenceInfo, Report, RowsHere, StatesInfo,
    TimingInfo, TokenColumns, TopToken, Versions, WorstText, WorstToken, json_text,
    notable_core_wait, unit, without_part,
};
pub use text::{model_line, text_report};
pub use warning::Warning;
