//! A base file that comes through a pipe: its tokens, which precede all rows, are kept, and its rows are
//! read once, in their order.

use std::io::{self, Cursor, Read};
use std::ops::Range;

use sha2::{Digest, Sha256};

use super::{HEADER_BYTES, LlamaCppHeader};
use crate::error::{Named, Result};
use crate::provenance::hex;
use crate::reference::{Reference, Rows};
use crate::row::{ReadStream, RowBlock};
use crate::source::{Incoming, read_up_to};
use crate::window::WindowSpec;

/// Most tokens of a file whose length is not known beforehand: half a gigabyte of them.
const MAX_TOKENS: u64 = 1 << 27;

/// A base file from its start to its end: a [`ReadStream`] that knows all windows.
#[derive(Debug)]
pub(crate) struct LlamaCppStream {
    name: Named,
    stream: Incoming,
    header: LlamaCppHeader,
    /// The tokens of all windows, one after the other.
    tokens: Vec<u32>,
    bos: Option<u32>,
    /// The window that comes next.
    next: u32,
    /// The rows of the window before it that have not been read.
    rows: Range<u32>,
    fingerprint: String,
}

impl LlamaCppStream {
    /// Reads the header, all tokens and the first row.
    ///
    /// # Errors
    /// [`crate::Fault::WriterEnded`], [`crate::Fault::NotAReference`], [`crate::Fault::Header`],
    /// [`crate::Fault::Corrupt`] for a token outside the vocabulary, [`crate::Fault::TooLarge`],
    /// [`crate::Fault::Io`].
    pub(crate) fn read(name: Named, mut stream: Incoming) -> Result<Self> {
        let mut read = |n| read_up_to(&mut stream, n).map_err(|cause| name.io("read", cause));
        let start = read(HEADER_BYTES)?;
        if start.len() < HEADER_BYTES as usize && start.len() >= super::MAGIC.len() {
            let what = "the file ends within its header";
            return Err(name.writer_ended(None, start.len() as u64, what));
        }
        let header = LlamaCppHeader::parse(&name, &start)?;
        let n_tokens = u64::from(header.n_windows) * u64::from(header.n_ctx);
        if n_tokens > MAX_TOKENS {
            return Err(name.too_large(format!(
                "its header states {n_tokens} tokens; through a pipe, {MAX_TOKENS} are read at most: save it first"
            )));
        }
        let tokens = read(4 * n_tokens)?;
        if tokens.len() as u64 != 4 * n_tokens {
            let at = HEADER_BYTES + tokens.len() as u64;
            return Err(name.writer_ended(None, at, "the file ends within its tokens"));
        }
        // Tokens do not tell one model's file from another's. Its first row does.
        let first_row = read(header.row_bytes() * u64::from(header.n_rows() > 0))?;
        let mut hash = Sha256::new_with_prefix(&start);
        hash.update(&tokens);
        hash.update(&first_row);
        let reader = Self {
            name,
            stream: Incoming::new(Cursor::new(first_row).chain(stream)),
            header,
            tokens: bytemuck::pod_collect_to_vec(&tokens),
            bos: None,
            next: 0,
            rows: 0..0,
            fingerprint: hex(&hash.finalize()),
        };
        for window in 0..header.n_windows {
            header.check_tokens(&reader.name, window, reader.tokens(window))?;
        }
        Ok(reader)
    }

    /// The file as a reference.
    pub(crate) fn into_reference(self) -> Reference {
        let (header, name) = (self.header, self.name.clone());
        let fingerprint = self.fingerprint.clone();
        let mut reference = header.into_reference(&name, Rows::Stream(Box::new(self)));
        reference.fingerprint_of_pipe = Some(fingerprint);
        reference
    }

    /// A window's tokens, as the file has them.
    fn tokens(&self, window: u32) -> &[u32] {
        let n_ctx = self.header.n_ctx as usize;
        let mut windows = self.tokens.chunks_exact(n_ctx.max(1));
        windows.nth(window as usize).unwrap_or_default()
    }

    fn window(&self, window: u32) -> Result<WindowSpec> {
        let tokens = self.tokens(window).to_vec();
        self.header.window(&self.name, window, tokens, self.bos)
    }

    /// Fills `bytes` with those from `row` of the window that is open.
    fn fill(&mut self, mut bytes: &mut [u8], row: u32) -> Result<()> {
        let (header, window) = (self.header, self.next.saturating_sub(1));
        let mut at = header.row_offset(window, row);
        while !bytes.is_empty() {
            let n = match self.stream.read(bytes) {
                Ok(n) => n,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
                Err(cause) => return Err(self.name.io("read", cause)),
            };
            if n == 0 {
                let what = format!(
                    "the file ends with {window} of {} windows whole, {} bytes are missing",
                    header.n_windows,
                    header.file_bytes().saturating_sub(at)
                );
                return Err(self.name.writer_ended(Some(window), at, what));
            }
            at += n as u64;
            bytes = bytes.get_mut(n..).unwrap_or_default();
        }
        Ok(())
    }
}

/// Windows are in the order of the text, all as long.
impl ReadStream for LlamaCppStream {
    fn next_window(&mut self) -> Result<Option<WindowSpec>> {
        while self.next_rows(1)?.is_some() {}
        // What follows the last row is left alone: a shell that holds the pipe open would be waited for.
        if self.next >= self.header.n_windows {
            return Ok(None);
        }
        let window = self.window(self.next)?;
        self.rows = 0..window.n_rows;
        self.next += 1;
        Ok(Some(window))
    }

    fn next_rows(&mut self, max_rows: usize) -> Result<Option<RowBlock>> {
        let n_rows = max_rows.min(self.rows.len()) as u32; // at most those left
        if n_rows == 0 {
            return Ok(None);
        }
        let rows = self.rows.start..self.rows.start + n_rows;
        self.rows.start = rows.end;
        let (window, n_vocab) = (self.next.saturating_sub(1), self.header.n_vocab as usize);
        let first = rows.start;
        let mut block = RowBlock::prepare(None, window, rows, n_vocab, self.header.layout());
        let plain = block.buffers(block.usual_bytes()).1;
        self.fill(plain, first)?;
        Ok(Some(block))
    }

    fn windows(&self) -> Option<Result<Vec<WindowSpec>>> {
        Some((0..self.header.n_windows).map(|i| self.window(i)).collect())
    }

    fn set_bos(&mut self, bos: Option<u32>) {
        self.bos = bos;
    }
}
