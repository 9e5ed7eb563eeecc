//! Texts become windows: they are read from files or standard input, the tokenizer turns each into
//! tokens, and these are cut.

use std::io;
use std::iter::repeat_n;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use kl_engine::Model;
use kl_formats::{Found, Groups, Provenance, TextIdentity, hex, longest_window, map};
use kl_report::Warning;
use kl_system::shell;
use sha2::{Digest, Sha256};

use super::starter::STARTER;
use super::text::{Text, identity_of};
use super::windows::{text_per_window, tokens_needed};
use super::{NamedText, Plan, PreparedInput, RawInput, ScoreFrom, Selection, Source, starter};
use crate::whole_file::{read_stream, read_text};

/// llama.cpp counts a text's bytes in 31 bits.
const MAX_TEXT_BYTES: u64 = i32::MAX as u64;
const TOO_LONG: &str = ", more than llama.cpp tokenizes at once: split it";

/// A text that was read, not yet tokenized.
pub struct RawText {
    /// The name of the group that its windows belong to.
    pub group: Option<String>,
    /// Its path, or its part of the text that comes with `kl`, as messages name it.
    pub shown_name: String,
    pub text: Text,
}

impl RawText {
    /// Reads a file, or the parts of the text that comes with `kl`. Doubts what editors on Windows add.
    pub fn read(named: &NamedText, doubts: &mut Vec<Warning>) -> Result<Vec<Self>> {
        let Some(path) = named.file() else {
            let parts = starter::texts().map(|(group, text)| Self {
                shown_name: format!("{STARTER} ({group})"),
                group: Some(group),
                text,
            });
            return Ok(parts.collect());
        };
        Ok(vec![Self {
            group: named.group.clone(),
            shown_name: path.display().to_string(),
            text: read_to_tokenize(path, doubts)?,
        }])
    }
}

/// Reads a text whose every character is tokenized. Doubts also what editors on Windows add.
fn read_to_tokenize(path: &Path, doubts: &mut Vec<Warning>) -> Result<Text> {
    let text = read(path, doubts)?;
    let name = path.display();
    if text.text.starts_with('\u{feff}') {
        let message = format!(
            "{name}: begins with a byte order mark, which the model reads as text; remove its 3 bytes: tail -c +4 {name} > new.txt"
        );
        doubts.push(Warning::new("byte_order_mark", message));
    }
    let n_lines = text.text.matches("\r\n").count();
    if n_lines > 0 {
        let noun_and_verb = if n_lines == 1 {
            "line ends"
        } else {
            "lines end"
        };
        let message = format!(
            "{name}: {n_lines} {noun_and_verb} with CR LF, as on Windows: the model reads each CR as text; remove them, unless its users' texts have them too: tr -d '\\r' < {name} > new.txt"
        );
        doubts.push(Warning::new("crlf", message));
    }
    Ok(text)
}

