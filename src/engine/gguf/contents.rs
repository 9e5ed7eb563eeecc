//! What a model's file records beyond what `kl` needs to run it: for a person who asks.

use std::collections::BTreeMap;
use std::path::Path;

use kl_formats::GgmlType;

use super::error::Result;
use super::split::part_paths;
use super::{GgufSummary, read_header, read_whole, tensors};

/// What the header of a GGUF records; of a split model, those of all parts.
#[derive(Clone, Debug)]
pub struct GgufContents {
    /// What a run needs too.
    pub summary: GgufSummary,
    /// `general.file_type` by the name of llama-quantize; a number where it is not known here.
    pub file_type: Option<String>,
    /// The tensors by their type, those with the most parameters first.
    pub types: Vec<TensorType>,
    /// `<architecture>.context_length`.
    pub context_length: Option<u32>,
    /// `tokenizer.ggml.pre`.
    pub pre_tokenizer: Option<String>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// Bytes of `tokenizer.chat_template`.
    pub chat_template_bytes: Option<u64>,
}

/// The tensors of one type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorType {
    /// ggml's name of the type, or its number where it is not known here.
    pub name: String,
    pub n_tensors: u64,
    pub n_params: u64,
    /// Bytes of their data; `None` of a type that is not known here.
    pub bytes: Option<u64>,
}

/// Reads what a GGUF records, without llama.cpp.
///
/// # Errors
/// Those of [`read_whole`].
pub fn contents(path: &Path) -> Result<GgufContents> {
    let summary = read_whole(path)?;
    let paths = match summary.split {
        Some((0, count @ 2..)) => part_paths(path, count)?,
        _ => vec![path.to_owned()],
    };
    let mut types = BTreeMap::new();
    let (_, found, _) = read_header(path, |_| ())?;
    for part in paths {
        read_header(&part, |info| add(&mut types, info))?;
    }
    let mut types: Vec<TensorType> = types.into_values().collect();
    types.sort_by_key(|kind| std::cmp::Reverse(kind.n_params));
    let number = |key: &str| found.numbers.get(key).and_then(|n| u32::try_from(*n).ok());
    let architecture = summary.architecture.clone().unwrap_or_default();
    let token = |name: &str| number(&format!("tokenizer.ggml.{name}"));
    Ok(GgufContents {
        file_type: number("general.file_type").map(file_type),
        types,
        context_length: number(&format!("{architecture}.context_length")),
        bos: token("bos_token_id"),
        eos: token("eos_token_id"),
        add_bos: token("add_bos_token").map(|n| n != 0),
        pre_tokenizer: found.pre_tokenizer,
        chat_template_bytes: found.chat_template_bytes,
        summary,
    })
}

fn add(types: &mut BTreeMap<u32, TensorType>, info: &tensors::Info<'_>) {
    let ggml = GgmlType::of(info.type_id);
    let of_type = types.entry(info.type_id).or_insert_with(|| TensorType {
        name: ggml.map_or_else(
            || format!("type {}", info.type_id),
            |ggml| ggml.name.to_owned(),
        ),
        n_tensors: 0,
        n_params: 0,
        bytes: ggml.map(|_| 0),
    });
    of_type.n_tensors += 1;
    of_type.n_params = of_type.n_params.saturating_add(info.elements);
    of_type.bytes = of_type.bytes.map(|bytes| bytes.saturating_add(info.bytes));
}

/// The name of a file type (`llama_ftype` in `llama.h`), as llama-quantize spells it.
fn file_type(number: u32) -> String {
    /// Added where the type was not recorded but guessed (`LLAMA_FTYPE_GUESSED`).
    const GUESSED: u32 = 1024;
    const NAMES: [(u32, &str); 35] = [
        (0, "F32"),
        (1, "F16"),
        (2, "Q4_0"),
        (3, "Q4_1"),
        (7, "Q8_0"),
        (8, "Q5_0"),
        (9, "Q5_1"),
        (10, "Q2_K"),
        (11, "Q3_K_S"),
        (12, "Q3_K_M"),
        (13, "Q3_K_L"),
        (14, "Q4_K_S"),
        (15, "Q4_K_M"),
        (16, "Q5_K_S"),
        (17, "Q5_K_M"),
        (18, "Q6_K"),
        (19, "IQ2_XXS"),
        (20, "IQ2_XS"),
        (21, "Q2_K_S"),
        (22, "IQ3_XS"),
        (23, "IQ3_XXS"),
        (24, "IQ1_S"),
        (25, "IQ4_NL"),
        (26, "IQ3_S"),
        (27, "IQ3_M"),
        (28, "IQ2_S"),
        (29, "IQ2_M"),
        (30, "IQ4_XS"),
        (31, "IQ1_M"),
        (32, "BF16"),
        (36, "TQ1_0"),
        (37, "TQ2_0"),
        (38, "MXFP4_MOE"),
        (39, "NVFP4"),
        (40, "Q1_0"),
    ];
    let known = NAMES
        .into_iter()
        .find(|(known, _)| *known == number % GUESSED);
    known.map_or_else(|| number.to_string(), |(_, name)| name.to_owned())
}
