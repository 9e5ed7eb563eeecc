//! Describes a reference, a sidecar, a map or a model, and checks whether it is whole.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Result, bail};
use kl_engine::Engine;
use kl_engine::gguf::{self, Gguf, Piece};
use kl_formats::{
    About, Checks, Found, ReadBlocks as _, ReadStream, Reference, RowLayout, Rows, SensitivityMap,
    SidecarReader, map, rows_per_piece, sidecar,
};
use kl_report::{
    FileKind, GgufInfo, GroupInfo, Info, MapInfo, PromptsInfo, TensorTypeInfo, Verified,
};
use rayon::prelude::*;

use super::folder::is_gguf;
use super::observer::{Event, Observer, Watch};
use super::verify_model::verify_model;

/// Describes the file, and then reads it whole if `verify`, a model's beside its `original`. The observer gets
/// the description first.
///
/// # Errors
/// What is wrong with the file, and where. Faults of a model's weights and metadata are findings instead.
pub fn info(
    path: &Path,
    verify: bool,
    original: Option<&Path>,
    engine: &dyn Engine,
    observer: &dyn Observer,
) -> Result<Info> {
    let watch = &Watch::new(observer);
    let (mut info, reference) = match Found::look(path) {
        Found::Sidecar => (sidecar_info(path)?, None),
        Found::Map => (map_info(path)?, None),
        Found::Model => (model_info(path)?, None),
        Found::Reference(_) => open_reference(path)?,
        // What is named as a model is one that cannot be read: a web page, or a piece that begins anywhere.
        _ if is_gguf(path) || Piece::of(path).is_some() => (model_info(path)?, None),
        _ => open_reference(path)?,
    };
    info.path = path.display().to_string();
    if original.is_some() && info.gguf.is_none() {
        bail!("{}: is not a model: --original compares models", info.path);
    }
    watch.event(&Event::Described(&info));
    if verify {
        // What is wrong with a model's file is a finding.
        if info.gguf.is_none() && kl_hub::differs_from_name(path, || Ok(watch.check()?))? {
            bail!(
                "{}: its bytes have another hash than its name in the cache: remove it, and load it again",
                info.path
            );
        }
        match reference {
            Some(reference) => info.verified = Some(verify_reference(reference, watch)?),
            None if info.gguf.is_some() => {
                info.verification = Some(verify_model(path, original, engine, watch)?);
            }
            None => {
                // A sidecar or a map.
                let n_windows = match info.map {
                    Some(_) => map::verify(path).map(|_| info.n_windows.map_or(0, u64::from))?,
                    None => sidecar::verify(path)?,
                };
                info.verified = Some(Verified {
                    n_windows,
                    n_rows: info.n_rows.unwrap_or(0),
                    file_bytes: info.file_bytes,
                    checks: Checks::Checksums,
                });
            }
        }
        watch.event(&Event::Verified(&info));
    }
    info.warnings = watch.warnings();
    Ok(info)
}

/// Describes a reference, which may be read whole.
fn open_reference(path: &Path) -> Result<(Info, Option<Reference>)> {
    let reference = Reference::open(path)?;
    Ok((reference_info(reference.about()), Some(reference)))
}

fn sidecar_info(path: &Path) -> Result<Info> {
    let sidecar = SidecarReader::open(path)?;
    let (header, n_records) = (sidecar.header.clone(), sidecar.n_records());
    let groups = header.groups.into_iter().map(|name| GroupInfo {
        name,
        n_windows: None,
    });
    Ok(Info {
        kind: FileKind::Sidecar,
        label: header.label,
        file_bytes: sidecar.file_bytes(),
        reference: Some(header.reference),
        n_vocab_compared: header.n_vocab_compared,
        n_rows: Some(n_records),
        until: header.until,
        groups: groups.collect(),
        ..Info::from_provenance(header.provenance)
    })
}

fn map_info(path: &Path) -> Result<Info> {
    let map = SensitivityMap::read(path)?;
    let windows = &map.header.windows;
    Ok(Info {
        kind: FileKind::Map,
        file_bytes: fs::metadata(path)?.len(),
        reference: map.header.reference.clone(),
        n_windows: Some(windows.len() as u32),
        n_rows: Some(windows.iter().map(|window| u64::from(window.n_rows)).sum()),
        map: Some(MapInfo::new(&map)),
        ..Info::from_provenance(map.header.provenance)
    })
}

fn model_info(path: &Path) -> Result<Info> {
    let header = gguf::read(path)?;
    let types = tensor_types(&header);
    let mut model = header.identity();
    model.size_bytes = types.iter().map(|tensor_type| tensor_type.bytes).sum();
    model.n_params = Some(types.iter().map(|tensor_type| tensor_type.n_params).sum());
    let number = |n: Option<i128>| n.and_then(|n| u32::try_from(n).ok());
    let token = |name: &str| number(header.number(&format!("tokenizer.ggml.{name}")));
    let tokenizer = header.tokenizer.clone();
    let chat_template = header.text("tokenizer.chat_template");
    Ok(Info {
        kind: FileKind::Model,
        file_bytes: header.file_bytes,
        n_ctx: number(header.architecture_number("context_length")).unwrap_or(0),
        n_vocab: tokenizer.as_ref().map_or(0, |tokenizer| tokenizer.n_tokens),
        add_bos: token("add_bos_token").map(|n| n != 0),
        gguf: Some(GgufInfo {
            bpw: model.bits_per_weight(),
            kind: header.text("general.type").map(str::to_owned),
            n_files: header.files.len() as u16,
            file_type: header.file_type(),
            types,
            pre_tokenizer: header.pre_tokenizer().map(str::to_owned),
            bos: token("bos_token_id"),
            eos: token("eos_token_id"),
            chat_template_bytes: chat_template.map(|text| text.len() as u64),
        }),
        model: Some(model),
        tokenizer,
        ..Info::default()
    })
}

