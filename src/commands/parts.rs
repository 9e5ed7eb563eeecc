//! Parts of a whole, as files hold them: the check that all of them are there; and evaluations as
//! their sidecars hold them, one file each, or several.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use kl_formats::{Provenance, Shard, SidecarHeader, SidecarReader, TokenRecord, TokenTexts};
use serde::Serialize;
use serde_json::Value;

use super::differences;
use super::observer::{Watch, one_line};
use super::resume::first_difference;
use crate::report::Warning;
use crate::report::number::count;

/// An evaluation as its sidecars hold it: one file, or all parts of one.
#[derive(Debug)]
pub struct StoredEvaluation {
    /// The header of the whole evaluation.
    pub header: SidecarHeader,
    /// The file, or the files of the parts in the order of their indices.
    pub paths: Vec<PathBuf>,
    /// Records of the whole evaluation.
    pub n_records: u64,
    /// Warnings of what was not alike when the parts were computed, as far as it may move results.
    pub warnings: Vec<Warning>,
}

/// A sidecar whose header was read.
type OpenedSidecar = Opened<(), SidecarHeader>;

/// Groups sidecars into evaluations, in the order of their first files. A file that cannot be used
/// is listed with the reason in one line. All parts of an evaluation are listed if one is missing or
/// comes twice, or if a file holds the whole.
pub fn stored_evaluations(paths: &[PathBuf]) -> (Vec<StoredEvaluation>, Vec<(PathBuf, String)>) {
    let mut unusable = Vec::new();
    let mut groups: Vec<Vec<OpenedSidecar>> = Vec::new();
    for path in paths {
        match open(path) {
            Err(error) => unusable.push((path.clone(), one_line(&error))),
            Ok(opened) => {
                let is_its = |group: &&mut Vec<OpenedSidecar>| {
                    let first = group.first().filter(|_| opened.header.shard.is_some());
                    first.is_some_and(|first| first.identity == opened.identity)
                };
                match groups.iter_mut().find(is_its) {
                    Some(group) => group.push(opened),
                    None => groups.push(vec![opened]),
                }
            }
        }
    }
    let whole_of = |group: &Vec<OpenedSidecar>| {
        let part = group.first()?;
        let whole = groups.iter().flatten().find(|file| file.is_whole_of(part));
        whole.map(|whole| whole.path.display().to_string())
    };
    let wholes: Vec<Option<String>> = groups.iter().map(whole_of).collect();
    let mut evaluations = Vec::new();
    for (group, whole) in groups.into_iter().zip(wholes) {
        let paths: Vec<PathBuf> = group.iter().map(|file| file.path.clone()).collect();
        let evaluation = match whole {
            Some(whole) => Err(anyhow!("is a part of {whole}, which holds all of it")),
            None => match &group[..] {
                [file] if file.header.shard.is_none() => {
                    let (header, path) = (file.header.clone(), file.path.clone());
                    Ok(StoredEvaluation::whole(header, Some(path), file.n_rows))
                }
                _ => in_order(group).and_then(StoredEvaluation::of_all),
            },
        };
        match evaluation {
            Ok(evaluation) => evaluations.push(evaluation),
            Err(error) => {
                let why = one_line(&error);
                unusable.extend(paths.into_iter().map(|path| (path, why.clone())));
            }
        }
    }
    (evaluations, unusable)
}

fn open(path: &Path) -> Result<OpenedSidecar> {
    let reader = SidecarReader::open(path)?;
    let (header, n_records) = (reader.header().clone(), reader.n_records());
    if let (Some(_), Some(n)) = (header.shard, header.n_records)
        && n_records != n
    {
        let path = path.display();
        bail!(
            "{path}: holds {} of the {} records of its part",
            count(n_records),
            count(n)
        );
    }
    let file = ((), header, n_records);
    Ok(Opened::new(path, file, SidecarHeader::of_whole))
}

impl StoredEvaluation {
    /// The evaluation that these sidecars hold all parts of.
    ///
    /// # Errors
    /// A file that is not a sidecar, or no part of the same evaluation as the others; a part that is
    /// missing or comes twice.
    pub fn of_parts(paths: &[PathBuf]) -> Result<Self> {
        let opened = paths.iter().map(|path| open(path));
        Self::of_all(in_order(opened.collect::<Result<_>>()?)?)
    }

