//! The meaning of a GGUF's name, as publishers give names: its quant, and whether it is a model.
//!
//! llama.cpp takes any name with `mtp-` in it for a draft, and no name with `-MTP` at its end. Drafts
//! have such words at the start of their names (`mtp-gemma-4-31B-it.gguf`), after the quant, or in the name
//! of their folder (`MTP/gemma-4-31B-it-Q8_0-MTP.gguf`); before the quant, `MTP` belongs to the name of a model
//! (`Qwen3.6-27B-MTP-Q8_0.gguf`). Where a name leaves it open, its neighbours decide.

use std::sync::LazyLock;

use kl_formats::split_gguf_name;
use regex::Regex;

/// The kind of a file by its name; the first is the most certain model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Model,
    /// A model with layers for several tokens (MTP) in it: it comes after one without.
    WithDraft,
    /// A draft, unless the repository has nothing else.
    MaybeDraft,
    /// A draft, a vision part or an importance matrix.
    Companion,
    /// A piece of a GGUF that was cut without regard to its contents, such as `x.gguf.part1of2`.
    Piece,
    /// No GGUF.
    Other,
}

/// The words by which llama.cpp knows drafts, at the start of their names.
const FIRST_OF_DRAFTS: [&str; 4] = ["mtp", "eagle3", "dflash", "dspark"];

/// Words in the names of drafts, and of their folders.
const OF_DRAFTS: [&str; 12] = [
    "mtp",
    "eagle",
    "eagle3",
    "dflash",
    "dspark",
    "draft",
    "drafts",
    "drafter",
    "drafters",
    "assistant",
    "speculator",
    "nextn",
];

/// Words beside those in the name of a folder of drafts.
const BESIDE: [&str; 7] = [
    "gguf", "head", "heads", "layer", "layers", "model", "models",
];

/// Words after a quant that say how it was made.
const MADE_WITH: [&str; 2] = ["imat", "i1"];

/// The kind of the file at this path of a repository.
pub fn kind(path: &str) -> Kind {
    let lower = path.to_lowercase();
    let Some(whole) = lower.strip_suffix(".gguf") else {
        return if is_piece(&lower) {
            Kind::Piece
        } else {
            Kind::Other
        };
    };
    let stem = without_part(whole);
    let (folders, name) = stem.rsplit_once('/').unwrap_or(("", stem));
    let (words, of_quant) = words_and_quant(name);
    let is_draft = |word: &&str| OF_DRAFTS.contains(word);
    let is_first = |of: &[&str]| words.first().is_some_and(|word| of.contains(word));
    // Before a quant, it says how a model was made.
    let is_matrix = words.contains(&"imatrix") && of_quant.is_none();
    let is_at_end = [words.first(), words.last()].contains(&Some(&"imatrix"));
    let in_folder = folders.split('/').any(is_folder_of_drafts);
    if name.contains("mmproj") || is_matrix || is_at_end {
        return Kind::Companion;
    }
    if is_first(&FIRST_OF_DRAFTS) || in_folder {
        return Kind::Companion;
    }
    let before_quant = words.get(..of_quant.unwrap_or(0)).unwrap_or_default();
    let n_drafts = words.iter().filter(|word| is_draft(word)).count();
    let n_mtp = before_quant.iter().filter(|word| **word == "mtp").count();
    match n_drafts {
        0 => Kind::Model,
        n if n == n_mtp => Kind::WithDraft,
        _ => Kind::MaybeDraft,
    }
}

/// A path without `.gguf`, and of a split model without `-00001-of-00002`, which part it is, from 1, and of
/// how many.
pub fn split(path: &str) -> (&str, u32, u32) {
    let ending = path.len().saturating_sub(".gguf".len());
    let is_gguf = |(_, end): &(&str, &str)| end.eq_ignore_ascii_case(".gguf");
    let (whole, _) = path
        .split_at_checked(ending)
        .filter(is_gguf)
        .unwrap_or((path, ""));
    split_gguf_name(whole).unwrap_or((whole, 1, 1))
}

