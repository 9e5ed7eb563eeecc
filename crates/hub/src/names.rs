//! The files that a name means: llama.cpp's rules, and patterns of quants.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use regex::{Regex, escape};

use super::cache::files_within;
use super::kinds::{Kind, Precision, has_own_quant, is_quant, kind, split, up_to_quant};
use super::{HubFile, Repository, shortened, total_bytes};

/// The quants that llama.cpp prefers where none is named.
const PREFERRED: [&str; 2] = ["Q4_K_M", "Q8_0"];

/// The files of a repository by their names without their part's number, and that number and the count of parts.
type Parts<'r> = HashMap<(&'r str, u32, u32), &'r HubFile>;

impl Repository {
    /// The files of a folder on this machine, and of those within it, as if it were a repository: so that their
    /// names mean the same.
    pub fn of_folder(folder: &Path) -> Self {
        let mut paths = files_within(folder);
        paths.sort();
        let file = |path: String| HubFile {
            repository: String::new(),
            commit: String::new(),
            size: fs::metadata(folder.join(&path)).map_or(0, |about| about.len()),
            path,
            digest: String::new(),
        };
        Self {
            name: folder.display().to_string(),
            files: paths.into_iter().map(file).collect(),
        }
    }

    /// The model that is meant by a quant, or without one: all parts of a split file, in order. The quant
    /// stands at the end of the name, or else anywhere in the path before a `.`, `-` or `/`, in any case.
    ///
    /// # Errors
    /// If no model has this quant, or a part is missing.
    pub fn model(&self, quant: Option<&str>) -> Result<Vec<HubFile>> {
        let models = self.models();
        let named = quant.map_or(PREFERRED.to_vec(), |quant| vec![quant]);
        for quant in named {
            // `F16` is no part of `BF16`, nor `XS` of `IQ4_XS`; but `x_IQ4_KSS` has a quant.
            let quant = quant.to_lowercase();
            let before = if is_quant(&quant) { "[-._/]" } else { "[-./]" };
            let start = format!("(?:^|{before}){}", escape(&quant));
            let (at_end, within) = (
                Regex::new(&format!("{start}$"))?,
                Regex::new(&format!("{start}[-./]"))?,
            );
            let has_it = |file: &&&HubFile| at_end.is_match(&up_to_quant(&file.path));
            let mentions_it = |file: &&&HubFile| within.is_match(&file.path.to_lowercase());
            let named = models.iter().filter(has_it);
            let found = named.min_by_key(|file| !has_own_quant(&file.path));
            if let Some(file) = found.or_else(|| models.iter().find(mentions_it)) {
                return self.parts(&self.all_parts(), file);
            }
        }
        match models.first().filter(|_| quant.is_none()) {
            Some(file) => self.parts(&self.all_parts(), file),
            None => bail!(self.lacks_model(quant.unwrap_or(".gguf"), &models)),
        }
    }

    /// The unquantized model, in bf16, else in f16 or f32: all parts of a split file, in order. `None` without one.
    ///
    /// # Errors
    /// If a part is missing.
    pub fn original(&self) -> Result<Option<Vec<HubFile>>> {
        let models = self.models().into_iter();
        let floats = models.filter(|file| Precision::of_name(&file.path).is_float());
        let first = floats.min_by_key(|file| Precision::of_name(&file.path));
        first
            .map(|file| self.parts(&self.all_parts(), file))
            .transpose()
    }

    /// The file at this path; of a split model all parts, in order.
    ///
    /// # Errors
    /// A path that the repository does not have, or a split model with a missing part.
    pub fn file(&self, path: &str) -> Result<Vec<HubFile>> {
        let file = self.files.iter().find(|file| file.path == path);
        let file = file.with_context(|| self.lacks(path, self.files.iter()))?;
        self.parts(&self.all_parts(), file)
    }

    /// The models whose quant matches one of these patterns, each once: in the order of the patterns, then
    /// the largest first. A quant is the end of the name, as in `Model-7B.IQ4_XS.gguf` or
    /// `Model-UD-Q4_K_XL-00001-of-00002.gguf`; `*` and `?` stand for any of its characters except `-` and
    /// `.`, and letters match in any case.
    ///
    /// # Errors
    /// If a pattern matches none, or more than anybody evaluates, or a part is missing.
    pub fn quants(&self, patterns: &[String]) -> Result<Vec<Vec<HubFile>>> {
        const MOST: usize = 1000;
        let (mut chosen, mut known): (Vec<Vec<HubFile>>, _) = (Vec::new(), HashSet::new());
        let (models, all_parts) = (self.models(), self.all_parts());
        let names: Vec<String> = models.iter().map(|file| up_to_quant(&file.path)).collect();
        for pattern in patterns {
            let stars = escape(&pattern.to_lowercase()).replace(r"\*", r"\?*");
            let wild = stars.replace(r"\?", "[^-./]");
            let quant = Regex::new(&format!("(^|[-./]){wild}$"))?;
            let matching: Vec<&&HubFile> = models
                .iter()
                .zip(&names)
                .filter(|(_, name)| quant.is_match(name))
                .map(|(file, _)| file)
                .collect();
            ensure!(!matching.is_empty(), self.lacks_model(pattern, &models));
            let (n, name, shown) = (matching.len(), &self.name, shortened(pattern));
            ensure!(
                n <= MOST,
                "{name}: '{shown}' matches {n} models, and kl evaluates at most {MOST} in a run: give narrower patterns"
            );
            let mut found = matching
                .into_iter()
                .filter(|file| known.insert(&file.path))
                .map(|file| self.parts(&all_parts, file))
                .collect::<Result<Vec<_>>>()?;
            found.sort_by_key(|parts| Reverse(total_bytes(parts.iter())));
            chosen.extend(found);
        }
        Ok(chosen)
    }

