//! The lines that a person reads before a reference is written: model, input, windows, sizes, file.

use kl_report::number::{bytes, count_of};

use super::choice::Choice;
use crate::commands::input::announce;
use crate::commands::observer::{Event, Watch};
use crate::commands::output::{PartialFile, free_space};

/// Reports a line of the plan.
fn say(watch: &Watch<'_>, name: &str, text: &str) {
    watch.event(&Event::Plan(name, text));
}

/// Describes the model, the input, which part of it is written, and the size of the file in each encoding
/// where there is a choice.
pub fn input(choice: &Choice<'_, '_>, watch: &Watch<'_>) {
    announce(&choice.about, watch);
    if choice.input.prompts.is_none() && choice.model.facts().chat_template.is_some() {
        let text = "has a template, which a text does not use; --prompts uses it";
        say(watch, "chat", text);
    }
    let sizes: Vec<String> = choice
        .sizes(&choice.input.plan.windows)
        .into_iter()
        .map(|(target, size)| format!("{} {}", target.encoding(), bytes(size)))
        .collect();
    if sizes.len() > 1 {
        say(watch, "sizes", &sizes.join(", "));
    }
}

/// States which encoding was chosen and why, how hidden states are stored, and how many rows of a trial they
/// gave to the bit; then the file to be written, and how many windows an earlier run has left.
pub fn file(choice: &Choice<'_, '_>, output: &PartialFile, n_whole: usize, watch: &Watch<'_>) {
    let target = choice.target;
    let mut encoding = target.encoding().to_string();
    if let Some(states) = &choice.about.states {
        let rows = count_of(states.check.n_rows, "row");
        let kind = states.state_type.name();
        encoding += &format!(" ({kind}): {rows} computed again, all to the bit");
    }
    if let Some(default) = &choice.default {
        encoding += &default.reason;
    }
    if choice.about.states.is_some() || choice.default.is_some() {
        say(watch, "encoding", &encoding);
    }
    let free = free_space(output.path()).map_or_else(|| "unknown".to_owned(), bytes);
    let path = choice.settings.output.display();
    let size = bytes(choice.max_bytes());
    let text = format!("{path} ({target}), at most {size}; {free} free");
    say(watch, "file", &text);
    if n_whole > 0 {
        let windows = count_of(n_whole as u64, "whole window");
        let path = output.path().display();
        say(watch, "resume", &format!("after the {windows} of {path}"));
    }
}
