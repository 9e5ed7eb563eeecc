//! The files that a name means: llama.cpp's rules, and patterns of quants.

use std::cmp::Reverse;

use anyhow::{Result, bail};

use super::{HubFile, Repository};

/// The quants that llama.cpp prefers where none is named.
const PREFERRED: [&str; 2] = ["Q4_K_M", "Q8_0"];

/// Parts of the names of GGUFs that are no models of their own, by llama.cpp's list.
const NOT_MODELS: [&str; 6] = ["mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"];

impl Repository {
    /// The model that llama.cpp takes for a quant, or for none: all parts of a split file, in their order.
    /// A quant is the name's part before a `.` or `-`, in any case.
    ///
    /// # Errors
    /// If no model has this quant, or a part is missing.
    pub fn model(&self, quant: Option<&str>) -> Result<Vec<HubFile>> {
        let models: Vec<&HubFile> = self.models().collect();
        let wanted = quant.map_or(PREFERRED.to_vec(), |quant| vec![quant]);
        let tagged = wanted
            .iter()
            .find_map(|tag| models.iter().find(|file| has_tag(&file.path, tag)));
        match (tagged, quant, models.first()) {
            (Some(file), _, _) | (None, None, Some(file)) => self.parts(file),
            (None, Some(quant), Some(_)) => bail!(
                "{}: has no model of quant '{quant}'{}: {}",
                self.name,
                self.so_far(),
                nearest(quant, models.iter().map(|file| quant_of(&file.path)))
            ),
            (None, _, None) => bail!("{}: has no GGUF of a model{}", self.name, self.so_far()),
        }
    }

    /// The file at this path; of a split model all parts, in their order.
    ///
    /// # Errors
    /// If there is no such file, or a part is missing.
    pub fn file(&self, path: &str) -> Result<Vec<HubFile>> {
        match self.files.iter().find(|file| file.path == path) {
            Some(file) => self.parts(file),
            None => bail!(
                "{}: has no file '{path}'{}: {}",
                self.name,
                self.so_far(),
                nearest(path, self.files.iter().map(|file| file.path.as_str()))
            ),
        }
    }

    /// The models whose quant matches one of these patterns, each once: in the order of the patterns, then
    /// the largest first. A pattern's `*` and `?` stand for any characters and for one, in any case. A quant is
    /// what follows the name's last `-` or `.`, as in `Model-7B.IQ4_XS.gguf`; `UD-Q4_K_XL` matches as
    /// `Q4_K_XL` too.
    ///
    /// # Errors
    /// If a pattern matches none, or a part is missing.
    pub fn quants(&self, patterns: &[String]) -> Result<Vec<Vec<HubFile>>> {
        let mut models: Vec<Vec<HubFile>> = Vec::new();
        for pattern in patterns {
            let matching = self.models().filter(|file| {
                let (quant, stem) = (quant_of(&file.path), split_of(&file.path).stem);
                let dynamic = stem.get(stem.len().saturating_sub(quant.len() + 3)..);
                let dynamic = dynamic.filter(|name| name.to_uppercase().starts_with("UD-"));
                matches(pattern, quant) || dynamic.is_some_and(|name| matches(pattern, name))
            });
            let mut found = matching
                .map(|file| self.parts(file))
                .collect::<Result<Vec<_>>>()?;
            if found.is_empty() {
                bail!(
                    "{}: has no model whose quant matches '{pattern}'{}: {}",
                    self.name,
                    self.so_far(),
                    nearest(pattern, self.models().map(|file| quant_of(&file.path)))
                );
            }
            found.sort_by_key(|parts| Reverse(parts.iter().map(|part| part.size).sum::<u64>()));
            found.retain(|parts| !models.contains(parts));
            models.extend(found);
        }
        Ok(models)
    }

    /// The first or only files of the models.
    fn models(&self) -> impl Iterator<Item = &HubFile> {
        self.files.iter().filter(|file| {
            let name = file.path.rsplit('/').next().unwrap_or_default();
            name.ends_with(".gguf")
                && !NOT_MODELS.iter().any(|other| name.contains(other))
                && split_of(&file.path).index == 1
        })
    }