    /// The models whose quant matches one of these patterns, or without a pattern all.
    ///
    /// # Errors
    /// Those of [`quants`](Self::quants), and a repository without any model.
    pub fn quants_or_all(&self, patterns: &[String]) -> Result<Vec<Vec<HubFile>>> {
        if !patterns.is_empty() {
            return self.quants(patterns);
        }
        ensure!(
            !self.models().is_empty(),
            "{}: holds no model (GGUF)",
            self.name
        );
        self.quants(&["*".to_owned()])
    }

    /// The files that are models, of split ones the first part; those without a draft in them first.
    fn models(&self) -> Vec<&HubFile> {
        let mut models: Vec<(Kind, &HubFile)> = self
            .files
            .iter()
            .filter(|file| split(&file.path).1 == 1)
            .map(|file| (kind(&file.path), file))
            .filter(|(kind, _)| *kind <= Kind::MaybeDraft)
            .collect();
        models.sort_by_key(|(kind, _)| *kind);
        let least = models.first().map_or(Kind::Model, |(kind, _)| *kind);
        // Beside a model, a file that may be a draft is one.
        models.retain(|(kind, _)| *kind < Kind::MaybeDraft || least == Kind::MaybeDraft);
        models.into_iter().map(|(_, file)| file).collect()
    }

    fn all_parts(&self) -> Parts<'_> {
        // Of two files with one name, the first counts, as it does where a path is looked for.
        let files = self.files.iter().rev();
        files.map(|file| (split(&file.path), file)).collect()
    }

    /// All parts of the model that a file is, or is a part of.
    fn parts(&self, all: &Parts, file: &HubFile) -> Result<Vec<HubFile>> {
        let (stem, _, n) = split(&file.path);
        if n <= 1 {
            return Ok(vec![file.clone()]);
        }
        let part = |i| {
            let missing = || format!("{}: part {i} of {} is missing", self.name, file.path);
            all.get(&(stem, i, n))
                .copied()
                .cloned()
                .with_context(missing)
        };
        (1..=n).map(part).collect()
    }

    /// The message that the repository has no such model.
    fn lacks_model(&self, asked: &str, models: &[&HubFile]) -> String {
        let lacks = self.lacks(asked, models.iter().copied());
        let quant = asked.to_lowercase();
        let has_quant =
            |file: &&HubFile| quant == ".gguf" || file.path.to_lowercase().contains(&quant);
        let mut named = self.files.iter().filter(has_quant);
        let rest = named.find_map(|file| match kind(&file.path) {
            Kind::Piece => Some((
                file,
                "is a piece of a GGUF: load its pieces, join them with cat, and give the result with -m",
            )),
            Kind::Companion | Kind::MaybeDraft => Some((
                file,
                "is named as a draft or another file that runs beside a model: --hf-file takes any file",
            )),
            _ => None,
        });
        match rest {
            Some((file, what)) => format!("{lacks}; {} {what}", shortened(&file.path)),
            None => lacks,
        }
    }

    /// The message that the repository has no such file, with those that it has, the nearest first.
    fn lacks<'a>(&self, asked: &str, files: impl Iterator<Item = &'a HubFile>) -> String {
        const MOST: usize = 10;
        let asked = shortened(asked);
        let mut paths: Vec<&str> = files.map(|file| &*file.path).collect();
        if paths.is_empty() {
            return format!("{}: has no '{asked}', and no model at all", self.name);
        }
        paths.sort_by_cached_key(|path| {
            // A quant is compared with the end of a name.
            let name = split(path).0;
            let last = name.get(name.len().saturating_sub(asked.len())..);
            let end = last.unwrap_or(name).to_lowercase();
            strsim::levenshtein(&asked.to_lowercase(), &end)
        });
        let rest = if paths.len() > MOST { ", ..." } else { "" };
        paths.truncate(MOST);
        let shown: Vec<String> = paths.into_iter().map(shortened).collect();
        format!(
            "{}: has no '{asked}': it has {}{rest}",
            self.name,
            shown.join(", ")
        )
    }
}

/// True for `user/repo`: letters, digits and `_`, with single `-` and `.` between them.
pub fn is_repository(name: &str) -> bool {
    const LONGEST: usize = 200;
    let is_odd = |c: char| c != '_' && !c.is_ascii_alphanumeric();
    let is_word = |word: &str| !word.is_empty() && !word.contains(is_odd);
    name.len() <= LONGEST
        && name.split('/').count() == 2
        && name.split(['/', '-', '.']).all(is_word)
}

/// True for a path that stays within the folder that it is joined to, and can be one, on every system.
pub fn is_safe(path: &str) -> bool {
    const LONGEST_NAME: usize = 255;
    const LONGEST: usize = 1024;
    let is_odd = |c: char| c.is_control() || matches!(c, '\\' | ':');
    let is_name = |part: &str| !matches!(part, "" | "." | "..") && part.len() <= LONGEST_NAME;
    path.len() <= LONGEST && !path.contains(is_odd) && path.split('/').all(is_name)
}
