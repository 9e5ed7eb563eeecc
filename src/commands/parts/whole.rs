//! The check that files are parts of one whole, and that all of them are there.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kl_formats::{Provenance, Shard};
use serde::Serialize;
use serde_json::Value;

use crate::commands::differences;
use crate::commands::resume::first_difference;
use crate::report::Warning;

/// The key of an identity that a whole file's does not have: how many parts there are.
const N_PARTS: &str = "parts";

/// An open file that may hold a part of a whole.
#[derive(Debug)]
pub struct Opened<H> {
    pub path: PathBuf,
    pub header: H,
    /// The keys of the header that are alike in all parts of a whole.
    pub identity: Value,
}

impl<H: Deref<Target = Provenance> + Serialize> Opened<H> {
    /// `whole`: the header of the whole, without its part.
    pub fn new(path: &Path, header: H, whole: &H) -> Self {
        Self {
            path: path.to_owned(),
            identity: identity(whole, header.shard),
            header,
        }
    }

    /// Returns true if this file holds the whole that `part` is a part of.
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
        "/model/file_name",
        "/reference/file_name",
        "/reference/model/file_name",
        "/text/name",
        "/reference/text/name",
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

/// Puts the parts of one whole in their order.
///
/// # Errors
/// A part that belongs to another whole than the first, is missing or comes twice: which, and in
/// which files.
pub fn in_order<H: Deref<Target = Provenance> + Serialize>(
    mut parts: Vec<Opened<H>>,
) -> Result<Vec<Opened<H>>> {
    let Some(first) = parts.first() else {
        bail!("no parts were given");
    };
    for other in &parts {
        if let Some(difference) = first_difference(&first.identity, &other.identity) {
            bail!(
                "{}: is a part of another whole than {} ({difference}): leave it out",
                other.path.display(),
                first.path.display()
            );
        }
    }
    let count = first.shard()?.count;
    let index = |part: &Opened<H>| part.header.shard.map_or(0, |shard| shard.index);
    parts.sort_by_key(index);
    for pair in parts.windows(2) {
        if let [one, other] = pair
            && index(one) == index(other)
        {
            bail!(
                "{} and {}: both are part {} of {count}: leave one out",
                one.path.display(),
                other.path.display(),
                index(one)
            );
        }
    }
    let present: Vec<u32> = parts.iter().map(index).collect();
    let missing: Vec<u32> = (0..count)
        .filter(|part| present.binary_search(part).is_err())
        .collect();
    if !missing.is_empty() {
        bail!("{}", missing_parts(&parts, &missing, count));
    }
    Ok(parts)
}

/// Names the parts that are missing, and the files that are there.
fn missing_parts<H>(parts: &[Opened<H>], missing: &[u32], count: u32) -> String {
    /// More would not help.
    const MOST_SHOWN: usize = 10;
    let shown: Vec<String> = missing
        .iter()
        .take(MOST_SHOWN)
        .map(u32::to_string)
        .collect();
    let more = match missing.len().saturating_sub(MOST_SHOWN) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let first = parts.first().map(|part| part.path.display().to_string());
    let first = first.unwrap_or_default();
    let others = match parts.len() {
        0 | 1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    match &shown[..] {
        [part] => format!(
            "part {part} of {count} is missing beside {first}{others}: make it with --shard {part}/{count}"
        ),
        _ => format!(
            "parts {}{more} of {count} are missing beside {first}{others}: make them with --shard I/{count}",
            shown.join(", ")
        ),
    }
}

/// Warns of what was not alike when the parts were computed, as far as it may move results.
pub fn warnings<H: Deref<Target = Provenance> + Serialize>(parts: &[Opened<H>]) -> Vec<Warning> {
    let Some((first, others)) = parts.split_first() else {
        return Vec::new();
    };
    let mut warnings: Vec<Warning> = Vec::new();
    let mut differ = |what: &'static str, other: &Opened<H>, here: &str, there: &str| {
        let is_known = |warning: &Warning| {
            matches!(warning, Warning::PartsDiffer { what: known, other, .. }
                if *known == what && other == here)
        };
        // Ten parts of one machine need one warning.
        if !warnings.iter().any(is_known) {
            warnings.push(Warning::PartsDiffer {
                what,
                one: there.to_owned(),
                one_path: first.path.display().to_string(),
                other: here.to_owned(),
                other_path: other.path.display().to_string(),
            });
        }
    };
    for other in others {
        let (here, there): (&Provenance, &Provenance) = (&other.header, &first.header);
        let writer = |of: &Provenance| of.writer.clone().unwrap_or_default();
        if here.writer != there.writer {
            differ("the program", other, &writer(here), &writer(there));
        }
        let (Some(here), Some(there)) = (&here.backend, &there.backend) else {
            continue;
        };
        let run = differences::Run {
            here,
            there,
            n_ctx: first.header.n_ctx,
            has_attention: true,
        };
        for difference in run.differences() {
            differ(difference.what, other, &difference.here, &difference.there);
        }
    }
    warnings
}
