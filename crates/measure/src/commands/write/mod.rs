//! Writes a reference: a model runs over a text or prompts, and its logits are kept, or the hidden
//! states that they can be computed from.

mod announce;
mod answers;
mod choice;
mod default;
mod room;

use std::fs::File;
use std::io::BufWriter;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use kl_engine::{Engine, Model};
use kl_formats::{Kind, NativeReader, Target, Writer, n_rows, native};
use kl_report::number::{bytes, count};
use kl_report::{Warning, few_windows, unit};
use kl_stats::score::RowError;
use kl_stats::stats::Clustering;

use super::context::{
    Precedents, Split, check_files, check_parallel, context_sources, is_of_changed_model,
    largest_context,
};
use super::devices::{self, connect_devices};
use super::finite_rows::{FiniteRows, has_finite_row};
use super::input;
use super::observer::{Observer, Outlook, Watch};
use super::output::{Existing, NewFile, PartialFile, free_space, partial_path, with_kept};
use super::resume;
use super::settings::WriteSettings;
use crate::input::{AnswerFile, PreparedInput, RawInput, Selection};
use crate::pipeline::{
    Error, NotFinite, Sources, StateSource, Step, Timing, WrittenWindow, write_reference,
};
use choice::{ADVICE, Choice};

/// A reference that was written.
#[derive(Debug, Default)]
pub struct Written {
    /// The file, whose rows are those that this run computed: none if it was whole before.
    pub file: NewFile,
    /// Tokens that this run decoded.
    pub n_tokens: u64,
    /// Tokens of answers that this run generated.
    pub n_generated: u64,
    /// Where hidden states are stored: how far the rows that were computed from them again are from the model's own.
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
pub fn write(
    settings: &WriteSettings,
    engine: &dyn Engine,
    observer: &dyn Observer,
) -> Result<Written> {
    let watch = &Watch::new(observer);
    let started = Instant::now();
    let raw = input::read(&settings.input, watch)?;
    check_parallel(&settings.run, engine, &settings.model)?;
    // Claimed before the model is loaded: a bad path fails now, not hours later.
    let job = Job::open(settings, engine, watch)?;
    let answers_path = answers::path(settings)?;
    connect_devices(engine, &settings.run, watch)?;
    // How readers of the file assume that it was computed, and how an earlier run has computed it.
    let assumed_backend = settings.target.assumed_backend();
    let begun = job.begun.as_ref();
    let begun_backend = begun.and_then(|begun| begun.header.backend.as_ref());
    let precedents = [assumed_backend.as_ref(), begun_backend];
    let model = job.load(precedents)?;
    let mut answers = None;
    if let Some(path) = answers_path {
        answers = Some(answers::read(
            path, settings, engine, &*model, begun, watch,
        )?);
    }
    let input = match job.prepare(raw, &*model, precedents, answers.as_mut()) {
        Err(error) if is_of_changed_model(&error) => {
            job.output.discard();
            return Err(without_answers(answers, error));
        }
        prepared => prepared?,
    };
    let mut choice = Choice::new(engine, &*model, settings, &input, precedents, begun)?;
    let mut written = Written::default();
    match begun {
        Some(whole) if job.is_whole => {
            choice.follow_begun(whole, false)?;
            (written.file.was_whole, written.file.file_bytes) = (true, whole.file_bytes());
        }
        _ => match job.write_missing(choice) {
            Err(error) if is_of_changed_model(&error) => {
                return Err(without_answers(answers, error));
            }
            result => written = result?,
        },
    }
    if let Some(answers) = answers {
        answers.remove()?;
    }
    model.drop_last();
    written.file.path = settings.output.display().to_string();
    written.file.wall_s = started.elapsed().as_secs_f64();
    Ok(written)
}

/// Removes the answers of a model whose file has changed, which another run must not continue.
fn without_answers(answers: Option<AnswerFile>, error: anyhow::Error) -> anyhow::Error {
    match answers.map_or(Ok(()), AnswerFile::remove) {
        Ok(()) => error,
        Err(removal_error) => anyhow!("{error:#}; {removal_error:#}: remove it"),
    }
}

/// A reference to write, whose output is claimed.
struct Job<'j, 'e> {
    settings: &'j WriteSettings,
    engine: &'e dyn Engine,
    watch: &'j Watch<'j>,
    output: PartialFile,
    /// The file as an earlier run has left it, for `--resume`.
    begun: Option<NativeReader>,
    /// True if that is all of it.
    is_whole: bool,
}

impl<'j, 'e> Job<'j, 'e> {
    /// Claims the output, and opens what an earlier run has left of it.
    fn open(
        settings: &'j WriteSettings,
        engine: &'e dyn Engine,
        watch: &'j Watch<'j>,
    ) -> Result<Self> {
        let (path, existing) = (&settings.output, settings.existing);
        let may_be_whole = existing == Existing::Resume && !partial_path(path).exists();
        let mut begun = if may_be_whole {
            NativeReader::open(path).ok()
        } else {
            None
        };
        let is_whole = begun.is_some();
        let output =
            PartialFile::create(path, is_whole || existing == Existing::Replace, existing)?;
        if !is_whole && settings.target.kind() == Kind::Kl {
            begun = resume::cut_off(&output, NativeReader::open_cut_off)?;
        }
        Ok(Self {
            settings,
            engine,
            watch,
            output,
            begun,
            is_whole,
        })
    }

