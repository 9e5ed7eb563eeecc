//! Evaluations as their sidecars hold them: one file each.

use std::iter::Peekable;
use std::path::{Path, PathBuf};

use anyhow::Result;
use kl_formats::{SidecarHeader, SidecarReader, TokenRecord, TokenTexts};

use super::one_line;

/// An evaluation as its sidecars hold it: one file, or all parts of one.
#[derive(Debug)]
pub struct StoredEvaluation {
    header: SidecarHeader,
    paths: Vec<PathBuf>,
    n_records: u64,
}

/// Groups sidecars into evaluations, in the order of their first files. A file that cannot be used
/// is listed with the reason in one line.
#[must_use]
pub fn stored_evaluations(paths: &[PathBuf]) -> (Vec<StoredEvaluation>, Vec<(PathBuf, String)>) {
    let (mut evaluations, mut unusable) = (Vec::new(), Vec::new());
    for path in paths {
        match StoredEvaluation::whole(path) {
            Ok(evaluation) => evaluations.push(evaluation),
            Err(error) => unusable.push((path.clone(), one_line(&error))),
        }
    }
    (evaluations, unusable)
}

impl StoredEvaluation {
    fn whole(path: &Path) -> Result<Self> {
        let reader = SidecarReader::open(path)?;
        Ok(Self {
            header: reader.header().clone(),
            paths: vec![path.to_owned()],
            n_records: reader.n_records(),
        })
    }

    /// The header of the whole evaluation.
    #[must_use]
    pub fn header(&self) -> &SidecarHeader {
        &self.header
    }

    /// The file, or the files of the parts in the order of their indices.
    #[must_use]
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Records of the whole evaluation.
    #[must_use]
    pub fn n_records(&self) -> u64 {
        self.n_records
    }

    /// Reads the records one by one, in the order in which one run would have written them.
    ///
    /// # Errors
    /// If a file can no longer be opened. Each record has its own.
    pub fn records(&self) -> Result<impl Iterator<Item = kl_formats::Result<TokenRecord>>> {
        let readers = self.paths.iter().map(|path| SidecarReader::open(path));
        let parts = readers.map(|reader| reader.map(Iterator::peekable));
        Ok(InTurn {
            parts: parts.collect::<kl_formats::Result<_>>()?,
            turn: 0,
            window: None,
        })
    }

    /// Reads the texts of the tokens that occur, if the files hold them.
    ///
    /// # Errors
    /// If a file can no longer be opened, or its texts are damaged.
    pub fn texts(&self) -> Result<TokenTexts> {
        let mut parts = Vec::new();
        for path in &self.paths {
            parts.push(SidecarReader::open(path)?.texts()?);
        }
        Ok(parts.iter().flat_map(TokenTexts::iter).collect())
    }
}

/// Takes the windows from the parts in turn.
struct InTurn {
    parts: Vec<Peekable<SidecarReader>>,
    /// The part that is read.
    turn: usize,
    /// The window that is read.
    window: Option<u32>,
}

impl Iterator for InTurn {
    type Item = kl_formats::Result<TokenRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        let is_same_window = match (self.window, self.parts.get_mut(self.turn)?.peek()) {
            (None, _) | (_, Some(Err(_))) => true,
            (Some(window), Some(Ok(next))) => next.window == window,
            (Some(_), None) => false,
        };
        if !is_same_window {
            self.turn = (self.turn + 1) % self.parts.len();
        }
        let next = self.parts.get_mut(self.turn)?.next()?;
        self.window = next.as_ref().ok().map(|record| record.window);
        Some(next)
    }
}