/// The text that a model's quant is at the end of, in lower case: its path without what stands after the
/// quant; or its folder, if its own name has none. `_` before the quant is `-`.
pub fn up_to_quant(path: &str) -> String {
    let stem = split(path).0.to_lowercase();
    let (folders, name) = stem.rsplit_once('/').unwrap_or(("", &stem));
    let cut = |name: &str| {
        let end = quant_of(name)?.end();
        let before = quant_of(name)?.start();
        let (start, quant) = name.get(..end)?.split_at_checked(before)?;
        let between = if start.is_empty() { "" } else { "-" };
        let start = start.strip_suffix(['-', '.', '_']).unwrap_or(start);
        Some(format!("{start}{between}{quant}"))
    };
    let last_folder = folders.rsplit('/').next().unwrap_or_default();
    cut(name).or_else(|| cut(last_folder)).unwrap_or(stem)
}

/// True if a file's own name has its quant, and not only its folder's.
pub fn has_own_quant(path: &str) -> bool {
    let stem = split(path).0;
    quant_of(stem.rsplit('/').next().unwrap_or_default()).is_some()
}

/// True for the name of a type of quant, as `Q4_K_M` and `bf16`.
pub fn is_quant(text: &str) -> bool {
    quant_of(text).is_some_and(|found| found.range() == (0..text.len()))
}

/// How a model's weights are stored, by its name; the original that is preferred comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precision {
    /// Bf16, in which most models are trained.
    Bf16,
    F16,
    /// F32 or f64.
    F32,
    /// Anything else.
    Quantized,
}

impl Precision {
    /// The precision that the file at this path is named after, or its folder.
    pub fn of_name(path: &str) -> Self {
        let named = up_to_quant(path);
        match quant_of(&named).map(|found| found.as_str()) {
            Some("bf16") => Self::Bf16,
            Some("f16" | "fp16") => Self::F16,
            Some("f32" | "fp32" | "f64") => Self::F32,
            _ => Self::Quantized,
        }
    }

    /// True if weights are floats, each by itself.
    pub fn is_float(self) -> bool {
        self != Self::Quantized
    }
}

/// The quant at the end of a name, before words that say how it was made or that it is a draft.
fn quant_of(name: &str) -> Option<regex::Match<'_>> {
    // The types of llama.cpp and its forks: Q4_K_M, IQ4_KSS, UD-Q4_K_XL, TQ1_0, MXFP4_MOE, BF16.
    static QUANT: LazyLock<Option<Regex>> = LazyLock::new(|| {
        let types = "(?:ud-)?(?:i?q[1-9]|tq[12]|mxfp[468]|nvfp4|fp8|b?f16|fp16|f32|fp32|f64)";
        let after = [OF_DRAFTS.as_slice(), &MADE_WITH].concat().join("|");
        let pattern = format!(r"(?i)(?:^|[-._])({types}(?:_[a-z0-9]+)*?)(?:[-._](?:{after}))*$");
        Regex::new(&pattern).ok()
    });
    QUANT.as_ref()?.captures(name)?.get(1)
}

/// The words of a name in lower case, and how many of them stand before the quant, if it has one.
fn words_and_quant(name: &str) -> (Vec<&str>, Option<usize>) {
    let words = |text| -> Vec<&str> { str::split(text, ['-', '.', '_']).collect() };
    let before = quant_of(name).and_then(|found| name.get(..found.start()));
    (words(name), before.map(|before| words(before).len() - 1))
}

/// True for the name of a folder that says nothing but that drafts are in it, and perhaps their quant.
fn is_folder_of_drafts(folder: &str) -> bool {
    let quant = quant_of(folder).map_or("", |found| found.as_str());
    let others = folder.replacen(quant, "", 1);
    let words = others.split(['-', '.', '_', ' ']);
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let is_draft = |word: &&str| OF_DRAFTS.contains(word);
    let is_beside = |word: &&str| is_draft(word) || BESIDE.contains(word);
    words.iter().any(is_draft) && words.iter().all(is_beside)
}

/// True for a piece of a GGUF in lower case: `x.gguf.part1of2`, `x.gguf-split-a`, `x.gguf.001`.
fn is_piece(path: &str) -> bool {
    static PIECE: LazyLock<Option<Regex>> = LazyLock::new(|| {
        Regex::new(r"\.gguf[-._](?:part[-_]?[0-9a-z]+(?:of[0-9]+)?|split[-_]?[0-9a-z]+|[0-9]{2,3}|a[a-z])$").ok()
    });
    PIECE.as_ref().is_some_and(|piece| piece.is_match(path))
}

fn without_part(stem: &str) -> &str {
    split_gguf_name(stem).map_or(stem, |(whole, _, _)| whole)
}