    fn load(&self, precedents: Precedents<'_>) -> Result<Box<dyn Model + 'e>> {
        let WriteSettings {
            model, input, run, ..
        } = self.settings;
        let memory_beside = || (largest_context(run, input.n_ctx, precedents), None);
        devices::load(self.engine, model, run, memory_beside, self.watch)
    }

    /// Cuts the windows, and lets the model answer prompts, once the plan of them is checked. `answers`
    /// are those that an earlier run has generated.
    fn prepare(
        &self,
        raw: RawInput<'_>,
        model: &dyn Model,
        precedents: Precedents<'_>,
        mut answers: Option<&mut AnswerFile>,
    ) -> Result<PreparedInput> {
        let WriteSettings { target, run, .. } = self.settings;
        let selection = Selection {
            in_chunks: *target == Target::LlamaCpp,
            max_rows: run.max_rows,
            part: self.settings.part,
            // Whether there is a trial may be chosen once the windows are known.
            n_first_rows: choice::N_TRIAL_ROWS,
        };
        let planned = input::plan(raw, model, &selection, self.watch)?;
        self.warn_of_few_windows(&planned);
        // Generating can take hours.
        if answers.is_some() {
            let (engine, settings) = (self.engine, self.settings);
            let begun = self.begun.as_ref();
            let choice = Choice::new(engine, model, settings, &planned, precedents, begun)?;
            self.check_planned(choice)?;
        }
        input::complete(planned, model, run, answers.as_deref_mut(), self.watch).map_err(|error| {
            match answers {
                Some(answers) if !is_of_changed_model(&error) => {
                    anyhow!("{error:#}{}", answers::kept_answers(answers))
                }
                _ => error,
            }
        })
    }

    fn warn_of_few_windows(&self, planned: &PreparedInput) {
        // Of a part, the others are not counted.
        if self.settings.part.is_some() {
            return;
        }
        let lengths = planned.plan.windows.iter().map(|window| window.n_rows);
        let clusters = Clustering::of_windows(lengths);
        let unit = unit(planned.prompts.is_some());
        self.watch
            .warn_all(few_windows(&clusters, clusters.n, unit));
    }

    /// Checks the plan of the windows before they are answered.
    fn check_planned(&self, mut choice: Choice<'_, '_>) -> Result<()> {
        if let Some(begun) = &self.begun {
            choice.follow_begun(begun, true)?;
        }
        if self.is_whole {
            return Ok(());
        }
        let size = choice.planned_bytes().saturating_sub(self.bytes_kept());
        if let Some(free) = free_space(self.output.path()).filter(|&free| size > free) {
            let message = format!(
                "{}: if every answer is as long as --generate allows, what is to be written takes {}, but the disk has {} free: free some, or the run may end after its answers are generated; --resume uses them then",
                self.settings.output.display(),
                bytes(size),
                bytes(free)
            );
            self.watch.warn(Warning::new("may_not_fit", message));
        }
        Ok(())
    }

    /// The bytes that are kept of an earlier run's file: those of its windows.
    fn bytes_kept(&self) -> u64 {
        self.begun.as_ref().map_or(0, |begun| begun.windows_end)
    }

    /// Chooses what an earlier run has chosen, if it has left windows of this plan. Returns how many of
    /// them are kept: those of whole decode calls.
    fn continue_begun(&mut self, choice: &mut Choice<'_, '_>) -> Result<usize> {
        let Some(begun) = &mut self.begun else {
            return Ok(0);
        };
        choice.follow_begun(begun, false)?;
        resume::check_windows(begun, &choice.input.plan)?;
        let n_whole = begun.windows().len();
        if n_whole < choice.input.plan.windows.len() {
            let n_seq = choice.chosen_options().n_seq;
            begun.keep_first(resume::windows_in_whole_calls(n_whole, n_seq));
        }
        Ok(begun.windows().len())
    }

    /// Writes the windows that no earlier run has written.
    fn write_missing(mut self, mut choice: Choice<'_, '_>) -> Result<Written> {
        let (settings, watch, model) = (self.settings, self.watch, choice.model);
        let n_whole = self.continue_begun(&mut choice)?;
        let windows = &choice.input.plan.windows;
        let missing = windows.get(n_whole..).unwrap_or_default();
        announce::input(&choice, watch);
        let trial_started = Instant::now();
        let tried_states = match &self.begun {
            None => choice.try_states(watch)?,
            Some(_) => None,
        };
        let trial_time = trial_started.elapsed();
        self.check_plan(&choice, n_whole)?;
        let mut states = match tried_states {
            Some(source) => Some(source),
            None => choice.begun_states()?,
        };
        let writer = self.open_writer(&choice, states.as_ref())?;
        if settings.target.kind() == Kind::Kl {
            self.output.keep_if_cut_off();
        }
        // What the trial has decoded takes no time any more, and comes first.
        let (mut n_windows_tried, mut n_rows_tried) = states
            .as_ref()
            .map_or((0, 0), |states| states.known_among(missing));
        let phase = watch.begin_run(
            "writing",
            Some(missing.len() as u64 - n_windows_tried),
            Some(n_rows(missing) - n_rows_tried),
            self.outlook(&choice),
        );
        let finite_rows = FiniteRows::of_model(settings.model.display().to_string(), watch);
        let on_step = |step: Step<WrittenWindow<'_>>| {
            if let Step::Window((_, not_finite)) = &step {
                finite_rows.add(*not_finite);
            }
            match step {
                Step::Rows(n) if n_rows_tried > 0 => n_rows_tried -= n_rows_tried.min(n as u64),
                Step::Window(_) if n_windows_tried > 0 => n_windows_tried -= 1,
                step => return phase.step(step),
            }
            watch.check()
        };
        let written = match &mut states {
            Some(states) => write_reference(Sources::ready(states), missing, writer, on_step),
            None => {
                let sources = context_sources(model, &choice.options, &settings.run);
                write_reference(sources, missing, writer, on_step)
            }
        };
        drop(phase);
        let written = written.and_then(|written| {
            check_files(model, watch)?;
            Ok(written)
        });
        let written = match written {
            Ok(written) => written,
            Err(error) => return Err(write_error(&choice, self.output, error)),
        };
        watch.warn_of_times(&written.timing, true);
        let checked_rows = states
            .as_ref()
            .map_or_else(NotFinite::default, |states| states.not_finite);
        if let Err(error) = finite_rows.conclude(checked_rows, || self.has_finite_rows()) {
            self.output.discard();
            return Err(error);
        }
        let file_bytes = self.output.commit_writer(written.output)?;
        watch.warn_all(Warning::of_forms(written.forms));
        let check_time = states
            .as_ref()
            .map_or(Duration::ZERO, |states| states.check_time);
        let generated = choice.input.generated;
        let n_tokens = missing.iter().map(|window| window.tokens.len() as u64);
        Ok(Written {
            file: NewFile {
                file_bytes,
                n_rows: n_rows(missing),
                ..NewFile::default()
            },
            n_tokens: n_tokens.sum(),
            n_generated: generated.map_or(0, |generated| generated.n_tokens),
            checked: states.map(|states| states.checked),
            check_time: trial_time + check_time,
            timing: Timing {
                decode: written.timing.decode.saturating_sub(check_time),
                input: Some(choice.input.time()),
                ..written.timing
            },
        })
    }

