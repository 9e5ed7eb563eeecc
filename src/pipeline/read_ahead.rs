//! The reference, read and inflated ahead of the model.

use std::sync::Arc;

use kl_formats::{
    Encoding, KlPyReader, LlamaCppReader, NativeReader, Reference, RowBlock, WindowHead,
    rows_per_piece,
};

use super::depth;
use super::ordered::{Closed, Results, Submitter, ordered};
use crate::windows::{DEFAULT_SEED, shuffled};

/// What a reference holds, in the order of its decoding.
#[derive(Debug)]
pub(super) enum Event {
    /// A window begins.
    Window(WindowHead),
    /// Rows of the window that began last, in order.
    Rows(RowBlock),
    /// All there is has come. Without it, whoever reads has stopped before the end.
    End,
}

pub(super) type Item = Result<Event, kl_formats::Error>;

/// The windows and rows of a reference, read ahead.
pub struct Blocks {
    pub(super) events: Results<Item>,
    /// Windows that will come, where the file says how many it has.
    pub n_windows: Option<u64>,
    /// Rows that will come, where the file says how many it has.
    pub n_rows: Option<u64>,
    /// Rows wanted. Windows come whole, since a model computes a part of one in batches of another
    /// shape, and so to other last bits: the last window may bring more rows than these.
    pub max_rows: u64,
}

/// Starts reading `reference`, at most `max_rows` rows of it. `bos`: the token that the model puts
/// before a text, which llama.cpp's base files leave out.
///
/// Where only a part is wanted, files in text order are read in the seeded random order of
/// [`shuffled`]; others in their own, which for a part written with `-n`, and for kl.py's files, is
/// random already.
#[must_use]
pub fn read_ahead(reference: Reference, bos: Option<u32>, max_rows: Option<u64>) -> Blocks {
    let (submitter, events) = ordered(depth());
    let max_rows = max_rows.unwrap_or(u64::MAX);
    // A consumer that is gone ends the thread, and says itself why it went.
    let (n_windows, n_rows) = match reference {
        Reference::Native(reader) => {
            let rows: Vec<u32> = reader
                .windows()
                .iter()
                .map(|window| window.n_rows)
                .collect();
            let order = choose_windows(&rows, reader.header().seed.is_some(), max_rows);
            let counts = count(&rows, &order);
            std::thread::spawn(move || send_native(&Arc::new(reader), &order, &submitter));
            counts
        }
        Reference::LlamaCpp(reader) => {
            let rows = vec![reader.header().rows_per_window(); reader.n_windows()];
            let order = choose_windows(&rows, false, max_rows);
            let counts = count(&rows, &order);
            std::thread::spawn(move || send_llamacpp(&Arc::new(reader), bos, &order, &submitter));
            counts
        }
        Reference::KlPy(reader) => {
            let n_windows = reader.header().n_windows.map(u64::from);
            std::thread::spawn(move || send_klpy(reader, max_rows, &submitter));
            (n_windows.filter(|_| max_rows == u64::MAX), None)
        }
    };
    Blocks {
        events,
        n_windows,
        n_rows,
        max_rows,
    }
}

/// Windows and rows that come in an order of places.
fn count(rows: &[u32], order: &[usize]) -> (Option<u64>, Option<u64>) {
    let n_rows = order.iter().map(|&place| u64::from(rows[place])).sum();
    (Some(order.len() as u64), Some(n_rows))
}

/// Places of the windows to read, of a file whose windows have so many rows each.
fn choose_windows(rows: &[u32], is_shuffled: bool, max_rows: u64) -> Vec<usize> {
    let in_order = (0..rows.len()).collect();
    if max_rows >= rows.iter().map(|&rows| u64::from(rows)).sum() {
        return in_order;
    }
    let mut order = if is_shuffled {
        in_order
    } else {
        shuffled(rows.len(), DEFAULT_SEED)
    };
    let mut taken = 0;
    order.retain(|&place| {
        let wanted = taken < max_rows;
        taken += u64::from(rows[place]);
        wanted
    });
    order
}

fn send_native(
    reader: &Arc<NativeReader>,
    order: &[usize],
    submitter: &Submitter<Item>,
) -> Result<(), Closed> {
    for &place in order {
        submitter.pass(reader.head(place).map(Event::Window))?;
        for piece in 0..reader.n_pieces(place) {
            let reader = Arc::clone(reader);
            submitter.submit(move || reader.piece(place, piece, None).map(Event::Rows))?;
        }
    }
    submitter.pass(Ok(Event::End))
}

fn send_llamacpp(
    reader: &Arc<LlamaCppReader>,
    bos: Option<u32>,
    order: &[usize],
    submitter: &Submitter<Item>,
) -> Result<(), Closed> {
    let header = reader.header();
    let (n_rows, block) = (
        header.rows_per_window(),
        rows_per_piece(Encoding::U16, header.n_vocab),
    );
    for &place in order {
        submitter.pass(reader.head(place, bos).map(Event::Window))?;
        for first in (0..n_rows).step_by(block as usize) {
            let reader = Arc::clone(reader);
            let n = block.min(n_rows - first);
            submitter.submit(move || reader.block(place, first, n, None).map(Event::Rows))?;
        }
    }
    submitter.pass(Ok(Event::End))
}

/// A gzip stream of one member has to be inflated by one thread, in order.
fn send_klpy(
    mut reader: KlPyReader,
    max_rows: u64,
    submitter: &Submitter<Item>,
) -> Result<(), Closed> {
    let rows_per_block = rows_per_piece(Encoding::F32, reader.header().n_vocab) as usize;
    let mut left = max_rows;
    while left > 0 {
        let head = match reader.next_window() {
            Ok(Some(head)) => head,
            Ok(None) => break,
            Err(error) => return submitter.pass(Err(error)),
        };
        left = left.saturating_sub(u64::from(head.n_rows));
        submitter.pass(Ok(Event::Window(head)))?;
        loop {
            match reader.next_rows(rows_per_block) {
                Ok(Some(block)) => submitter.pass(Ok(Event::Rows(block)))?,
                Ok(None) => break,
                Err(error) => return submitter.pass(Err(error)),
            }
        }
    }
    submitter.pass(Ok(Event::End))
}
