//! Opens a reference of any kind: the only file that knows all readers. `kinds` lists the kinds, and
//! `source` recognises them.

use std::io::{Cursor, Read};
use std::path::Path;

use crate::about::{About, Prompts};
use crate::error::{Named, Result};
use crate::kinds::Kind;
use crate::klpy::KlPyReader;
use crate::llamacpp::{LlamaCppReader, LlamaCppStream};
use crate::native::NativeReader;
use crate::npz::NpzReader;
use crate::reference::{Reference, Rows};
use crate::row::ReadBlocks as _;
use crate::safetensors::SafetensorsReader;
use crate::source::{Incoming, sniff, sniff_stream};
use crate::window::WindowSpec;

/// The kinds that can be read once.
const ONCE: &str = "base files of llama-perplexity and references of kl.py can be read from a pipe";

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

    /// Reads a reference from a stream, such as a pipe, from its start to its end: llama.cpp's base files
    /// and kl.py's files can be. `path` names it in messages. Waits until the rows begin.
    ///
    /// # Errors
    /// Those of [`Reference::open`]; [`crate::Fault::WriterEnded`] for a base file that ends too early,
    /// [`crate::Fault::Unsupported`] for a kind whose parts are not in the order in which they are read.
    pub fn read_once(path: &Path, stream: impl Read + Send + 'static) -> Result<Self> {
        let (name, mut stream) = (Named::new(path), Incoming::new(stream));
        let (kind, start) = sniff_stream(&name, &mut stream)?;
        let all = Incoming::new(Cursor::new(start.clone()).chain(stream));
        match kind {
            Kind::LlamaCpp => LlamaCppStream::read(name, all).map(LlamaCppStream::into_reference),
            Kind::KlPy => KlPyReader::read(name, all, None).map(|file| file.into_piped_reference(&start)),
            kind => Err(name.unsupported(format!(
                "is a pipe with a file of kind {kind}, which is not read from its start to its end: save it first; {ONCE}"
            ))),
        }
    }

    /// Reads every window with its tokens, in the order of the file, and no rows. A stream without a
    /// list of them is opened a second time for it, and all of it is read.
    ///
    /// # Errors
    /// Those of opening a stream again; each window has its own.
    pub fn read_windows(&self) -> Result<Box<dyn Iterator<Item = Result<WindowSpec>> + '_>> {
        let all = 0..self.windows().map_or(0, <[_]>::len);
        Ok(match self.rows() {
            Rows::Blocks(blocks) => Box::new(all.map(|i| blocks.window(i))),
            Rows::States(file, _) => Box::new(all.map(|i| file.window(i))),
            Rows::Model(windows) => Box::new(windows.iter().cloned().map(Ok)),
            Rows::Stream(stream) => match stream.windows() {
                Some(windows) => Box::new(windows?.into_iter().map(Ok)),
                None => self.read_stream_again()?,
            },
        })
    }

    /// Opens the file of a stream again, and reads all of its windows.
    fn read_stream_again(&self) -> Result<Box<dyn Iterator<Item = Result<WindowSpec>>>> {
        let name = Named::new(self.path());
        if self.fingerprint_of_pipe.is_some() {
            let kind = self.about().kind;
            return Err(name.unsupported(format!(
                "is a pipe with a file of kind {kind}, which has to be read twice: save it first; a base file of llama-perplexity has all tokens at its start"
            )));
        }
        let Rows::Stream(mut stream) = Self::open(self.path())?.into_rows() else {
            return Err(name.unsupported("has changed: start again"));
        };
        Ok(Box::new(std::iter::from_fn(move || {
            stream.next_window().transpose()
        })))
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
