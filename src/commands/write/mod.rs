//! Writes a reference: a model runs over a text or prompts, and its logits are kept, or the hidden
//! states that they can be computed from.

mod announce;
mod answers;
mod choice;

use std::cell::Cell;
use std::fs::File;
use std::io::BufWriter;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use kl_formats::{About, Kind, NativeReader, Target, Writer, n_rows};

use super::context::{Precedent, Split, check_parallel, largest_context};
use super::devices::{self, connect_devices};
use super::input::{self, Answering};
use super::observer::{Observer, Watch};
use super::output::{Existing, NewFile, PartialFile, check_free_space, free_space, partial_path};
use super::resume;
use super::settings::WriteSettings;
use crate::engine::{Engine, Model, Room};
use crate::input::{AnswerFile, PreparedInput, RawInput, Selection};
use crate::pipeline::{self, Error, Sources, StateSource, Timing, write_reference};
use crate::report::number::bytes;
use crate::report::{Warning, few_windows, unit};
use crate::score::RowError;
use crate::stats::Clustering;
use answers::Kept;
use choice::{ADVICE, Choice};

/// A reference that was written.
#[derive(Debug, Default)]
pub struct Written {
    /// The file, whose rows are those that this run computed: none if it was whole before.
    pub file: NewFile,
    /// Tokens that this run decoded.
    pub n_tokens: u64,
    /// Where hidden states are stored: how the rows that were computed from them again compare with
    /// the model's own.
    pub checked: Option<RowError>,
    /// Where the time went.
    pub timing: Timing,
    /// The time of the trial of hidden states, and of computing rows again.
    pub check_time: Duration,
}

/// Writes a reference.
///
/// # Errors
/// What is wrong with the input, the model or the output. A native file that was cut off keeps its
/// whole windows, for `--resume`.
pub fn write<E: Engine>(
    settings: &WriteSettings,
    engine: &E,
    observer: &dyn Observer,
) -> Result<Written> {
    let watch = &Watch::new(observer);
    let started = Instant::now();
    let raw = input::read(&settings.input, watch)?;
    check_parallel(&settings.run, engine, &settings.model)?;
    // Claimed before the model is loaded: a bad path fails now, not hours later.
    let (output, left) = open(settings)?;
    let kept_answers = Kept::of(settings)?;
    connect_devices(engine, &settings.run, watch)?;
    let backend_of_left = left
        .reader()
        .and_then(|left| left.header().backend.as_ref());
    let precedent = Precedent::of(settings.target.assumed_backend().as_ref());
    let precedent = precedent.or_begun(backend_of_left);
    let model = load(settings, engine, precedent, watch)?;
    let read = |kept: Kept<'_>| kept.read(engine, &model, left.reader());
    let mut answers = kept_answers.map(read).transpose()?;
    let preparation = Preparation {
        settings,
        engine,
        model: &model,
        precedent,
        output: &output,
        left: &left,
        watch,
    };
    let input = preparation.prepare(raw, answers.as_mut())?;

    let choice = Choice::new(&model, settings, &input, precedent);
    let mut about = choice.describe(engine)?;
    let mut written = match left {
        Left::Whole(whole) => {
            choice.as_begun(&whole, &mut about)?;
            let mut written = Written::default();
            (written.file.was_whole, written.file.file_bytes) = (true, whole.file_bytes());
            written
        }
        Left::Begun(begun) => write_missing(&choice, about, output, Some(begun), watch)?,
        Left::Nothing => write_missing(&choice, about, output, None, watch)?,
    };
    if let Some(answers) = answers {
        answers.remove()?;
    }
    model.drop_last();
    written.file.path = settings.output.display().to_string();
    written.file.wall_s = started.elapsed().as_secs_f64();
    written.file.warnings = watch.warnings();
    Ok(written)
}

/// The part of the file that an earlier run has left, for `--resume`.
enum Left {
    Nothing,
    /// The run was cut off.
    Begun(NativeReader),
    /// The run was not cut off, or was resumed already.
    Whole(NativeReader),
}

impl Left {
    fn reader(&self) -> Option<&NativeReader> {
        match self {
            Self::Nothing => None,
            Self::Begun(reader) | Self::Whole(reader) => Some(reader),
        }
    }
}

/// Claims the output, and opens what an earlier run has left of it.
fn open(settings: &WriteSettings) -> Result<(PartialFile, Left)> {
    let (path, existing) = (&settings.output, settings.existing);
    let may_be_whole = existing == Existing::Resume && !partial_path(path).exists();
    let whole = may_be_whole
        .then(|| NativeReader::open(path).ok())
        .flatten();
    let may_replace = existing == Existing::Replace || whole.is_some();
    let output = PartialFile::create(path, may_replace, existing)?;
    let left = if let Some(whole) = whole {
        Left::Whole(whole)
    } else if settings.target.kind() == Kind::Kl {
        resume::cut_off(&output)?.map_or(Left::Nothing, Left::Begun)
    } else {
        Left::Nothing
    };
    Ok((output, left))
}