    /// The evaluation of `n_records` records in a whole file, or of one without a file.
    pub fn whole(header: SidecarHeader, path: Option<PathBuf>, n_records: u64) -> Self {
        Self {
            header,
            paths: path.into_iter().collect(),
            n_records,
            warnings: Vec::new(),
        }
    }

    /// The evaluation of all parts, in their order.
    fn of_all(parts: Vec<OpenedSidecar>) -> Result<Self> {
        let Some(first) = parts.first() else {
            bail!("no sidecars were given");
        };
        let of_all: u64 = parts.iter().map(|part| part.n_rows).sum();
        let n_records = first.shard()?.n_rows;
        if of_all != n_records {
            bail!(
                "{}: the parts hold {} records, and the whole has {}: evaluate again",
                first.path.display(),
                count(of_all),
                count(n_records)
            );
        }
        Ok(Self {
            header: first.header.of_whole(),
            paths: parts.iter().map(|part| part.path.clone()).collect(),
            n_records,
            warnings: warnings(&parts),
        })
    }

    /// Reads the records of each window, in the order in which one run would have written them: the
    /// parts take turns. Returns the texts of the tokens that occur, if the files hold them.
    ///
    /// # Errors
    /// If a file can no longer be opened, or is damaged; and those of `each`.
    pub fn read(&self, mut each: impl FnMut(&[TokenRecord]) -> Result<()>) -> Result<TokenTexts> {
        let open = |path: &PathBuf| SidecarReader::open(path);
        let mut readers: Vec<_> = self.paths.iter().map(open).collect::<Result<_, _>>()?;
        let mut parts: Vec<_> = readers.iter_mut().map(Iterator::peekable).collect();
        let mut window: Vec<TokenRecord> = Vec::new();
        for turn in (0..self.paths.len()).cycle() {
            let Some(part) = parts.get_mut(turn) else {
                break;
            };
            window.clear();
            while let Some(record) = part.next_if(|record| match (record, window.first()) {
                (Ok(record), Some(first)) => record.window == first.window,
                _ => true,
            }) {
                window.push(record?);
            }
            if window.is_empty() {
                break;
            }
            each(&window)?;
        }
        let of_each = readers.iter().map(SidecarReader::texts);
        let mut texts: Vec<TokenTexts> = of_each.collect::<Result<_, _>>()?;
        Ok(match texts.len() {
            1 => texts.remove(0),
            _ => texts.iter().flat_map(TokenTexts::iter).collect(),
        })
    }
}

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
fn in_order<F, H: Deref<Target = Provenance> + Serialize>(
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
    let first_missing = missing.iter().take(MOST_SHOWN);
    let shown: Vec<String> = first_missing.map(u32::to_string).collect();
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
fn warnings<F, H: Deref<Target = Provenance> + Serialize>(parts: &[Opened<F, H>]) -> Vec<Warning> {
    let Some((first, others)) = parts.split_first() else {
        return Vec::new();
    };
    let (mut warnings, mut known) = (Vec::new(), BTreeSet::new());
    for part in others {
        let (here, there): (&Provenance, &Provenance) = (&part.header, &first.header);
        let writer = |of: &Provenance| of.writer.clone().unwrap_or_default();
        let mut differences = vec![("the program", writer(here), writer(there))];
        differences.retain(|(_, here, there)| here != there);
        if let (Some(here), Some(there)) = (&here.backend, &there.backend) {
            let run = differences::SetUps {
                here,
                there,
                n_ctx: first.header.n_ctx,
                has_attention: true,
            };
            let of_run = run.differences().into_iter();
            differences.extend(of_run.map(|of| (of.what, of.here, of.there)));
        }
        for (what, other, one) in differences {
            let message = format!(
                "{what} is {one} in {} and {other} in {}: the parts may differ by more than rounding; the merged file records what the first part states",
                first.path.display(),
                part.path.display()
            );
            // Ten parts of one machine need one warning.
            if known.insert((what, other)) {
                warnings.push(Warning::new("parts_differ", message));
            }
        }
    }
    warnings
}
