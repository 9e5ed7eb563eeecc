//! Rows of the reference that are computed, not read, while the evaluated model's come: they come a
//! batch at a time, and the model's may come in batches of another size.
//!
//! Of hidden states, a batch is one product of the head with the states that the writer's llama.cpp
//! multiplied together, so that the rows are its own to the bit. States are read just before they are
//! used: a window's are a thousandth of its rows. A second model decodes each batch right after the
//! evaluated one, so that both batches of rows are scored where they are.

use std::mem;
use std::time::{Duration, Instant};

use kl_formats::{ReadBlocks as _, Row, RowBlock, WindowSpec};
use rayon::prelude::*;

use super::device_clock::DeviceClock;
use super::source::{Origin, ReferenceSource};
use super::{Error, locked, rows_per_task};
use crate::engine::Decoder;

/// The rows of an open window, and how far they are used.
pub(super) struct Computed<'r, 'h> {
    source: &'r ReferenceSource<'h>,
    /// The index of the window in the reference.
    window: usize,
    /// The row of the window that is used next. A product of which no row is used is not computed.
    pub(super) next: usize,
    /// Rows of the window that have been computed, or left out.
    end: usize,
    /// Logits of the rows from `next` to `end`, at the end of those of the last batch.
    left: Vec<f32>,
    /// Of hidden states: the piece of the file that was read last.
    piece: Option<RowBlock>,
    /// Of a second model: a context, given back in the end, and where its next decode call starts;
    /// `None` after the last.
    context: Option<Box<dyn Decoder + Send + 'h>>,
    start: Option<usize>,
}

impl<'r, 'h> Computed<'r, 'h> {
    pub(super) fn new(source: &'r ReferenceSource<'h>, window: usize) -> Self {
        Self {
            source,
            window,
            next: 0,
            end: 0,
            left: Vec::new(),
            piece: None,
            context: source.contexts.take(),
            start: Some(0),
        }
    }

    /// Applies `of_row` to the next `n` rows, each with its index among them, on all cores.
    pub(super) fn map<T: Send>(
        &mut self,
        n: usize,
        spec: &WindowSpec,
        of_row: impl Fn(usize, Row<'_>) -> T + Sync,
        in_reading: &mut Duration,
    ) -> Result<Vec<T>, Error> {
        let min_len = rows_per_task(self.source.n_vocab.max(1));
        let mut made = Vec::with_capacity(n);
        while made.len() < n {
            self.some(n - made.len(), spec, in_reading, |rows| {
                let first = made.len();
                let rows = rows.par_iter().enumerate().with_min_len(min_len);
                made.par_extend(rows.map(|(i, row)| of_row(first + i, Row::F32(row))));
            })?;
        }
        Ok(made)
    }

    /// Hands `use_rows` the next rows, at most `n`, as many as are there or one batch gives, where they
    /// were computed. Returns how many. What they are used for is not counted as `in_reading`.
    pub(super) fn some(
        &mut self,
        n: usize,
        spec: &WindowSpec,
        in_reading: &mut Duration,
        mut use_rows: impl FnMut(&[&[f32]]),
    ) -> Result<usize, Error> {
        let n_vocab = self.source.n_vocab.max(1);
        if self.next < self.end {
            let first = self.left.len() - (self.end - self.next) * n_vocab;
            let left = self.left[first..].chunks_exact(n_vocab);
            let rows: Vec<&[f32]> = left.take(n).collect();
            use_rows(&rows);
            self.next += rows.len();
            return Ok(rows.len());
        }
        let started = Instant::now();
        let (mut in_use, mut n_used) = (Duration::ZERO, 0);
        let mut left = mem::take(&mut self.left);
        left.clear();
        self.compute(spec, &mut |rows| {
            let started = Instant::now();
            let (now, later) = rows.split_at(n.min(rows.len()));
            use_rows(now);
            n_used = now.len();
            in_use = started.elapsed();
            later.iter().for_each(|row| left.extend_from_slice(row));
        })?;
        self.left = left;
        self.next += n_used;
        *in_reading += started.elapsed().saturating_sub(in_use);
        Ok(n_used)
    }

    /// Computes the batch that holds the next row, and hands `use_rows` its rows from that one on,
    /// where they were computed: they are gone when this returns. Meanwhile another source can decode.
    fn compute(
        &mut self,
        spec: &WindowSpec,
        use_rows: &mut dyn FnMut(&[&[f32]]),
    ) -> Result<(), Error> {
        let source = self.source;
        let begin = || source.device.as_ref().map(DeviceClock::begin);
        if let Origin::States { file, states, head } = &source.origin {
            let mut groups = states.row_batches(&spec.entry());
            let group = groups.find(|group| group.end as usize > self.next);
            let group = group.ok_or_else(Error::too_few_rows)?;
            let per_block = file.rows_per_block();
            let n_read = group.end / per_block - group.start / per_block;
            let skip = self.next - group.start as usize;
            self.end = group.end as usize;
            let states = file.read_states(self.window, group, &mut self.piece)?;
            source.have_read(n_read as usize);
            let mut head = locked(head);
            let call = begin();
            let logits = head.rows(&states)?;
            drop(call);
            let rows: Vec<&[f32]> = logits.chunks_exact(source.n_vocab).skip(skip).collect();
            use_rows(&rows);
            return Ok(());
        }
        let context = self.context.as_mut().ok_or(Error::WorkerLost)?;
        while let Some(start) = self.start {
            let call = begin();
            let outputs = context.decode_call(spec, start, true)?;
            drop(call);
            let before = self.end;
            (self.start, self.end) = (outputs.next, before + outputs.rows.len());
            if self.end > self.next {
                use_rows(&outputs.rows[self.next - before..]);
                return Ok(());
            }
        }
        Err(Error::too_few_rows())
    }
}

impl Drop for Computed<'_, '_> {
    fn drop(&mut self) {
        if let Some(context) = self.context.take() {
            self.source.contexts.give(context);
        }
    }
}
