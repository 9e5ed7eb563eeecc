//! Keeps the records of an evaluation as they come: in memory, and in the sidecar.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Error, Result, anyhow};
use kl_formats::{SidecarHeader, TokenRecord, TokenTexts};

use super::sidecar::{Earlier, SidecarFile};
use crate::commands::observer::one_line;
use crate::engine::Tokens;
use crate::pipeline::ReferenceRows;

/// The records of an evaluation so far, those of an earlier run first.
#[derive(Default)]
pub struct TokenLog {
    pub records: Vec<TokenRecord>,
    /// The number of records that an earlier run has measured.
    pub n_resumed: usize,
    /// True if those were all, so that nothing is left to measure.
    pub is_whole: bool,
    /// The time that writing has taken.
    pub in_writing: Duration,
    sidecar: Option<SidecarFile>,
    /// Why the sidecar could not be written, and what was kept of it.
    failure: Option<Error>,
}

impl TokenLog {
    /// Opens a log that starts with an earlier run's records, and removes their windows from
    /// `rows`. The sidecar is written window by window, so that a run that is cut off keeps its
    /// records; one of stored rows, which cannot be resumed, at the end.
    ///
    /// # Errors
    /// If the earlier records have other positions than `rows`, or the reference cannot be read.
    pub fn open(
        mut sidecar: SidecarFile,
        earlier: Option<Earlier>,
        header: &SidecarHeader,
        rows: &mut ReferenceRows<'_>,
    ) -> Result<Self> {
        let mut log = Self::default();
        if let Some(earlier) = earlier {
            (log.records, log.is_whole) = (earlier.records, earlier.is_whole);
            if !log.is_whole {
                log.records.truncate(rows.resume_after(&log.records)?);
            }
            log.n_resumed = log.records.len();
        }
        let begun = match log.is_whole || header.stored {
            true => Ok(()),
            false => sidecar.begin(header, log.n_resumed as u64),
        };
        match begun {
            Ok(()) => log.sidecar = Some(sidecar),
            Err(error) => log.give_up(sidecar, error),
        }
        Ok(log)
    }

    /// Adds the records of the next window, and returns them.
    pub fn push(&mut self, records: Vec<TokenRecord>) -> &[TokenRecord] {
        let n_before = self.records.len();
        self.records.extend(records);
        let started = Instant::now();
        if let Some(mut sidecar) = self.sidecar.take() {
            let (_, new) = self.records.split_at(n_before);
            match sidecar.push(new) {
                Ok(()) => self.sidecar = Some(sidecar),
                Err(error) => self.give_up(sidecar, error),
            }
        }
        self.in_writing += started.elapsed();
        self.records.split_at(n_before).1
    }

    /// Gives up on the sidecar, as on a full disk: it keeps what is whole, for `--resume`. The
    /// records stay in memory, so the numbers are not lost.
    fn give_up(&mut self, sidecar: SidecarFile, error: Error) {
        self.failure = Some(with_kept(sidecar, error));
    }

    /// Completes the sidecar, if there is one, with the texts of its tokens, and returns its path.
    ///
    /// # Errors
    /// Why it could not be written.
    pub fn finish(
        &mut self,
        header: &SidecarHeader,
        texts: &TokenTexts,
    ) -> Result<Option<PathBuf>> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        let Some(mut sidecar) = self.sidecar.take() else {
            return Ok(None);
        };
        if self.is_whole {
            return Ok(Some(sidecar.path));
        }
        let started = Instant::now();
        if sidecar.writer.is_none() {
            if let Some(finished) = &sidecar.finished {
                finished.check_values(&self.records)?;
            }
            let written = sidecar.begin(header, 0);
            let written = written.and_then(|()| sidecar.push(&self.records));
            if let Err(error) = written.and_then(|()| sidecar.complete(texts)) {
                // Nothing could resume it.
                sidecar.output.discard();
                return Err(error);
            }
        } else {
            let finished = sidecar.finished.as_ref().filter(|_| sidecar.is_stale);
            if let Some(Err(error)) = finished.map(|of| of.check_values(&self.records)) {
                sidecar.output.discard();
                return Err(error);
            }
            if let Err(error) = sidecar.complete(texts) {
                return Err(with_kept(sidecar, error));
            }
        }
        sidecar.output.commit()?;
        self.in_writing += started.elapsed();
        Ok(Some(sidecar.path))
    }

    /// Removes the sidecar of a run that came to nothing.
    pub fn discard(&mut self) {
        if let Some(sidecar) = self.sidecar.take() {
            sidecar.output.discard();
        }
    }

    /// Keeps the sidecar of a run that was cut off, for `--resume`, and describes what it holds.
    pub fn keep(&mut self) -> Option<String> {
        match self.failure.take() {
            Some(error) => Some(one_line(&error)),
            None => self.sidecar.take()?.keep(),
        }
    }
}

/// An error of writing a sidecar, and what the sidecar keeps.
fn with_kept(sidecar: SidecarFile, error: Error) -> Error {
    match sidecar.keep() {
        Some(kept) => anyhow!("{error:#}; {kept}"),
        None => error,
    }
}

/// The texts of all tokens that records name; none without a vocabulary.
pub fn texts_of(records: &[TokenRecord], vocabulary: Option<&dyn Tokens>) -> TokenTexts {
    let Some(vocabulary) = vocabulary else {
        return TokenTexts::default();
    };
    let named = |record: &TokenRecord| [record.token, record.ref_top, record.eval_top];
    let tokens: BTreeSet<u32> = records.iter().flat_map(named).collect();
    let text = |token| Some((token, vocabulary.token_bytes(token)?));
    tokens.into_iter().filter_map(text).collect()
}
