//! Evaluations as their sidecars hold them: one file each, or several, each a part.

mod whole;

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use kl_formats::{SidecarHeader, SidecarReader, TokenRecord, TokenTexts};

use super::observer::one_line;
use crate::report::Warning;
use crate::report::number::count;
pub use whole::open_parts;
use whole::{Opened, in_order, warnings};

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
        let readers = self.paths.iter().map(|path| SidecarReader::open(path));
        let mut readers = readers.collect::<kl_formats::Result<Vec<_>>>()?;
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
        let texts = readers.iter().map(SidecarReader::texts);
        let mut texts = texts.collect::<kl_formats::Result<Vec<_>>>()?;
        Ok(match texts.len() {
            1 => texts.remove(0),
            _ => texts.iter().flat_map(TokenTexts::iter).collect(),
        })
    }
}
