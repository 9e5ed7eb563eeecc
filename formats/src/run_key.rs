//! What makes two runs the same: one description of a run, and the differences between two.
//!
//! Every file of `kl`'s own states in its header which run it is of, and [`RunKey`] is that
//! statement, whatever the file: `From` each header. Whoever continues, replaces, joins or compares files asks
//! [`RunKey::diff`], and decides by the [`Effect`] of what it finds.

mod set_up;

use serde::Serialize;
use serde_json::Value;

use crate::about::{ReferenceSummary, Sampling};
use crate::map::{ImatrixIdentity, MapHeader, MapTensor, MapWindow};
use crate::native::Header;
use crate::numbers::GgmlType;
use crate::prompt::Prompt;
use crate::provenance::{
    BackendIdentity, ModelIdentity, Provenance, Shard, TextIdentity, TokenizerIdentity,
};
use crate::row::Encoding;
use crate::sidecar::SidecarHeader;
use crate::states::States;
use crate::window::MAX_N_CTX;
pub use set_up::Setting;

/// A run: what its numbers depend on, and what its file says besides. `None` means that a property is
/// not known, or not yet; it equals any value. Where "none" is a value by itself (no seed, no
/// sampling), the field says so.
#[derive(Clone, Debug, PartialEq)]
pub struct RunKey {
    /// The program with its version.
    pub program: Option<String>,
    /// The user's name for the evaluation; `None`: no name.
    pub label: Option<String>,
    /// The model.
    pub model: ModelKey,
    /// What its windows are made of.
    pub text: TextKey,
    /// What the rows were compared with, where they were.
    pub reference: Option<ReferenceSummary>,
    /// Its windows.
    pub windows: WindowsKey,
    /// What it makes.
    pub made: Made,
    /// The set-up that computed the rows.
    pub set_up: Option<BackendIdentity>,
    /// The part of a whole; `None`: the whole.
    pub part: Option<PartKey>,
}

/// The model that computed the rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelKey {
    /// The model's file.
    pub identity: Option<ModelIdentity>,
    /// Its tokenizer.
    pub tokenizer: Option<TokenizerIdentity>,
}

/// What windows are made of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextKey {
    /// The text.
    pub identity: Option<TextIdentity>,
    /// The texts, where there are several.
    pub texts: Vec<TextIdentity>,
    /// The prompts; empty where windows are parts of a text.
    pub prompts: Option<Vec<Prompt>>,
    /// SHA-256 (hex) of the chat template; `None`: none was applied.
    pub chat_template: Option<String>,
    /// Most tokens of an answer; `None`: answers were not generated.
    pub generated: Option<u32>,
    /// How they were chosen; `None`: greedily.
    pub sampling: Option<Sampling>,
}

/// The windows, and which of their positions are scored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WindowsKey {
    /// Most tokens of a window.
    pub n_ctx: Option<u32>,
    /// Entries of a row.
    pub n_vocab: Option<u32>,
    /// True if each window starts with an inserted BOS.
    pub add_bos: Option<bool>,
    /// First scored position of a full window.
    pub first_scored: Option<u32>,
    /// Their order.
    pub order: Option<WindowOrder>,
    /// Tokens between the starts of two windows.
    pub stride: Option<u32>,
    /// The names of their groups.
    pub groups: Option<Vec<String>>,
    /// The runs of windows of one group.
    pub window_groups: Option<Vec<(u32, u32)>>,
    /// The names of the spans of their tokens.
    pub spans: Option<Vec<String>>,
    /// Windows in the file.
    pub n_windows: Option<u32>,
    /// Rows, or records.
    pub n_rows: Option<RowCount>,
    /// The windows that a map measures.
    pub of_map: Vec<MapWindow>,
}

/// The number of rows of a run.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(untagged)]
pub enum RowCount {
    /// So many.
    Exactly(u64),
    /// As many as a stream holds, which shows at its end.
    ToTheEnd,
}

/// The order of windows.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum WindowOrder {
    /// That of the text.
    Text,
    /// By chance, from this seed.
    #[serde(untagged)]
    Seed(u64),
}

/// A part of a whole.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartKey {
    /// Its number, from 0.
    pub index: u32,
    /// The number of parts.
    pub count: u32,
    /// Windows of the whole.
    pub n_windows: Option<u32>,
    /// Rows of the whole.
    pub n_rows: Option<u64>,
}

