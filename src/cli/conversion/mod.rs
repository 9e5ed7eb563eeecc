//! What a kind of reference can hold of another: decided, and said, before anything is written.

pub mod headers;

use std::fmt::Display;
use std::path::Path;

use anyhow::{Error, Result, anyhow, bail};
use kl_formats::{Encoding, Reference, WindowHead};

use super::settings::WriteKind;
use crate::report::number::count;
use crate::windows::n_rows;

/// What will be written.
#[derive(Debug)]
pub struct Conversion {
    /// The windows, with the rows that the new file will have of them.
    pub windows: Vec<WindowHead>,
    /// What it will lack, each in a sentence.
    pub losses: Vec<String>,
}

impl Conversion {
    /// What `kind` can hold of a reference with these windows.
    ///
    /// # Errors
    /// What it cannot hold at all.
    pub fn plan(reference: &Reference, windows: Vec<WindowHead>, kind: WriteKind) -> Result<Self> {
        let mut conversion = Self {
            windows,
            losses: Vec::new(),
        };
        match kind {
            WriteKind::Native(encoding) => conversion.for_native(reference, encoding),
            WriteKind::KlPy => conversion.for_kl_py(reference)?,
            WriteKind::LlamaCpp => conversion.for_llama_cpp(reference)?,
        }
        Ok(conversion)
    }

    /// Rows that will be written.
    pub fn n_rows(&self) -> u64 {
        n_rows(&self.windows)
    }

    /// Tokens of the longest window.
    pub fn n_ctx(&self) -> u32 {
        longest(&self.windows)
    }

    /// Notes that the new file will not have `what`.
    pub fn lose(&mut self, what: impl Display) {
        self.losses.push(format!("the conversion loses {what}"));
    }

    fn for_native(&mut self, reference: &Reference, encoding: Encoding) {
        match reference {
            Reference::Native(_) => {}
            Reference::KlPy(reader) => {
                let header = reader.header();
                if header.n_ctx != self.n_ctx() {
                    self.lose(format!(
                        "the header's n_ctx of {}: it becomes {}, the longest window",
                        header.n_ctx,
                        self.n_ctx()
                    ));
                }
                let paths = [&header.model, &header.text_path];
                let has_folder = |path: &String| headers::file_name(path) != *path;
                if paths.into_iter().flatten().any(has_folder) {
                    self.lose("the folders of model and text: their names stay");
                }
                let others: Vec<&str> =
                    header.others.iter().map(|(key, _)| key.as_str()).collect();
                if !others.is_empty() {
                    self.lose(format!("kl.py's header entries {}", others.join(", ")));
                }
            }
            Reference::Safetensors(_) | Reference::Npz(_) => {}
            Reference::LlamaCpp(_) => self.losses.push(
                "a base file holds no logits: the rows stay log-probabilities, floored at 16 below \
                 each row's largest, not normalised"
                    .to_owned(),
            ),
        }
        if encoding == Encoding::U16 {
            self.lose(
                "what u16 rounds off: half a step at most, 1/131,070 of a row's range \
                 (--encoding f32 keeps it)",
            );
        }
    }

    fn for_kl_py(&mut self, reference: &Reference) -> Result<()> {
        if let Some(head) = self.windows.iter().find(|head| head.first_scored != 0) {
            return Err(not_from_the_first(reference, head.first_scored));
        }
        self.lose("all checksums but gzip's own, and the index: the file is read as one stream");
        self.lose(
            "what identifies tokenizer, model and text (their names stay), and how the rows were \
             computed (the batch stays)",
        );
        self.lose_order(reference);
        self.lose_prompts(reference);
        Ok(())
    }