    /// What the time of writing shows of the command: `-n` would make it another run where one has begun, and
    /// changes the time of generating too.
    fn outlook(&self, choice: &Choice<'_, '_>) -> Outlook {
        let is_limitable = self.begun.is_none()
            && choice.target.kind() != Kind::LlamaCpp
            && self.settings.input.generate.is_none();
        Outlook {
            n_limited: if is_limitable {
                n_rows(choice.input.plan.whole())
            } else {
                0
            },
            ..Outlook::default()
        }
    }

    /// True if the windows that an earlier run has left hold a finite row, or if that cannot be found out.
    fn has_finite_rows(&self) -> bool {
        let Some(begun) = &self.begun else {
            return false;
        };
        (0..begun.windows().len()).any(|index| has_finite_row(begun, index).unwrap_or(true))
    }

    /// Reports how the windows are decoded and stored, and refuses a file that does not fit on its disk.
    fn check_plan(&self, choice: &Choice<'_, '_>, n_whole: usize) -> Result<()> {
        let (options, n_windows) = (choice.chosen_options(), choice.input.plan.windows.len());
        Split::announce(options, choice.decoding, Some(n_windows), self.watch);
        if let Some(read_from_disk) = choice.read_from_disk {
            let n_missing = n_windows.saturating_sub(n_whole);
            read_from_disk.announce(options, Some(n_missing), choice.model.facts(), self.watch);
        }
        announce::file(choice, &self.output, n_whole, self.watch);
        choice.check_room(&self.output, self.bytes_kept())
    }