    /// All parts of the model that `file` is one of.
    fn parts(&self, file: &HubFile) -> Result<Vec<HubFile>> {
        let split = split_of(&file.path);
        let part = |index| {
            let wanted = Split { index, ..split };
            let mut files = self.files.iter();
            files
                .find(|other| split_of(&other.path) == wanted)
                .cloned()
                .ok_or(index)
        };
        if split.count == 1 {
            return Ok(vec![file.clone()]);
        }
        match (1..=split.count).map(part).collect() {
            Ok(parts) => Ok(parts),
            Err(missing) => bail!(
                "{}: has no part {missing} of {}{}",
                self.name,
                file.path,
                self.so_far()
            ),
        }
    }

    /// The end of a message about what is missing where only the cache was looked at.
    fn so_far(&self) -> &str {
        if self.is_cached {
            " in the cache, and the hub was not asked"
        } else {
            ""
        }
    }
}

/// A path's place in a split model, as in `Model-Q8_0-00001-of-00002.gguf`.
#[derive(PartialEq, Eq)]
struct Split<'a> {
    /// The path without this, and without `.gguf`.
    stem: &'a str,
    /// From 1.
    index: u32,
    count: u32,
}

fn split_of(path: &str) -> Split<'_> {
    const DIGITS: usize = 5;
    let whole = path.strip_suffix(".gguf").unwrap_or(path);
    let part = || {
        let number = |text: &str| (text.len() == DIGITS).then(|| text.parse().ok())?;
        let (rest, count) = whole.rsplit_once("-of-")?;
        let (stem, index) = rest.rsplit_once('-')?;
        Some(Split {
            stem,
            index: number(index)?,
            count: number(count)?,
        })
    };
    part().unwrap_or(Split {
        stem: whole,
        index: 1,
        count: 1,
    })
}

/// The quant in a file's name, such as `Q4_K_M`.
fn quant_of(path: &str) -> &str {
    let stem = split_of(path).stem;
    stem.rsplit(['-', '.', '/']).next().unwrap_or(stem)
}

/// Returns true if the path has the tag before a `.` or `-`: llama.cpp's rule.
fn has_tag(path: &str, tag: &str) -> bool {
    let (path, tag) = (path.to_lowercase(), tag.to_lowercase());
    let mut ends = path
        .match_indices(&tag)
        .map(|(at, _)| path.get(at + tag.len()..));
    ends.any(|rest| rest.is_some_and(|rest| rest.starts_with(['.', '-'])))
}

/// Returns true if a pattern with `*` and `?` matches a text, in any case.
fn matches(pattern: &str, text: &str) -> bool {
    fn matches(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => {
                (0..=text.len()).any(|n| matches(rest, text.get(n..).unwrap_or_default()))
            }
            ([b'?', pattern @ ..], [_, text @ ..]) => matches(pattern, text),
            ([one, pattern @ ..], [other, text @ ..]) => {
                one.eq_ignore_ascii_case(other) && matches(pattern, text)
            }
            _ => false,
        }
    }
    matches(pattern.as_bytes(), text.as_bytes())
}

/// The names that a message lists, the nearest to what was asked for first.
fn nearest<'a>(asked: &str, names: impl Iterator<Item = &'a str>) -> String {
    const MOST: usize = 12;
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names.dedup();
    let asked = asked.to_lowercase();
    names.sort_by_cached_key(|name| strsim::levenshtein(&asked, &name.to_lowercase()));
    let more = names.len().saturating_sub(MOST);
    names.truncate(MOST);
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    format!("it has {}{more}", names.join(", "))
}

/// Returns true for `user/repo`: letters, digits and `_`, with single `-` and `.` between them.
pub fn is_repository(name: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_name = |part: &str| {
        part.split(['-', '.'])
            .all(|word| !word.is_empty() && word.bytes().all(is_word))
    };
    name.split('/').count() == 2 && name.split('/').all(is_name)
}

/// Returns true for a path that stays inside of the folder that it is joined to, on every system.
pub fn is_safe(path: &str) -> bool {
    let is_odd = |c: char| c.is_control() || matches!(c, '\\' | ':');
    !path.contains(is_odd) && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}