fn load<'e, E: Engine>(
    settings: &WriteSettings,
    engine: &'e E,
    precedent: Precedent,
    watch: &Watch<'_>,
) -> Result<E::Model<'e>> {
    let room = || Room {
        context: largest_context(&settings.run, settings.input.n_ctx(), precedent),
        n_contexts: settings.run.n_contexts(true),
        second_model: None,
    };
    Ok(devices::load(
        engine,
        &settings.model,
        &settings.run,
        room,
        watch,
    )?)
}

/// What is known once the model is loaded, before the input is tokenized and prompts are answered.
struct Preparation<'p, 'e, E: Engine> {
    settings: &'p WriteSettings,
    engine: &'e E,
    model: &'p E::Model<'e>,
    precedent: Precedent,
    output: &'p PartialFile,
    left: &'p Left,
    watch: &'p Watch<'p>,
}

impl<E: Engine> Preparation<'_, '_, E> {
    /// Cuts the windows, and lets the model answer prompts, once the plan of them is checked. `answers`
    /// are those that an earlier run has generated.
    fn prepare(
        &self,
        raw: RawInput<'_>,
        mut answers: Option<&mut AnswerFile>,
    ) -> Result<PreparedInput> {
        let settings = self.settings;
        let selection = Selection {
            max_rows: settings.run.max_rows,
            part: settings.part,
            n_first_rows: if settings.target.encoding().holds_states() {
                choice::N_TRIAL_ROWS
            } else {
                0
            },
        };
        let is_checked = Cell::new(false);
        let check = |planned: &PreparedInput| {
            self.check_plan(planned)?;
            is_checked.set(true);
            Ok(())
        };
        let answering = answers.as_deref_mut().map(|kept| Answering {
            kept: Some(kept),
            check: &check,
        });
        let in_chunks = settings.target == Target::LlamaCpp;
        let (model, run) = (self.model, &settings.run);
        let prepared = input::prepare(
            raw, model, run, in_chunks, &selection, answering, self.watch,
        );
        match (prepared, answers) {
            (Err(error), Some(answers)) if is_checked.get() => {
                bail!("{error:#}{}", answers::kept(answers))
            }
            (prepared, _) => {
                let input = prepared?;
                if !is_checked.get() {
                    self.warn_of_few(&input);
                }
                Ok(input)
            }
        }
    }

    /// Checks the plan of the windows before any answer is generated, which can take hours.
    fn check_plan(&self, planned: &PreparedInput) -> Result<()> {
        self.warn_of_few(planned);
        let choice = Choice::new(self.model, self.settings, planned, self.precedent);
        let mut about = choice.describe(self.engine)?;
        let left = self.left.reader();
        if let Some(left) = left {
            choice.check_planned(left, &mut about)?;
        }
        if !matches!(self.left, Left::Whole(_)) {
            let there = left.map_or(0, NativeReader::windows_end);
            let size = choice.planned_bytes(&mut about).saturating_sub(there);
            let free = free_space(self.output.path()).filter(|&free| size > free);
            self.watch.warn_all(free.map(|free| {
                let message = format!(
                    "{}: if every answer is as long as --generate allows, the reference takes {}, but the disk has {} free: free some, or the run may end after its answers are generated; --resume uses them then",
                    self.settings.output.display(),
                    bytes(size),
                    bytes(free)
                );
                Warning::new("may_not_fit", message)
            }));
        }
        Ok(())
    }

    fn warn_of_few(&self, planned: &PreparedInput) {
        let lengths = planned.plan.windows.iter().map(|window| window.n_rows);
        let windows = Clustering::of_windows(lengths);
        let few = few_windows(&windows, windows.n, unit(planned.prompts.is_some()));
        // Of a part, the others are not counted.
        let is_part = self.settings.part.is_some();
        self.watch.warn_all(few.filter(|_| !is_part));
    }
}

