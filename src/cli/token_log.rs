//! The records of an evaluation, as they come: in memory, and in the sidecar.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use kl_formats::SidecarHeader;
use kl_formats::sidecar::TokenRecord;

use super::sidecar::{Remains, SidecarFile};
use super::{Warning, warn};
use crate::pipeline::ReferenceRows;

/// Records, those first that an earlier run has measured.
pub struct TokenLog {
    pub records: Vec<TokenRecord>,
    /// How many of them an earlier run has measured.
    pub n_resumed: usize,
    /// Whether these were all: there is nothing left to measure.
    pub is_whole: bool,
    /// How long writing has taken.
    pub in_writing: Duration,
    sidecar: Option<SidecarFile>,
    /// A sidecar that was whole already.
    there: Option<PathBuf>,
    /// Why the sidecar could not be written.
    failure: Option<Error>,
}

impl TokenLog {
    /// Takes up what `--resume` finds, and leaves the windows of it out of `rows`. What is found is
    /// of no use to a run that `needs_more` than the records of a token. `at_once`: records are written as they
    /// come, so that a run that is cut off keeps them.
    ///
    /// # Errors
    /// A sidecar that was cut off in measuring something else; a reference that cannot be read.
    pub fn open(
        sidecar: Option<SidecarFile>,
        header: &SidecarHeader,
        needs_more: bool,
        at_once: bool,
        rows: &mut ReferenceRows,
    ) -> Result<Self> {
        let mut log = Self {
            records: Vec::new(),
            n_resumed: 0,
            is_whole: false,
            in_writing: Duration::ZERO,
            sidecar: None,
            there: None,
            failure: None,
        };
        let Some(mut sidecar) = sidecar else {
            return Ok(log);
        };
        match sidecar.remains(header)? {
            Some(_) if needs_more => warn(&Warning::MeasuredAnew(sidecar.shown())),
            Some(Remains::Whole(records)) => {
                log.n_resumed = records.len();
                log.records = records;
                log.is_whole = true;
                log.there = Some(sidecar.discard());
                return Ok(log);
            }
            Some(Remains::CutOff(records)) => {
                log.records = records;
                log.n_resumed = rows.resume_behind(&log.records)?;
                log.records.truncate(log.n_resumed);
            }
            None => {}
        }
        // How many records a stream will give is not known before they are there.
        let begun = match at_once {
            true => sidecar.begin(header, log.n_resumed as u64),
            false => Ok(()),
        };
        match begun {
            Ok(()) => log.sidecar = Some(sidecar),
            Err(error) => log.give_up(sidecar, error),
        }
        Ok(log)
    }

    /// The records of the next window.
    pub fn push(&mut self, records: &[TokenRecord]) {
        self.records.extend_from_slice(records);
        let started = Instant::now();
        if let Some(mut sidecar) = self.sidecar.take() {
            match sidecar.push(records) {
                Ok(()) => self.sidecar = Some(sidecar),
                Err(error) => self.give_up(sidecar, error),
            }
        }
        self.in_writing += started.elapsed();
    }

    /// A sidecar that cannot be written does not lose the numbers.
    fn give_up(&mut self, sidecar: SidecarFile, error: Error) {
        sidecar.discard();
        self.failure = Some(error);
    }

    /// Ends the sidecar, if there is to be one; its path.
    ///
    /// # Errors
    /// Why it could not be written.
    pub fn finish(&mut self, header: &SidecarHeader) -> Result<Option<PathBuf>> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        let Some(mut sidecar) = self.sidecar.take() else {
            return Ok(self.there.take());
        };
        let started = Instant::now();
        if !sidecar.has_begun() {
            let header = SidecarHeader {
                n_records: self.records.len() as u64,
                ..header.clone()
            };
            sidecar.begin(&header, 0)?;
            sidecar.push(&self.records)?;
        }
        let path = sidecar.finish()?;
        self.in_writing += started.elapsed();
        Ok(Some(path))
    }

    /// Removes the sidecar of a run that came to nothing.
    pub fn discard(&mut self) {
        self.sidecar.take().map(SidecarFile::discard);
    }

    /// Ends what was cut off: keeps what is in the sidecar, and says so.
    pub fn keep(&mut self) -> Option<String> {
        self.sidecar.take()?.keep()
    }
}
