//! A reference of any kind: what is known about it, its windows, and its rows.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::about::{About, ReferenceSummary};
use crate::error::{Named, Result};
use crate::native::NativeReader;
use crate::provenance::hex;
use crate::row::{ReadBlocks, ReadStream};
use crate::states::States;
use crate::window::{WindowEntry, WindowSpec};

/// An open reference, of whatever kind.
#[derive(Debug)]
pub struct Reference {
    about: About,
    windows: Option<Vec<WindowEntry>>,
    /// The tokens of the longest window of a stream that was read ahead for it.
    pub(crate) longest_of_stream: Option<u32>,
    /// The fingerprint of a stream that can be read once, as a pipe.
    pub(crate) fingerprint_of_pipe: Option<String>,
    rows: Rows,
}

impl Reference {
    /// A reference whose rows come from anywhere. `windows` lists them in the order of `rows`; a
    /// stream may have no list, blocks need one. The list also gives the number of windows and rows
    /// where `about` does not.
    pub fn new(mut about: About, windows: Option<Vec<WindowEntry>>, rows: Rows) -> Self {
        if let Some(windows) = &windows {
            let n_rows = || windows.iter().map(|window| u64::from(window.n_rows)).sum();
            about.n_windows = about.n_windows.or(u32::try_from(windows.len()).ok());
            about.n_rows = about.n_rows.or_else(|| Some(n_rows()));
        }
        Self {
            about,
            windows,
            longest_of_stream: None,
            fingerprint_of_pipe: None,
            rows,
        }
    }

    /// Describes the reference.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// The file's path, or the folder's.
    pub fn path(&self) -> &Path {
        &self.about.path
    }

    /// Its windows in the order of the file, without their tokens; `None` where the file has no
    /// list of them (kl.py).
    pub fn windows(&self) -> Option<&[WindowEntry]> {
        self.windows.as_deref()
    }

    /// Tokens of its longest window: what a context must hold; 1 without windows. `None` where that is
    /// not known before all windows are read.
    pub fn longest_window(&self) -> Option<u32> {
        let Some(windows) = self.windows.as_ref() else {
            return self.longest_of_stream;
        };
        if !self.about.is_decodable {
            return Some(self.about.n_ctx);
        }
        let longest = windows.iter().map(|window| window.n_tokens).max();
        Some(longest.unwrap_or(1))
    }

    /// True if its windows are in random order already, or in an order that cannot be
    /// changed.
    pub fn is_shuffled(&self) -> bool {
        matches!(self.rows, Rows::Stream(_)) || self.about.seed.is_some()
    }

    /// Sets the token that the model decodes in place of each window's first, where
    /// [`About::hides_bos`]: llama.cpp's base file has the text's own token there.
    pub fn set_bos(&mut self, bos: Option<u32>) {
        match &mut self.rows {
            Rows::Blocks(blocks) => blocks.set_bos(bos),
            Rows::Stream(stream) => stream.set_bos(bos),
            Rows::States(..) | Rows::Model(_) => {}
        }
    }

    /// A hash that distinguishes the file from others of its kind: see `fingerprint` in
    /// `SIDECAR.md`. `None` for a folder.
    ///
    /// # Errors
    /// [`crate::Fault::Io`].
    pub fn fingerprint(&self) -> Result<Option<String>> {
        if self.fingerprint_of_pipe.is_some() {
            return Ok(self.fingerprint_of_pipe.clone());
        }
        let path = self.path();
        let hash = (!path.is_dir()).then(|| fingerprint_of_file(path));
        hash.transpose()
            .map_err(|cause| Named::new(path).io("read", cause))
    }

    /// The rows: in blocks, as a stream, or as the hidden states that they are computed from.
    pub fn rows(&self) -> &Rows {
        &self.rows
    }

    /// Keeps only the rows.
    pub fn into_rows(self) -> Rows {
        self.rows
    }
}

/// The rows of a reference.
#[derive(Debug)]
pub enum Rows {
    /// Blocks that can be read in any order, by many threads at once.
    Blocks(Box<dyn ReadBlocks>),
    /// One stream from the first window to the last.
    Stream(Box<dyn ReadStream>),
    /// A file of hidden states ([`NativeReader::read_states`]), and the description by which the
    /// caller computes rows from them.
    States(Box<NativeReader>, States),
    /// No rows: the caller computes those of these windows with a model that it has.
    Model(Vec<WindowSpec>),
}

impl ReferenceSummary {
    /// Describes `reference` as a sidecar records it.
    ///
    /// # Errors
    /// Those of [`Reference::fingerprint`].
    pub fn of(reference: &Reference) -> Result<Self> {
        Ok(Self::new(reference.about(), reference.fingerprint()?))
    }
}

/// SHA-256 of a file's length, its first 64 KiB and its last 64 KiB. In `kl`'s own files these hold
/// the header, the index and the checksums of the last rows, which differ between any two.
fn fingerprint_of_file(path: &Path) -> io::Result<String> {
    const PART: u64 = 64 << 10;
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut bytes = length.to_le_bytes().to_vec();
    (&mut file).take(PART).read_to_end(&mut bytes)?;
    file.seek(SeekFrom::Start(length.saturating_sub(PART)))?;
    file.take(PART).read_to_end(&mut bytes)?;
    Ok(hex(&Sha256::digest(&bytes)))
}

#[cfg(test)]
mod tests;