    fn for_llama_cpp(&mut self, reference: &Reference) -> Result<()> {
        let path = path(reference).display();
        let n_ctx = self.n_ctx();
        if n_ctx < 3 {
            bail!(
                "{path}: its windows hold {n_ctx} tokens at most, and llama.cpp's base file has rows \
                 of windows of at least 3: it cannot be expressed"
            );
        }
        let half = n_ctx / 2;
        let n_rows = n_ctx - 1 - half;
        let (n_before, rows_before) = (self.windows.len(), self.n_rows());
        if let Some(head) = self.windows.iter().find(|head| head.first_scored > half) {
            bail!(
                "{path}: its rows begin at position {} of window {}, and llama.cpp's base file has \
                 them from {half} on: it cannot be expressed",
                head.first_scored,
                head.window
            );
        }
        self.windows.retain_mut(|head| {
            let fits = head.tokens.len() == n_ctx as usize
                && head.first_scored + head.n_rows >= half + n_rows;
            (head.first_scored, head.n_rows) = (half, n_rows);
            fits
        });
        if self.windows.is_empty() {
            bail!(
                "{path}: has no window of {n_ctx} tokens with rows to its end, as llama.cpp's base \
                 file wants them: it cannot be expressed"
            );
        }
        self.lose(
            "the logits: log-probabilities in 16 bits, floored at 16 below each row's largest, not \
             normalised",
        );
        if rows_before > self.n_rows() {
            self.lose(format!(
                "{} of {} rows: those of positions {half} to {} stay of each window",
                count(rows_before - self.n_rows()),
                count(rows_before),
                n_ctx - 2
            ));
        }
        let left_out = n_before - self.windows.len();
        if left_out > 0 {
            self.lose(format!(
                "{left_out} of {n_before} windows: those without {n_ctx} tokens and rows to their end"
            ));
        }
        self.lose(
            "all checksums, and what the header says of model, tokenizer, text and how the rows were \
             computed",
        );
        self.lose_order(reference);
        self.lose_prompts(reference);
        if !begin_alike(&self.windows) {
            self.lose(
                "the first token of each window, where the model adds a BOS: llama-perplexity decodes \
                 BOS in its place, and then finds other rows than these",
            );
        }
        Ok(())
    }

    /// The prompts, where the windows are such.
    fn lose_prompts(&mut self, reference: &Reference) {
        if let Reference::Native(reader) = reference
            && reader.header().prompts.is_some()
        {
            self.lose("the prompts, and which tokens were generated: windows are tokens alone");
        }
    }

    /// The windows' numbers, where they are not those of their places.
    fn lose_order(&mut self, reference: &Reference) {
        let numbers = self.windows.iter().map(|head| head.window);
        if !numbers.eq(0..self.windows.len() as u32) {
            self.lose("the windows' numbers in the text, and the seed of their order");
        }
        let overlaps = match reference {
            Reference::Native(reader) => reader.header().stride.is_some(),
            _ => false,
        };
        if overlaps {
            self.lose("that windows overlap, and by how much");
        }
    }
}

/// Tokens of the longest of these windows.
fn longest(windows: &[WindowHead]) -> u32 {
    let lengths = windows.iter().map(|head| head.tokens.len() as u32);
    lengths.max().unwrap_or(0)
}

/// Whether the windows have one first token in common, as with a BOS.
fn begin_alike(windows: &[WindowHead]) -> bool {
    let mut firsts = windows.iter().map(|head| head.tokens.first());
    let first = firsts.next();
    firsts.all(|token| Some(token) == first)
}

fn not_from_the_first(reference: &Reference, first_scored: u32) -> Error {
    anyhow!(
        "{}: its rows begin at position {first_scored} of a window, and kl.py's file has them from \
         each window's first token on: it cannot be expressed",
        path(reference).display()
    )
}

fn path(reference: &Reference) -> &Path {
    reference.path()
}

/// Refuses what the kinds alone show to be of no use, before any window is read.
///
/// # Errors
/// That it is.
pub fn check_kinds(reference: &Reference, kind: WriteKind) -> Result<()> {
    if reference.is_foreign() {
        bail!(
            "{}: is a file of kind {}, which kl convert does not read: kl compare takes it as it is",
            path(reference).display(),
            reference.kind()
        );
    }
    if let (Reference::LlamaCpp(reader), WriteKind::KlPy) = (reference, kind)
        && reader.header().first_scored() != 0
    {
        let first_scored = reader.header().first_scored();
        return Err(not_from_the_first(reference, first_scored));
    }
    let same = match (reference, kind) {
        (Reference::Native(reader), WriteKind::Native(encoding)) => {
            reader.header().encoding == encoding
        }
        (Reference::KlPy(_), WriteKind::KlPy) | (Reference::LlamaCpp(_), WriteKind::LlamaCpp) => {
            true
        }
        _ => false,
    };
    if same {
        bail!(
            "{}: is of that kind already: copy it",
            path(reference).display()
        );
    }
    Ok(())
}
