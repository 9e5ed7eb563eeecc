//! Rows that are computed, from hidden states or by a second model.
//!
//! They come a batch at a time, and the evaluated model's may come in batches of another size. Of hidden
//! states, a batch is one product of the head with the states that the writer's llama.cpp multiplied
//! together, so that the rows are its own to the bit. A second model decodes each batch right after the
//! evaluated one, so that both batches of rows are scored where they are.

use std::collections::VecDeque;
use std::mem;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use kl_engine::{Decoder, Head};
use kl_formats::{
    CheckRow, NativeReader, ReadBlocks as _, Row, RowBlock, States, WindowEntry, WindowSpec,
};
use kl_report::RowsHere;
use kl_stats::score::RowError;
use rayon::prelude::*;

use super::row_source::{RowSource, UseRow, WindowRows, use_all};
use super::stored_rows::ReadAhead;
use super::timing::DeviceClock;
use super::{Error, Pool, locked};

/// Contexts of a second model that no window uses.
pub type FreeContexts<'h> = Pool<Box<dyn Decoder + 'h>>;

/// A file of hidden states, and the head that makes rows of them: several windows use it in turn, one
/// product at a time.
pub(super) struct StateRows<'h> {
    file: Box<NativeReader>,
    states: States,
    head: Mutex<Box<dyn Head + 'h>>,
    read_ahead: Mutex<ReadAhead>,
    n_vocab: usize,
}

impl<'h> StateRows<'h> {
    pub(super) fn new(
        file: Box<NativeReader>,
        states: States,
        head: Box<dyn Head + 'h>,
        n_vocab: usize,
    ) -> Self {
        Self {
            file,
            states,
            head: Mutex::new(head),
            read_ahead: Mutex::default(),
            n_vocab,
        }
    }
}

impl<'h> RowSource<'h> for StateRows<'h> {
    fn window(&self, index: usize) -> Result<Option<WindowSpec>, Error> {
        Ok(Some(self.file.window(index)?))
    }

    fn open<'r>(
        &'r self,
        index: usize,
        spec: &WindowSpec,
        device: Option<&'r DeviceClock>,
    ) -> Box<dyn WindowRows + 'r> {
        locked(&self.read_ahead).note_read(&*self.file, 0);
        let products = HeadProducts {
            source: self,
            window: index,
            entry: spec.entry(),
            piece: None,
            device,
        };
        Box::new(ComputedRows::new(products, self.n_vocab))
    }

    fn expect(&mut self, order: &VecDeque<usize>) {
        self.read_ahead = Mutex::new(ReadAhead::in_order(order));
    }

    fn is_computed(&self) -> bool {
        true
    }
}

/// A second model, which runs over these windows in contexts that the caller adds.
pub(super) struct ModelRows<'h> {
    pub(super) windows: Vec<WindowSpec>,
    pub(super) contexts: FreeContexts<'h>,
    pub(super) n_vocab: usize,
}

impl<'h> RowSource<'h> for ModelRows<'h> {
    fn window(&self, index: usize) -> Result<Option<WindowSpec>, Error> {
        Ok(self.windows.get(index).cloned())
    }

    fn open<'r>(
        &'r self,
        _index: usize,
        spec: &WindowSpec,
        device: Option<&'r DeviceClock>,
    ) -> Box<dyn WindowRows + 'r> {
        let calls = DecodeCalls {
            contexts: &self.contexts,
            context: locked(&self.contexts).pop(),
            spec: spec.clone(),
            next_call: Some(0),
            n_decoded: 0,
            device,
        };
        Box::new(ComputedRows::new(calls, self.n_vocab))
    }

    fn is_computed(&self) -> bool {
        true
    }
}

/// Computes the rows of a window, a batch at a time.
trait ComputeBatch {
    /// Computes the batch that holds the row `next`, and hands `use_rows` its rows from that one on, where they were
    /// computed: they are gone when this returns. Meanwhile another source can decode. Returns the row after the
    /// batch.
    fn compute(&mut self, next: usize, use_rows: &mut dyn FnMut(&[&[f32]]))
    -> Result<usize, Error>;
}

/// The products of a head with the states of a window.
struct HeadProducts<'r, 'h> {
    source: &'r StateRows<'h>,
    /// The index of the window.
    window: usize,
    entry: WindowEntry,
    /// The piece of the file that was read last.
    piece: Option<RowBlock>,
    device: Option<&'r DeviceClock>,
}

impl ComputeBatch for HeadProducts<'_, '_> {
    fn compute(
        &mut self,
        next: usize,
        use_rows: &mut dyn FnMut(&[&[f32]]),
    ) -> Result<usize, Error> {
        let StateRows {
            file,
            states,
            head,
            read_ahead,
            n_vocab,
        } = self.source;
        let batch = states
            .row_batches(&self.entry)
            .find(|batch| batch.end as usize > next)
            .ok_or_else(Error::too_few_rows)?;
        let rows_per_block = file.rows_per_block();
        let n_blocks_read = batch.end / rows_per_block - batch.start / rows_per_block;
        let (end, n_skipped) = (batch.end as usize, next - batch.start as usize);
        let states = file.read_states(self.window, batch, &mut self.piece)?;
        locked(read_ahead).note_read(&**file, n_blocks_read as usize);
        let mut head = locked(head);
        let call = self.device.map(DeviceClock::begin);
        let logits = head.rows(&states)?;
        drop(call);
        let rows: Vec<&[f32]> = logits
            .chunks_exact((*n_vocab).max(1))
            .skip(n_skipped)
            .collect();
        use_rows(&rows);
        Ok(end)
    }
}

