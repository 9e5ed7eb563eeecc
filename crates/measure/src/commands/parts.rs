//! Parts of a whole, as files hold them: the check that all of them are there; and evaluations as
//! their sidecars hold them, one file each, or several.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use kl_formats::{
    Found, Kind, NativeReader, Provenance, SensitivityMap, Shard, SidecarHeader, SidecarReader,
    TokenRecord, TokenTexts, sniff,
};
use kl_report::Warning;
use kl_report::comparison::NotCompared;
use kl_report::number::count;
use serde::Serialize;
use serde_json::Value;

use super::differences;
use super::observer::one_line;
use super::resume::first_difference;

/// An evaluation as its sidecars hold it: one file, or all parts of one.
#[derive(Clone, Debug)]
pub struct StoredEvaluation {
    /// The header of the whole evaluation.
    pub header: SidecarHeader,
    /// The file, or the files of the parts in the order of their indices; none if it has no file.
    pub paths: Vec<PathBuf>,
    /// Records of the whole evaluation.
    pub n_records: u64,
}

/// Groups sidecars into evaluations, in the order of their first files. A file that cannot be used
/// is listed with the reason in one line. All parts of an evaluation are listed if one is missing or
/// occurs twice, or if a file holds the whole.
pub fn stored_evaluations(paths: &[PathBuf]) -> (Vec<StoredEvaluation>, Vec<NotCompared>) {
    let (mut evaluations, mut unusable) = (Vec::new(), Vec::new());
    let mut groups: Vec<Vec<PartFile>> = Vec::new();
    for path in paths {
        match PartFile::of_sidecar(path) {
            Err(error) => unusable.push(NotCompared::new(path, one_line(&error))),
            Ok(part) => {
                let is_its = |first: &PartFile| {
                    part.provenance.shard.is_some() && first.identity == part.identity
                };
                match groups.iter_mut().find(|of| of.first().is_some_and(is_its)) {
                    Some(group) => group.push(part),
                    None => groups.push(vec![part]),
                }
            }
        }
    }
    for group in &groups {
        let mut files = groups.iter().flatten();
        let whole = files.find(|file| group.first().is_some_and(|part| file.is_whole_of(part)));
        let evaluation = match (whole, &group[..]) {
            (Some(whole), _) => {
                let shown = whole.path.display();
                Err(anyhow!("is a part of {shown}, which holds all of it"))
            }
            (None, [file]) if file.provenance.shard.is_none() => StoredEvaluation::of_files(group),
            _ => in_order(group.clone()).and_then(|parts| StoredEvaluation::of_files(&parts)),
        };
        match evaluation {
            Ok(evaluation) => evaluations.push(evaluation),
            Err(error) => {
                let why = one_line(&error);
                let unused = group.iter().map(|part| NotCompared::new(&part.path, &*why));
                unusable.extend(unused);
            }
        }
    }
    (evaluations, unusable)
}