impl From<Shard> for PartKey {
    fn from(of: Shard) -> Self {
        Self {
            index: of.index,
            count: of.count,
            n_windows: known(of.n_windows),
            n_rows: (of.n_rows > 0).then_some(of.n_rows),
        }
    }
}

/// What a run makes.
#[derive(Clone, Debug, PartialEq)]
pub enum Made {
    /// Answers, from which windows are made, with what the user set of their decode calls.
    Answers {
        /// Tokens of a call.
        n_batch: Option<u32>,
        /// Tokens of a physical batch.
        n_ubatch: Option<u32>,
        /// Windows in a call.
        n_parallel: Option<u32>,
    },
    /// Rows of a reference.
    Rows {
        /// The storage of a row.
        encoding: Encoding,
        /// The hidden states, where those are stored.
        states: Option<States>,
        /// Rows that are compressed together.
        rows_per_piece: u32,
        /// True if the values are log-probabilities.
        log_probabilities: bool,
        /// True if small ones are floored, as llama.cpp does it.
        floored: bool,
    },
    /// Records of a sidecar.
    Records {
        /// True if the windows are prompts.
        prompts: Option<bool>,
        /// True if the evaluated rows were read from a file.
        stored: bool,
        /// The width of the interval at which the run stops; `None`: at the end.
        until: Option<f64>,
        /// Entries of each row that were compared.
        n_vocab_compared: Option<u32>,
    },
    /// Cells of a map.
    Cells {
        /// The type at which tensors are measured, where their rows are whole blocks of it.
        measured_type: GgmlType,
        /// The types that are measured.
        types: Vec<GgmlType>,
        /// The importance matrix; `None`: without one.
        imatrix: Option<ImatrixIdentity>,
        /// Bytes of a quantized file before its tensors.
        metadata_bytes: u64,
        /// Bytes that the start of each tensor in a quantized file is a multiple of.
        alignment: u64,
        /// The tensors of the model.
        tensors: Vec<MapTensor>,
    },
}

/// What a difference does to a run's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: files that were renamed, a label. A file records it all the same.
    Recorded,
    /// Nothing that is known: another version of the program.
    Program,
    /// Their last bits: how a machine computes.
    Machine,
    /// They are other numbers.
    Numbers,
}

/// What differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aspect {
    /// The program's version.
    Program,
    /// A setting of the set-up.
    SetUp(Setting),
    /// Any other key of a header.
    Key(&'static str),
}

impl Aspect {
    /// The name that messages use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Program => "writer",
            Self::SetUp(setting) => setting.name(),
            Self::Key(key) => key,
        }
    }
}

/// Something in which two runs differ, with both values as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What differs.
    pub what: Aspect,
    /// Its value in this run.
    pub here: String,
    /// Its value in the other run.
    pub there: String,
    /// What that does to the numbers.
    pub effect: Effect,
}

/// As in `n_ctx: 64 there, 32 here`.
impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (what, there, here) = (self.what.name(), &self.there, &self.here);
        write!(f, "{what}: {there} there, {here} here")
    }
}

impl RunKey {
    /// The key of the whole that this run is a part of: with the whole's counts, and without what each part
    /// records for itself.
    #[must_use]
    pub fn of_whole(mut self) -> Self {
        if let Some(part) = self.part.take() {
            self.windows.n_windows = part.n_windows;
            self.windows.n_rows = part.n_rows.map(RowCount::Exactly);
        }
        let is_generated = self.text.generated.is_some();
        for prompt in self.text.prompts.iter_mut().flatten() {
            prompt.spans.clear();
            if is_generated {
                prompt.n_tokens = 0;
            }
        }
        if is_generated {
            self.windows.n_rows = None;
        }
        self
    }

    /// Leaves out what is known only once the run is planned, where its header is still empty.
    pub fn forget_unplanned(&mut self) {
        fn leave_out_empty<T>(list: &mut Option<Vec<T>>) {
            list.take_if(|list| list.is_empty());
        }
        let windows = &mut self.windows;
        windows.order.take_if(|order| *order == WindowOrder::Text);
        windows.stride = None;
        leave_out_empty(&mut windows.groups);
        leave_out_empty(&mut windows.window_groups);
        leave_out_empty(&mut windows.spans);
        leave_out_empty(&mut self.text.prompts);
        if let Made::Records {
            prompts,
            n_vocab_compared,
            ..
        } = &mut self.made
        {
            prompts.take_if(|has_prompts| !*has_prompts);
            *n_vocab_compared = None;
        }
    }

