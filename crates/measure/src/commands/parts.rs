//! Parts of a whole, as files hold them: the check that all of them are there; and evaluations as
//! their sidecars hold them, one file each, or several.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::{Result, anyhow, bail};
use kl_formats::{
    Aspect, Difference, Effect, Found, Kind, NativeReader, RunKey, SensitivityMap, Shard,
    SidecarHeader, SidecarReader, TokenRecord, TokenTexts, sniff,
};
use kl_report::Warning;
use kl_report::comparison::NotCompared;
use kl_report::number::count;

use super::observer::one_line;

/// An evaluation as its sidecars hold it: one file, or all parts of one.
#[derive(Clone, Debug)]
pub struct StoredEvaluation {
    /// The header of the whole evaluation.
    pub header: SidecarHeader,
    /// The file, or the files of the parts in the order of their indices; none if it has no file.
    pub sidecars: Vec<Sidecar>,
    /// Records of the whole evaluation.
    pub n_records: u64,
}

/// A sidecar, which is opened once, when it is first read.
#[derive(Clone, Debug)]
pub struct Sidecar {
    pub path: PathBuf,
    reader: OnceLock<Arc<SidecarReader>>,
}

impl Sidecar {
    /// The file at `path`, which is not open yet.
    pub fn at(path: PathBuf) -> Self {
        Self {
            path,
            reader: OnceLock::new(),
        }
    }

    fn reader(&self) -> kl_formats::Result<&SidecarReader> {
        if let Some(reader) = self.reader.get() {
            return Ok(reader);
        }
        let reader = SidecarReader::open(&self.path)?;
        Ok(self.reader.get_or_init(|| Arc::new(reader)))
    }
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
                let group = groups.iter_mut().find(|group| {
                    group.first().is_some_and(|first| {
                        part.shard.is_some() && part.other_whole(first).is_none()
                    })
                });
                match group {
                    Some(group) => group.push(part),
                    None => groups.push(vec![part]),
                }
            }
        }
    }
    for group in &groups {
        let whole = groups
            .iter()
            .flatten()
            .find(|file| group.first().is_some_and(|part| file.is_whole_of(part)));
        let evaluation = match (whole, &group[..]) {
            (Some(whole), _) => {
                let whole_path = whole.path.display();
                Err(anyhow!("is a part of {whole_path}, which holds all of it"))
            }
            (None, [file]) if file.shard.is_none() => StoredEvaluation::of_files(group),
            _ => in_order(group.clone()).and_then(|parts| StoredEvaluation::of_files(&parts)),
        };
        match evaluation {
            Ok(evaluation) => evaluations.push(evaluation),
            Err(error) => {
                let why = one_line(&error);
                unusable.extend(group.iter().map(|part| NotCompared::new(&part.path, &*why)));
            }
        }
    }
    (evaluations, unusable)
}

impl StoredEvaluation {
    /// The paths of its files, as people read them.
    pub fn shown_paths(&self) -> impl Iterator<Item = String> {
        self.sidecars
            .iter()
            .map(|sidecar| sidecar.path.display().to_string())
    }

    /// The evaluation of a whole file, or of all parts in their order.
    ///
    /// # Errors
    /// Parts with more or fewer records than the whole has.
    pub fn of_files(files: &[PartFile]) -> Result<Self> {
        let Some(first) = files.first() else {
            bail!("no sidecars were given");
        };
        let n_in_parts: u64 = files.iter().map(|part| part.n_rows).sum();
        let shard = first.shard;
        let n_records = shard.map_or(n_in_parts, |shard| shard.n_rows);
        if n_in_parts != n_records {
            bail!(
                "{}: the parts hold {} records, and the whole has {}: evaluate again",
                first.path.display(),
                count(n_in_parts),
                count(n_records)
            );
        }
        Ok(Self {
            header: first.sidecar().reader()?.header.of_whole(),
            sidecars: files.iter().map(PartFile::sidecar).collect(),
            n_records,
        })
    }