/// Counts the tensors of each type; the type with the most parameters first.
fn tensor_types(header: &Gguf) -> Vec<TensorTypeInfo> {
    let mut by_type = BTreeMap::new();
    for tensor in &header.tensors {
        let tensor_type = by_type
            .entry(tensor.kind)
            .or_insert_with(|| TensorTypeInfo {
                name: tensor.kind.name.to_owned(),
                n_tensors: 0,
                n_params: 0,
                bytes: Some(0),
            });
        tensor_type.n_tensors += 1;
        tensor_type.n_params = tensor_type.n_params.saturating_add(tensor.n_params());
        tensor_type.bytes = tensor_type
            .bytes
            .map(|bytes| bytes.saturating_add(tensor.bytes));
    }
    let mut types: Vec<_> = by_type.into_values().collect();
    types.sort_by_key(|tensor_type| std::cmp::Reverse(tensor_type.n_params));
    types
}

/// Describes a reference.
pub fn reference_info(about: &About) -> Info {
    let about = about.clone();
    let groups = about.groups.as_ref().map(GroupInfo::of_each);
    Info {
        kind: FileKind::Reference(about.kind),
        file_bytes: about.file_bytes,
        n_windows: about.n_windows,
        n_rows: about.n_rows,
        encoding: Some(about.encoding.to_string()),
        log_probabilities: Some(about.holds_log_probabilities()),
        states: about.states,
        holds_tokens: about.holds_tokens,
        groups: groups.unwrap_or_default(),
        prompts: about.prompts.as_ref().map(PromptsInfo::new),
        others: about.others.into_iter().collect(),
        ..Info::from_provenance(about.provenance)
    }
}

/// Reads a reference whole.
///
/// # Errors
/// The first fault, with its window and byte.
fn verify_reference(reference: Reference, watch: &Watch<'_>) -> Result<Verified> {
    let about = reference.about();
    let (file_bytes, checks, n_vocab) = (about.file_bytes, about.checks, about.n_vocab);
    let n_windows = about.n_windows.map(u64::from);
    let phase = watch.begin("verifying", n_windows, about.n_rows);
    let step = |n_rows: u32| -> Result<()> {
        phase.window(None);
        phase.rows(n_rows as usize);
        Ok(watch.check()?)
    };
    let rows_per_window: Vec<u32> = reference
        .windows()
        .unwrap_or_default()
        .iter()
        .map(|window| window.n_rows)
        .collect();
    let rows_per_window = match reference.into_rows() {
        Rows::Blocks(rows) => verify_windows(|i| rows.verify_window(i), rows_per_window, step)?,
        Rows::States(rows, _) => {
            rows.verify_head()?;
            verify_windows(|i| rows.verify_window(i), rows_per_window, step)?
        }
        Rows::Stream(rows) => verify_stream(rows, n_vocab, step)?,
        Rows::Model(windows) => vec![0; windows.len()],
    };
    Ok(Verified {
        n_windows: rows_per_window.len() as u64,
        n_rows: rows_per_window.into_iter().map(u64::from).sum(),
        file_bytes,
        checks,
    })
}

/// Reads all windows, which have these rows, on all cores, and returns the rows of each. Of several
/// faults it reports the first in the file.
fn verify_windows(
    verify: impl Fn(usize) -> kl_formats::Result<()> + Sync,
    rows_per_window: Vec<u32>,
    step: impl Fn(u32) -> Result<()> + Sync,
) -> Result<Vec<u32>> {
    let fault = rows_per_window
        .par_iter()
        .enumerate()
        .with_max_len(1)
        .find_map_first(|(index, &n_rows)| {
            verify(index)
                .map_err(anyhow::Error::from)
                .and_then(|()| step(n_rows))
                .err()
        });
    fault.map_or(Ok(rows_per_window), Err)
}

/// Reads one window after another, and returns the rows of each.
fn verify_stream(
    mut rows: Box<dyn ReadStream>,
    n_vocab: u32,
    step: impl Fn(u32) -> Result<()>,
) -> Result<Vec<u32>> {
    let rows_at_once = rows_per_piece(RowLayout::F32, n_vocab) as usize;
    let mut rows_per_window = Vec::new();
    while let Some(window) = rows.next_window()? {
        while rows.next_rows(rows_at_once)?.is_some() {}
        rows_per_window.push(window.n_rows);
        step(window.n_rows)?;
    }
    Ok(rows_per_window)
}
