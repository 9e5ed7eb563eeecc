//! The check that files are parts of one whole, and that all of them are there.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kl_formats::{Provenance, Shard};
use serde::Serialize;
use serde_json::Value;

use crate::commands::differences;
use crate::commands::observer::Watch;
use crate::commands::resume::first_difference;
use crate::report::Warning;

/// The key of an identity that a whole file's does not have: how many parts there are.
const N_PARTS: &str = "parts";

/// An open file that may hold a part of a whole.
#[derive(Debug)]
pub struct Opened<F, H> {
    pub path: PathBuf,
    pub file: F,
    pub header: H,
    /// Rows in the file; of a sidecar, records.
    pub n_rows: u64,
    /// The keys of the header that are alike in all parts of a whole.
    pub identity: Value,
}

impl<F, H: Deref<Target = Provenance> + Serialize> Opened<F, H> {
    /// A file with its header and number of rows; `of_whole` makes the header of the whole, without
    /// its part.
    pub fn new(
        path: &Path,
        (file, header, n_rows): (F, H, u64),
        of_whole: impl FnOnce(&H) -> H,
    ) -> Self {
        Self {
            path: path.to_owned(),
            identity: identity(&of_whole(&header), header.shard),
            file,
            header,
            n_rows,
        }
    }

    /// True if this file holds the whole that `part` is a part of.
    pub fn is_whole_of(&self, part: &Self) -> bool {
        let mut identity = part.identity.clone();
        let shared = identity.as_object_mut();
        let n_parts = shared.and_then(|object| object.remove(N_PARTS));
        n_parts.is_some() && identity == self.identity
    }

    /// Returns the part that the file holds.
    ///
    /// # Errors
    /// If it holds a whole.
    pub fn shard(&self) -> Result<Shard> {
        match self.header.shard {
            Some(shard) => Ok(shard),
            None => bail!(
                "{}: is whole, not a part: leave it out",
                self.path.display()
            ),
        }
    }
}

/// Selects the keys of a header that are alike in all parts of a whole. Files may have other names
/// on another machine, and a machine may compute with other devices: [`warnings`] names those.
fn identity(whole: &impl Serialize, shard: Option<Shard>) -> Value {
    let mut identity = serde_json::to_value(whole).unwrap_or_default();
    let names = [
        "/writer",
        "/model_path",
        "/text_path",
        "/model/file_name",
        "/reference/file_name",
        "/reference/model/file_name",
        "/text/name",
        "/reference/text/name",
        "/imatrix/file_name",
    ];
    for name in names {
        if let Some(name) = identity.pointer_mut(name) {
            *name = Value::Null;
        }
    }
    let texts = identity.get_mut("texts").and_then(Value::as_array_mut);
    for text in texts.into_iter().flatten() {
        if let Some(name) = text.get_mut("name") {
            *name = Value::Null;
        }
    }
    // Where answers were generated, a part records those of its own windows.
    let is_generated = identity.get("generated").is_some_and(|n| !n.is_null());
    if let Some(header) = identity.as_object_mut().filter(|_| is_generated) {
        header.remove("n_rows");
    }
    let prompts = identity.get_mut("prompts").and_then(Value::as_array_mut);
    for prompt in prompts.into_iter().flatten() {
        if let Some(prompt) = prompt.as_object_mut() {
            prompt.retain(|key, _| key != "spans" && !(is_generated && key == "n_tokens"));
        }
    }
    // Another machine may be off by other last bits.
    if let Some(states) = identity.get_mut("states").and_then(Value::as_object_mut) {
        states.remove("check");
    }
    // Evaluations of one model with two types of cache are two evaluations.
    if let Some(backend) = identity.get_mut("backend").and_then(Value::as_object_mut) {
        backend.retain(|key, _| key == "type_k" || key == "type_v");
    }
    if let (Some(object), Some(shard)) = (identity.as_object_mut(), shard) {
        object.insert(N_PARTS.to_owned(), shard.count.into());
    }
    identity
}