    /// All in which this run differs from the one `there`, the most telling first: what the user chose,
    /// then what follows from it.
    pub fn diff(&self, there: &Self) -> Vec<Difference> {
        let mut found = Differences(Vec::new());
        found.push_if_known(
            Aspect::Program,
            Effect::Program,
            &self.program,
            &there.program,
        );
        found.model(
            ModelNames::EVALUATED,
            &self.model.identity,
            &there.model.identity,
        );
        found.text("text", &self.text.identity, &there.text.identity);
        let n_ctx = there.windows.n_ctx.or(self.windows.n_ctx);
        let n_ctx = n_ctx.unwrap_or(MAX_N_CTX);
        if let (Some(here), Some(there)) = (&self.reference, &there.reference) {
            found.0.extend(here.diff(there, n_ctx));
        } else {
            let is_given = |of: &Self| Some(of.reference.is_some());
            found.key("reference", &is_given(self), &is_given(there));
        }
        let (here, other) = (&self.text, &there.text);
        found.value("generated", &here.generated, &other.generated);
        found.value("sampling", &here.sampling, &other.sampling);
        found.key("n_ctx", &self.windows.n_ctx, &there.windows.n_ctx);
        found.made(&self.made, &there.made);
        found.recorded("label", &self.label, &there.label);
        found.key("tokenizer", &self.model.tokenizer, &there.model.tokenizer);
        found.texts(&here.texts, &other.texts);
        found.value("chat_template", &here.chat_template, &other.chat_template);
        if let (Some(here), Some(there)) = (&here.prompts, &other.prompts) {
            found.prompts(here, there);
        }
        found.windows(&self.windows, &there.windows);
        if let (Some(here), Some(other)) = (&self.set_up, &there.set_up) {
            found.0.extend(here.diff(other, n_ctx));
        }
        found.part(&self.part, &there.part);
        found.key(
            "n_windows",
            &self.windows.n_windows,
            &there.windows.n_windows,
        );
        found.key(
            made_of(&self.made),
            &self.windows.n_rows,
            &there.windows.n_rows,
        );
        found.0
    }
}

/// The key under which a file counts what it holds.
fn made_of(made: &Made) -> &'static str {
    match made {
        Made::Records { .. } => "n_records",
        _ => "n_rows",
    }
}

impl ReferenceSummary {
    /// All in which this reference differs from the one `there`. Two of one fingerprint are the same; one
    /// that is still to be computed has none, and is known by its model and its text. `n_ctx`: most tokens of a
    /// window.
    pub fn diff(&self, there: &Self, n_ctx: u32) -> Vec<Difference> {
        let mut found = Differences(Vec::new());
        let (one, other) = (&self.fingerprint, &there.fingerprint);
        let is_same = one.is_some() && one == other;
        let effect = match (one, other) {
            // The file is still to be named, or has another name now.
            _ if is_same => Effect::Recorded,
            (None, Some(_)) => Effect::Recorded,
            _ => Effect::Numbers,
        };
        let name = Aspect::Key("reference.file_name");
        found.push_if_known(name, effect, &self.file_name, &there.file_name);
        if is_same {
            return found.0;
        }
        found.key("reference.kind", &self.kind, &there.kind);
        found.model(ModelNames::REFERENCE, &self.model, &there.model);
        found.text("reference.text", &self.text, &there.text);
        found.key("reference.fingerprint", one, other);
        if let (Some(here), Some(other)) = (&self.backend, &there.backend) {
            found.0.extend(here.diff(other, n_ctx));
        }
        found.value("reference.sampling", &self.sampling, &there.sampling);
        found.0
    }
}

/// The names of a model's keys.
struct ModelNames {
    file_name: &'static str,
    others: [&'static str; 7],
}

impl ModelNames {
    const EVALUATED: Self = Self {
        file_name: "model.file_name",
        others: [
            "model.name",
            "model.architecture",
            "model.size_bytes",
            "model.n_params",
            "model.file_bytes",
            "model.metadata_sha256",
            "model.sample_sha256",
        ],
    };
    const REFERENCE: Self = Self {
        file_name: "reference.model.file_name",
        others: [
            "reference.model.name",
            "reference.model.architecture",
            "reference.model.size_bytes",
            "reference.model.n_params",
            "reference.model.file_bytes",
            "reference.model.metadata_sha256",
            "reference.model.sample_sha256",
        ],
    };
}

/// The differences found so far.
struct Differences(Vec<Difference>);

impl Differences {
    /// Adds a property that both know and state otherwise.
    fn push_if_known<T: PartialEq + Serialize>(
        &mut self,
        what: Aspect,
        effect: Effect,
        here: &Option<T>,
        there: &Option<T>,
    ) {
        if let (Some(one), Some(other)) = (here, there)
            && one != other
        {
            self.push(what, effect, one, other);
        }
    }

