//! How a run stores rows: as the settings ask, in the type of hidden states that a trial finds.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use kl_engine::{ContextOptions, Engine, EngineError, Model};
use kl_formats::{
    About, CheckRow, Float, Header, NativeReader, RunKey, States, Target, WindowSpec, n_rows,
};
use kl_report::number::{printable, significant};

use super::default::DefaultEncoding;
use crate::commands::context::{
    Decoding, Precedents, ReadFromDisk, backend_identity, context_options, record_calls,
};
use crate::commands::input::describe;
use crate::commands::observer::{Watch, one_line};
use crate::commands::resume::check_same_run;
use crate::commands::settings::WriteSettings;
use crate::input::{Plan, PreparedInput};
use crate::pipeline::StateSource;

/// The rows of a trial: it decodes the first windows that have at least as many.
pub const N_TRIAL_ROWS: u64 = 64;

/// Rows that a file holds as the model gave them, so that every reader can see how far its own are
/// from those.
const N_CHECK_ROWS: usize = 8;

/// The most sizes of products that are tried beside those of the trial: the smallest, for which
/// kernels differ most.
const MAX_OTHER_SIZES: usize = 16;

/// The advice where hidden states do not give the model's rows.
pub const ADVICE: &str = "use --encoding u16";

/// A reference that a run could write, and the ways to store it.
pub struct Choice<'m, 'a> {
    pub model: &'m dyn Model,
    pub settings: &'a WriteSettings,
    pub input: &'a PreparedInput,
    /// The kind of file, and how it stores rows.
    pub target: Target,
    /// Set if this run has chosen the encoding.
    pub default: Option<DefaultEncoding>,
    /// False once a trial of hidden states has failed.
    pub can_store_states: bool,
    /// The options of a context that shows no states.
    pub options: ContextOptions,
    /// The options of one that does.
    state_options: ContextOptions,
    pub decoding: Decoding,
    /// Set if the model's weights do not fit into the memory.
    pub read_from_disk: Option<ReadFromDisk>,
    /// Describes the reference, and once it is chosen, how its rows are stored.
    pub about: About,
}

impl<'m, 'a> Choice<'m, 'a> {
    /// Plans to store rows in the encoding that was asked for; else in that of the file that an earlier run
    /// has `begun`, or in a default.
    ///
    /// # Errors
    /// If the engine cannot be started.
    pub fn new(
        engine: &dyn Engine,
        model: &'m dyn Model,
        settings: &'a WriteSettings,
        input: &'a PreparedInput,
        precedents: Precedents<'_>,
        begun: Option<&NativeReader>,
    ) -> Result<Self> {
        let store_in = |target| Self::store_in(target, engine, model, settings, input, precedents);
        if !settings.chooses_encoding {
            return store_in(settings.target);
        }
        if let Some(begun) = begun {
            return store_in(Target::Kl(begun.header.encoding));
        }
        let mut choice = store_in(settings.target)?;
        let default = choice.default_encoding();
        if default.encoding.holds_states() {
            choice = store_in(Target::Kl(default.encoding))?;
        }
        choice.default = Some(default);
        Ok(choice)
    }

    /// Plans to store rows as `target` states.
    fn store_in(
        target: Target,
        engine: &dyn Engine,
        model: &'m dyn Model,
        settings: &'a WriteSettings,
        input: &'a PreparedInput,
        precedents: Precedents<'_>,
    ) -> Result<Self> {
        let (max_rows, n_ctx) = (input.plan.max_rows_of_window(), input.provenance.n_ctx);
        let decoding = Decoding::from_model(model, max_rows, n_ctx);
        let options_for =
            |decoding| context_options(&settings.run, input.longest_window, decoding, precedents);
        let mut options = options_for(decoding);
        let mut state_options = ContextOptions {
            shows_states: true,
            // Which states were multiplied together is known of each window by itself.
            ..options_for(decoding.one_by_one())
        };
        let (used_options, used_decoding) = if target.encoding().holds_states() {
            (&mut state_options, decoding.one_by_one())
        } else {
            (&mut options, decoding)
        };
        let read_from_disk = ReadFromDisk::recognize(
            used_options,
            &settings.run,
            (used_decoding, Some(input.plan.windows.len())),
            precedents[1],
            (engine, model),
        )?;
        let backend = backend_identity(engine, model, &options)?;
        Ok(Self {
            model,
            settings,
            input,
            target,
            default: None,
            can_store_states: true,
            about: describe(target.kind(), &settings.output, input, backend),
            options,
            state_options,
            decoding,
            read_from_disk,
        })
    }

    /// Describes this model's states as a header records them, but for the hash of its head and what
    /// the trial finds.
    pub fn states(&self) -> Result<States, EngineError> {
        let mut states = self.model.describe_states(self.state_options.calls)?;
        states.check.rows = check_positions(&self.input.plan);
        Ok(states)
    }

