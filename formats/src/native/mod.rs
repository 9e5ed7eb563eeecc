//! `kl`'s own reference: gzip members of bounded size, found through an index. The layout is
//! specified in `LOGITS.md`, beside this crate's manifest.
//!
//! [`NativeReader`] reads any window and any block of its rows, from any threads.
//! [`crate::Writer::native`] writes a file with a [`Header`] of your own, [`crate::Writer::resume`]
//! resumes one that was cut off.

mod head_members;
mod index;
mod member;
mod reader;
mod writer;

#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::about::{About, Sampling, Values};
pub use crate::kinds::NATIVE as MAGIC_LINE;
use crate::prompt::Prompt;
pub use crate::provenance::{MAX_HEADER_BYTES, MAX_HEADER_BYTES_WITH_PROMPTS};
use crate::provenance::{ModelIdentity, OwnHeader, Provenance, TextIdentity, deref_to_provenance};
use crate::row::{Encoding, RowLayout};
use crate::states::States;
use crate::window::{Groups, WindowSpec, longest_window, n_rows, size_fault};
use crate::writing::rows_per_piece;
pub use reader::{NativeReader, count_windows};
pub(crate) use writer::start;

/// The version of the native file that this crate writes and reads.
pub const FORMAT_VERSION: u32 = 1;

/// Most plain bytes of a piece, unless it is a single row or has exact rows.
const MAX_PIECE_BYTES: u64 = 64 << 20;

/// The JSON line of a native file. `null` means unknown, as in a file that was converted. A reader
/// ignores other keys.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Header {
    /// [`FORMAT_VERSION`].
    pub format_version: u32,
    /// Where the rows come from; without the paths of model and text.
    #[serde(flatten)]
    pub provenance: Provenance,
    /// Windows in the file.
    pub n_windows: u32,
    /// Rows in the file: scored positions.
    pub n_rows: u64,
    /// The encoding of rows.
    pub encoding: Encoding,
    /// The hidden states, where `encoding` stores those and not rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub states: Option<States>,
    /// Rows in each piece but a window's last: see [`rows_per_piece`].
    pub rows_per_piece: u32,
    /// True if the rows are log-probabilities, without a way back to logits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub log_probabilities: bool,
    /// True if they are floored, as in llama.cpp's base file: a row's smallest value then means "at
    /// or below".
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub floored: bool,
    /// The prompts, where the windows are prompts and not parts of a text: window `i` is the `i`-th
    /// prompt's. There may be more prompts than windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompts: Option<Vec<Prompt>>,
    /// SHA-256 (hex) of the chat template that was applied to the prompts; `None` if none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
    /// The names of the windows' groups; empty without groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// The runs of windows of one group: see [`Groups::window_groups`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub window_groups: Vec<(u32, u32)>,
    /// The most tokens that the model itself generated as an answer, at each window's end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generated: Option<u32>,
    /// The way it chose them; `None`: greedily.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    /// The names of the spans of prompts' windows; empty without spans.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spans: Vec<String>,
}

deref_to_provenance!(Header);

impl Header {
    /// The header of a file that will hold exactly `windows`. Counts follow from the windows, the
    /// rest from `about`.
    pub fn new(about: &About, encoding: Encoding, windows: &[WindowSpec]) -> Self {
        let longest = longest_window(windows);
        // A padded context may be longer than every window: then the windows decide.
        let n_ctx = if about.n_ctx_is_padded {
            longest.max(1)
        } else {
            about.n_ctx.max(longest)
        };
        let mut provenance = about.provenance.clone();
        let file_name_of = |path: Option<String>| path.as_deref().map(file_name);
        let model = file_name_of(provenance.model_path.take());
        let text = file_name_of(provenance.text_path.take());
        provenance.model = provenance.model.or(model.map(ModelIdentity::named));
        provenance.text = provenance.text.or(text.map(TextIdentity::named));
        provenance.n_ctx = n_ctx;
        let first = windows.first().map_or(0, |window| window.first_scored);
        provenance.first_scored.get_or_insert(first);
        let states = about.states.clone().filter(|_| encoding.holds_states());
        let (layout, row_len) = row_layout(encoding, states.as_ref(), about.n_vocab);
        let prompts = about.prompts.clone().unwrap_or_default();
        let groups = about.groups.as_ref();
        Self {
            format_version: FORMAT_VERSION,
            provenance,
            n_windows: u32::try_from(windows.len()).unwrap_or(u32::MAX),
            n_rows: n_rows(windows),
            encoding,
            states,
            rows_per_piece: rows_per_piece(layout, row_len),
            log_probabilities: about.values != Values::Logits,
            floored: about.values == Values::FlooredLogProbabilities,
            prompts: about.prompts.is_some().then_some(prompts.list),
            chat_template: prompts.chat_template,
            groups: groups.map_or_else(Vec::new, |groups| groups.names().to_vec()),
            window_groups: groups.map_or_else(Vec::new, |groups| groups.window_groups().to_vec()),
            generated: prompts.generated,
            sampling: prompts.sampling,
            spans: prompts.spans,
        }
    }