impl StoredEvaluation {
    /// The evaluation of a whole file, or of all parts in their order.
    ///
    /// # Errors
    /// Parts with more or fewer records than the whole has.
    pub fn of_files(files: &[PartFile]) -> Result<Self> {
        let Some(first) = files.first() else {
            bail!("no sidecars were given");
        };
        let n_held: u64 = files.iter().map(|part| part.n_rows).sum();
        let shard = first.provenance.shard;
        let n_records = shard.map_or(n_held, |shard| shard.n_rows);
        if n_held != n_records {
            bail!(
                "{}: the parts hold {} records, and the whole has {}: evaluate again",
                first.path.display(),
                count(n_held),
                count(n_records)
            );
        }
        Ok(Self {
            header: SidecarReader::open(&first.path)?.header.of_whole(),
            paths: files.iter().map(|part| part.path.clone()).collect(),
            n_records,
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

/// A file that may hold a part of a whole, as its header describes it.
#[derive(Clone, Debug)]
pub struct PartFile {
    pub path: PathBuf,
    provenance: Provenance,
    /// Rows in the file: records of a sidecar, cells of a map.
    pub n_rows: u64,
    /// The keys of the header that are alike in all parts of a whole.
    identity: Value,
}

impl PartFile {
    /// Opens a sidecar, a map or a reference. Any file that is neither a sidecar nor a map is opened as a
    /// reference, whose errors say more.
    ///
    /// # Errors
    /// A file that is not whole, or not of kl's own kind.
    pub fn open(path: &Path) -> Result<Self> {
        let shown = path.display();
        match Found::look(path) {
            Found::Sidecar => Self::of_sidecar(path),
            Found::Map => {
                let map = SensitivityMap::read(path)?;
                if map.is_cut_off {
                    bail!("{shown}: is not finished: finish that run with --resume, then merge");
                }
                let (header, n_cells) = (&map.header, map.cells.len() as u64);
                Ok(Self::new(path, header, &header.of_whole(), n_cells))
            }
            _ => {
                let kind = sniff(path)?;
                if kind != Kind::Kl {
                    bail!("{shown}: is a file of kind {kind}, which has no parts: leave it out");
                }
                let header = NativeReader::open(path)?.header;
                Ok(Self::new(path, &header, &header.of_whole(), header.n_rows))
            }
        }
    }

    fn of_sidecar(path: &Path) -> Result<Self> {
        let reader = SidecarReader::open(path)?;
        let (header, n_records) = (&reader.header, reader.n_records());
        if let (Some(_), Some(n)) = (header.shard, header.n_records)
            && n_records != n
        {
            bail!(
                "{}: holds {} of the {} records of its part",
                path.display(),
                count(n_records),
                count(n)
            );
        }
        Ok(Self::new(path, header, &header.of_whole(), n_records))
    }

    fn new(path: &Path, of: &Provenance, whole: &impl Serialize, n_rows: u64) -> Self {
        Self {
            path: path.to_owned(),
            provenance: of.clone(),
            identity: identity(whole, of.shard),
            n_rows,
        }
    }

    /// True if this file holds the whole that `part` is a part of.
    fn is_whole_of(&self, part: &Self) -> bool {
        let mut identity = part.identity.clone();
        forget(&mut identity, N_PARTS);
        part.provenance.shard.is_some() && identity == self.identity
    }

    fn index(&self) -> u32 {
        self.provenance.shard.map_or(0, |shard| shard.index)
    }
}

/// The key of the number of parts, which only the identity of a part has.
const N_PARTS: &str = "parts";

/// The keys of headers that may differ between parts of a whole; `*` is each item of a list. Files may
/// have other names on another machine, which may compute with other devices and so get other last bits:
/// [`warnings`] names the devices.
const OF_A_PART: &str = "writer model_path text_path model.file_name reference.file_name \
     reference.model.file_name text.name texts.*.name reference.text.name imatrix.file_name \
     prompts.*.spans states.check";

/// The further keys that may differ where answers were generated: a part records those of its own windows.
const OF_ANSWERS: [&str; 2] = ["n_rows", "prompts.*.n_tokens"];

/// Selects the keys of a header that are alike in all parts of a whole.
fn identity(whole: &impl Serialize, shard: Option<Shard>) -> Value {
    let mut identity = serde_json::to_value(whole).unwrap_or_default();
    let is_generated = identity.get("generated").is_some_and(|n| !n.is_null());
    let of_answers = OF_ANSWERS.into_iter().filter(|_| is_generated);
    for key in OF_A_PART.split(' ').chain(of_answers) {
        forget(&mut identity, key);
    }
    // Evaluations of one model with two types of cache, or of weights, are two evaluations.
    if let Some(backend) = identity.get_mut("backend").and_then(Value::as_object_mut) {
        backend.retain(|key, _| ["type_k", "type_v", "weights"].contains(&key.as_str()));
    }
    if let (Some(object), Some(shard)) = (identity.as_object_mut(), shard) {
        object.insert(N_PARTS.to_owned(), shard.count.into());
    }
    identity
}

/// Removes a key, as in `model.file_name`, from an object.
fn forget(value: &mut Value, key: &str) {
    match (value, key.split_once('.')) {
        (Value::Array(items), Some((_, rest))) => {
            items.iter_mut().for_each(|item| forget(item, rest));
        }
        (Value::Object(object), Some((first, rest))) => {
            if let Some(inner) = object.get_mut(first) {
                forget(inner, rest);
            }
        }
        (Value::Object(object), None) => drop(object.remove(key)),
        _ => {}
    }
}

/// Sorts the parts of one whole.
///
/// # Errors
/// If a file is not a part, or if a part belongs to another whole than the first, is missing or occurs
/// twice. The message names the parts and their files.
pub fn in_order(mut parts: Vec<PartFile>) -> Result<Vec<PartFile>> {
    if let Some(whole) = parts.iter().find(|part| part.provenance.shard.is_none()) {
        let shown = whole.path.display();
        bail!("{shown}: is whole, not a part: leave it out");
    }
    let Some((first, others)) = parts.split_first() else {
        bail!("no parts were given");
    };
    let count = first.provenance.shard.map_or(0, |shard| shard.count);
    for other in others {
        if let Some(difference) = first_difference(&first.identity, &other.identity) {
            bail!(
                "{}: is a part of another whole than {} ({difference}): leave it out",
                other.path.display(),
                first.path.display()
            );
        }
    }
    parts.sort_by_key(PartFile::index);
    if let Some([one, other]) = parts.array_windows().find(|[a, b]| a.index() == b.index()) {
        bail!(
            "{} and {}: both are part {} of {count}: leave one out",
            one.path.display(),
            other.path.display(),
            one.index()
        );
    }
    let is_missing = |wanted: &u32| parts.iter().all(|part| part.index() != *wanted);
    let missing = Vec::from_iter((0..count).filter(is_missing).map(|n| n.to_string()));
    if let [first, ..] = &missing[..] {
        /// More would not help.
        const MOST_SHOWN: usize = 10;
        let and_more = |n: usize| match n {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let listed = missing.get(..MOST_SHOWN).unwrap_or(&missing).join(", ");
        let shown = listed + &and_more(missing.len().saturating_sub(MOST_SHOWN));
        let (what, are, them, index) = match missing.len() {
            1 => ("part", "is", "it", &**first),
            _ => ("parts", "are", "them", "I"),
        };
        let found = parts.iter().map(|part| part.path.display()).next();
        let present = found.map(|path| format!("{path}{}", and_more(parts.len() - 1)));
        bail!(
            "{what} {shown} of {count} {are} missing beside {}: make {them} with --shard {index}/{count}",
            present.unwrap_or_default()
        );
    }
    Ok(parts)
}

/// Warns of each difference in how the parts were computed, if it may move results.
pub fn warnings(parts: &[PartFile]) -> Vec<Warning> {
    let Some((first, others)) = parts.split_first() else {
        return Vec::new();
    };
    let (mut warnings, mut known) = (Vec::new(), BTreeSet::new());
    for part in others {
        let (here, there) = (&part.provenance, &first.provenance);
        let writer = |of: &Provenance| of.writer.clone().unwrap_or_default();
        let mut differences = vec![("the program", writer(here), writer(there))];
        differences.retain(|(_, here, there)| here != there);
        if let (Some(here), Some(there)) = (&here.backend, &there.backend) {
            let run = differences::SetUps {
                here,
                there,
                n_ctx: first.provenance.n_ctx,
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
