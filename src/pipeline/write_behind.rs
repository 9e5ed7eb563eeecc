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
    submitter: Submitter<Member>,
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
            submitter,
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
        let sent = self.submitter.submit(move || piece.compress());
        self.waited += started.elapsed();
        sent.map_err(|Closed| match join(self.writer.take()) {
            Ok(_) => Error::WorkerLost,
            Err(error) => error,
        })
    }

    /// Waits until everything is written.
    pub(super) fn finish(self) -> Result<W, Error> {
        drop(self.submitter);
        join(self.writer)
    }
}

fn join<W>(writer: Option<JoinHandle<Result<W, kl_formats::Error>>>) -> Result<W, Error> {
    match writer.map(JoinHandle::join) {
        Some(Ok(result)) => Ok(result?),
        Some(Err(_)) | None => Err(Error::WorkerLost),
    }
}
