//! How a run stores rows: as the settings ask, in the type of hidden states that a trial finds.

use std::sync::Mutex;

use anyhow::{Result, bail};
use kl_formats::{
    About, Encoding, Float, Header, Kind, NativeReader, States, Target, WindowSpec, n_rows,
};

use super::trial::{self, N_TRIAL_ROWS};
use crate::commands::context::{
    Decoding, Precedent, backend_identity, context_options, record_calls,
};
use crate::commands::input::describe;
use crate::commands::observer::Watch;
use crate::commands::resume::check_same_run;
use crate::commands::settings::WriteSettings;
use crate::engine::{ContextOptions, Engine, EngineError, Model};
use crate::input::PreparedInput;
use crate::lock::locked;
use crate::pipeline::{DeviceClock, Error, Sources, StateSource};
use crate::report::number::{printable, significant};

/// What a run could write, and the ways to store it.
pub struct Choice<'m, 'a, M> {
    pub model: &'m M,
    pub settings: &'a WriteSettings,
    pub input: &'a PreparedInput,
    /// The options of a context that shows no states.
    pub options: ContextOptions,
    /// The options of one that does.
    pub state_options: ContextOptions,
    pub decoding: Decoding,
}

impl<'m, 'a, M: Model + Sync> Choice<'m, 'a, M> {
    /// `precedent` is how an earlier run of the file has decoded.
    pub fn new(
        model: &'m M,
        settings: &'a WriteSettings,
        input: &'a PreparedInput,
        precedent: Precedent,
    ) -> Self {
        let decoding = Decoding::of(model, input.plan.most_rows());
        let context =
            |decoding| context_options(&settings.run, input.longest_window, decoding, precedent);
        Self {
            model,
            settings,
            input,
            options: context(decoding),
            state_options: ContextOptions {
                shows_states: true,
                // Which states were multiplied together is known of each window by itself.
                ..context(decoding.one_by_one())
            },
            decoding,
        }
    }

    /// Describes the reference in full, but for how its rows are stored.
    ///
    /// # Errors
    /// If the engine cannot be started.
    pub fn describe(&self, engine: &impl Engine) -> Result<About> {
        let (settings, model) = (self.settings, self.model);
        let backend = backend_identity(engine, model, &self.options)?;
        let (kind, path) = (settings.target.kind(), &settings.output);
        let (source, input) = (&settings.input, self.input);
        Ok(describe(kind, path, model, source, input, backend))
    }

    /// The encodings of this kind of file, and most bytes that the file can have in each; nothing for
    /// a kind that cannot hold hidden states.
    pub fn sizes(&self, about: &mut About) -> Vec<(Encoding, u64)> {
        if self.settings.target.kind() != Kind::Kl {
            return Vec::new();
        }
        let windows = &self.input.plan.windows;
        let states = self.states().ok();
        let mut encodings = vec![Encoding::U16, Encoding::F32];
        if states.is_some() {
            encodings.push(Encoding::Hidden);
        }
        let size = |encoding| {
            let mut states = states.clone();
            if let Some(states) = &mut states {
                states.state_type = expected_type(&states.head.type_name);
            }
            (encoding, self.size(about, windows, encoding, states))
        };
        encodings.into_iter().map(size).collect()
    }

    /// Most bytes of this part's file as it is planned.
    pub fn planned_bytes(&self, about: &mut About) -> u64 {
        let (target, windows) = (self.settings.target, &self.input.plan.windows);
        let mut sizes = self.sizes(about).into_iter();
        let planned = sizes.find(|(encoding, _)| *encoding == target.encoding());
        let of_all =
            planned.map_or_else(|| target.projected_bytes(about, windows), |(_, size)| size);
        let n_parts = self.input.shard.map_or(1, |shard| shard.count.max(1));
        of_all / u64::from(n_parts)
    }

    /// Most bytes of a file of these windows.
    fn size(
        &self,
        about: &mut About,
        windows: &[WindowSpec],
        encoding: Encoding,
        states: Option<States>,
    ) -> u64 {
        let before = std::mem::replace(&mut about.states, states);
        let bytes = Target::Kl(encoding).projected_bytes(about, windows);
        about.states = before;
        bytes.saturating_add(self.input.prompt_bytes())
    }

    /// Describes this model's states as a header records them, but for the hash of its head and what
    /// the trial finds.
    fn states(&self) -> Result<States, EngineError> {
        let mut states = self.model.describe_states(self.state_options.calls)?;
        states.check.rows = trial::check_positions(&self.input.plan);
        Ok(states)
    }

    fn hashed_states(&self) -> Result<States, EngineError> {
        let mut states = self.states()?;
        states.head.sha256 = self.model.head_sha256()?;
        Ok(states)
    }

    /// The options of a context that decodes windows to be stored as `about` describes.
    pub fn options_of(&self, about: &About) -> &ContextOptions {
        match about.states {
            Some(_) => &self.state_options,
            None => &self.options,
        }
    }

    /// Records in `about` how windows are stored, and so decoded.
    fn record(&self, states: Option<States>, about: &mut About) {
        about.states = states;
        let options = self.options_of(about);
        if let Some(backend) = &mut about.backend {
            record_calls(backend, options);
        }
    }