    /// The windows' groups; `None` if there are none.
    ///
    /// # Errors
    /// A phrase that states what is wrong with them.
    pub(crate) fn groups(&self) -> Result<Option<Groups>, String> {
        if self.groups.is_empty() && self.window_groups.is_empty() {
            return Ok(None);
        }
        let groups = Groups::new(self.groups.clone(), self.window_groups.clone())?;
        if groups.n_windows() < self.n_windows {
            Err(format!(
                "n_windows {}, more than the {} that have a group",
                self.n_windows,
                groups.n_windows()
            ))
        } else {
            Ok(Some(groups))
        }
    }

    /// The header of the whole reference that this file is a part of; of a whole file, its own. Where
    /// answers were generated, its number of rows is the most that there can be.
    #[must_use]
    pub fn of_whole(&self) -> Self {
        let mut whole = self.clone();
        if let Some(shard) = whole.shard.take() {
            (whole.n_windows, whole.n_rows) = (shard.n_windows, shard.n_rows);
        }
        whole
    }

    /// The layout of a row, and the number of its values.
    pub(crate) fn row_layout(&self) -> (RowLayout, u32) {
        row_layout(self.encoding, self.states.as_ref(), self.n_vocab)
    }

    /// Returns the meaning of the rows' values.
    pub(crate) fn values(&self) -> Values {
        match (self.log_probabilities, self.floored) {
            (false, _) => Values::Logits,
            (true, false) => Values::LogProbabilities,
            (true, true) => Values::FlooredLogProbabilities,
        }
    }
}

impl OwnHeader for Header {
    const MAGIC: &'static str = MAGIC_LINE;
    const VERSION: (&'static str, RangeInclusive<u32>) = ("format_version", 1..=FORMAT_VERSION);
    const LISTS: &'static [&'static str] = &["prompts", "window_groups"];

    fn fault(&self) -> Option<String> {
        let (layout, row_len) = self.row_layout();
        let row_bytes = layout.row_bytes(row_len as usize) as u64;
        let piece_bytes = row_bytes.saturating_mul(self.rows_per_piece.into());
        let n_positions = u64::from(self.n_windows) * u64::from(self.n_ctx);
        let (n, n_windows) = (self.rows_per_piece, self.n_windows);
        let n_prompts = self.prompts.as_ref().map_or(usize::MAX, Vec::len);
        let n_own = self.shard.map_or(n_windows, |shard| shard.n_own_windows());
        let (has_states, holds_states) = (self.states.is_some(), self.encoding.holds_states());
        let own_fault = || {
            let fault = match n {
                0 => "rows_per_piece is 0",
                2.. if piece_bytes > MAX_PIECE_BYTES => "a piece has more than 64 MiB",
                _ if self.n_rows > n_positions => "n_rows is more than the windows have positions",
                _ if n_windows as usize > n_prompts => "n_windows is more than there are prompts",
                _ if n_windows != n_own => "n_windows is not that of the shard",
                _ if has_states != holds_states => "the encoding does not agree with states",
                _ if has_states && self.log_probabilities => "states of log-probabilities",
                _ => return None,
            };
            Some(fault.to_owned())
        };
        size_fault(self.n_ctx, self.n_vocab)
            .or_else(own_fault)
            .or_else(|| self.states.as_ref()?.fault(self.n_vocab, self.n_ctx))
            .or_else(|| self.groups().err())
            .or_else(|| self.shard?.fault(Some(self.n_rows)))
    }
}

/// The layout of a row, and the number of its values. Hidden states without a description, which no
/// valid header has, count as f32 rows.
pub(crate) fn row_layout(
    encoding: Encoding,
    states: Option<&States>,
    n_vocab: u32,
) -> (RowLayout, u32) {
    match states {
        Some(states) => (RowLayout::State(states.state_type), states.n_embd),
        None => (encoding.layout().unwrap_or(RowLayout::F32), n_vocab),
    }
}

/// The last part of a path.
fn file_name(path: &str) -> String {
    let name = Path::new(path).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