/// Writes the windows that no earlier run has written.
fn write_missing<M: Model + Sync>(
    choice: &Choice<'_, '_, M>,
    mut about: About,
    mut output: PartialFile,
    mut begun: Option<NativeReader>,
    watch: &Watch<'_>,
) -> Result<Written> {
    let (settings, input) = (choice.settings, choice.input);
    let windows = &input.plan.windows;
    if let Some(begun) = &mut begun {
        choice.as_begun(begun, &mut about)?;
        resume::check_windows(begun, &input.plan)?;
        resume::keep_whole_calls(begun, windows.len(), choice.options_of(&about).n_seq);
    }
    let n_whole = begun.as_ref().map_or(0, |begun| begun.windows().len());
    let missing = windows.get(n_whole..).unwrap_or_default();

    announce::input(settings, choice.model, input, watch);
    announce::sizes(&choice.sizes(&mut about), watch);
    let trying = Instant::now();
    let mut hidden = match &begun {
        Some(_) => None,
        None => choice.try_states(&mut about, watch)?,
    };
    let trial_time = trying.elapsed();
    check_plan(choice, &about, &output, begun.as_ref(), watch)?;
    if let (Some(states), None) = (&about.states, &hidden) {
        hidden = Some(choice.source(states.clone())?);
    }
    let writer = open_writer(choice, &about, &output, begun.as_ref(), hidden.as_ref())?;
    if settings.target.kind() == Kind::Kl {
        output.keep_if_cut_off();
    }
    let phase = watch.begin("writing", Some(missing.len() as u64), Some(n_rows(missing)));
    let written = match &mut hidden {
        Some(hidden) => write_reference(Sources::ready(hidden), missing, writer, |step| {
            phase.step(step)
        }),
        None => write_reference(choice.sources(), missing, writer, |step| phase.step(step)),
    };
    drop(phase);
    let pipeline::Written {
        output: file,
        timing,
        forms,
    } = match written {
        Ok(written) => written,
        Err(error) => return Err(failed(choice, output, error)),
    };
    watch.warn_of_times(&timing, true);
    let file_bytes = output.commit_writer(file)?;
    watch.warn_all(Warning::of_forms(forms));
    let hidden = hidden.as_ref();
    let check_time = hidden.map_or(Duration::ZERO, |hidden| hidden.check_time);
    Ok(Written {
        file: NewFile {
            file_bytes,
            n_rows: n_rows(missing),
            ..NewFile::default()
        },
        n_tokens: missing
            .iter()
            .map(|window| window.tokens.len() as u64)
            .sum(),
        checked: hidden.map(|hidden| hidden.checked),
        check_time: trial_time + check_time,
        timing: Timing {
            decode: timing.decode.saturating_sub(check_time),
            ..timing
        },
    })
}

/// Tells how the windows are decoded and stored, and refuses a file that does not fit on its disk.
fn check_plan<M: Model + Sync>(
    choice: &Choice<'_, '_, M>,
    about: &About,
    output: &PartialFile,
    begun: Option<&NativeReader>,
    watch: &Watch<'_>,
) -> Result<()> {
    let (settings, windows) = (choice.settings, &choice.input.plan.windows);
    let options = choice.options_of(about);
    Split::announce(options, choice.decoding, Some(windows.len()), watch);
    if let Some(states) = &about.states {
        announce::states(settings.target, states, watch);
    }
    let rows_bytes = settings.target.projected_bytes(about, windows);
    let size = rows_bytes.saturating_add(choice.input.prompt_bytes());
    let n_whole = begun.map_or(0, |begun| begun.windows().len());
    announce::file(settings, output, size, n_whole, watch);
    let length = begun.map_or(0, NativeReader::windows_end);
    check_free_space(output.path(), &settings.output, size.saturating_sub(length))
}

/// Opens the file behind the windows that it has already, or with the head of hidden states.
fn open_writer<M: Model + Sync>(
    choice: &Choice<'_, '_, M>,
    about: &About,
    output: &PartialFile,
    begun: Option<&NativeReader>,
    hidden: Option<&StateSource<'_>>,
) -> Result<Writer<BufWriter<File>>> {
    if let Some(begun) = begun {
        let file = output.writer(begun.windows_end())?;
        return Ok(Writer::resume(file, output.path(), begun)?);
    }
    let (file, target) = (output.writer(0)?, choice.settings.target);
    let specs = choice.input.windows_of_the_text();
    let mut writer = Writer::create(file, output.path(), target, about, &specs)?;
    if let Some(hidden) = hidden {
        writer.write_head(choice.model.read_head()?, &hidden.check_rows)?;
    }
    Ok(writer)
}

/// Why writing stopped, and what is kept of the file.
fn failed<M: Model + Sync>(
    choice: &Choice<'_, '_, M>,
    output: PartialFile,
    error: Error,
) -> anyhow::Error {
    let settings = choice.settings;
    match error {
        Error::RowMoved {
            window,
            position,
            kld,
        } => {
            // A run that continued it would end in the same place.
            output.discard();
            anyhow!(
                "{}: window {window}, position {position}: the row computed from the hidden state is not the model's own {}: nothing of {} was kept, {ADVICE}",
                settings.model.display(),
                choice.distance(kld),
                settings.output.display(),
            )
        }
        error if settings.target.kind() == Kind::Kl => {
            let kept = resume::keep(output, choice.input.plan.windows.len());
            anyhow!("{error}{kept}")
        }
        error => error.into(),
    }
}