    /// Opens the file to continue after the windows that it has, or to begin with the head of hidden states.
    fn open_writer(
        &self,
        choice: &Choice<'_, '_>,
        states: Option<&StateSource<'_>>,
    ) -> Result<Writer<BufWriter<File>>> {
        let (file, path) = (self.output.writer(self.bytes_kept())?, self.output.path());
        if let Some(begun) = &self.begun {
            return Ok(Writer::resume(file, path, begun)?);
        }
        let (target, specs) = (choice.target, choice.input.windows_of_the_text());
        let mut writer = Writer::create(file, path, target, &choice.about, &specs)?;
        if let Some(states) = states {
            writer.write_head(choice.model.read_head()?, &states.check_rows)?;
        }
        Ok(writer)
    }
}

/// Why writing stopped, and what is kept of the file.
fn write_error(choice: &Choice<'_, '_>, output: PartialFile, error: Error) -> anyhow::Error {
    let settings = choice.settings;
    match error {
        error @ Error::RowMoved { .. } => {
            // A run that continued it would end in the same place.
            output.discard();
            anyhow!(
                "{}: {error}, of architecture {}: nothing of {} was kept, {ADVICE}",
                settings.model.display(),
                choice.architecture(),
                settings.output.display(),
            )
        }
        error if error.is_of_changed_model() => {
            output.discard();
            error.into()
        }
        error if settings.target.kind() == Kind::Kl => {
            let n_whole = native::count_windows(output.path()).unwrap_or_default() as u64;
            let n_all = count(choice.input.plan.windows.len() as u64);
            let kept = output.keep(n_whole, &format!("{} of {n_all} windows", count(n_whole)));
            with_kept(error.into(), kept)
        }
        error => error.into(),
    }
}
