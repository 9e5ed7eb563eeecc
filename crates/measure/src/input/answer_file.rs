//! Finished answers, kept beside a reference until it is whole: to generate them can take hours.
//!
//! The file's first line describes the run, and each other line is an answer. A line has a checksum and stands
//! for itself, so one that was cut off or damaged costs one answer.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use kl_formats::{
    BackendIdentity, LineChecksum, Made, ModelIdentity, ModelKey, RunKey, Sampling, TextKey,
    WindowsKey, hex, with_checksum,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// The answers that a run has finished, and the file that keeps them.
#[derive(Debug)]
pub struct AnswerFile {
    pub path: PathBuf,
    /// `None` before the first answer.
    file: Option<File>,
    /// The description of the run that the answers are of.
    pub run: AnswerRun,
    /// The answers by their windows.
    answers: HashMap<u32, AnswerLine>,
    /// The lines of the file that hold an answer.
    pub n_answers: usize,
    /// The whole lines that are not as they were written.
    pub n_damaged: usize,
}

/// What answers depend on, besides their prompts, by its keys in the file's first line.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct AnswerRun {
    /// The set-up; of its batches only what the user set, since kl chooses them for the longest window.
    pub backend: BackendIdentity,
    /// Most tokens of an answer.
    pub generated: Option<u32>,
    /// The model that answers.
    pub model: ModelIdentity,
    /// Most tokens of a window; `None`: as many as it needs.
    pub n_ctx: Option<u32>,
    /// How tokens are chosen; `None`: greedily.
    pub sampling: Option<Sampling>,
    /// The program, with its version.
    pub writer: String,
}

impl From<&AnswerRun> for RunKey {
    fn from(run: &AnswerRun) -> Self {
        Self {
            program: Some(run.writer.clone()),
            label: None,
            model: ModelKey {
                identity: Some(run.model.clone()),
                tokenizer: None,
            },
            text: TextKey {
                generated: run.generated,
                sampling: run.sampling,
                ..TextKey::default()
            },
            reference: None,
            windows: WindowsKey {
                n_ctx: run.n_ctx,
                ..WindowsKey::default()
            },
            made: Made::Answers {
                n_batch: run.backend.n_batch,
                n_ubatch: run.backend.n_ubatch,
                n_parallel: run.backend.n_seq,
            },
            set_up: Some(run.backend.clone()),
            part: None,
        }
    }
}

/// A line of the file: an answer.
#[derive(Serialize, Deserialize, Debug, PartialEq, Eq)]
struct AnswerLine {
    /// The window that it belongs to.
    window: u32,
    /// SHA-256 (hex) of the prompt's tokens, each as 4 bytes, little-endian.
    prompt: String,
    /// The tokens of the answer.
    answer: Vec<u32>,
}

impl AnswerFile {
    /// A file that does not exist before the first answer.
    pub fn new(path: PathBuf, run: AnswerRun) -> Self {
        Self {
            path,
            file: None,
            run,
            answers: HashMap::new(),
            n_answers: 0,
            n_damaged: 0,
        }
    }