/// Opens all parts of one whole, and warns of what was not alike when they were computed. Returns
/// the header of the whole, and the parts in their order.
///
/// # Errors
/// Those of `open` and of [`in_order`].
pub fn open_parts<F, H: Deref<Target = Provenance> + Serialize>(
    paths: &[PathBuf],
    open: impl Fn(&Path) -> Result<(F, H, u64)>,
    of_whole: fn(&H) -> H,
    watch: &Watch<'_>,
) -> Result<(H, Vec<Opened<F, H>>)> {
    let opened = paths
        .iter()
        .map(|path| Ok(Opened::new(path, open(path)?, of_whole)));
    let parts = in_order(opened.collect::<Result<_>>()?)?;
    watch.warn_all(warnings(&parts));
    match parts.first() {
        Some(first) => Ok((of_whole(&first.header), parts)),
        None => bail!("no parts were given"),
    }
}

/// Puts the parts of one whole in their order.
///
/// # Errors
/// A file that is not a part, a part that belongs to another whole than the first, is missing or comes
/// twice: which, and in which files.
pub fn in_order<F, H: Deref<Target = Provenance> + Serialize>(
    mut parts: Vec<Opened<F, H>>,
) -> Result<Vec<Opened<F, H>>> {
    let Some(first) = parts.first() else {
        bail!("no parts were given");
    };
    let count = first.shard()?.count;
    for other in &parts {
        other.shard()?;
        if let Some(difference) = first_difference(&first.identity, &other.identity) {
            bail!(
                "{}: is a part of another whole than {} ({difference}): leave it out",
                other.path.display(),
                first.path.display()
            );
        }
    }
    let index = |part: &Opened<F, H>| part.header.shard.map_or(0, |shard| shard.index);
    parts.sort_by_key(index);
    for (one, other) in parts.iter().zip(parts.iter().skip(1)) {
        if index(one) == index(other) {
            bail!(
                "{} and {}: both are part {} of {count}: leave one out",
                one.path.display(),
                other.path.display(),
                index(one)
            );
        }
    }
    let is_missing = |wanted: &u32| parts.binary_search_by_key(wanted, index).is_err();
    let missing: Vec<u32> = (0..count).filter(is_missing).collect();
    if missing.is_empty() {
        Ok(parts)
    } else {
        bail!("{}", missing_parts(&parts, &missing, count))
    }
}

/// Names the parts that are missing, and the files that are there.
fn missing_parts<F, H>(parts: &[Opened<F, H>], missing: &[u32], count: u32) -> String {
    /// More would not help.
    const MOST_SHOWN: usize = 10;
    let and_more = |n: usize| match n {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let shown = missing.iter().take(MOST_SHOWN).map(u32::to_string);
    let shown: Vec<String> = shown.collect();
    let more = and_more(missing.len() - shown.len());
    let first = parts.first().map(|part| part.path.display().to_string());
    let present = first.unwrap_or_default() + &and_more(parts.len().saturating_sub(1));
    match &shown[..] {
        [part] => format!(
            "part {part} of {count} is missing beside {present}: make it with --shard {part}/{count}"
        ),
        _ => format!(
            "parts {}{more} of {count} are missing beside {present}: make them with --shard I/{count}",
            shown.join(", ")
        ),
    }
}

/// Warns of what was not alike when the parts were computed, as far as it may move results.
pub fn warnings<F, H: Deref<Target = Provenance> + Serialize>(
    parts: &[Opened<F, H>],
) -> Vec<Warning> {
    let Some((first, others)) = parts.split_first() else {
        return Vec::new();
    };
    let mut warnings: Vec<Warning> = Vec::new();
    for part in others {
        let (here, there): (&Provenance, &Provenance) = (&part.header, &first.header);
        let writer = |of: &Provenance| of.writer.clone().unwrap_or_default();
        let mut differences = vec![("the program", writer(here), writer(there))];
        differences.retain(|(_, here, there)| here != there);
        if let (Some(here), Some(there)) = (&here.backend, &there.backend) {
            let run = differences::Run {
                here,
                there,
                n_ctx: first.header.n_ctx,
                has_attention: true,
            };
            let of_run = run.differences().into_iter();
            differences.extend(of_run.map(|of| (of.what, of.here, of.there)));
        }
        for (what, other, one) in differences {
            let is_known = |warning: &Warning| {
                matches!(warning, Warning::PartsDiffer { what: known, other: of, .. }
                    if *known == what && *of == other)
            };
            // Ten parts of one machine need one warning.
            if !warnings.iter().any(is_known) {
                warnings.push(Warning::PartsDiffer {
                    what,
                    one,
                    one_path: first.path.display().to_string(),
                    other,
                    other_path: part.path.display().to_string(),
                });
            }
        }
    }
    warnings
}
