//! Texts become windows: they are read from files or standard input, the tokenizer turns each into
//! tokens, and these are cut.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};
use kl_formats::{Found, Groups, TextIdentity, hex, map};
use sha2::{Digest, Sha256};

use super::{NamedText, Plan, PreparedInput, TextSource, Windowing};
use crate::engine::Model;

/// llama.cpp counts a text's bytes in 31 bits.
const MAX_TEXT_BYTES: u64 = i32::MAX as u64;

/// A text that was read, and what identifies it; `identity.n_tokens` is not known yet.
pub struct Text {
    pub text: String,
    pub identity: TextIdentity,
}

/// What is odd about a text: a name for scripts, and a message with the advice to give.
pub type Doubt = (&'static str, String);

/// Reads a text whose every character is tokenized. Doubts also what editors on Windows add.
pub fn read_to_tokenize(path: &Path, doubts: &mut Vec<Doubt>) -> Result<Text> {
    let text = read(path, doubts)?;
    let name = path.display();
    if text.text.starts_with('\u{feff}') {
        let what = format!(
            "{name}: begins with a byte order mark, which the model reads as text; remove its 3 bytes: tail -c +4 {name} > new.txt"
        );
        doubts.push(("byte_order_mark", what));
    }
    let n = text.text.matches("\r\n").count();
    if n > 0 {
        let end = if n == 1 { "line ends" } else { "lines end" };
        let what = format!(
            "{name}: {n} {end} with CR LF, as on Windows: the model reads each CR as text; remove them, unless its users' texts have them too: tr -d '\\r' < {name} > new.txt"
        );
        doubts.push(("crlf", what));
    }
    Ok(text)
}

/// Reads a text from a file, or from standard input for `-`. Doubts bytes that are not UTF-8, which
/// become U+FFFD.
pub fn read(path: &Path, doubts: &mut Vec<Doubt>) -> Result<Text> {
    let shown = path.display();
    let bytes = if path.as_os_str() == "-" {
        let mut bytes = Vec::new();
        let read = io::stdin().read_to_end(&mut bytes);
        read.context("standard input: cannot be read")?;
        bytes
    } else {
        read_file(path)?
    };
    if bytes.is_empty() {
        bail!("{shown}: is empty: there is nothing to tokenize");
    }
    if let Some(first) = bytes.iter().position(|&byte| byte == 0) {
        bail!("{shown}: not a text: {}", instead(path, first));
    }
    if bytes.starts_with(map::MAGIC.as_bytes()) {
        bail!("{shown}: not a text: {}", Found::Map);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let identity = identity_of(name, &bytes);
    let text = String::from_utf8(bytes).unwrap_or_else(|error| {
        let bytes = error.as_bytes();
        let n: usize = bytes.utf8_chunks().map(|chunk| chunk.invalid().len()).sum();
        let are = if n == 1 { "byte is" } else { "bytes are" };
        let first = error.utf8_error().valid_up_to();
        let what =
            format!("{shown}: {n} {are} not UTF-8, the first at byte {first}: read as U+FFFD");
        doubts.push(("not_utf8", what));
        String::from_utf8_lossy(bytes).into_owned()
    });
    Ok(Text { text, identity })
}

/// The identity of a text with this name, not tokenized yet.
pub fn identity_of(name: impl Into<String>, bytes: &[u8]) -> TextIdentity {
    let mut identity = TextIdentity::named(name);
    identity.bytes = Some(bytes.len() as u64);
    identity.sha256 = Some(hex(&Sha256::digest(bytes)));
    identity
}

/// Reads a file, unless it is a folder or too long.
fn read_file(path: &Path) -> Result<Vec<u8>> {
    let shown = path.display();
    if path.is_dir() {
        bail!("{shown}: is a folder: name a file in it");
    }
    if fs::metadata(path).is_ok_and(|metadata| metadata.len() > MAX_TEXT_BYTES) {
        bail!("{shown}: is longer than 2 GiB, more than llama.cpp tokenizes at once: split it");
    }
    fs::read(path).with_context(|| format!("{shown}: cannot be read"))
}

/// Names what a file holds in place of a text, and says what to do; `first` is its first byte that
/// no text has.
fn instead(path: &Path, first: usize) -> String {
    let found = Found::look(path);
    match found {
        Found::Model => "it is a model; give it to -m".to_owned(),
        Found::Sidecar => format!("{found}; kl report {} shows it", path.display()),
        Found::Reference(_) | Found::Unpacked => {
            "it is a reference, which holds its own text; give it to -r".to_owned()
        }
        Found::Gzip => "it is gzip; unpack it with gunzip".to_owned(),
        Found::Packed(_) | Found::Zip => format!("{found}; unpack it"),
        Found::Parquet | Found::Pdf => format!("{found}; save what it holds as plain text"),
        _ => format!(
            "byte {first} is 0, as in UTF-16 (convert it: iconv -f UTF-16 -t UTF-8) or in a file that is no text at all"
        ),
    }
}

/// Cuts each text into windows of its own, numbered one after the other: none holds parts of two
/// texts. Each starts with an inserted BOS, where the model wants one. The windows are as many as the
/// settings allow of each text.
pub(super) fn in_windows<M: Model>(
    source: &TextSource,
    texts: Vec<Text>,
    model: &M,
    max_rows: Option<u64>,
) -> Result<PreparedInput> {
    let (windowing, bos) = (&source.windowing, model.facts().bos());
    check_stride(windowing, bos)?;
    let mut all = Plan::default();
    let (mut identities, mut groups) = (Vec::new(), Vec::new());
    for (named, text) in source.texts.iter().zip(texts) {
        let (tokens, identity) = tokenize(source, named, text, model)?;
        let plan = Plan::cut(&tokens, windowing, bos);
        if plan.n_rows() == 0 {
            bail!(
                "{}: has {} tokens, too few for a scored position: use a longer text, or lower --score",
                named.path.display(),
                tokens.len()
            );
        }
        identities.push(identity);
        let n_windows = plan.windows.len() + plan.n_unscored;
        groups.extend(std::iter::repeat_n(named.group(), n_windows));
        all.append(plan);
    }
    let plan = all.limited(max_rows);
    let text = identity(source, identities.iter());
    let has_groups = has_groups(source);
    if !has_groups {
        identities.clear();
    }
    Ok(PreparedInput {
        texts: identities,
        groups: has_groups.then(|| Groups::of_each(groups)),
        ..PreparedInput::of_text(plan, windowing, bos, text)
    })
}

/// Cuts the only text as llama-perplexity does, with one BOS before all of it: whole windows whose first
/// token the BOS replaces, where the model wants one.
pub(super) fn in_chunks<M: Model>(
    source: &TextSource,
    texts: Vec<Text>,
    model: &M,
) -> Result<PreparedInput> {
    let (windowing, bos) = (&source.windowing, model.facts().bos());
    let Some((named, text)) = source.texts.iter().zip(texts).next() else {
        bail!("there is no text to cut into chunks");
    };
    let (tokens, identity) = tokenize(source, named, text, model)?;
    let mut stream: Vec<u32> = bos.iter().chain(&tokens).copied().collect();
    let plan = Plan::chunks(&stream, windowing.n_ctx, bos);
    if plan.n_rows() == 0 {
        bail!(
            "{}: has {} tokens, too few for a whole window of {}: use a longer text, or lower --n-ctx",
            named.path.display(),
            tokens.len(),
            windowing.n_ctx
        );
    }
    let n_whole = plan.windows.len() * windowing.n_ctx as usize;
    let n_left_out = stream.len().saturating_sub(n_whole) as u64;
    stream.truncate(n_whole);
    Ok(PreparedInput {
        text_tokens: stream,
        n_left_out,
        ..PreparedInput::of_text(plan, windowing, bos, identity)
    })
}

/// Tokenizes a text, and completes what identifies it.
fn tokenize<M: Model>(
    source: &TextSource,
    named: &NamedText,
    text: Text,
    model: &M,
) -> Result<(Vec<u32>, TextIdentity)> {
    let tokens = model.tokenize(&text.text, source.parse_special)?;
    if tokens.len() < 2 {
        bail!(
            "{}: has fewer than two tokens: use a longer text",
            named.path.display()
        );
    }
    let mut identity = text.identity;
    identity.n_tokens = Some(tokens.len() as u64);
    Ok((tokens, identity))
}

/// Refuses a stride that would skip tokens.
fn check_stride(windowing: &Windowing, bos: Option<u32>) -> Result<()> {
    let longest = windowing.text_per_window(bos);
    match windowing.stride {
        Some(stride) if stride as usize > longest => bail!(
            "--stride {stride}: leaves tokens out, because a window of {} holds {longest} tokens of text{}: use at most {longest}",
            windowing.n_ctx,
            if bos.is_some() { " and a BOS" } else { "" }
        ),
        _ => Ok(()),
    }
}

fn has_groups(source: &TextSource) -> bool {
    source.texts.iter().any(|named| named.group.is_some())
}

/// The identity of all texts together. Where they have groups, it is as LOGITS.md states it: their names
/// after their groups, and the hash of their hashes and groups.
pub(super) fn identity<'t>(
    source: &TextSource,
    texts: impl Iterator<Item = &'t TextIdentity> + Clone,
) -> TextIdentity {
    let all = || source.texts.iter().zip(texts.clone());
    if !has_groups(source) {
        return texts.clone().next().cloned().unwrap_or_default();
    }
    let named = all().map(|(named, text)| {
        let name = text.name.as_deref().unwrap_or_default();
        format!("{}={name}", named.group())
    });
    let lines = all().map(|(named, text)| {
        let sha256 = text.sha256.as_deref().unwrap_or_default();
        format!("{sha256}  {}\n", named.group())
    });
    let mut identity = TextIdentity::named(named.collect::<Vec<_>>().join(", "));
    identity.sha256 = Some(hex(&Sha256::digest(lines.collect::<String>())));
    identity.bytes = texts.clone().map(|text| text.bytes).sum();
    identity.n_tokens = texts.clone().map(|text| text.n_tokens).sum();
    identity
}

#[cfg(test)]
mod tests;