    /// This model's states, with the hash of its head.
    fn hashed_states(&self) -> Result<States, EngineError> {
        let mut states = self.states()?;
        states.head.sha256 = self.model.head_sha256()?;
        Ok(states)
    }

    /// The options of a context that decodes windows to be stored as it is chosen.
    pub fn chosen_options(&self) -> &ContextOptions {
        match self.about.states {
            Some(_) => &self.state_options,
            None => &self.options,
        }
    }

    /// Records how windows are stored, and so decoded.
    fn record(&mut self, states: Option<States>) {
        self.about.states = states;
        let options = self.chosen_options().clone();
        if let Some(backend) = &mut self.about.backend {
            record_calls(backend, &options);
        }
    }

    /// Stores rows as an earlier run, which began or finished the file. What its trial has found is taken
    /// from there, if it is what this version accepts: rows to the bit. `is_ahead`: before any answer is
    /// generated, which can take hours, it compares all that does not depend on the answers.
    ///
    /// # Errors
    /// If that run had other settings, or the model has no head that rows can be computed with.
    pub fn follow_begun(&mut self, begun: &NativeReader, is_ahead: bool) -> Result<()> {
        let (header, encoding) = (&begun.header, self.target.encoding());
        let mut states = None;
        if encoding.holds_states() {
            let mut own_states = self.hashed_states()?;
            if let Some(begun_states) = &header.states {
                own_states.state_type = begun_states.state_type;
                own_states.check.clone_from(&begun_states.check);
                own_states.check.max_kld = 0.0;
            }
            states = Some(own_states);
        }
        self.record(states);
        let own_header = Header::new(&self.about, encoding, &self.input.plan.windows);
        let mut this_run = RunKey::from(&own_header);
        if !is_ahead {
            return check_same_run(begun.path(), header, this_run, "text");
        }
        this_run.windows.n_rows = None;
        this_run.text.prompts = None;
        if this_run.part.is_some() {
            // The plan is that of all parts.
            this_run.windows.n_windows = None;
        }
        check_same_run(begun.path(), header, this_run, "prompts")
    }

    /// The source of hidden states for a new file that stores those, once a trial over the first windows
    /// has shown in which type they give the model's rows. If it fails, a run that has chosen them itself stores
    /// codes instead.
    ///
    /// # Errors
    /// If they were asked for and do not give the model's rows; those of the trial.
    pub fn try_states(&mut self, watch: &Watch<'_>) -> Result<Option<StateSource<'m>>> {
        if !self.target.encoding().holds_states() {
            return Ok(None);
        }
        let states = self.hashed_states()?;
        let mut source = match self.source(states) {
            Err(error) if self.default.is_some() => {
                self.store_codes(&one_line(&error));
                return Ok(None);
            }
            source => source?,
        };
        if self.has_exact_type(&mut source, watch)? {
            self.record(Some(source.states.clone()));
            return Ok(Some(source));
        }
        let reason = format!(
            "rows computed from hidden states are not the model's own ({}: {} nats off)",
            self.architecture(),
            significant(source.checked.max_kld, 3)
        );
        if self.default.is_none() {
            bail!("{}: {reason}: {ADVICE}", self.settings.model.display());
        }
        self.store_codes(&reason);
        Ok(None)
    }

    /// Tries the types of states in the first windows, and in products of the sizes that only later ones have.
    fn has_exact_type(&self, source: &mut StateSource<'m>, watch: &Watch<'_>) -> Result<bool> {
        let plan = &self.input.plan;
        let windows = plan.first(N_TRIAL_ROWS);
        let sizes = other_sizes(&source.states, plan);
        let phase = watch.begin(
            "checking",
            Some(windows.len() as u64),
            Some(n_rows(windows)),
        );
        Ok(source.try_types(windows, &sizes, |step| phase.step(step))?)
    }

    /// Stores codes, since hidden states cannot stand for the model's rows.
    fn store_codes(&mut self, reason: &str) {
        let default = DefaultEncoding::codes(reason);
        self.target = Target::Kl(default.encoding);
        self.default = Some(default);
        self.can_store_states = false;
        self.record(None);
    }

    /// The source of hidden states for a file that an earlier run has begun, if that stores them.
    ///
    /// # Errors
    /// Not enough memory, or a head that cannot be prepared.
    pub fn begun_states(&self) -> Result<Option<StateSource<'m>>> {
        let states = self.about.states.clone();
        states.map(|states| self.source(states)).transpose()
    }

