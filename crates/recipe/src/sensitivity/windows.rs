//! The windows that a map is measured on, drawn from a text or from an exact reference, and the rows
//! that the original has there.

use std::collections::HashMap;
use std::io::Read;

use anyhow::{Result, bail};
use kl_engine::{ContextOptions, Engine, Model};
use kl_formats::{
    About, BackendIdentity, Kind, Reference, States, Values, WindowSpec, longest_window,
};
use kl_measure::commands::bench::{Bench, bytes_of_rows, keep_rows, memory_for_rows, n_that_fit};
use kl_measure::commands::context::{
    Decoding, backend_identity, check_models, check_windows, context_options, writer,
};
use kl_measure::commands::input;
use kl_measure::commands::observer::{Event, Watch};
use kl_measure::commands::reference::{
    EvaluatedEntries, check_vocabulary, open_rows, read_windows, refuse_folder,
};
use kl_measure::commands::settings::{ComparedVocabulary, RunSettings};
use kl_measure::input::{RawInput, Selection};
use kl_measure::pipeline::{FileRows, Sources, keep_until, shuffled};
use kl_report::number::{bytes, count, count_of};

use crate::settings::{MapInput, SensitivitySettings};

/// The fewest windows: a single one shows nothing of the spread.
const FEWEST_WINDOWS: usize = 2;

/// The windows of a map unless more tokens are asked for, as few as show how much windows differ. On two real models,
/// recipes by maps of 2 windows and of 8 are as good (docs/RECIPES.md).
const DEFAULT_WINDOWS: usize = 8;

/// The text or the reference, before the model is loaded.
pub enum Opened<'s> {
    Text(RawInput<'s>),
    File(Box<Reference>),
}

/// The windows of a map.
pub struct Windows {
    /// The windows, in the order in which they are measured.
    pub windows: Vec<WindowSpec>,
    /// The model, the text and the set-up.
    pub about: About,
    options: ContextOptions,
    /// The reference, and the windows' indices in it.
    pub file: Option<(Reference, Vec<usize>)>,
}

impl<'s> Opened<'s> {
    /// Reads the text, or opens the reference.
    ///
    /// # Errors
    /// A text that cannot be read, or a reference whose rows are not exact.
    pub fn new(input: &'s MapInput, watch: &Watch<'_>) -> Result<Self> {
        match input {
            MapInput::Text(text) => Ok(Self::Text(input::read(text, watch)?)),
            MapInput::Reference(path) => {
                refuse_folder(path)?;
                let reference = Reference::open(path)?;
                check_exact(reference.about())?;
                Ok(Self::File(Box::new(reference)))
            }
        }
    }

    /// The number of tokens of a window, if it is known before the model is loaded.
    pub fn n_ctx(&self) -> Option<u32> {
        match self {
            Self::File(reference) => reference.longest_window(),
            Self::Text(raw) => raw.source.n_ctx,
        }
    }

    /// Draws windows at random until they have the wanted number of tokens, or their rows fill the memory;
    /// `begun` is the map that is continued.
    ///
    /// # Errors
    /// Windows that the model cannot decode, another vocabulary, or too little memory.
    pub fn draw(
        self,
        settings: &SensitivitySettings,
        engine: &dyn Engine,
        model: &dyn Model,
        begun: Option<(&BackendIdentity, usize)>,
        watch: &Watch<'_>,
    ) -> Result<Windows> {
        let (all, mut about, reference) = self.all(settings, model, watch)?;
        let is_stream = reference
            .as_ref()
            .is_some_and(|reference| reference.windows().is_none());
        let mut order = if is_stream {
            (0..all.len()).collect()
        } else {
            shuffled(all.len(), settings.seed)
        };
        let rows_of = |i: usize| all.get(i).map_or(0, |window| u64::from(window.n_rows));
        match settings.max_tokens {
            Some(max_tokens) => keep_until(&mut order, rows_of, max_tokens),
            None => order.truncate(DEFAULT_WINDOWS),
        }
        let drawn = order.iter().filter_map(|&i| all.get(i).cloned());
        let mut windows: Vec<WindowSpec> = drawn.collect();
        let n_begun = begun.map_or(0, |(_, n_begun)| n_begun.min(windows.len()));
        let fit = if n_begun == windows.len() {
            n_begun
        } else {
            windows_that_fit(&windows, model.facts().n_vocab, watch)?.max(n_begun)
        };
        windows.truncate(fit);
        order.truncate(fit);
        if windows.len() < FEWEST_WINDOWS {
            bail!(
                "{}: a map needs at least two windows: give a longer text, a shorter --n-ctx, or a larger --n-tokens",
                settings.input
            );
        }
        let longest = longest_window(&windows);
        if reference.is_some() {
            check_windows(longest, model, watch)?;
        }
        let most_rows = windows.iter().map(|window| window.n_rows).max();
        let decoding = Decoding::from_model(model, most_rows.unwrap_or(longest), about.n_ctx);
        let recorded = about.backend.as_ref().filter(|_| reference.is_some());
        let precedents = [recorded, begun.map(|(backend, _)| backend)];
        let options = context_options(&settings.run, longest, decoding, precedents);
        about.writer = Some(writer());
        about.model = Some(model.facts().identity.clone());
        about.model_path = Some(model.facts().path.display().to_string());
        about.backend = Some(backend_identity(engine, model, &options)?);
        about.seed = (!is_stream).then_some(settings.seed);
        let (n_windows, n_rows) = (u32::try_from(windows.len())?, kl_formats::n_rows(&windows));
        about.shard = settings.part.map(|part| part.shard(n_windows, n_rows));
        Ok(Windows {
            windows,
            about,
            options,
            file: reference.map(|reference| (reference, order)),
        })
    }

