//! Where the rows of a reference come from: stored, in blocks or a stream, or computed, from hidden
//! states or by a second model.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::Mutex;

use kl_formats::{
    NativeReader, ReadBlocks, Reference, RowBlock, Rows, States, Values, WindowEntry, WindowSpec,
};
use serde::Serialize;

use super::device_clock::DeviceClock;
use super::kept_rows::KeptRows;
use super::stream::Stream;
use super::{Error, Pool, locked};
use crate::engine::{Decoder, EngineError, Head};
use crate::score::RowError;

/// The KLD, in nats, from which a computed row cannot be the model's own: a writer stops at 1e-4, and
/// the kernels of other backends move a row by 1e-7 to 1e-4.
const WRONG_KLD: f64 = 0.1;

/// The number of blocks that the system is asked to fetch before they are read: 64 MiB, at 1 MiB
/// each.
const BLOCKS_AHEAD: usize = 64;

/// The rows of a reference, and what reading or computing them needs.
pub struct ReferenceSource<'h> {
    pub(super) origin: Origin<'h>,
    pub(super) n_vocab: usize,
    /// True if the rows are log-probabilities with a floor.
    pub(super) is_floored: bool,
    /// Measures the accelerator that computes the rows, if one does.
    pub device: Option<DeviceClock>,
    /// The contexts of a second model that no window uses. Each source of the evaluated model's rows
    /// has one window open at a time, and so needs one of them.
    pub contexts: Pool<Box<dyn Decoder + Send + 'h>>,
    /// Blocks whose memory can be used again.
    pub(super) blocks: Pool<RowBlock>,
    ahead: Mutex<ReadAhead>,
}

/// Where the rows of a reference come from.
pub(super) enum Origin<'h> {
    /// A file whose blocks of rows can be read in any order.
    Blocks(Box<dyn ReadBlocks>),
    /// A file that can only be read from its start.
    Stream(Mutex<Stream>),
    /// A file of hidden states, and the head that makes rows of them: several windows use it in turn,
    /// one product at a time.
    States {
        file: Box<NativeReader>,
        states: States,
        head: Mutex<Box<dyn Head + 'h>>,
    },
    /// A second model, which runs over these windows in contexts that the caller adds.
    Model(Vec<WindowSpec>),
    /// Rows in memory.
    Kept(&'h KeptRows),
}

/// The blocks that the system is asked to fetch before they are read.
#[derive(Default)]
struct ReadAhead {
    /// The windows whose blocks it has not been asked for, and the next block of the first.
    windows: VecDeque<usize>,
    next_block: u32,
    /// Blocks asked for and not yet read.
    n_ahead: usize,
}

/// Where rows are computed, and how far they are from the model's own.
#[derive(Serialize, Debug, Clone, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "HereInfo"))]
pub struct RowsHere {
    /// The device: `CPU`, `CUDA0`.
    pub device: String,
    /// The distance of the rows that the file also holds as the model gave them from those computed
    /// here. No rows: the file is a part without the window that they are of.
    #[serde(flatten)]
    pub error: RowError,
    /// True if all of them are equal to the bit; null without rows.
    pub is_exact: Option<bool>,
    /// True if the evaluated model's own head is the same, so that memory holds it once.
    pub shares_model_head: bool,
}

impl RowsHere {
    /// Returns true if an accelerator computes them.
    pub fn is_on_device(&self) -> bool {
        self.device != "CPU"
    }
}

impl<'h> ReferenceSource<'h> {
    /// Opens the rows of a reference. Of hidden states, `make` prepares the head, which is checked.
    pub(super) fn open(
        reference: Reference,
        make: impl FnOnce(&States, &mut dyn Read) -> Result<Box<dyn Head + 'h>, EngineError>,
    ) -> Result<(Self, Option<RowsHere>), Error> {
        let about = reference.about();
        let (n_vocab, values) = (about.n_vocab, about.values);
        let windows = reference.windows().unwrap_or_default().to_vec();
        let path = reference.path().display().to_string();
        let mut here = None;
        let origin = match reference.into_rows() {
            Rows::Blocks(blocks) => Origin::Blocks(blocks),
            Rows::Stream(reader) => Origin::Stream(Mutex::new(Stream::new(reader, n_vocab))),
            Rows::Model(windows) => Origin::Model(windows),
            Rows::States(file, states) => {
                let mut head = make(&states, &mut *file.head()).map_err(|cause| match cause {
                    // The file's own error has its path.
                    EngineError::ReadHead(error)
                        if error.get_ref().is_some_and(|e| e.is::<kl_formats::Error>()) =>
                    {
                        Error::Reference(error.to_string())
                    }
                    cause => Error::Reference(format!("{path}: {cause}")),
                })?;
                here = Some(check(&path, &file, &states, &windows, &mut *head)?);
                let head = Mutex::new(head);
                Origin::States { file, states, head }
            }
        };
        let source = Self {
            n_vocab: n_vocab as usize,
            is_floored: values == Values::FlooredLogProbabilities,
            ..Self::new(origin)
        };
        Ok((source, here))
    }