    /// A context, and a head that computes rows from its hidden states.
    fn source(&self, states: States) -> Result<StateSource<'m>> {
        let (mut section, threads) = (self.model.read_head()?, self.options.threads);
        let head = self.model.load_head(&states, &mut *section, threads)?;
        let decoder = self.model.decoder(&self.state_options)?;
        Ok(StateSource::new(decoder, head, states))
    }

    /// Names the architecture, which decides what follows the head.
    pub fn architecture(&self) -> String {
        let architecture = self.model.facts().identity.architecture.as_deref();
        architecture.map_or_else(|| "of unknown architecture".to_owned(), printable)
    }
}

/// The type that states most likely need. ggml's CPU kernels convert states to the type of a head in
/// half precision before they multiply, so that this type loses nothing.
pub fn expected_type(head_type: &str) -> Float {
    match head_type {
        "f16" => Float::F16,
        "bf16" => Float::Bf16,
        _ => Float::F32,
    }
}

/// The positions whose rows a file holds as the model gave them: spread evenly over the first window
/// of all parts that has rows, its first and its last row among them.
fn check_positions(plan: &Plan) -> Vec<CheckRow> {
    // A conversation may have ended before a window. Every part has the rows of these.
    let mut windows = plan.first(N_TRIAL_ROWS).iter();
    let Some(window) = windows.find(|window| window.n_rows > 0) else {
        return Vec::new();
    };
    let last = window.n_rows.saturating_sub(1) as usize;
    let n = N_CHECK_ROWS.min(window.n_rows as usize);
    let position = |i: usize| CheckRow {
        window: window.window,
        position: window.first_scored + (i * last / n.saturating_sub(1).max(1)) as u32,
    };
    (0..n).map(position).collect()
}

/// The numbers of rows that a product has in some window of the plan, but in none of the trial's.
fn other_sizes(states: &States, plan: &Plan) -> BTreeSet<usize> {
    let sizes = |windows: &[WindowSpec]| -> BTreeSet<usize> {
        windows
            .iter()
            .flat_map(|window| states.row_batches(&window.entry()))
            .map(|rows| rows.len())
            .collect()
    };
    let trial_sizes = sizes(plan.first(N_TRIAL_ROWS));
    sizes(plan.whole())
        .into_iter()
        .filter(|size| !trial_sizes.contains(size))
        .take(MAX_OTHER_SIZES)
        .collect()
}

#[cfg(test)]
mod tests {
    use kl_formats::{Calls, Float, HeadCheck, HeadTensor};

    use super::*;
    use crate::input::{ScoreFrom, Source};

    fn states() -> States {
        States {
            n_embd: 1,
            state_type: Float::F32,
            head: HeadTensor {
                name: String::new(),
                type_name: "f32".to_owned(),
                type_id: 0,
                bytes: 0,
                sha256: String::new(),
            },
            then: Vec::new(),
            calls: Calls {
                n_batch: 32,
                n_ubatch: 16,
                is_equal: false,
            },
            check: HeadCheck::default(),
        }
    }

    fn plan(n_tokens: u32) -> Plan {
        let source = Source {
            n_ctx: Some(50),
            score: Some(ScoreFrom::All),
            ..Source::default()
        };
        Plan::cut(&vec![1; n_tokens as usize], &source, None)
    }

    #[test]
    fn sizes_that_only_later_windows_have_are_tried() {
        // Two windows of 50 rows make the trial: products of 16 and of 2.
        let other = |n_tokens| other_sizes(&states(), &plan(n_tokens));
        assert_eq!(other(100), BTreeSet::new());
        assert_eq!(other(150), BTreeSet::new());
        assert_eq!(other(107), BTreeSet::from([7]));
        assert_eq!(other(190), BTreeSet::from([8]));
        // Every part of a text tries the same.
        let mut part = plan(107);
        part.keep(Some("0/3".parse().unwrap()));
        assert_eq!(other_sizes(&states(), &part), BTreeSet::from([7]));
    }

    #[test]
    fn check_rows_are_spread_over_the_first_window() {
        let positions = |n_tokens| {
            let rows = check_positions(&plan(n_tokens));
            rows.iter().map(|row| row.position).collect::<Vec<_>>()
        };
        assert_eq!(positions(100), [0, 7, 14, 21, 28, 35, 42, 49]);
        assert_eq!(positions(3), [0, 1, 2]);
        assert_eq!(positions(1), [0]);
    }

    #[test]
    fn check_rows_are_of_the_first_window_that_has_rows() {
        let mut plan = plan(150);
        let planned = plan.windows.clone();
        (plan.windows[0].tokens, plan.windows[0].n_rows) = (Vec::new(), 0);
        plan.was_planned_as(planned, N_TRIAL_ROWS);
        let windows = check_positions(&plan).into_iter().map(|row| row.window);
        assert_eq!(windows.collect::<Vec<_>>(), [1; N_CHECK_ROWS]);
    }
}
