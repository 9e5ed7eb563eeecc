//! A reference of any kind: what is known about it, its windows, and its rows.

mod about;
pub(crate) mod fingerprint;
pub(crate) mod kind;
mod rows;

#[cfg(test)]
mod tests;

use std::path::Path;

pub use about::{About, Checks, Prompts, Sampling, Values};
pub use kind::{Kind, sniff};
pub use rows::{ReadBlocks, ReadStream, Rows};

use crate::error::{Named, Result};
use crate::{WindowEntry, WindowSpec};

/// An open reference, of whatever kind.
#[derive(Debug)]
pub struct Reference {
    about: About,
    windows: Option<Vec<WindowEntry>>,
    rows: Rows,
}

/// An iterator that reads windows.
pub type Windows<'r> = Box<dyn Iterator<Item = Result<WindowSpec>> + 'r>;

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

    /// Tokens of its longest window: what a context must hold. `None` where that is not known
    /// before all windows are read.
    pub fn longest_window(&self) -> Option<u32> {
        let windows = self.windows.as_ref()?;
        let longest = windows.iter().map(|window| window.n_tokens).max();
        Some(match longest {
            Some(longest) if self.about.is_decodable => longest,
            _ => self.about.n_ctx,
        })
    }

    /// Reads every window with its tokens, in the order of the file, and no rows. A stream is
    /// opened a second time for it, and all of it is read.
    ///
    /// # Errors
    /// Those of opening a stream again; each window has its own.
    pub fn read_windows(&self) -> Result<Windows<'_>> {
        Ok(match &self.rows {
            Rows::Blocks(blocks) => Box::new((0..self.n_listed()).map(|i| blocks.window(i))),
            Rows::States(file, _) => Box::new((0..self.n_listed()).map(|i| file.window(i))),
            Rows::Model(windows) => Box::new(windows.iter().cloned().map(Ok)),
            Rows::Stream(stream) => {
                let mut stream = stream.reopen()?;
                Box::new(std::iter::from_fn(move || stream.next_window().transpose()))
            }
        })
    }

    /// Returns true if its windows are in random order already, or in an order that cannot be
    /// changed.
    pub fn is_shuffled(&self) -> bool {
        matches!(self.rows, Rows::Stream(_)) || self.about.seed.is_some()
    }

    /// Sets the token that the model decodes in place of each window's first, where
    /// [`About::hides_bos`]: llama.cpp's base file has the text's own token there.
    pub fn set_bos(&mut self, bos: Option<u32>) {
        if let Rows::Blocks(blocks) = &mut self.rows {
            blocks.set_bos(bos);
        }
    }

    /// A hash that distinguishes the file from others of its kind: see `fingerprint` in
    /// `SIDECAR.md`. `None` for a folder.
    ///
    /// # Errors
    /// [`crate::Fault::Io`].
    pub fn fingerprint(&self) -> Result<Option<String>> {
        let path = &self.about.path;
        if path.is_dir() {
            return Ok(None);
        }
        fingerprint::of_file(path)
            .map(Some)
            .map_err(|error| Named::new(path).io("read", error))
    }

    /// The rows: in blocks, as a stream, or as the hidden states that they are computed from.
    pub fn rows(&self) -> &Rows {
        &self.rows
    }

    /// Keeps only the rows.
    pub fn into_rows(self) -> Rows {
        self.rows
    }

    /// Windows in the list: all, if the rows are not a stream.
    fn n_listed(&self) -> usize {
        self.windows.as_ref().map_or(0, Vec::len)
    }
}