    fn push(
        &mut self,
        what: Aspect,
        effect: Effect,
        here: &impl Serialize,
        there: &impl Serialize,
    ) {
        let (here, there) = (shown(here), shown(there));
        self.0.push(Difference {
            what,
            here,
            there,
            effect,
        });
    }

    /// Compares a property that changes numbers; `None` is not known.
    fn key<T: PartialEq + Serialize>(
        &mut self,
        key: &'static str,
        here: &Option<T>,
        there: &Option<T>,
    ) {
        self.push_if_known(Aspect::Key(key), Effect::Numbers, here, there);
    }

    /// Compares a property that changes numbers, and whose every value is known.
    fn value<T: PartialEq + Serialize>(&mut self, key: &'static str, here: &T, there: &T) {
        if here != there {
            self.push(Aspect::Key(key), Effect::Numbers, here, there);
        }
    }

    /// Compares what is only recorded.
    fn recorded<T: PartialEq + Serialize>(&mut self, key: &'static str, here: &T, there: &T) {
        if here != there {
            self.push(Aspect::Key(key), Effect::Recorded, here, there);
        }
    }

    /// Compares two models. Hashes show that they are the same, whatever their files are called.
    fn model(
        &mut self,
        names: ModelNames,
        here: &Option<ModelIdentity>,
        there: &Option<ModelIdentity>,
    ) {
        let (Some(here), Some(there)) = (here, there) else {
            return;
        };
        let is_same = here.is_same(there);
        let effect = if is_same {
            Effect::Recorded
        } else {
            Effect::Numbers
        };
        let name = Aspect::Key(names.file_name);
        self.push_if_known(name, effect, &here.file_name, &there.file_name);
        if is_same {
            return;
        }
        let [
            general_name,
            architecture,
            size_bytes,
            n_params,
            file_bytes,
            metadata,
            samples,
        ] = names.others;
        self.key(general_name, &here.name, &there.name);
        self.key(architecture, &here.architecture, &there.architecture);
        self.key(size_bytes, &here.size_bytes, &there.size_bytes);
        self.key(n_params, &here.n_params, &there.n_params);
        self.key(file_bytes, &here.file_bytes, &there.file_bytes);
        self.key(metadata, &here.metadata_sha256, &there.metadata_sha256);
        self.key(samples, &here.sample_sha256, &there.sample_sha256);
    }

    /// Compares two texts. Those of one hash are the same, whatever they are called.
    fn text(
        &mut self,
        key: &'static str,
        here: &Option<TextIdentity>,
        there: &Option<TextIdentity>,
    ) {
        let (Some(here), Some(there)) = (here, there) else {
            return;
        };
        let is_same = here.sha256.is_some() && here.sha256 == there.sha256;
        let [name, bytes, sha256, n_tokens] = match key {
            "text" => ["text.name", "text.bytes", "text.sha256", "text.n_tokens"],
            "texts" => [
                "texts.name",
                "texts.bytes",
                "texts.sha256",
                "texts.n_tokens",
            ],
            _ => [
                "reference.text.name",
                "reference.text.bytes",
                "reference.text.sha256",
                "reference.text.n_tokens",
            ],
        };
        let effect = if is_same {
            Effect::Recorded
        } else {
            Effect::Numbers
        };
        self.push_if_known(Aspect::Key(name), effect, &here.name, &there.name);
        self.key(bytes, &here.bytes, &there.bytes);
        self.key(sha256, &here.sha256, &there.sha256);
        self.key(n_tokens, &here.n_tokens, &there.n_tokens);
    }

    fn part(&mut self, here: &Option<PartKey>, there: &Option<PartKey>) {
        let (Some(here), Some(there)) = (here, there) else {
            return self.value("shard", here, there);
        };
        self.value("shard.index", &here.index, &there.index);
        self.value("shard.count", &here.count, &there.count);
        self.key("shard.n_windows", &here.n_windows, &there.n_windows);
        self.key("shard.n_rows", &here.n_rows, &there.n_rows);
    }

