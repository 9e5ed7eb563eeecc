//! The lines that a person reads before a reference is written: model, input, windows, sizes, file.

use kl_formats::{About, States, Target};

use super::choice::Choice;
use crate::commands::input::in_words;
use crate::commands::observer::{Event, Watch};
use crate::commands::output::{PartialFile, free_space};
use crate::commands::settings::WriteSettings;
use crate::engine::Model;
use crate::report::number::{bytes, count, count_of, printable};

fn say(watch: &Watch<'_>, name: &str, text: &str) {
    watch.event(&Event::Plan(name, text));
}

/// Describes the model, the input, which part of it is written, and the size of the file in each encoding
/// where there is a choice.
pub fn input<M: Model + Sync>(choice: &Choice<'_, '_, M>, about: &About, watch: &Watch<'_>) {
    let (settings, facts, input) = (choice.settings, choice.model.facts(), choice.input);
    let identity = facts.identity.clone();
    let size = bytes(identity.shown_bytes().unwrap_or(0));
    let name = identity.name.or(identity.file_name).unwrap_or_default();
    let n_vocab = count(u64::from(facts.n_vocab));
    let text = format!("{} ({size}), {n_vocab} entries in a row", printable(&name));
    say(watch, "model", &text);
    for (name, text) in in_words(input, &settings.input, settings.target == Target::LlamaCpp) {
        say(watch, name, &text);
    }
    if input.prompts.is_none() && facts.chat_template.is_some() {
        let text = "has a template, which a text does not use; --prompts uses it";
        say(watch, "chat", text);
    }
    if let Some(shard) = input.shard {
        let parts = count_of(shard.count.into(), "part");
        let windows = count_of(shard.n_windows.into(), "window");
        let text = format!("{} (from 0) of {parts} of {windows}", shard.index);
        say(watch, "part", &text);
    }
    let sizes = choice.sizes(about).into_iter();
    let sizes: Vec<String> = sizes
        .map(|(encoding, size)| format!("{encoding} {}", bytes(size)))
        .collect();
    if !sizes.is_empty() {
        say(watch, "sizes", &sizes.join(", "));
    }
}

/// States how hidden states are stored, and how many rows of a trial they gave to the bit.
pub fn states(target: Target, states: &States, watch: &Watch<'_>) {
    let text = format!(
        "{} ({}): {} computed again, all to the bit",
        target.encoding(),
        states.state_type.name(),
        count_of(states.check.n_rows, "row")
    );
    say(watch, "encoding", &text);
}

/// Names the file to be written, and how many windows an earlier run has left.
pub fn file(
    settings: &WriteSettings,
    output: &PartialFile,
    size: u64,
    n_whole: usize,
    watch: &Watch<'_>,
) {
    let free = free_space(output.path()).map_or_else(|| "unknown".to_owned(), bytes);
    let (path, target, size) = (settings.output.display(), settings.target, bytes(size));
    let text = format!("{path} ({target}), at most {size}; {free} free");
    say(watch, "file", &text);
    if n_whole > 0 {
        let windows = count_of(n_whole as u64, "whole window");
        let path = output.path().display();
        say(watch, "resume", &format!("after the {windows} of {path}"));
    }
}
