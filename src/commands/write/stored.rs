//! The choice of how a run stores rows: as the settings ask, as an earlier run began, or as a trial
//! finds.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use kl_formats::{
    About, Encoding, Float, HeadCheck, Header, NativeReader, States, Target, WindowSpec,
};

use super::trial;
use crate::commands::calls::Decoding;
use crate::commands::context::record_calls;
use crate::commands::observer::{Event, Watch};
use crate::commands::resume::check_same_run;
use crate::commands::settings::WriteSettings;
use crate::engine::{ContextOptions, EngineError, Model, OutputHead};
use crate::input::PreparedInput;
use crate::pipeline::{DeviceClock, Error, RowCheck, Sources, StateWriting};
use crate::report::number::{bytes, printable, significant};
use crate::score::RowError;

/// The way in which a run stores rows.
pub struct Stored<'m, M: Model + 'm> {
    pub target: Target,
    /// Of hidden states: what a header records of them.
    pub states: Option<States>,
    /// Of hidden states, unless an earlier run has tried them: what is ready to write them.
    ready: Option<Hidden<'m, M>>,
}

/// Hidden states that are ready to be written.
pub struct Hidden<'m, M: Model + 'm> {
    pub decoder: M::Decoder<'m>,
    pub writing: StateWriting<M::Head<'m>>,
    /// The model's own rows that a new file begins with.
    pub check_rows: Vec<Vec<f32>>,
}

/// The encodings to choose from.
pub struct Choice<'m, 'a, M> {
    pub model: &'m M,
    pub settings: &'a WriteSettings,
    /// The model's output head, or why rows cannot be computed with it; `None` for a kind of file
    /// that cannot hold hidden states.
    pub head: Option<Result<OutputHead, EngineError>>,
    pub input: &'a PreparedInput,
    /// The options of a context that shows no states.
    pub options: ContextOptions,
    /// The options of one that does.
    pub state_options: ContextOptions,
    pub decoding: Decoding,
}