    fn texts(&mut self, here: &[TextIdentity], there: &[TextIdentity]) {
        if here.len() != there.len() {
            return self.value("texts", &here, &there);
        }
        for (here, there) in here.iter().zip(there) {
            self.text("texts", &Some(here.clone()), &Some(there.clone()));
        }
    }

    fn prompts(&mut self, here: &[Prompt], there: &[Prompt]) {
        self.value("prompts", &here.len(), &there.len());
        for (here, there) in here.iter().zip(there) {
            self.value("prompts", &here.content, &there.content);
            self.value("prompts.variables", &here.variables, &there.variables);
            self.value("prompts.continues", &here.continues, &there.continues);
            self.value("prompts.spans", &here.spans, &there.spans);
            self.value("prompts.n_tokens", &here.n_tokens, &there.n_tokens);
        }
    }

    fn windows(&mut self, here: &WindowsKey, there: &WindowsKey) {
        self.key("add_bos", &here.add_bos, &there.add_bos);
        self.key("first_scored", &here.first_scored, &there.first_scored);
        self.key("seed", &here.order, &there.order);
        self.key("stride", &here.stride, &there.stride);
        self.key("groups", &here.groups, &there.groups);
        self.key("window_groups", &here.window_groups, &there.window_groups);
        self.key("spans", &here.spans, &there.spans);
        self.key("n_vocab", &here.n_vocab, &there.n_vocab);
        if here.of_map.len() == there.of_map.len() {
            self.value("windows", &here.of_map, &there.of_map);
        } else {
            self.value("windows", &here.of_map.len(), &there.of_map.len());
        }
    }

