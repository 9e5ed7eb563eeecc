//! The answers that a run has generated, kept beside its reference until that is whole.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Result, bail};
use kl_engine::{Engine, Model};
use kl_formats::{NativeReader, ReadBlocks as _};
use kl_report::Warning;
use kl_report::number::{count, count_of};

use crate::commands::context::{backend_identity, writer};
use crate::commands::input::answer_context;
use crate::commands::observer::Watch;
use crate::commands::output::{Existing, partial_path};
use crate::commands::resume::check_same_run;
use crate::commands::settings::WriteSettings;
use crate::input::{AnswerFile, AnswerRun};

/// The file that keeps the answers, `<reference>.answers.partial`; `None` where none are generated.
///
/// # Errors
/// If an earlier run has left a file, and this one neither continues it nor starts over.
pub fn path(settings: &WriteSettings) -> Result<Option<PathBuf>> {
    if settings.input.generate.is_none() {
        return Ok(None);
    }
    let mut name = OsString::from(&settings.output);
    name.push(".answers");
    let path = partial_path(name.as_ref());
    match settings.existing {
        Existing::Refuse(advice) if path.exists() => bail!(
            "{}: holds answers of a run that was cut off: {advice}",
            path.display()
        ),
        _ => Ok(Some(path)),
    }
}

/// The answers that are known before any is generated: those of the file at `path`, and of the reference
/// that an earlier run began.
///
/// # Errors
/// If the file is of another run, or cannot be read; if the reference cannot.
pub fn read(
    path: PathBuf,
    settings: &WriteSettings,
    engine: &dyn Engine,
    model: &dyn Model,
    begun: Option<&NativeReader>,
    watch: &Watch<'_>,
) -> Result<AnswerFile> {
    let WriteSettings { run, input, .. } = settings;
    // Batches are chosen for the longest window, which is not known yet, and for the memory that is
    // free: what the user set stands for them.
    let mut backend = backend_identity(engine, model, &answer_context(run, model, 1, 1))?;
    (backend.n_batch, backend.n_ubatch) = (run.n_batch, run.n_ubatch);
    (backend.n_seq, backend.equal_calls) = (run.n_parallel, None);
    let this_run = AnswerRun {
        backend,
        generated: input.generate,
        model: model.facts().identity.clone(),
        n_ctx: input.n_ctx,
        sampling: input.sampling(),
        writer: writer(),
    };
    let mut earlier_answers = None;
    if settings.existing == Existing::Resume {
        earlier_answers = AnswerFile::read(&path)?;
    }
    if let Some(earlier_answers) = &earlier_answers {
        check_same_run(&path, &earlier_answers.run, &this_run, "prompts")?;
        watch.warn_all(damage_warning(earlier_answers));
    }
    let mut answers = earlier_answers.unwrap_or_else(|| AnswerFile::new(path, this_run));
    if let Some(begun) = begun.filter(|begun| begun.header.generated.is_some()) {
        learn_from_reference(&mut answers, begun)?;
    }
    Ok(answers)
}

/// The warning that lines of the file are damaged, if any are.
fn damage_warning(answers: &AnswerFile) -> Option<Warning> {
    let n = answers.n_damaged as u64;
    let message = format!(
        "{}: {} not as kl wrote it (wrong checksum): what it held is generated again",
        answers.path.display(),
        count_of(n, "line")
    );
    (n > 0).then(|| Warning::new("damaged_answers", message))
}

/// Reads the answers that the windows of a reference hold.
fn learn_from_reference(answers: &mut AnswerFile, begun: &NativeReader) -> Result<()> {
    for index in 0..begun.windows().len() {
        let window = begun.window(index)?;
        let prompts = begun.header.prompts.as_ref();
        let prompt = prompts.and_then(|prompts| prompts.get(window.window as usize));
        let n_prompt = prompt.map_or(0, |prompt| prompt.n_tokens as usize);
        let prompt_and_answer = window.tokens.split_at_checked(n_prompt);
        // A conversation may have ended before this window.
        if let Some((prompt, answer)) = prompt_and_answer.filter(|(_, answer)| !answer.is_empty()) {
            answers.learn(window.window, prompt, answer);
        }
    }
    Ok(())
}

/// The end of an error message: how many answers are kept, and where.
pub fn kept_answers(answers: &AnswerFile) -> String {
    match answers.n_answers {
        0 => String::new(),
        n => format!(
            "; {} keeps the answers to {} prompts: --resume continues it",
            answers.path.display(),
            count(n as u64)
        ),
    }
}