/// The decode calls of a second model over a window.
struct DecodeCalls<'r, 'h> {
    /// Where the context is given back.
    contexts: &'r FreeContexts<'h>,
    /// `None` once it was given back.
    context: Option<Box<dyn Decoder + 'h>>,
    spec: WindowSpec,
    /// Where the next call starts; `None` after the last.
    next_call: Option<usize>,
    /// Rows that the calls so far have had.
    n_decoded: usize,
    device: Option<&'r DeviceClock>,
}

impl ComputeBatch for DecodeCalls<'_, '_> {
    fn compute(
        &mut self,
        next: usize,
        use_rows: &mut dyn FnMut(&[&[f32]]),
    ) -> Result<usize, Error> {
        let context = self.context.as_mut().ok_or(Error::WorkerLost)?;
        while let Some(start) = self.next_call {
            let call = self.device.map(DeviceClock::begin);
            let outputs = context.decode_call(&self.spec, start, true)?;
            drop(call);
            let n_decoded_before = self.n_decoded;
            self.next_call = outputs.next;
            self.n_decoded += outputs.rows.len();
            if self.n_decoded > next {
                use_rows(&outputs.rows[next - n_decoded_before..]);
                return Ok(self.n_decoded);
            }
        }
        Err(Error::too_few_rows())
    }
}

impl Drop for DecodeCalls<'_, '_> {
    fn drop(&mut self) {
        locked(self.contexts).extend(self.context.take());
    }
}

/// The computed rows of a window, and how far they are used.
struct ComputedRows<C> {
    batches: C,
    n_vocab: usize,
    /// The row of the window that is used next. A batch is computed only if one of its rows is used.
    next: usize,
    /// Rows of the window that have been computed, or left out.
    end: usize,
    /// Logits of the rows from `next` to `end`, at the end of those of the last batch.
    logits_left: Vec<f32>,
}

impl<C: ComputeBatch> ComputedRows<C> {
    fn new(batches: C, n_vocab: usize) -> Self {
        Self {
            batches,
            n_vocab: n_vocab.max(1),
            next: 0,
            end: 0,
            logits_left: Vec::new(),
        }
    }
}

impl<C: ComputeBatch> WindowRows for ComputedRows<C> {
    fn skip(&mut self, n: usize) {
        self.next += n;
    }

    fn each(&mut self, n: usize, use_row: &UseRow<'_>) -> Result<Duration, Error> {
        let n_vocab = self.n_vocab;
        let (mut reading_time, mut n_used) = (Duration::ZERO, 0);
        while n_used < n {
            let use_some = |rows: &[&[f32]]| {
                let rows = &rows[..rows.len().min(n - n_used)];
                let logits = rows.par_iter().map(|row| Row::F32(row));
                use_all(logits, n_vocab, n_used, use_row);
                rows.len()
            };
            let mut n_used_now = 0;
            if self.next < self.end {
                let first = self.logits_left.len() - (self.end - self.next) * n_vocab;
                let rows = self.logits_left[first..].chunks_exact(n_vocab);
                n_used_now = use_some(&rows.collect::<Vec<_>>());
            } else {
                let (started, mut use_time) = (Instant::now(), Duration::ZERO);
                let mut logits_left = mem::take(&mut self.logits_left);
                logits_left.clear();
                self.end = self.batches.compute(self.next, &mut |rows| {
                    let started = Instant::now();
                    n_used_now = use_some(rows);
                    use_time = started.elapsed();
                    for row in &rows[n_used_now..] {
                        logits_left.extend_from_slice(row);
                    }
                })?;
                self.logits_left = logits_left;
                reading_time += started.elapsed().saturating_sub(use_time);
            }
            self.next += n_used_now;
            n_used += n_used_now;
        }
        Ok(reading_time)
    }
}

/// The KLD, in nats, from which a computed row cannot be the model's own: a writer stops at 1e-4, and
/// the kernels of other backends move a row by 1e-7 to 1e-4.
const WRONG_KLD: f64 = 0.1;

/// Computes the rows that the file also holds as the model gave them, each in its batch, and compares
/// both.
pub(super) fn check_computed_rows(
    path: &str,
    file: &NativeReader,
    states: &States,
    windows: &[WindowEntry],
    head: &mut dyn Head,
) -> Result<RowsHere, Error> {
    let mut error = RowError::default();
    let stored_rows = file.check_rows()?;
    let mut piece = None;
    for (i, window) in windows.iter().enumerate() {
        for batch in states.row_batches(window) {
            let column_in_batch = |row: &CheckRow| {
                let index = row.position.checked_sub(window.first_scored)?;
                let is_in_batch = row.window == window.window && batch.contains(&index);
                is_in_batch.then(|| (index - batch.start) as usize)
            };
            let rows_of_batch: Vec<_> = states
                .check
                .rows
                .iter()
                .zip(&stored_rows)
                .filter_map(|(row, stored)| Some((column_in_batch(row)?, stored)))
                .collect();
            if rows_of_batch.is_empty() {
                continue;
            }
            let computed = head.rows(&file.read_states(i, batch, &mut piece)?)?;
            for (column, stored) in rows_of_batch {
                let computed_row = &computed[column * stored.len()..][..stored.len()];
                for row_error in RowError::each(&[stored], computed_row) {
                    error += row_error;
                }
            }
        }
    }
    let (device, max_kld) = (head.device(), error.max_kld);
    if max_kld >= WRONG_KLD {
        return Err(Error::Reference(format!(
            "{path}: the rows computed from its hidden states on {device} are not those of the model that wrote it, by a KLD of up to {max_kld:.3} nats: kl info --verify shows whether the file is damaged; if not, write it again with --encoding u16"
        )));
    }
    Ok(RowsHere {
        device,
        error,
        is_exact: (error.n_rows > 0).then(|| error.is_exact()),
        shares_model_head: head.is_shared(),
    })
}