/// Reads a text from a file, or from standard input for `-`. Doubts bytes that are not UTF-8, which
/// become U+FFFD.
pub fn read(path: &Path, doubts: &mut Vec<Warning>) -> Result<Text> {
    let shown_path = path.display();
    let bytes = if path.as_os_str() == "-" {
        read_stream(io::stdin().lock(), "standard input", MAX_TEXT_BYTES)?
    } else {
        read_text(path, MAX_TEXT_BYTES, TOO_LONG)?
    };
    if bytes.is_empty() {
        bail!("{shown_path}: is empty: there is nothing to tokenize");
    }
    if let Some(zero_index) = bytes.iter().position(|&byte| byte == 0) {
        bail!(
            "{shown_path}: not a text: {}",
            instead_of_text(path, zero_index)
        );
    }
    if bytes.starts_with(map::MAGIC.as_bytes()) {
        bail!("{shown_path}: not a text: {}", Found::Map);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let identity = identity_of(name, &bytes);
    let text = String::from_utf8(bytes).unwrap_or_else(|error| {
        let bytes = error.as_bytes();
        let n: usize = bytes.utf8_chunks().map(|chunk| chunk.invalid().len()).sum();
        let noun_and_verb = if n == 1 { "byte is" } else { "bytes are" };
        let first = error.utf8_error().valid_up_to();
        let message = format!(
            "{shown_path}: {n} {noun_and_verb} not UTF-8, the first at byte {first}: read as U+FFFD"
        );
        doubts.push(Warning::new("not_utf8", message));
        String::from_utf8_lossy(bytes).into_owned()
    });
    Ok(Text { text, identity })
}

/// Names what a file holds in place of a text, and says what to do; `zero_index` is that of its first byte of 0, which
/// is in no text.
fn instead_of_text(path: &Path, zero_index: usize) -> String {
    let kind = Found::look(path);
    match kind {
        Found::Model => "it is a model; give it to -m".to_owned(),
        Found::Sidecar => format!("{kind}; kl report {} shows it", shell::file(path)),
        Found::Reference(_) | Found::Unpacked => {
            "it is a reference, which holds its own text; give it to -r".to_owned()
        }
        Found::Gzip => "it is gzip; unpack it with gunzip".to_owned(),
        Found::Packed(_) | Found::Zip => format!("{kind}; unpack it"),
        Found::Parquet | Found::Pdf => format!("{kind}; save what it holds as plain text"),
        _ => format!(
            "byte {zero_index} is 0, as in UTF-16 (convert it: iconv -f UTF-16 -t UTF-8) or in a file that is no text at all"
        ),
    }
}

/// Cuts each text into windows of its own, numbered one after the other: none holds parts of two texts.
/// Each starts with an inserted BOS, where the model wants one. Each text gives as many windows as the
/// settings allow.
///
/// In chunks, the only text is cut as llama-perplexity does, with one BOS before all of it: into whole
/// windows whose first token the BOS replaces.
pub(super) fn plan(
    mut raw: RawInput<'_>,
    model: &dyn Model,
    selection: &Selection,
) -> Result<PreparedInput> {
    let (source, bos) = (raw.source, model.facts().bos());
    let n_ctx = source.text_n_ctx();
    check_stride(source, n_ctx, bos)?;
    let mut input = PreparedInput::new(source, model);
    let (mut whole_plan, mut n_windows) = (Plan::default(), Vec::new());
    for RawText {
        shown_name, text, ..
    } in &mut raw.texts
    {
        let n_needed = if selection.in_chunks {
            usize::MAX
        } else {
            tokens_needed(source, bos)
        };
        let (tokens, is_whole) = model
            .tokenize_start(&text.text, source.parse_special, n_needed)
            .with_context(|| shown_name.clone())?;
        if tokens.len() < 2 {
            bail!("{shown_name}: has fewer than two tokens: use a longer text");
        }
        let (plan, wanted, flag) = if selection.in_chunks {
            let plan = input.cut_in_chunks(&tokens, n_ctx, bos);
            (plan, format!("whole window of {n_ctx}"), "--n-ctx")
        } else {
            let plan = Plan::cut(&tokens, source, bos);
            (plan, "scored position".to_owned(), "--score")
        };
        if plan.n_rows() == 0 {
            bail!(
                "{shown_name}: has {} tokens, too few for a {wanted}: use a longer text, or lower {flag}",
                tokens.len()
            );
        }
        text.identity.n_tokens = is_whole.then_some(tokens.len() as u64);
        n_windows.push(plan.windows.len() + plan.n_unscored);
        whole_plan.append(plan);
    }
    input.plan = whole_plan.limited(selection.max_rows);
    input.longest_window = longest_window(&input.plan.windows);
    let score = source.score.unwrap_or_default();
    let score = if selection.in_chunks {
        ScoreFrom::Half
    } else {
        score
    };
    input.provenance = Provenance {
        n_ctx,
        add_bos: Some(bos.is_some()),
        first_scored: Some(score.first(n_ctx, bos.is_some())),
        stride: source.stride,
        text: Some(identity(&raw.texts)),
        ..input.provenance
    };
    if has_groups(&raw.texts) {
        let names_of_windows = raw
            .texts
            .iter()
            .filter_map(|text| text.group.as_deref())
            .zip(n_windows)
            .flat_map(|(name, n)| repeat_n(name, n));
        input.groups = Some(Groups::of_each(names_of_windows));
        input.provenance.texts = raw
            .texts
            .into_iter()
            .map(|raw_text| raw_text.text.identity)
            .collect();
    }
    Ok(input)
}

/// Refuses a stride that would skip tokens.
fn check_stride(source: &Source, n_ctx: u32, bos: Option<u32>) -> Result<()> {
    let longest = text_per_window(n_ctx, bos);
    match source.stride {
        Some(stride) if stride as usize > longest => bail!(
            "--stride {stride}: leaves tokens out, because a window of {n_ctx} holds {longest} tokens of text{}: use at most {longest}",
            if bos.is_some() { " and a BOS" } else { "" }
        ),
        _ => Ok(()),
    }
}

fn has_groups(texts: &[RawText]) -> bool {
    texts.iter().any(|text| text.group.is_some())
}

/// The identity of all texts together. Where they have groups, it is as LOGITS.md states it: their names
/// after their groups, and the hash of their hashes and groups.
///
/// The text that comes with `kl` has one name.
pub(super) fn identity(texts: &[RawText]) -> TextIdentity {
    let identities = || texts.iter().map(|raw_text| &raw_text.text.identity);
    if !has_groups(texts) {
        return identities().next().cloned().unwrap_or_default();
    }
    let (mut names, mut lines) = (Vec::new(), String::new());
    for RawText { group, text, .. } in texts {
        let group = group.as_deref().unwrap_or_default();
        let TextIdentity { name, sha256, .. } = &text.identity;
        names.push(format!("{group}={}", name.as_deref().unwrap_or_default()));
        lines += &format!("{}  {group}\n", sha256.as_deref().unwrap_or_default());
    }
    let is_starter =
        identities().all(|identity| identity.name.as_deref() == Some(starter::TEXT_NAME));
    let name = if is_starter {
        starter::TEXT_NAME.to_owned()
    } else {
        names.join(", ")
    };
    let mut identity = TextIdentity::named(name);
    identity.sha256 = Some(hex(&Sha256::digest(lines)));
    identity.bytes = identities().map(|text| text.bytes).sum();
    identity.n_tokens = identities().map(|text| text.n_tokens).sum();
    identity
}

#[cfg(test)]
mod tests;
