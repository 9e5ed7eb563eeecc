//! The parts of a reference that each kind of file can hold, and so the losses of a conversion.
//! They are decided and reported before anything is written.

use std::fmt::Display;
use std::path::Path;

use anyhow::{Error, Result, anyhow, bail};
use kl_formats::{About, Encoding, Target, Values, WindowSpec, klpy, llamacpp};

use crate::input::{longest_window, n_rows};
use crate::report::number::{count, count_of, kld};

/// The plan of a conversion: the file to write, and its losses.
#[derive(Debug)]
pub struct Conversion {
    /// The windows, with the rows that the new file will have of them.
    pub windows: Vec<WindowSpec>,
    /// The losses, one sentence each.
    pub losses: Vec<String>,
}

impl Conversion {
    /// Plans what a file of kind `target` can hold of a reference with these windows.
    ///
    /// # Errors
    /// If the file cannot hold the reference at all.
    pub fn plan(about: &About, windows: Vec<WindowSpec>, target: Target) -> Result<Self> {
        let mut conversion = Self {
            windows,
            losses: Vec::new(),
        };
        if let Some(error) = about.states.as_ref().map(|states| &states.check)
            && error.max_kld > 0.0
        {
            conversion.lose(format!(
                "the record of its hidden states' own error: a mean KLD of {}, largest {}",
                kld(error.mean_kld.into()),
                kld(error.max_kld.into())
            ));
        }
        match target.kind() {
            klpy::KIND => conversion.for_kl_py(about)?,
            llamacpp::KIND => conversion.for_llama_cpp(about)?,
            _ => conversion.for_native(about, target.encoding()),
        }
        Ok(conversion)
    }

    /// Rows that will be written.
    pub fn n_rows(&self) -> u64 {
        n_rows(&self.windows)
    }

    /// Notes that the new file will not have `what`.
    pub fn lose(&mut self, what: impl Display) {
        self.losses.push(format!("the conversion loses {what}"));
    }

    fn for_native(&mut self, about: &About, encoding: Encoding) {
        let longest = longest_window(&self.windows);
        if about.n_ctx_is_padded && about.n_ctx != longest {
            self.lose(format!(
                "the header's n_ctx of {}: it becomes {longest}, the longest window",
                about.n_ctx
            ));
        }
        let has_folder = |path: &String| {
            let name = Path::new(path).file_name().unwrap_or_default();
            name != path.as_str()
        };
        let paths = [&about.model_path, &about.text_path];
        if paths.into_iter().flatten().any(has_folder) {
            self.lose("the folders of model and text (their names stay)");
        }
        let others: Vec<&str> = about.others.iter().map(|(key, _)| key.as_str()).collect();
        if !others.is_empty() {
            self.lose(format!("kl.py's header entries {}", others.join(", ")));
        }
        match about.values {
            Values::FlooredLogProbabilities => self.losses.push(
                "a base file holds no logits: the rows stay log-probabilities, floored at 16 below \
                 each row's largest, not normalised"
                    .to_owned(),
            ),
            Values::LogProbabilities => self
                .losses
                .push("the file holds no logits: the rows stay log-probabilities".to_owned()),
            _ => {}
        }
        if encoding == Encoding::U16 {
            self.lose(
                "what u16 rounds off: half a step at most, 1/131,070 of a row's range \
                 (--encoding f32 keeps it)",
            );
        }
    }

    fn for_kl_py(&mut self, about: &About) -> Result<()> {
        if let Some(window) = self.windows.iter().find(|window| window.first_scored != 0) {
            return Err(not_from_the_first(about, window.first_scored));
        }
        self.lose("all checksums but gzip's own, and the index: the file is read as one stream");
        self.lose(
            "what identifies tokenizer, model and text (their names stay), and how the rows were \
             computed (the batch stays)",
        );
        self.lose_order(about);
        self.lose_prompts(about);
        Ok(())
    }