    /// Rows that are in memory.
    pub(super) fn kept(rows: &'h KeptRows) -> Self {
        Self {
            n_vocab: rows.n_vocab(),
            is_floored: rows.is_floored(),
            ..Self::new(Origin::Kept(rows))
        }
    }

    fn new(origin: Origin<'h>) -> Self {
        Self {
            origin,
            n_vocab: 0,
            is_floored: false,
            device: None,
            contexts: Pool::default(),
            blocks: Pool::default(),
            ahead: Mutex::default(),
        }
    }

    /// The file's blocks, of rows or of hidden states; `None` where it has none.
    fn file_blocks(&self) -> Option<&dyn ReadBlocks> {
        match &self.origin {
            Origin::Blocks(blocks) => Some(&**blocks),
            Origin::States { file, .. } => Some(&**file),
            Origin::Stream(_) | Origin::Model(_) | Origin::Kept(_) => None,
        }
    }

    /// The window at an index in the reference; `None` for a stream.
    pub(super) fn window(&self, i: usize) -> Result<Option<WindowSpec>, Error> {
        Ok(match (&self.origin, self.file_blocks()) {
            (_, Some(blocks)) => Some(blocks.window(i)?),
            (Origin::Model(windows), _) => windows.get(i).cloned(),
            (Origin::Kept(rows), _) => rows.windows().get(i).cloned(),
            _ => None,
        })
    }

    /// Reads the windows at these indices, in this order.
    pub(super) fn read_in_order(&mut self, windows: VecDeque<usize>) {
        self.ahead = Mutex::new(ReadAhead {
            windows,
            ..ReadAhead::default()
        });
    }

    /// Notes that so many more blocks were read, and asks for the next ones, a bounded number ahead.
    pub(super) fn have_read(&self, n_blocks: usize) {
        let Some(blocks) = self.file_blocks() else {
            return;
        };
        let mut ahead = locked(&self.ahead);
        ahead.n_ahead = ahead.n_ahead.saturating_sub(n_blocks);
        while ahead.n_ahead < BLOCKS_AHEAD
            && let Some(&window) = ahead.windows.front()
        {
            if ahead.next_block == blocks.n_blocks(window) {
                ahead.windows.pop_front();
                ahead.next_block = 0;
            } else {
                blocks.prefetch(window, ahead.next_block);
                ahead.next_block += 1;
                ahead.n_ahead += 1;
            }
        }
    }
}

/// Computes the rows that the file also holds as the model gave them, each in its batch, and compares
/// both.
fn check(
    path: &str,
    file: &NativeReader,
    states: &States,
    windows: &[WindowEntry],
    head: &mut dyn Head,
) -> Result<RowsHere, Error> {
    let mut error = RowError::default();
    let own = file.check_rows()?;
    let mut piece = None;
    for (i, window) in windows.iter().enumerate() {
        for group in states.row_batches(window) {
            let of_group = states.check.rows.iter().zip(&own).filter_map(|(row, own)| {
                let index = row.position.checked_sub(window.first_scored)?;
                let is_here = row.window == window.window && group.contains(&index);
                is_here.then(|| ((index - group.start) as usize, own))
            });
            let of_group: Vec<_> = of_group.collect();
            if of_group.is_empty() {
                continue;
            }
            let computed = head.rows(&file.read_states(i, group, &mut piece)?)?;
            for (column, own) in of_group {
                let again = &computed[column * own.len()..][..own.len()];
                let compared = RowError::each(&[own], again).into_iter();
                compared.for_each(|row| error += row);
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
