//! Pieces of a reference, compressed on all cores and appended in order behind the model.

use std::io::Write;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kl_formats::{KlPyWriter, LlamaCppWriter, Member, NativeWriter, Piece, PieceMemory};

use super::ordered::{Closed, Submitter, ordered};
use super::spare::Spare;
use super::{Error, depth};

#[allow(clippy::large_enum_variant)] // one per run
pub(super) enum Writer<W: Write> {
    Native(NativeWriter<W>),
    KlPy(KlPyWriter<W>),
    LlamaCpp(LlamaCppWriter<W>),
}

impl<W: Write> Writer<W> {
    fn append(&mut self, member: Member) -> Result<Option<PieceMemory>, kl_formats::Error> {
        match self {
            Self::Native(writer) => writer.append(member),
            Self::KlPy(writer) => writer.append(member),
            Self::LlamaCpp(writer) => writer.append_member(member),
        }
    }

    fn finish(self) -> Result<W, kl_formats::Error> {
        match self {
            Self::Native(writer) => writer.finish(),
            Self::KlPy(writer) => writer.finish(),
            Self::LlamaCpp(writer) => writer.finish(),
        }
    }
}

/// Pieces on their way to the file.
pub(super) struct WriteBehind<W: Write> {
    /// Taken where nothing more is to come.
    submitter: Option<Submitter<Member>>,
    /// Taken once: by whoever learns how it ended.
    writer: Option<JoinHandle<Result<W, kl_formats::Error>>>,
    waited: Duration,
    memory: Spare<PieceMemory>,
}

impl<W: Write + Send + 'static> WriteBehind<W> {
    pub(super) fn start(mut writer: Writer<W>) -> Self {
        let (submitter, members) = ordered(depth());
        let memory = Spare::default();
        let written = memory.clone();
        let writer = std::thread::spawn(move || {
            for member in members {
                if let Some(memory) = writer.append(member)? {
                    written.give(memory);
                }
            }
            writer.finish()
        });
        Self {
            submitter: Some(submitter),
            writer: Some(writer),
            waited: Duration::ZERO,
            memory,
        }
    }

    /// How long writing has kept its caller waiting.
    pub(super) fn waited(&self) -> Duration {
        self.waited
    }

    /// Memory of a piece that has been written.
    pub(super) fn memory(&self) -> Option<PieceMemory> {
        self.memory.take()
    }

    /// Compresses a piece and appends it, later.
    pub(super) fn send(&mut self, piece: Piece) -> Result<(), Error> {
        let started = Instant::now();
        let sent = match &self.submitter {
            Some(submitter) => submitter.submit(move || piece.compress()),
            None => Err(Closed),
        };
        self.waited += started.elapsed();
        sent.map_err(|Closed| match join(self.writer.take()) {
            Ok(_) => Error::WorkerLost,
            Err(error) => error,
        })
    }

    /// Waits until everything is written.
    pub(super) fn finish(mut self) -> Result<W, Error> {
        self.submitter = None;
        join(self.writer.take())
    }
}

/// A run that is cut off waits too: what was sent is worth keeping.
impl<W: Write> Drop for WriteBehind<W> {
    fn drop(&mut self) {
        self.submitter = None;
        // It ends with an error, since windows are missing.
        let _ = join(self.writer.take());
    }
}

fn join<W>(writer: Option<JoinHandle<Result<W, kl_formats::Error>>>) -> Result<W, Error> {
    match writer.map(JoinHandle::join) {
        Some(Ok(result)) => Ok(result?),
        Some(Err(_)) | None => Err(Error::WorkerLost),
    }
}
