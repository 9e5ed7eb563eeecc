//! Writes a reference: a model runs over a text or prompts, and its logits are kept, or the hidden
//! states that they can be computed from.

mod announce;
mod answers;
mod choice;
mod trial;

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use kl_formats::{About, Kind, NativeReader, Target, Writer, n_rows};

use super::context::{Precedent, Split, check_parallel, largest_context};
use super::devices::{self, connect_devices};
use super::input::{self, Answering};
use super::observer::{Observer, Watch};
use super::output::{Existing, NewFile, PartialFile, check_free_space, free_space, partial_path};
use super::resume;
use super::settings::WriteSettings;
use crate::engine::{Engine, Model, Room};
use crate::input::{PreparedInput, Selection};
use crate::pipeline::{self, Error, Sources, Timing, write_reference};
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
    // Created before the model is loaded: a bad path fails now, not hours later.
    let whole = whole_already(settings);
    let can_resume = settings.target.kind() == Kind::Kl;
    let may_replace = settings.existing == Existing::Replace || whole.is_some();
    let output = PartialFile::create(&settings.output, may_replace, settings.existing)?;
    let begun = match can_resume {
        true => resume::cut_off(&output)?,
        false => None,
    };
    let kept_answers = Kept::of(settings)?;
    connect_devices(engine, &settings.run, watch)?;
    let earlier = whole.as_ref().or(begun.as_ref());
    let precedent = Precedent::of(settings.target.assumed_backend().as_ref())
        .or_begun(earlier.and_then(|earlier| earlier.header().backend.as_ref()));
    let room = || Room {
        context: largest_context(&settings.run, settings.input.n_ctx(), precedent),
        n_contexts: settings.run.n_contexts(true),
        second_model: None,
    };
    let model = devices::load(engine, &settings.model, &settings.run, room, watch)?;
    let in_chunks = settings.target == Target::LlamaCpp;
    let selection = Selection {
        max_rows: settings.run.max_rows,
        part: settings.part,
        n_first_rows: if settings.target.encoding().holds_states() {
            trial::N_TRIAL_ROWS
        } else {
            0
        },
    };
    let read = |kept: Kept<'_>| kept.read(engine, &model, earlier);
    let mut answers = kept_answers.map(read).transpose()?;
    let warn_of_few = |planned: &PreparedInput| {
        let lengths = planned.plan.windows.iter().map(|window| window.n_rows);
        let windows = Clustering::of_windows(lengths);
        let few = few_windows(&windows, windows.n, unit(planned.prompts.is_some()));
        // Of a part, the others are not counted.
        watch.warn_all(few.filter(|_| settings.part.is_none()));
    };
    let is_checked = Cell::new(false);
    let check = |planned: &PreparedInput| {
        warn_of_few(planned);
        let choice = Choice::new(&model, settings, planned, precedent);
        let mut about = choice.describe(engine)?;
        if let Some(earlier) = earlier {
            choice.check_planned(earlier, &mut about)?;
        }
        let there = earlier.map_or(0, NativeReader::windows_end);
        let size = choice.planned_bytes(&mut about).saturating_sub(there);
        let free = free_space(output.path()).filter(|&free| size > free);
        if let (Some(free), None) = (free, &whole) {
            let path = settings.output.display().to_string();
            watch.warn(Warning::MayNotFit { path, size, free });
        }
        is_checked.set(true);
        Ok(())
    };
    let answering = answers.as_mut().map(|kept| Answering {
        kept: Some(kept),
        check: &check,
    });
    let prepared = input::prepare(
        raw,
        &model,
        &settings.run,
        in_chunks,
        &selection,
        answering,
        watch,
    );
    let input = match (prepared, &answers) {
        (Err(error), Some(answers)) if is_checked.get() => {
            bail!("{error:#}{}", answers::kept(answers))
        }
        (prepared, _) => prepared?,
    };
    if !is_checked.get() {
        warn_of_few(&input);
    }

    let choice = Choice::new(&model, settings, &input, precedent);
    let mut about = choice.describe(engine)?;
    let mut written = match whole {
        Some(whole) => {
            choice.as_begun(&whole, &mut about)?;
            let mut written = Written::default();
            (written.file.was_whole, written.file.file_bytes) = (true, whole.file_bytes());
            written
        }
        None => write_missing(&choice, about, output, begun, watch)?,
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

/// Opens the file if `--resume` finds it whole: the earlier run was not cut off, or was resumed
/// already.
fn whole_already(settings: &WriteSettings) -> Option<NativeReader> {
    let is_cut_off = partial_path(&settings.output).exists();
    (settings.existing == Existing::Resume && !is_cut_off)
        .then(|| NativeReader::open(&settings.output).ok())
        .flatten()
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
    let can_resume = settings.target.kind() == Kind::Kl;
    if let Some(begun) = &mut begun {
        choice.as_begun(begun, &mut about)?;
        resume::check_windows(begun, &input.plan)?;
        resume::keep_whole_calls(begun, windows.len(), choice.options_of(&about).n_seq);
    }
    let (n_whole, length) = begun
        .as_ref()
        .map_or((0, 0), |begun| (begun.windows().len(), begun.windows_end()));
    let missing = windows.get(n_whole..).unwrap_or_default();

    announce::input(settings, choice.model, input, watch);
    announce::sizes(&choice.sizes(&mut about), watch);
    let trying = Instant::now();
    let target = settings.target;
    let mut hidden = if begun.is_some() {
        None
    } else {
        choice.for_new_file(&mut about, watch)?
    };
    let trial_time = trying.elapsed();
    let options = choice.options_of(&about);
    Split::announce(options, choice.decoding, Some(windows.len()), watch);
    if let Some(states) = &about.states {
        announce::states(target, states, watch);
    }
    let size = target.projected_bytes(&about, windows);
    let size = size.saturating_add(input.prompt_bytes());
    announce::file(settings, target, &output, size, n_whole, watch);
    check_free_space(output.path(), &settings.output, size.saturating_sub(length))?;

    let mut decoder = None;
    match (&about.states, &hidden) {
        (None, _) => decoder = Some(choice.model.decoder(&choice.options)?),
        (Some(states), None) => hidden = Some(choice.source(states.clone())?),
        (Some(_), Some(_)) => {}
    }
    let file = output.writer(length)?;
    let writer = match &begun {
        Some(begun) => Writer::resume(file, output.path(), begun)?,
        None => {
            let specs = input.windows_of_the_text();
            let mut writer = Writer::create(file, output.path(), target, &about, &specs)?;
            if let Some(hidden) = &hidden {
                writer.write_head(choice.model.read_head()?, &hidden.check_rows)?;
            }
            writer
        }
    };
    if can_resume {
        output.keep_if_cut_off();
    }
    let phase = watch.begin("writing", Some(missing.len() as u64), Some(n_rows(missing)));
    let written = match &mut hidden {
        Some(hidden) => write_reference(Sources::ready(hidden), missing, writer, |step| {
            phase.step(step)
        }),
        None => write_reference(choice.sources(decoder), missing, writer, |step| {
            phase.step(step)
        }),
    };
    drop(phase);
    let pipeline::Written {
        output: file,
        timing,
        forms,
    } = match written {
        Ok(written) => written,
        Err(Error::RowMoved {
            window,
            position,
            kld,
        }) => {
            // A run that continued it would end in the same place.
            output.discard();
            bail!(
                "{}: window {window}, position {position}: the row computed from the hidden state is not the model's own {}: nothing of {} was kept, {ADVICE}",
                settings.model.display(),
                choice.distance(kld),
                settings.output.display(),
            );
        }
        Err(error) if can_resume => bail!("{error}{}", resume::keep(output, windows.len())),
        Err(error) => return Err(error.into()),
    };
    watch.warn_of_times(&timing, true);
    let new_file = NewFile {
        file_bytes: output.commit_writer(file)?,
        n_rows: n_rows(missing),
        ..NewFile::default()
    };
    watch.warn_all(Warning::of_forms(forms));
    let hidden = hidden.as_ref();
    let check_time = hidden.map_or(Duration::ZERO, |hidden| hidden.check_time);
    Ok(Written {
        file: new_file,
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
