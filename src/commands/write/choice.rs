//! The choice of how a run stores rows: as the settings ask, as an earlier run began, or as a trial
//! finds.

use std::sync::Mutex;

use anyhow::{Result, bail};
use kl_formats::{
    About, Encoding, Float, Header, Kind, NativeReader, States, Target, WindowSpec, n_rows,
};

use super::trial::{self, N_TRIAL_ROWS};
use crate::commands::calls::Decoding;
use crate::commands::context::{Precedent, backend_identity, context_options, record_calls};
use crate::commands::input::describe;
use crate::commands::observer::{Event, Watch};
use crate::commands::resume::check_same_run;
use crate::commands::settings::WriteSettings;
use crate::engine::{ContextOptions, Engine, EngineError, Model};
use crate::input::PreparedInput;
use crate::lock::locked;
use crate::pipeline::{DeviceClock, Error, Sources, StateSource};
use crate::report::number::{bytes, printable, significant};

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
            encodings.extend([Encoding::Hidden, Encoding::Hidden16]);
        }
        let size = |encoding| {
            let mut states = states.clone();
            if let Some(states) = &mut states {
                states.state_type = expected_type(encoding, &states.head.type_name);
            }
            (encoding, self.size(about, windows, encoding, states))
        };
        encodings.into_iter().map(size).collect()
    }

    /// Most bytes of this part's file as it is planned, in the smallest of the encodings that may be
    /// used.
    pub fn planned_bytes(&self, about: &mut About) -> u64 {
        let (target, windows) = (self.settings.target, &self.input.plan.windows);
        let sizes = self.sizes(about).into_iter();
        let may_be_used = |encoding| {
            encoding == target.encoding() || (self.settings.auto && encoding == Encoding::Hidden)
        };
        let usable = sizes.filter(|(encoding, _)| may_be_used(*encoding));
        let least = usable.map(|(_, size)| size).min();
        let of_all = least.unwrap_or_else(|| target.projected_bytes(about, windows));
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
    pub fn as_begun(&self, begun: &NativeReader, about: &mut About) -> Result<Target> {
        let (target, own) = self.own_header(begun, about)?;
        check_same_run(begun.path(), begun.header(), &own, "text")?;
        Ok(target)
    }

    /// The same before any answer is generated, which can take hours: it compares all that does not
    /// depend on the answers.
    ///
    /// # Errors
    /// Those of [`Self::as_begun`].
    pub fn check_planned(&self, begun: &NativeReader, about: &mut About) -> Result<()> {
        let header = begun.header();
        let (_, mut own) = self.own_header(begun, about)?;
        own.n_rows = header.n_rows;
        own.prompts.clone_from(&header.prompts);
        if own.shard.is_some() {
            // The plan is that of all parts.
            own.n_windows = header.n_windows;
        }
        check_same_run(begun.path(), header, &own, "prompts")
    }

    /// The header that this run would write, and how it stores rows. What the trial of the earlier
    /// run has found is taken from there.
    fn own_header(&self, begun: &NativeReader, about: &mut About) -> Result<(Target, Header)> {
        let header = begun.header();
        let asked = self.settings.target;
        let target = match (self.settings.auto, header.encoding) {
            (true, Encoding::Hidden) => Target::Kl(Encoding::Hidden),
            _ => asked,
        };
        let mut states = None;
        if target.encoding().holds_states() {
            let mut own = self.hashed_states()?;
            if let Some(begun) = &header.states {
                own.state_type = begun.state_type;
                own.check.clone_from(&begun.check);
            }
            states = Some(own);
        }
        self.record(states, about);
        let own = Header::new(about, target.encoding(), &self.input.plan.windows);
        Ok((target, own))
    }

    /// As the settings ask for it, or as a trial finds best; with it the source of hidden states,
    /// where those are stored.
    ///
    /// # Errors
    /// If hidden states were asked for and do not give the model's rows, and those of the trial.
    pub fn for_new_file(
        &self,
        about: &mut About,
        watch: &Watch<'_>,
    ) -> Result<(Target, Option<StateSource<'m>>)> {
        let asked = self.settings.target;
        let (mut target, mut source) = (asked, None);
        if asked.encoding().holds_states() {
            match self.tried(asked.encoding(), watch)? {
                Ok(tried) => source = Some(tried),
                Err(off) => bail!(
                    "{}: rows computed from hidden states are not the model's own {}: {}",
                    self.settings.model.display(),
                    self.distance(asked.encoding(), off),
                    advice(asked.encoding())
                ),
            }
        } else if self.settings.auto {
            match self.smaller(about, watch)? {
                Ok(tried) => {
                    target = Target::Kl(Encoding::Hidden);
                    source = Some(tried);
                }
                Err(why) => watch.event(&Event::Plan("encoding", &format!("{asked}: {why}"))),
            }
        }
        self.record(source.as_ref().map(|source| source.states.clone()), about);
        Ok((target, source))
    }

    /// Hidden states where they are smaller for this text and give the model's rows; else why not.
    fn smaller(
        &self,
        about: &mut About,
        watch: &Watch<'_>,
    ) -> Result<Result<StateSource<'m>, String>> {
        let states = match self.states() {
            Ok(states) => states,
            // Its advice is what this does.
            Err(EngineError::NoStates { what, .. }) => {
                let why = format!("hidden states cannot stand for its logits: {what}");
                return Ok(Err(why));
            }
            Err(error) => return Ok(Err(error.to_string())),
        };
        // Every part must come to the same result.
        let whole = self.input.plan.whole();
        let plain = self.size(about, whole, self.settings.target.encoding(), None);
        let mut larger = |states: &States| {
            let hidden = self.size(about, whole, Encoding::Hidden, Some(states.clone()));
            (hidden >= plain).then(|| {
                let (hidden, plain) = (bytes(hidden), bytes(plain));
                format!("hidden states would take {hidden} for this text, not {plain}")
            })
        };
        let smallest = States {
            state_type: Float::F16,
            ..states
        };
        if let Some(why) = larger(&smallest) {
            return Ok(Err(why));
        }
        Ok(match self.tried(Encoding::Hidden, watch)? {
            Ok(source) => match larger(&source.states) {
                Some(why) => Err(why),
                None => Ok(source),
            },
            Err(off) => Err(format!(
                "rows computed from hidden states are not the model's own ({} nats off)",
                significant(off, 3)
            )),
        })
    }

    /// Hidden states, if the trial finds that they give the model's rows; else how far theirs are from
    /// those, in nats.
    fn tried(&self, encoding: Encoding, watch: &Watch<'_>) -> Result<Result<StateSource<'m>, f64>> {
        let plan = &self.input.plan;
        let windows = plan.first(N_TRIAL_ROWS);
        let mut source = self.source(self.hashed_states()?, encoding)?;
        let sizes = trial::other_sizes(&source.states, plan);
        let rows = Some(n_rows(windows));
        let phase = watch.begin("checking", Some(windows.len() as u64), rows);
        let types = trial::state_types(encoding);
        let is_near = source.try_types(types, windows, &sizes, |step| phase.step(step))?;
        Ok(match is_near {
            true => Ok(source),
            false => Err(source.checked.max_kld),
        })
    }

    /// A context and a head, for hidden states of which none is known yet.
    ///
    /// # Errors
    /// Not enough memory, or a head that cannot be prepared.
    pub fn source(&self, states: States, encoding: Encoding) -> Result<StateSource<'m>> {
        let (mut section, threads) = (self.model.read_head()?, self.options.threads);
        let head = self.model.load_head(&states, &mut *section, threads)?;
        let decoder = self.model.decoder(&self.state_options)?;
        let tolerance = trial::tolerance(encoding);
        Ok(StateSource::new(decoder, head, states, tolerance))
    }

    /// By how much a computed row is off, in parentheses. Names the architecture, which decides what
    /// follows the head.
    pub fn distance(&self, encoding: Encoding, off: f64) -> String {
        let name = self.model.facts().identity.architecture.as_deref();
        let name = name.map_or_else(|| "of unknown architecture".to_owned(), printable);
        let most = match trial::tolerance(encoding) {
            Some(most) => format!(", more than the {most} of {encoding}"),
            None => String::new(),
        };
        let off = significant(off, 3);
        format!("({name}: {off} nats off{most})")
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

/// The type that states of an encoding most likely need. ggml's CPU kernels convert states to the type
/// of a head in half precision before they multiply, so that this type loses nothing.
fn expected_type(encoding: Encoding, head_type: &str) -> Float {
    match (encoding, head_type) {
        (Encoding::Hidden16, _) | (_, "f16") => Float::F16,
        (_, "bf16") => Float::Bf16,
        _ => Float::F32,
    }
}

/// Advises what to use where an encoding of hidden states does not give the model's rows.
pub fn advice(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Hidden16 => "use --encoding hidden, which is exact where it works, or u16",
        _ => "use --encoding u16",
    }
}
