//! The prompts of a reference as the model read them, and their answers, as text.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kl_engine::{Engine, ModelOptions};
use kl_formats::{Reference, WindowSpec};
use kl_report::PromptText;

use super::observer::{Observer, Watch};
use super::reference::{EvaluatedEntries, check_vocabulary, read_windows};
use super::settings::ComparedVocabulary;

/// Reads the prompts of a reference and their answers, in the order of the file. A reference holds
/// tokens: `model` has their texts, or the model that wrote it, if it is in the current folder or beside
/// the reference. Of the model, only the vocabulary is read.
///
/// # Errors
/// A file without prompts, a model that is not there or has another vocabulary, or damage.
pub fn prompt_texts(
    path: &Path,
    model: Option<&Path>,
    engine: &dyn Engine,
    observer: &dyn Observer,
) -> Result<Vec<PromptText>> {
    let shown_path = path.display();
    let reference = Reference::open(path)?;
    let about = reference.about();
    let Some(prompts) = &about.prompts else {
        bail!(
            "{shown_path}: its windows are not prompts: kl --prompts writes a reference of prompts"
        );
    };
    let writer_name = about
        .model
        .as_ref()
        .and_then(|model| model.file_name.as_deref());
    let in_current_folder = writer_name.map(PathBuf::from);
    let beside_reference = writer_name.map(|name| path.with_file_name(name));
    let Some(model) = model.map(Path::to_owned).or_else(|| {
        in_current_folder
            .into_iter()
            .chain(beside_reference)
            .find(|path| path.is_file())
    }) else {
        let name = writer_name.unwrap_or("the model that wrote it");
        bail!(
            "{shown_path}: holds tokens, whose texts are in {name}, which is not in this folder: name it, or a quant of it, with -m"
        );
    };
    let options = ModelOptions {
        is_without_weights: true,
        ..ModelOptions::default()
    };
    let model = engine.load(&model, &options)?;
    let (entries, watch) = (
        EvaluatedEntries::from_model(model.facts()),
        &Watch::new(observer),
    );
    check_vocabulary(about, &entries, ComparedVocabulary::Same, watch)?;
    let windows = read_windows(&reference, watch)?;
    let text = |window: &WindowSpec| {
        let prompt = prompts.list.get(window.window as usize)?;
        let n_prompt = (prompt.n_tokens as usize).min(window.tokens.len());
        let (prompt, answer) = window.tokens.split_at(n_prompt);
        let group = about.groups.as_ref().and_then(|groups| {
            let group = groups.of_window(window.window);
            groups.names().get(group as usize).cloned()
        });
        Some(PromptText {
            window: window.window,
            group,
            n_prompt_tokens: prompt.len() as u32,
            prompt: model.text(prompt),
            n_answer_tokens: answer.len() as u32,
            answer: model.text(answer),
        })
    };
    Ok(windows.iter().filter_map(text).collect())
}