    /// Reads what an earlier run has kept; `None` if there is no file, or not even its first line is
    /// whole. Answers that this run finishes are added to the file.
    ///
    /// # Errors
    /// If the file cannot be read or written, or is not of this kind.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        if !path.exists() {
            return Ok(None);
        }
        let cannot_be =
            |done: &'static str| move || format!("{}: cannot be {done}", path.display());
        let bytes = fs::read(path).with_context(cannot_be("read"))?;
        let last_line_feed = bytes.iter().rposition(|&byte| byte == b'\n');
        let n_whole_bytes = last_line_feed.map_or(0, |index| index + 1);
        let (whole_lines, _) = bytes.split_at(n_whole_bytes);
        let mut lines = whole_lines.split_inclusive(|&byte| byte == b'\n');
        let Some(first_line) = lines.next() else {
            return Ok(None);
        };
        // Never overwritten: it may be a file of the user's.
        let description = serde_json::from_slice::<Map<String, Value>>(first_line).map_err(|_| {
            anyhow!(
                "{}: is no list of answers (its first line does not describe a run): remove it, or start over with --force",
                path.display()
            )
        })?;
        match LineChecksum::of(first_line) {
            LineChecksum::Matches => {}
            LineChecksum::Missing => bail!(
                "{}: an earlier version of kl began it, whose lines have no checksums: finish it with that one, or start over with --force",
                path.display()
            ),
            LineChecksum::Differs => bail!(
                "{}: its first line is damaged (its checksum does not match): --resume cannot continue it, start over with --force",
                path.display()
            ),
        }
        let run: AnswerRun = serde_json::from_value(description.into()).map_err(|error| {
            anyhow!(
                "{}: its first line does not describe a run of this version of kl ({error}): remove it, or start over with --force",
                path.display()
            )
        })?;
        let lines: Vec<&[u8]> = lines.collect();
        let answers: Vec<AnswerLine> = lines.iter().copied().filter_map(answer_of).collect();
        let n_damaged = lines.len() - answers.len();
        let answers: HashMap<u32, AnswerLine> = answers
            .into_iter()
            .map(|line| (line.window, line))
            .collect();
        let file = OpenOptions::new()
            .append(true)
            .open(path)
            .with_context(cannot_be("written"))?;
        // What was cut off goes, so that the next line starts a line.
        file.set_len(n_whole_bytes as u64)
            .with_context(cannot_be("written"))?;
        Ok(Some(Self {
            path: path.to_owned(),
            file: Some(file),
            run,
            n_answers: answers.len(),
            n_damaged,
            answers,
        }))
    }

    /// The answer to this prompt in this window, if it is known.
    pub(super) fn answer(&self, window: u32, prompt: &[u32]) -> Option<&[u32]> {
        let line = self.answers.get(&window)?;
        let is_same = !line.answer.is_empty() && line.prompt == sha256(prompt);
        is_same.then_some(&line.answer)
    }

    /// Adds an answer that is stored elsewhere, in the reference that an earlier run began, unless it is
    /// known: `-n` may have cut that one.
    pub fn learn(&mut self, window: u32, prompt: &[u32], answer: &[u32]) {
        self.answers
            .entry(window)
            .or_insert_with(|| answer_line(window, prompt, answer));
    }

    /// Keeps a finished answer, unless it is known.
    pub(super) fn keep(&mut self, window: u32, prompt: &[u32], answer: &[u32]) -> Result<()> {
        let line = answer_line(window, prompt, answer);
        if self.answers.get(&window) != Some(&line) {
            self.write(&line)
                .with_context(|| format!("{}: cannot be written", self.path.display()))?;
            self.answers.insert(window, line);
            self.n_answers += 1;
        }
        Ok(())
    }

    fn write(&mut self, line: &AnswerLine) -> Result<()> {
        let mut text = line_with_checksum(&serde_json::to_vec(line)?)?;
        if self.file.is_none() {
            self.file = Some(File::create(&self.path)?);
            text = [line_with_checksum(&serde_json::to_vec(&self.run)?)?, text].concat();
        }
        if let Some(file) = &mut self.file {
            file.write_all(&text)?;
        }
        Ok(())
    }

    /// Removes the file.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove(self) -> Result<()> {
        if self.file.is_some() {
            fs::remove_file(&self.path)
                .with_context(|| format!("{}: cannot be removed", self.path.display()))?;
        }
        Ok(())
    }
}

/// The answer of a line that is as it was written.
fn answer_of(line: &[u8]) -> Option<AnswerLine> {
    if LineChecksum::of(line) != LineChecksum::Matches {
        return None;
    }
    serde_json::from_slice(line).ok()
}

/// The line of a JSON object.
fn line_with_checksum(json: &[u8]) -> Result<Vec<u8>> {
    with_checksum(json).context("a line is not an object")
}

fn answer_line(window: u32, prompt: &[u32], answer: &[u32]) -> AnswerLine {
    AnswerLine {
        window,
        prompt: sha256(prompt),
        answer: answer.to_vec(),
    }
}

fn sha256(tokens: &[u32]) -> String {
    let bytes: Vec<u8> = tokens
        .iter()
        .flat_map(|token| token.to_le_bytes())
        .collect();
    hex(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests;