    fn made(&mut self, here: &Made, there: &Made) {
        match (here, there) {
            (
                Made::Answers {
                    n_batch,
                    n_ubatch,
                    n_parallel,
                },
                Made::Answers {
                    n_batch: n_batch_there,
                    n_ubatch: n_ubatch_there,
                    n_parallel: n_parallel_there,
                },
            ) => {
                self.value(Setting::Batch.name(), n_batch, n_batch_there);
                self.value(Setting::PhysicalBatch.name(), n_ubatch, n_ubatch_there);
                let setting = Setting::WindowsInCall.name();
                self.value(setting, n_parallel, n_parallel_there);
            }
            (
                Made::Rows {
                    encoding,
                    states,
                    rows_per_piece,
                    log_probabilities,
                    floored,
                },
                Made::Rows {
                    encoding: encoding_there,
                    states: states_there,
                    rows_per_piece: rows_per_piece_there,
                    log_probabilities: log_probabilities_there,
                    floored: floored_there,
                },
            ) => {
                self.value("encoding", encoding, encoding_there);
                // What the check has measured is a result.
                let mut states = states.clone();
                if let (Some(states), Some(states_there)) = (&mut states, states_there) {
                    states.check.clone_from(&states_there.check);
                }
                self.value("states", &states, states_there);
                self.value("rows_per_piece", rows_per_piece, rows_per_piece_there);
                self.value(
                    "log_probabilities",
                    log_probabilities,
                    log_probabilities_there,
                );
                self.value("floored", floored, floored_there);
            }
            (
                Made::Records {
                    prompts,
                    stored,
                    until,
                    n_vocab_compared,
                },
                Made::Records {
                    prompts: prompts_there,
                    stored: stored_there,
                    until: until_there,
                    n_vocab_compared: n_vocab_compared_there,
                },
            ) => {
                self.key("prompts", prompts, prompts_there);
                self.value("stored", stored, stored_there);
                self.value("until", until, until_there);
                self.key("n_vocab_compared", n_vocab_compared, n_vocab_compared_there);
            }
            (
                Made::Cells {
                    measured_type,
                    types,
                    imatrix,
                    metadata_bytes,
                    alignment,
                    tensors,
                },
                Made::Cells {
                    measured_type: measured_type_there,
                    types: types_there,
                    imatrix: imatrix_there,
                    metadata_bytes: metadata_bytes_there,
                    alignment: alignment_there,
                    tensors: tensors_there,
                },
            ) => {
                self.value("measured_type", measured_type, measured_type_there);
                self.value("types", types, types_there);
                let hash = |of: &Option<ImatrixIdentity>| of.as_ref().map(|of| of.sha256.clone());
                if hash(imatrix) == hash(imatrix_there) {
                    self.recorded("imatrix", imatrix, imatrix_there);
                } else {
                    self.value("imatrix", imatrix, imatrix_there);
                }
                self.value("metadata_bytes", metadata_bytes, metadata_bytes_there);
                self.value("alignment", alignment, alignment_there);
                self.value("tensors", tensors, tensors_there);
            }
            (one, other) => {
                let kind = |of: &Made| match of {
                    Made::Answers { .. } => "answers",
                    Made::Rows { .. } => "a reference",
                    Made::Records { .. } => "a sidecar",
                    Made::Cells { .. } => "a map",
                };
                self.value("the kind of file", &kind(one), &kind(other));
            }
        }
    }
}

/// Shows a value, cut short: prompts are long.
fn shown(value: &impl Serialize) -> String {
    const MAX_CHARS: usize = 80;
    let mut text = match serde_json::to_value(value).unwrap_or_default() {
        Value::Null => return "none".to_owned(),
        Value::String(text) => text,
        value => value.to_string(),
    };
    if let Some((end, _)) = text.char_indices().nth(MAX_CHARS) {
        text.truncate(end);
        text.push_str("...");
    }
    text
}

/// What every file states of its rows.
fn of_provenance(of: &Provenance, made: Made) -> RunKey {
    let n_ctx = known(of.n_ctx);
    RunKey {
        program: of.writer.clone(),
        label: None,
        model: ModelKey {
            identity: of.model.clone(),
            tokenizer: of.tokenizer.clone(),
        },
        text: TextKey {
            identity: of.text.clone(),
            texts: of.texts.clone(),
            ..TextKey::default()
        },
        reference: None,
        windows: WindowsKey {
            n_ctx,
            n_vocab: known(of.n_vocab),
            add_bos: of.add_bos,
            first_scored: of.first_scored,
            order: Some(of.seed.map_or(WindowOrder::Text, WindowOrder::Seed)),
            stride: of.stride.or(n_ctx),
            ..WindowsKey::default()
        },
        made,
        set_up: of.backend.clone(),
        part: of.shard.map(PartKey::from),
    }
}

/// A count of a header, in which 0 stands for what is not known yet.
fn known(n: u32) -> Option<u32> {
    (n > 0).then_some(n)
}

impl From<&Header> for RunKey {
    fn from(of: &Header) -> Self {
        let made = Made::Rows {
            encoding: of.encoding,
            states: of.states.clone(),
            rows_per_piece: of.rows_per_piece,
            log_probabilities: of.log_probabilities,
            floored: of.floored,
        };
        let mut key = of_provenance(&of.provenance, made);
        key.text.prompts = Some(of.prompts.clone().unwrap_or_default());
        key.text.chat_template.clone_from(&of.chat_template);
        (key.text.generated, key.text.sampling) = (of.generated, of.sampling);
        key.windows.groups = Some(of.groups.clone());
        key.windows.window_groups = Some(of.window_groups.clone());
        key.windows.spans = Some(of.spans.clone());
        key.windows.n_windows = Some(of.n_windows);
        key.windows.n_rows = Some(RowCount::Exactly(of.n_rows));
        key
    }
}

impl From<&SidecarHeader> for RunKey {
    fn from(of: &SidecarHeader) -> Self {
        let made = Made::Records {
            prompts: Some(of.prompts),
            stored: of.stored,
            until: of.until,
            n_vocab_compared: of.n_vocab_compared.or(known(of.n_vocab)),
        };
        let mut key = of_provenance(&of.provenance, made);
        key.label.clone_from(&of.label);
        key.reference = Some(of.reference.clone());
        key.windows.groups = Some(of.groups.clone());
        key.windows.spans = Some(of.spans.clone());
        key.windows.n_rows = Some(of.n_records.map_or(RowCount::ToTheEnd, RowCount::Exactly));
        key
    }
}

impl From<&MapHeader> for RunKey {
    fn from(of: &MapHeader) -> Self {
        let made = Made::Cells {
            measured_type: of.measured_type,
            types: of.types.clone(),
            imatrix: of.imatrix.clone(),
            metadata_bytes: of.metadata_bytes,
            alignment: of.alignment,
            tensors: of.tensors.clone(),
        };
        let mut key = of_provenance(&of.provenance, made);
        key.reference.clone_from(&of.reference);
        key.windows.of_map.clone_from(&of.windows);
        key
    }
}

#[cfg(test)]
mod tests;
