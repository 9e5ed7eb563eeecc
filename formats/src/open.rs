//! Opens a reference of any kind: the only file that knows all readers.

use std::path::Path;

use crate::about::{About, Prompts};
use crate::error::{Named, Result};
use crate::kinds::Kind;
use crate::klpy::KlPyReader;
use crate::llamacpp::LlamaCppReader;
use crate::native::NativeReader;
use crate::npz::NpzReader;
use crate::reference::{Reference, Rows};
use crate::row::ReadBlocks as _;
use crate::safetensors::SafetensorsReader;
use crate::source::sniff;
use crate::window::WindowSpec;

impl Reference {
    /// Opens a reference of any kind.
    ///
    /// # Errors
    /// Those of [`crate::sniff`] and of the kind's own reader.
    pub fn open(path: &Path) -> Result<Self> {
        match sniff(path)? {
            Kind::Kl => NativeReader::open(path).map(NativeReader::into_reference),
            Kind::KlPy => KlPyReader::open(path).map(KlPyReader::into_reference),
            Kind::LlamaCpp => LlamaCppReader::open(path).map(LlamaCppReader::into_reference),
            Kind::Safetensors => SafetensorsReader::open(path)?.into_reference(path),
            Kind::Npz => NpzReader::open(path)?.into_reference(),
            Kind::Model => Err(Named::new(path).not_a_reference("it is a model")),
        }
    }

    /// Reads every window with its tokens, in the order of the file, and no rows. A stream is
    /// opened a second time for it, and all of it is read.
    ///
    /// # Errors
    /// Those of opening a stream again; each window has its own.
    pub fn read_windows(&self) -> Result<Box<dyn Iterator<Item = Result<WindowSpec>> + '_>> {
        let all = 0..self.windows().map_or(0, <[_]>::len);
        Ok(match self.rows() {
            Rows::Blocks(blocks) => Box::new(all.map(|i| blocks.window(i))),
            Rows::States(file, _) => Box::new(all.map(|i| file.window(i))),
            Rows::Model(windows) => Box::new(windows.iter().cloned().map(Ok)),
            Rows::Stream(_) => {
                let Rows::Stream(mut stream) = Self::open(self.path())?.into_rows() else {
                    return Err(Named::new(self.path()).unsupported("has changed: start again"));
                };
                Box::new(std::iter::from_fn(move || stream.next_window().transpose()))
            }
        })
    }
}

impl NativeReader {
    /// The open file as a reference, of rows or of hidden states.
    pub fn into_reference(self) -> Reference {
        let header = &self.header;
        let about = About {
            provenance: header.provenance.clone(),
            file_bytes: self.file_bytes(),
            n_windows: Some(header.n_windows),
            n_rows: Some(header.n_rows),
            encoding: header.encoding.name(),
            states: header.states.clone(),
            values: header.values(),
            groups: header.groups().ok().flatten(), // without a fault: see `Header::fault`
            prompts: header.prompts.clone().map(|list| Prompts {
                list,
                chat_template: header.chat_template.clone(),
                generated: header.generated,
                sampling: header.sampling,
                spans: header.spans.clone(),
            }),
            ..About::new(Kind::Kl, self.path(), header.n_ctx, header.n_vocab)
        };
        let windows = self.windows().copied().collect();
        let rows = match header.states.clone() {
            None => Rows::Blocks(Box::new(self)),
            Some(states) => Rows::States(Box::new(self), states),
        };
        Reference::new(about, Some(windows), rows)
    }
}
