//! What goes through the pipes: a byte for the kind, eight for the length, and so many bytes of UTF-8.

use std::io::{self, Read};

/// The most bytes of a frame, which bounds what the parent reads of a process that it does not trust: the
/// longest text, and room for escapes.
const MAX_BYTES: u64 = 80 << 20;

/// The bytes before those of the text.
const HEADER: usize = 9;

/// The kinds of frames.
const REQUEST: u8 = b'q';
const TEXT: u8 = b't';
const REFUSAL: u8 = b'r';

/// A request, or the answer to one.
pub struct Frame {
    kind: u8,
    pub body: Vec<u8>,
}

impl Frame {
    /// A request in JSON.
    pub fn request(json: Vec<u8>) -> Self {
        Self {
            kind: REQUEST,
            body: json,
        }
    }

    /// The rendered text, or why there is none.
    pub fn of_answer(answer: Result<String, String>) -> Self {
        let (kind, text) = match answer {
            Ok(text) => (TEXT, text),
            Err(why) => (REFUSAL, why),
        };
        Self {
            kind,
            body: text.into_bytes(),
        }
    }

    /// Its bytes in a pipe.
    pub fn bytes(&self) -> Vec<u8> {
        let length = (self.body.len() as u64).to_le_bytes();
        [&[self.kind], &length[..], &self.body].concat()
    }

    /// An answer: true and the text, or false and why there is none.
    ///
    /// # Errors
    /// If it is no answer.
    pub fn answer(self) -> io::Result<(bool, String)> {
        let text = String::from_utf8(self.body).map_err(|_| io::ErrorKind::InvalidData)?;
        match self.kind {
            TEXT => Ok((true, text)),
            REFUSAL => Ok((false, text)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// A frame that is being read.
#[derive(Default)]
pub struct FrameReader {
    bytes: Vec<u8>,
}

/// What a call of [`FrameReader::read`] has brought.
pub enum Reading {
    Whole(Frame),
    /// The frame has more bytes.
    Part,
}

impl FrameReader {
    /// Reads what is there, once, and waits only if nothing is.
    ///
    /// # Errors
    /// Those of the pipe, its end, and a length that no frame has.
    pub fn read(&mut self, pipe: &mut impl Read) -> io::Result<Reading> {
        let mut chunk = [0; 1 << 16];
        let wanted = self.n_missing()?.min(chunk.len());
        let chunk = chunk.get_mut(..wanted).unwrap_or_default();
        let n = pipe.read(chunk)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.bytes
            .extend_from_slice(chunk.get(..n).unwrap_or_default());
        if self.bytes.len() < HEADER || self.n_missing()? > 0 {
            return Ok(Reading::Part);
        }
        let body = self.bytes.split_off(HEADER);
        let kind = self.bytes.first().copied().unwrap_or_default();
        self.bytes.clear();
        Ok(Reading::Whole(Frame { kind, body }))
    }

    /// Reads a whole frame.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_whole(&mut self, pipe: &mut impl Read) -> io::Result<Frame> {
        loop {
            if let Reading::Whole(frame) = self.read(pipe)? {
                return Ok(frame);
            }
        }
    }

    /// The number of bytes that the header still lacks, or, after it, the body.
    fn n_missing(&self) -> io::Result<usize> {
        let Some(length) = self
            .bytes
            .get(1..HEADER)
            .and_then(|bytes| bytes.try_into().ok())
        else {
            return Ok(HEADER - self.bytes.len());
        };
        let length = u64::from_le_bytes(length);
        if self.bytes.first() != Some(&REQUEST) && length > MAX_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let length = usize::try_from(length).map_err(|_| io::ErrorKind::InvalidData)?;
        Ok((HEADER.saturating_add(length)).saturating_sub(self.bytes.len()))
    }
}