    /// Reads the records of each window, in the order in which one run would have written them: the
    /// parts take turns. Returns the texts of the tokens that occur, if the files hold them.
    ///
    /// # Errors
    /// If a file can no longer be opened, or is damaged; and those of `each`.
    pub fn read(&self, mut each: impl FnMut(&[TokenRecord]) -> Result<()>) -> Result<TokenTexts> {
        let readers: Vec<&SidecarReader> = self
            .sidecars
            .iter()
            .map(Sidecar::reader)
            .collect::<Result<_, _>>()?;
        let mut parts: Vec<_> = readers
            .iter()
            .map(|reader| reader.records().peekable())
            .collect();
        let mut window: Vec<TokenRecord> = Vec::new();
        for turn in (0..parts.len()).cycle() {
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
        let mut texts: Vec<TokenTexts> = readers
            .iter()
            .map(|reader| reader.texts())
            .collect::<Result<_, _>>()?;
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
    /// The part that it holds; `None`: the whole.
    shard: Option<Shard>,
    /// Rows in the file: records of a sidecar, cells of a map.
    pub n_rows: u64,
    /// The run that made the whole.
    whole: RunKey,
    /// The open file, of a sidecar.
    sidecar: Option<Arc<SidecarReader>>,
}

impl PartFile {
    /// Opens a sidecar, a map or a reference. Any file that is neither a sidecar nor a map is opened as a
    /// reference, whose errors say more.
    ///
    /// # Errors
    /// A file that is not whole, or not of kl's own kind.
    pub fn open(path: &Path) -> Result<Self> {
        let shown_path = path.display();
        match Found::look(path) {
            Found::Sidecar => Self::of_sidecar(path),
            Found::Map => {
                let map = SensitivityMap::read(path)?;
                if map.is_cut_off {
                    bail!(
                        "{shown_path}: is not finished: finish that run with --resume, then merge"
                    );
                }
                let (header, n_cells) = (&map.header, map.cells.len() as u64);
                Ok(Self::new(path, header.shard, RunKey::from(header), n_cells))
            }
            _ => {
                let kind = sniff(path)?;
                if kind != Kind::Kl {
                    bail!(
                        "{shown_path}: is a file of kind {kind}, which has no parts: leave it out"
                    );
                }
                let header = NativeReader::open(path)?.header;
                let (shard, n_rows) = (header.shard, header.n_rows);
                Ok(Self::new(path, shard, RunKey::from(&header), n_rows))
            }
        }
    }

    fn of_sidecar(path: &Path) -> Result<Self> {
        let reader = Arc::new(SidecarReader::open(path)?);
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
        let part = Self::new(path, header.shard, RunKey::from(header), n_records);
        Ok(Self {
            sidecar: Some(Arc::clone(&reader)),
            ..part
        })
    }

    fn new(path: &Path, shard: Option<Shard>, run: RunKey, n_rows: u64) -> Self {
        Self {
            path: path.to_owned(),
            shard,
            whole: run.of_whole(),
            n_rows,
            sidecar: None,
        }
    }

    /// The file as one that holds records.
    fn sidecar(&self) -> Sidecar {
        let sidecar = Sidecar::at(self.path.clone());
        if let Some(reader) = &self.sidecar {
            sidecar.reader.get_or_init(|| Arc::clone(reader));
        }
        sidecar
    }

    /// True if this file holds the whole that `part` is a part of.
    fn is_whole_of(&self, part: &Self) -> bool {
        let is_part = |file: &Self| file.shard.is_some();
        is_part(part) && !is_part(self) && part.other_run(self).is_none()
    }

    /// The difference by which this file is a part of another whole than `other`; `None` if it is not.
    fn other_whole(&self, other: &Self) -> Option<String> {
        self.other_run(other).or_else(|| {
            let [own_count, other_count] =
                [self, other].map(|file| file.shard.map_or(0, |shard| shard.count));
            (own_count != other_count)
                .then(|| format!("parts: {other_count} there, {own_count} here"))
        })
    }

    /// The difference that makes the wholes other runs: another device or version makes none, and files may have
    /// other names on another machine; but evaluations under two labels are two.
    fn other_run(&self, other: &Self) -> Option<String> {
        self.whole
            .diff(&other.whole)
            .into_iter()
            .find(|difference| {
                difference.effect == Effect::Numbers || difference.what == Aspect::Key("label")
            })
            .map(|difference| difference.to_string())
    }

    fn index(&self) -> u32 {
        self.shard.map_or(0, |shard| shard.index)
    }
}

/// Sorts the parts of one whole.
///
/// # Errors
/// If a file is not a part, or if a part belongs to another whole than the first, is missing or occurs
/// twice. The message names the parts and their files.
pub fn in_order(mut parts: Vec<PartFile>) -> Result<Vec<PartFile>> {
    if let Some(whole) = parts.iter().find(|part| part.shard.is_none()) {
        let shown_path = whole.path.display();
        bail!("{shown_path}: is whole, not a part: leave it out");
    }
    let Some((first, others)) = parts.split_first() else {
        bail!("no parts were given");
    };
    let count = first.shard.map_or(0, |shard| shard.count);
    for other in others {
        if let Some(difference) = other.other_whole(first) {
            bail!(
                "{}: is a part of another whole than {} ({difference}): leave it out",
                other.path.display(),
                first.path.display()
            );
        }
    }
    parts.sort_by_key(PartFile::index);
    if let Some([first, second]) = parts.array_windows().find(|[a, b]| a.index() == b.index()) {
        bail!(
            "{} and {}: both are part {} of {count}: leave one out",
            first.path.display(),
            second.path.display(),
            first.index()
        );
    }
    let missing: Vec<String> = (0..count)
        .filter(|index| parts.iter().all(|part| part.index() != *index))
        .map(|index| index.to_string())
        .collect();
    if let [first_missing, ..] = &missing[..] {
        /// The most parts that the message lists: more would not help.
        const MAX_LISTED: usize = 10;
        let and_more = |n: usize| match n {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let listed = missing.get(..MAX_LISTED).unwrap_or(&missing).join(", ");
        let indices = listed + &and_more(missing.len().saturating_sub(MAX_LISTED));
        let (noun, verb, pronoun, index) = match missing.len() {
            1 => ("part", "is", "it", &**first_missing),
            _ => ("parts", "are", "them", "I"),
        };
        let present = parts.first().map(|part| {
            let path = part.path.display();
            format!("{path}{}", and_more(parts.len() - 1))
        });
        bail!(
            "{noun} {indices} of {count} {verb} missing beside {}: make {pronoun} with --shard {index}/{count}",
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
    let (mut warnings, mut warned_of) = (Vec::new(), BTreeSet::new());
    for part in others {
        let differences = part.whole.diff(&first.whole);
        for Difference {
            what,
            here,
            there,
            effect,
        } in differences
        {
            if effect == Effect::Recorded {
                continue;
            }
            let aspect = match what {
                Aspect::Program => "the program",
                Aspect::SetUp(setting) => setting.name(),
                Aspect::Key(_) => continue,
            };
            let message = format!(
                "{aspect} is {there} in {} and {here} in {}: the parts may differ by more than rounding; the merged file records what the first part states",
                first.path.display(),
                part.path.display()
            );
            // Ten parts of one machine need one warning.
            if warned_of.insert((aspect, here)) {
                warnings.push(Warning::new("parts_differ", message));
            }
        }
    }
    warnings
}