    /// All windows of the text for this model, or of the reference, which must be of this model; and the facts
    /// that are recorded of either.
    fn all(
        self,
        settings: &SensitivitySettings,
        model: &dyn Model,
        watch: &Watch<'_>,
    ) -> Result<(Vec<WindowSpec>, About, Option<Reference>)> {
        match self {
            Self::Text(raw) => {
                let prepared = input::plan(raw, model, &Selection::default(), watch)?;
                let (path, none) = (&settings.model, BackendIdentity::default());
                let about = input::describe(Kind::Model, path, &prepared, none);
                Ok((prepared.plan.windows, about, None))
            }
            Self::File(reference) => {
                let (about, facts) = (reference.about().clone(), model.facts());
                check_vocabulary(
                    &about,
                    &EvaluatedEntries::from_model(facts),
                    ComparedVocabulary::Same,
                    watch,
                )?;
                check_models(about.model.as_ref(), &facts.identity, watch);
                Ok((read_windows(&reference, watch)?, about, Some(*reference)))
            }
        }
    }
}

impl Windows {
    /// Keeps the original's rows in memory, and says how much of it: reads them from the reference, or else `model` computes them.
    ///
    /// # Errors
    /// Rows that cannot be computed or read, or that the observer asks to stop.
    pub fn keep<'k>(
        self,
        run: &'k RunSettings,
        model: &dyn Model,
        watch: &'k Watch<'k>,
    ) -> Result<Bench<'k>> {
        let (windows, options) = (self.windows, self.options);
        let facts = model.facts();
        let needed = bytes_of_rows(&windows, facts.n_vocab);
        let text = format!(
            "{} for the original's rows, beside {} of weights",
            bytes(needed),
            bytes(facts.loaded_bytes)
        );
        watch.event(&Event::Plan("memory", &text));
        let Some((reference, order)) = self.file else {
            return Ok(Bench::of_model(model, windows, options, run, watch)?);
        };
        let head =
            |states: &States, section: &mut dyn Read| model.load_head(states, section, run.threads);
        let stored = open_rows(reference, head, watch)?.with_order(order);
        let rows = FileRows::new(&stored, HashMap::new());
        Ok(Bench {
            rows: keep_rows(Sources::ready(rows), windows, watch)?,
            options,
            run,
            watch,
        })
    }
}

/// Counts the windows whose rows fit into the free memory, and reports it if not all do.
fn windows_that_fit(windows: &[WindowSpec], n_vocab: u32, watch: &Watch<'_>) -> Result<usize> {
    let free = memory_for_rows().unwrap_or(u64::MAX);
    let (n, all) = (n_that_fit(windows, n_vocab, free), windows.len() as u64);
    if n == windows.len() {
        return Ok(n);
    }
    let [free, needed] = [free, bytes_of_rows(windows, n_vocab)].map(bytes);
    let more = "close other programs, or use a shorter --n-ctx or --n-tokens";
    if n < FEWEST_WINDOWS {
        bail!(
            "the original's rows of {} take {needed} of memory, and {free} is free for them: {more}",
            count_of(all, "window")
        );
    }
    watch.note(&format!(
        "rows of {} of {} windows fit in memory ({needed} for all, {free} free): for more, {more}",
        count(n as u64),
        count(all)
    ));
    Ok(n)
}

/// Refuses a reference whose rows are rounded: the cost of a single tensor is often less than the rounding.
fn check_exact(about: &About) -> Result<()> {
    let path = about.path.display();
    if !about.is_decodable {
        bail!(
            "{path}: is a file of kind {}, against which no model can be run: give -t TEXT, or a reference of kl",
            about.kind
        );
    }
    let is_exact = about.values == Values::Logits && ["f32", "hidden"].contains(&about.encoding);
    if !is_exact {
        bail!(
            "{path}: holds rounded rows ({}), which hide what a single tensor costs: write it with --encoding f32 or hidden, or give -t TEXT in place of -r",
            about.encoding
        );
    }
    Ok(())
}
