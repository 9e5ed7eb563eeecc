//! The files that a name means: llama.cpp's rules, and patterns of quants.

use std::cmp::Reverse;

use anyhow::{Context as _, Result, bail, ensure};
use kl_formats::split_gguf_name;
use regex::{Regex, escape};

use super::{HubFile, Repository};

/// The quants that llama.cpp prefers where none is named.
const PREFERRED: [&str; 2] = ["Q4_K_M", "Q8_0"];

/// Parts of the names of GGUFs that llama.cpp does not take for models.
const NOT_MODELS: [&str; 6] = ["mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"];

impl Repository {
    /// The model that llama.cpp chooses for a quant, or without one: all parts of a split file, in order. A
    /// path has the quant before a `.` or `-`, in any case.
    ///
    /// # Errors
    /// If no model has this quant, or a part is missing.
    pub fn model(&self, quant: Option<&str>) -> Result<Vec<HubFile>> {
        let wanted = quant.map_or(PREFERRED.to_vec(), |quant| vec![quant]);
        for quant in wanted {
            let tag = Regex::new(&format!("{}[.-]", escape(&quant.to_lowercase())))?;
            let mut models = self.models();
            if let Some(file) = models.find(|file| tag.is_match(&file.path.to_lowercase())) {
                return self.parts(file);
            }
        }
        match self.models().next().filter(|_| quant.is_none()) {
            Some(file) => self.parts(file),
            None => bail!(self.lacks(quant.unwrap_or(".gguf"), self.models())),
        }
    }

    /// The file at this path; of a split model all parts, in order.
    ///
    /// # Errors
    /// A path that the repository does not have, or a split model with a missing part.
    pub fn file(&self, path: &str) -> Result<Vec<HubFile>> {
        let file = self.files.iter().find(|file| file.path == path);
        self.parts(file.with_context(|| self.lacks(path, self.files.iter()))?)
    }

    /// The models whose quant matches one of these patterns, each once: in the order of the patterns, then
    /// the largest first. A quant is the end of the name, as in `Model-7B.IQ4_XS.gguf` or
    /// `Model-UD-Q4_K_XL-00001-of-00002.gguf`; `*` and `?` stand for any of its characters except `-` and
    /// `.`, and letters match in any case.
    ///
    /// # Errors
    /// If a pattern matches none, or a part is missing.
    pub fn quants(&self, patterns: &[String]) -> Result<Vec<Vec<HubFile>>> {
        let mut models: Vec<Vec<HubFile>> = Vec::new();
        for pattern in patterns {
            let stars = escape(&pattern.to_lowercase()).replace(r"\*", r"\?*");
            let wild = stars.replace(r"\?", "[^-./]");
            let quant = Regex::new(&format!("(^|[-./]){wild}$"))?;
            let is_meant = |file: &&HubFile| quant.is_match(&split(&file.path).0.to_lowercase());
            let meant = self.models().filter(is_meant).map(|file| self.parts(file));
            let mut found = meant.collect::<Result<Vec<_>>>()?;
            let lacks = || self.lacks(pattern, self.models());
            ensure!(!found.is_empty(), lacks());
            found.sort_by_key(|parts| Reverse(parts.iter().map(|part| part.size).sum::<u64>()));
            found.retain(|parts| !models.contains(parts));
            models.extend(found);
        }
        Ok(models)
    }

    /// The files that are models, of split ones the first.
    fn models(&self) -> impl Iterator<Item = &HubFile> {
        self.files.iter().filter(|file| {
            let name = file.path.rsplit('/').next().unwrap_or_default();
            let is_model = !NOT_MODELS.iter().any(|other| name.contains(other));
            is_model && name.ends_with(".gguf") && split(name).1 == 1
        })
    }

    /// All parts of the model that a file is, or is a part of.
    fn parts(&self, file: &HubFile) -> Result<Vec<HubFile>> {
        let (stem, _, n) = split(&file.path);
        if n == 1 {
            return Ok(vec![file.clone()]);
        }
        let part = |i| {
            let mut files = self.files.iter();
            let part = files.find(|part| split(&part.path) == (stem, i, n));
            let missing = || format!("{}: part {i} of {} is missing", self.name, file.path);
            part.cloned().with_context(missing)
        };
        (1..=n).map(part).collect()
    }

    /// The message for what is not there, with what is there, the nearest first.
    fn lacks<'a>(&self, asked: &str, there: impl Iterator<Item = &'a HubFile>) -> String {
        const MOST: usize = 10;
        let mut there: Vec<&str> = there.map(|file| file.path.as_str()).collect();
        there.sort_by_cached_key(|path| {
            // A quant is compared with the end of a name.
            let name = split(path).0;
            let last = name.get(name.len().saturating_sub(asked.len())..);
            let end = last.unwrap_or(name).to_lowercase();
            strsim::levenshtein(&asked.to_lowercase(), &end)
        });
        let rest = if there.len() > MOST { ", ..." } else { "" };
        there.truncate(MOST);
        let (name, there) = (&self.name, there.join(", "));
        format!("{name}: has no '{asked}': it has {there}{rest}")
    }
}

/// A path without `.gguf`, and of a split model without `-00001-of-00002`, which part it is, from 1, and of
/// how many.
fn split(path: &str) -> (&str, u32, u32) {
    let whole = path.strip_suffix(".gguf").unwrap_or(path);
    split_gguf_name(whole).unwrap_or((whole, 1, 1))
}

/// True for `user/repo`: letters, digits and `_`, with single `-` and `.` between them.
pub fn is_repository(name: &str) -> bool {
    let is_odd = |c: char| c != '_' && !c.is_ascii_alphanumeric();
    let is_word = |word: &str| !word.is_empty() && !word.contains(is_odd);
    name.split('/').count() == 2 && name.split(['/', '-', '.']).all(is_word)
}

/// True for a path that stays within the folder that it is joined to, on every system.
pub fn is_safe(path: &str) -> bool {
    let is_odd = |c: char| c.is_control() || matches!(c, '\\' | ':');
    !path.contains(is_odd) && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}