    fn for_llama_cpp(&mut self, about: &About) -> Result<()> {
        let path = about.path.display();
        let n_ctx = longest_window(&self.windows);
        if n_ctx < 3 {
            bail!(
                "{path}: its longest window has {}, and llama.cpp's base file needs at least 3: it \
                 cannot be converted",
                count_of(n_ctx.into(), "token")
            );
        }
        let half = n_ctx / 2;
        let n_rows = n_ctx - 1 - half;
        let (windows_before, rows_before) = (self.windows.len(), self.n_rows());
        if let Some(window) = self
            .windows
            .iter()
            .find(|window| window.first_scored > half)
        {
            bail!(
                "{path}: its rows start at position {} of window {}, and llama.cpp's base file \
                 needs them from {half} on: it cannot be converted",
                window.first_scored,
                window.window
            );
        }
        self.windows.retain_mut(|window| {
            let fits = window.tokens.len() == n_ctx as usize
                && window.first_scored + window.n_rows >= half + n_rows;
            (window.first_scored, window.n_rows) = (half, n_rows);
            fits
        });
        if self.windows.is_empty() {
            bail!(
                "{path}: has no window of {n_ctx} tokens with rows to its end, and llama.cpp's \
                 base file holds only such windows: it cannot be converted"
            );
        }
        self.lose(
            "the logits: log-probabilities in 16 bits, floored at 16 below each row's largest, not \
             normalised",
        );
        if rows_before > self.n_rows() {
            self.lose(format!(
                "{} of {} rows: each window keeps those of positions {half} to {}",
                count(rows_before - self.n_rows()),
                count(rows_before),
                n_ctx - 2
            ));
        }
        let left_out = windows_before - self.windows.len();
        if left_out > 0 {
            self.lose(format!(
                "{left_out} of {windows_before} windows: those without {n_ctx} tokens and rows to \
                 their end"
            ));
        }
        self.lose(
            "all checksums, and what the header records of model, tokenizer, text and how the rows \
             were computed",
        );
        self.lose_order(about);
        self.lose_prompts(about);
        if !begin_alike(&self.windows) {
            self.lose(
                "the first token of each window, where the model adds a BOS: llama-perplexity \
                 decodes the BOS instead, and so gets other rows than these",
            );
        }
        Ok(())
    }

    /// Notes the loss of the prompts, where the windows are prompts, and of groups.
    fn lose_prompts(&mut self, about: &About) {
        if about.groups.is_some() {
            self.lose("the groups: which window is of which text or kind of prompt");
        }
        if about.prompts.is_some() {
            self.lose(
                "the prompts, and which tokens were generated: only the windows' tokens stay",
            );
        }
    }

    /// Notes the loss of the windows' numbers, where they are not simply counted, and of the
    /// stride.
    fn lose_order(&mut self, about: &About) {
        let numbers = self.windows.iter().map(|window| window.window);
        if !numbers.eq(0..self.windows.len() as u32) {
            self.lose("the windows' numbers in the text, and the seed of their order");
        }
        if about.shard.is_some() {
            self.lose(
                "the record that these are the windows of one part, so that they cannot be merged",
            );
        }
        if about.stride.is_some() {
            self.lose("the record that windows overlap, and by how much");
        }
    }
}

/// Refuses what the kinds alone rule out, before any window is read.
///
/// # Errors
/// If the file cannot or need not be converted.
pub fn check_kinds(about: &About, target: Target) -> Result<()> {
    let path = about.path.display();
    if !about.is_decodable {
        bail!(
            "{path}: is a file of kind {}, which kl convert cannot convert: use kl compare, which reads it as it is",
            about.kind
        );
    }
    if let Some(first) = about.first_scored
        && target.has_all_rows()
        && about.kind == llamacpp::KIND
        && first != 0
    {
        return Err(not_from_the_first(about, first));
    }
    // A _logits2 file is not what is written as a base file.
    let is_alike = about.kind == target.kind()
        && (!target.is_base_file() || about.values == Values::FlooredLogProbabilities);
    if is_alike && about.encoding == target.encoding().to_string() {
        bail!("{path}: already has that format and encoding: copy it");
    }
    if target.encoding().holds_states() {
        bail!(
            "--encoding {0}: {path} holds no hidden states in that form, which only a run of the model can write: use --encoding u16 or f32, or kl -m MODEL -t TEXT -w REF --encoding {0}",
            target.encoding()
        );
    }
    if about.values == Values::FlooredLogProbabilities && target.is_base_file() {
        bail!(
            "{path}: holds the floored log-probabilities of a base file, and a base file of those \
             would have another floor: use the original"
        );
    }
    Ok(())
}

fn not_from_the_first(about: &About, first_scored: u32) -> Error {
    anyhow!(
        "{}: its rows start at position {first_scored} of a window, and kl.py's file needs them \
         from each window's first token on: use a reference written with --score all",
        about.path.display()
    )
}

/// Returns true if all windows start with the same token, as with a BOS.
pub fn begin_alike(windows: &[WindowSpec]) -> bool {
    let mut firsts = windows.iter().map(|window| window.tokens.first());
    let first = firsts.next();
    firsts.all(|token| Some(token) == first)
}