    /// As an earlier run began or finished the file.
    ///
    /// # Errors
    /// If that run had other settings, or the model has no head that rows can be computed with.
    pub fn as_begun(&self, begun: &NativeReader, about: &mut About) -> Result<()> {
        let own = self.own_header(begun, about)?;
        check_same_run(begun.path(), begun.header(), &own, "text")
    }

    /// The same before any answer is generated, which can take hours: it compares all that does not
    /// depend on the answers.
    ///
    /// # Errors
    /// Those of [`Self::as_begun`].
    pub fn check_planned(&self, begun: &NativeReader, about: &mut About) -> Result<()> {
        let header = begun.header();
        let mut own = self.own_header(begun, about)?;
        own.n_rows = header.n_rows;
        own.prompts.clone_from(&header.prompts);
        if own.shard.is_some() {
            // The plan is that of all parts.
            own.n_windows = header.n_windows;
        }
        check_same_run(begun.path(), header, &own, "prompts")
    }

    /// The header that this run would write. What the trial of the earlier run has found is taken from
    /// there, if it is what this version accepts: rows to the bit.
    fn own_header(&self, begun: &NativeReader, about: &mut About) -> Result<Header> {
        let encoding = self.settings.target.encoding();
        let mut states = None;
        if encoding.holds_states() {
            let mut own = self.hashed_states()?;
            if let Some(begun) = &begun.header().states {
                own.state_type = begun.state_type;
                own.check.clone_from(&begun.check);
                own.check.max_kld = 0.0;
            }
            states = Some(own);
        }
        self.record(states, about);
        Ok(Header::new(about, encoding, &self.input.plan.windows))
    }

    /// The source of hidden states for a new file that stores those.
    ///
    /// # Errors
    /// If they do not give the model's rows, and those of the trial.
    pub fn for_new_file(
        &self,
        about: &mut About,
        watch: &Watch<'_>,
    ) -> Result<Option<StateSource<'m>>> {
        let mut source = None;
        if self.settings.target.encoding().holds_states() {
            match self.tried(watch)? {
                Ok(tried) => source = Some(tried),
                Err(off) => bail!(
                    "{}: rows computed from hidden states are not the model's own {}: {ADVICE}",
                    self.settings.model.display(),
                    self.distance(off),
                ),
            }
        }
        self.record(source.as_ref().map(|source| source.states.clone()), about);
        Ok(source)
    }

    /// Hidden states, if the trial finds that they give the model's rows; else how far theirs are from
    /// those, in nats.
    fn tried(&self, watch: &Watch<'_>) -> Result<Result<StateSource<'m>, f64>> {
        let plan = &self.input.plan;
        let windows = plan.first(N_TRIAL_ROWS);
        let mut source = self.source(self.hashed_states()?)?;
        let sizes = trial::other_sizes(&source.states, plan);
        let rows = Some(n_rows(windows));
        let phase = watch.begin("checking", Some(windows.len() as u64), rows);
        let is_exact = source.try_types(windows, &sizes, |step| phase.step(step))?;
        Ok(if is_exact {
            Ok(source)
        } else {
            Err(source.checked.max_kld)
        })
    }

    /// A context and a head, for hidden states of which none is known yet.
    ///
    /// # Errors
    /// Not enough memory, or a head that cannot be prepared.
    pub fn source(&self, states: States) -> Result<StateSource<'m>> {
        let (mut section, threads) = (self.model.read_head()?, self.options.threads);
        let head = self.model.load_head(&states, &mut *section, threads)?;
        let decoder = self.model.decoder(&self.state_options)?;
        Ok(StateSource::new(decoder, head, states))
    }

    /// By how much a computed row is off, in parentheses. Names the architecture, which decides what
    /// follows the head.
    pub fn distance(&self, off: f64) -> String {
        let name = self.model.facts().identity.architecture.as_deref();
        let name = name.map_or_else(|| "of unknown architecture".to_owned(), printable);
        format!("({name}: {} nats off)", significant(off, 3))
    }

    /// Sources of rows as they are; the first uses `decoder`.
    pub fn sources(
        &self,
        decoder: Option<M::Decoder<'m>>,
    ) -> Sources<impl Fn() -> Result<M::Decoder<'m>, Error> + Sync> {
        let (model, options) = (self.model, &self.options);
        let is_offloaded = model.facts().is_offloaded;
        let ready = Mutex::new(decoder);
        Sources {
            n: self.settings.run.n_contexts(is_offloaded) as usize,
            make: move || {
                let ready = locked(&ready).take();
                Ok(ready.map_or_else(|| model.decoder(options), Ok)?)
            },
            device: is_offloaded.then(DeviceClock::default),
            n_windows: options.n_seq as usize,
        }
    }
}

/// The type that states most likely need. ggml's CPU kernels convert states to the type of a head in
/// half precision before they multiply, so that this type loses nothing.
fn expected_type(head_type: &str) -> Float {
    match head_type {
        "f16" => Float::F16,
        "bf16" => Float::Bf16,
        _ => Float::F32,
    }
}

/// What to do where hidden states do not give the model's rows.
pub const ADVICE: &str = "use --encoding u16";
