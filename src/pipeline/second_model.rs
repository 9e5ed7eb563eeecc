//! Rows of the reference that a second model computes: it decodes each batch of a window right after
//! the evaluated model, so that both batches of rows are scored where they are.

use std::sync::Mutex;

use kl_formats::{About, ReadBlocks, Reference, RowBlock, Rows, WindowSpec};

use super::computed::{Batches, Computed};
use super::device_clock::DeviceClock;
use super::order::Order;
use super::{Error, locked};
use crate::engine::{Decoder, EngineError};

/// The contexts of the second model that no window uses. Each source of the evaluated model's rows
/// has one window open at a time, and so needs one of them.
#[derive(Debug)]
pub struct Contexts<D>(Mutex<Vec<D>>);

impl<D> Default for Contexts<D> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<D> Contexts<D> {
    /// Adds a context.
    pub fn add(&self, context: D) {
        locked(&self.0).push(context);
    }
}

/// [`Contexts`], of whatever engine.
pub(super) trait SharedContexts: Sync {
    /// Takes a context, which comes back when it is dropped; `None` if all are in use.
    fn take(&self) -> Option<Box<dyn Steps + '_>>;
}

impl<D: Decoder + Send> SharedContexts for Contexts<D> {
    fn take(&self) -> Option<Box<dyn Steps + '_>> {
        let context = Some(locked(&self.0).pop()?);
        Some(Box::new(Taken {
            context,
            idle: self,
        }))
    }
}

/// A context that decodes a window call by call.
pub(super) trait Steps {
    /// Runs one decode call from `start` on, on `device` if that is measured, hands `use_rows` its
    /// rows, and returns where the next call starts: see [`Decoder::step`].
    ///
    /// # Errors
    /// Why the model cannot decode.
    fn step(
        &mut self,
        window: &WindowSpec,
        start: usize,
        device: Option<&DeviceClock>,
        use_rows: &mut dyn FnMut(&[&[f32]]),
    ) -> Result<Option<usize>, EngineError>;
}

struct Taken<'c, D> {
    /// Present until this is dropped.
    context: Option<D>,
    idle: &'c Contexts<D>,
}

impl<D: Decoder> Steps for Taken<'_, D> {
    fn step(
        &mut self,
        window: &WindowSpec,
        start: usize,
        device: Option<&DeviceClock>,
        use_rows: &mut dyn FnMut(&[&[f32]]),
    ) -> Result<Option<usize>, EngineError> {
        let Some(context) = &mut self.context else {
            return Ok(None);
        };
        let call = device.map(DeviceClock::begin);
        let (next, rows) = context.step(window, start)?;
        drop(call);
        use_rows(&rows);
        Ok(next)
    }
}

impl<D> Drop for Taken<'_, D> {
    fn drop(&mut self) {
        if let Some(context) = self.context.take() {
            self.idle.add(context);
        }
    }
}

/// A reference of these windows, without their rows.
#[must_use]
pub fn reference_of_windows(about: About, windows: Vec<WindowSpec>) -> Reference {
    let entries = windows.iter().map(WindowSpec::entry).collect();
    let rows = Rows::Blocks(Box::new(WindowsOnly(windows)));
    Reference::new(about, Some(entries), rows)
}

/// Windows without rows.
#[derive(Debug)]
struct WindowsOnly(Vec<WindowSpec>);

impl ReadBlocks for WindowsOnly {
    fn rows_per_block(&self) -> u32 {
        1
    }

    fn n_blocks(&self, _i: usize) -> u32 {
        0
    }

    fn window(&self, i: usize) -> kl_formats::Result<WindowSpec> {
        Ok(self.0[i].clone())
    }

    fn block(&self, i: usize, b: u32, _: Option<RowBlock>) -> kl_formats::Result<RowBlock> {
        panic!("window {i} has no block {b}: its rows are computed")
    }
}

/// The rows of chosen windows, in their order.
pub(super) struct ModelRows<'c> {
    windows: Box<dyn ReadBlocks>,
    contexts: &'c dyn SharedContexts,
    device: Option<DeviceClock>,
    n_vocab: usize,
    order: Order,
}

impl<'c> ModelRows<'c> {
    pub(super) fn new(
        windows: Box<dyn ReadBlocks>,
        contexts: &'c dyn SharedContexts,
        device: Option<DeviceClock>,
        n_vocab: usize,
        order: Vec<usize>,
    ) -> Self {
        Self {
            windows,
            contexts,
            device,
            n_vocab,
            order: Order::new(order),
        }
    }

    /// The window that comes next.
    pub(super) fn peek(&self) -> Result<Option<WindowSpec>, Error> {
        let next = self.order.peek();
        Ok(next.map(|i| self.windows.window(i)).transpose()?)
    }

    /// Leaves out the window that comes next.
    pub(super) fn skip(&mut self) {
        self.order.skip();
    }

    pub(super) fn next_window(&self) -> Result<Option<(WindowSpec, Computed<'_>)>, Error> {
        let Some(i) = self.order.next() else {
            return Ok(None);
        };
        let window = self.windows.window(i)?;
        let batches = WindowBatches {
            context: self.contexts.take().ok_or(Error::WorkerLost)?,
            window: window.clone(),
            start: Some(0),
            device: self.device.as_ref(),
        };
        Ok(Some((window, Computed::new(batches, self.n_vocab))))
    }
}

/// The batches of a window.
struct WindowBatches<'c> {
    context: Box<dyn Steps + 'c>,
    window: WindowSpec,
    /// Where the next decode call starts; `None` after the last.
    start: Option<usize>,
    device: Option<&'c DeviceClock>,
}

impl Batches for WindowBatches<'_> {
    fn next(&mut self, mut skip: usize, use_rows: &mut dyn FnMut(&[&[f32]])) -> Result<(), Error> {
        while let Some(start) = self.start {
            let mut has_come = false;
            let of_call = &mut |rows: &[&[f32]]| match rows.get(skip..) {
                Some(wanted) if !wanted.is_empty() => {
                    has_come = true;
                    use_rows(wanted);
                }
                _ => skip -= rows.len(),
            };
            self.start = self
                .context
                .step(&self.window, start, self.device, of_call)?;
            if has_come {
                return Ok(());
            }
        }
        let found = "fewer rows than a window has".to_owned();
        Err(Error::Inconsistent { found })
    }
}