impl<'m, M: Model + Sync> Choice<'m, '_, M> {
    /// The encodings of this kind of file, and most bytes that the file can have in each. `about`
    /// describes it but for the states.
    pub fn sizes(&self, about: &mut About) -> Vec<(Encoding, u64)> {
        let windows = &self.input.plan.windows;
        let Some(head) = &self.head else {
            return Vec::new();
        };
        let mut encodings = vec![Encoding::U16, Encoding::F32];
        if head.is_ok() {
            encodings.extend([Encoding::Hidden, Encoding::Hidden16]);
        }
        let size = |encoding| {
            let state_type = self.expected_type(encoding);
            (encoding, self.size(about, windows, encoding, state_type))
        };
        encodings.into_iter().map(size).collect()
    }

    /// The type that states of an encoding most likely need. ggml's CPU kernels convert states to
    /// the type of a head in half precision before they multiply, so that this type loses nothing.
    fn expected_type(&self, encoding: Encoding) -> Float {
        let head = self.head.as_ref().and_then(|head| head.as_ref().ok());
        match (encoding, head.map(|head| head.tensor.type_name.as_str())) {
            (Encoding::Hidden16, _) | (_, Some("f16")) => Float::F16,
            (_, Some("bf16")) => Float::Bf16,
            _ => Float::F32,
        }
    }

    /// Most bytes of a file of these windows.
    fn size(
        &self,
        about: &mut About,
        windows: &[WindowSpec],
        encoding: Encoding,
        state_type: Float,
    ) -> u64 {
        about.states = match &self.head {
            Some(Ok(head)) => Some(self.states(head, state_type)),
            _ => None,
        };
        let bytes = Target::Kl(encoding).projected_bytes(about, windows);
        bytes.saturating_add(self.input.prompt_bytes())
    }

    /// Describes this model's states as a header records them, but for the trial.
    fn states(&self, head: &OutputHead, state_type: Float) -> States {
        States {
            n_embd: head.n_embd,
            state_type,
            head: head.tensor.clone(),
            then: head.then.clone(),
            n_batch: self.state_options.calls.n_batch,
            n_ubatch: self.state_options.calls.n_ubatch,
            equal_calls: self.state_options.calls.is_equal,
            check: HeadCheck {
                rows: trial::check_positions(&self.input.plan),
                ..HeadCheck::default()
            },
        }
    }

    /// The options of a context that decodes windows to be stored so.
    pub fn options_of(&self, stored: &Stored<'m, M>) -> &ContextOptions {
        match stored.states {
            Some(_) => &self.state_options,
            None => &self.options,
        }
    }

    /// Describes a file that is stored so.
    pub fn describe(&self, stored: &Stored<'m, M>, about: &mut About) {
        about.states.clone_from(&stored.states);
        if let Some(backend) = &mut about.backend {
            record_calls(backend, self.options_of(stored));
        }
    }

    /// As an earlier run began or finished the file. What its trial has found is taken from there.
    ///
    /// # Errors
    /// If that run had other settings, or the model has no head that rows can be computed with.
    pub fn as_begun(&self, begun: &NativeReader, about: &mut About) -> Result<Stored<'m, M>> {
        let header = begun.header();
        let encoding = match (self.settings.auto, header.encoding) {
            (true, Encoding::Hidden) => Encoding::Hidden,
            _ => self.settings.target.encoding(),
        };
        let mut stored = self.plain();
        if encoding.holds_states() {
            stored.target = Target::Kl(encoding);
            let mut states = self.states(&self.model.hashed_head()?, Float::F32);
            if let Some(begun) = &header.states {
                states.state_type = begun.state_type;
                states.check.clone_from(&begun.check);
            }
            stored.states = Some(states);
        }
        self.describe(&stored, about);
        let windows = &self.input.plan.windows;
        let header = Header::new(about, encoding, windows);
        check_same_run(begun.path(), begun.header(), &header, "text")?;
        Ok(stored)
    }

    /// As the settings ask for it, or as a trial finds best.
    ///
    /// # Errors
    /// If hidden states were asked for and do not give the model's rows, and those of the trial.
    pub fn for_new_file(&self, about: &mut About, watch: &Watch<'_>) -> Result<Stored<'m, M>> {
        let asked = self.settings.target;
        if asked.encoding().holds_states() {
            return match self.tried(asked, watch)? {
                Ok(stored) => Ok(stored),
                Err(moved) => bail!(
                    "{}: rows computed from hidden states are not the model's own {}: {}",
                    self.settings.model.display(),
                    self.distance(asked, moved.max_kld),
                    advice(asked.encoding())
                ),
            };
        }
        match self.settings.auto {
            true => self.smaller(about, watch),
            false => Ok(self.plain()),
        }
    }

    /// Hidden states where they are smaller for this text and give the model's rows, else rows. States
    /// which, and why.
    fn smaller(&self, about: &mut About, watch: &Watch<'_>) -> Result<Stored<'m, M>> {
        let asked = self.settings.target;
        let kept = |why: String| {
            watch.event(&Event::Plan("encoding", &format!("{asked}: {why}")));
            Ok(self.plain())
        };
        match &self.head {
            // Its advice is what this does.
            Some(Err(EngineError::Head { what, .. })) => {
                return kept(format!("hidden states cannot stand for its logits: {what}"));
            }
            Some(Err(error)) => return kept(error.to_string()),
            _ => {}
        }
        // Every part must come to the same result.
        let whole = self.input.plan.whole();
        let mut size = |encoding, state_type| self.size(about, whole, encoding, state_type);
        let plain = size(asked.encoding(), Float::F32);
        let larger = |hidden| {
            let (hidden, plain) = (bytes(hidden), bytes(plain));
            format!("hidden states would take {hidden} for this text, not {plain}")
        };
        let hidden = size(Encoding::Hidden, Float::F16);
        if hidden >= plain {
            return kept(larger(hidden));
        }
        let target = Target::Kl(Encoding::Hidden);
        match self.tried(target, watch)? {
            Ok(stored) => {
                let states = stored.states.as_ref();
                let hidden = states.map_or(u64::MAX, |s| size(Encoding::Hidden, s.state_type));
                if hidden >= plain {
                    return kept(larger(hidden));
                }
                Ok(stored)
            }
            Err(moved) => kept(format!(
                "rows computed from hidden states are not the model's own ({} nats off)",
                significant(moved.max_kld, 3)
            )),
        }
    }

    /// Hidden states, if they give the model's rows; else how far theirs are from those.
    fn tried(&self, target: Target, watch: &Watch<'_>) -> Result<Result<Stored<'m, M>, RowError>> {
        let mut states = self.states(&self.model.hashed_head()?, Float::F32);
        let mut hidden = self.hidden(&states, target)?;
        let plan = &self.input.plan;
        let tried = trial::run(&mut hidden, &states, target.encoding(), plan, watch)?;
        Ok(tried.map(|()| {
            let checked = hidden.writing.checked;
            states.state_type = hidden.writing.state_type;
            states.check.n_rows = checked.n_rows;
            states.check.mean_kld = checked.mean_kld as f32;
            states.check.max_kld = checked.max_kld as f32;
            Stored {
                target,
                states: Some(states),
                ready: Some(hidden),
            }
        }))
    }

    /// A context and a head, for hidden states of which none is known yet.
    fn hidden(&self, states: &States, target: Target) -> Result<Hidden<'m, M>> {
        let (mut section, threads) = (self.model.read_head()?, self.options.threads);
        let head = self.model.head(states, &mut *section, threads)?;
        let writing = StateWriting {
            n_embd: states.n_embd as usize,
            state_type: states.state_type,
            calls: states.calls(),
            check: RowCheck::new(head, trial::tolerance(target.encoding())),
            known: HashMap::new(),
            checked: RowError::default(),
            check_time: Duration::ZERO,
        };
        Ok(Hidden {
            decoder: self.model.decoder(&self.state_options)?,
            writing,
            check_rows: Vec::new(),
        })
    }

    /// Prepares to write hidden states as was chosen; `None`: rows.
    ///
    /// # Errors
    /// Not enough memory, or a head that cannot be prepared.
    pub fn ready(&self, stored: Stored<'m, M>) -> Result<Option<Hidden<'m, M>>> {
        match (stored.states, stored.ready) {
            (Some(states), None) => self.hidden(&states, stored.target).map(Some),
            (_, ready) => Ok(ready),
        }
    }

    /// By how much a computed row is off, in parentheses. Names the architecture, which decides what
    /// follows the head.
    pub fn distance(&self, target: Target, off: f64) -> String {
        let name = self.model.facts().identity.architecture.clone();
        let name = name.map_or_else(
            || "of unknown architecture".to_owned(),
            |name| printable(&name),
        );
        let encoding = target.encoding();
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
                let ready = ready.lock().unwrap_or_else(PoisonError::into_inner).take();
                Ok(ready.map_or_else(|| model.decoder(options), Ok)?)
            },
            device: is_offloaded.then(DeviceClock::default),
            n_windows: options.n_seq as usize,
        }
    }

    /// Rows as they are.
    fn plain(&self) -> Stored<'m, M> {
        Stored {
            target: self.settings.target,
            states: None,
            ready: None,
        }
    }
}

/// Advises what to use where an encoding of hidden states does not give the model's rows.
pub fn advice(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Hidden16 => "use --encoding hidden, which is exact where it works, or u16",
        _ => "use --encoding u16",
    }
}
