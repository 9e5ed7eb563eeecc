//! Reads references of hidden states: a batch of rows is one product of the head with the states
//! that the writer's llama.cpp multiplied together, so that the rows are its own to the bit.
//!
//! States are read just before they are used: a window's are a thousandth of its rows. The system is
//! told which window comes next.

use std::ops::Range;
use std::sync::Mutex;

use kl_formats::{ReadStates, WindowSpec};

use super::computed::{Batches, Computed};
use super::device_clock::DeviceClock;
use super::order::Order;
use super::spare::Spare;
use super::{Error, locked};
use crate::engine::{EngineError, Head};

/// A head that several windows use in turn, one product at a time. The rows of a product are used
/// before the next one begins; meanwhile another source can decode.
pub(super) trait SharedHead: Send + Sync {
    /// Hands `use_rows` the rows of `states`, one after another, where they were computed: on
    /// `device`, if that is measured.
    ///
    /// # Errors
    /// Why they cannot be computed.
    fn rows(
        &self,
        states: &[f32],
        device: Option<&DeviceClock>,
        use_rows: &mut dyn FnMut(&[f32]),
    ) -> Result<(), EngineError>;
}

impl<H: Head> SharedHead for Mutex<H> {
    fn rows(
        &self,
        states: &[f32],
        device: Option<&DeviceClock>,
        use_rows: &mut dyn FnMut(&[f32]),
    ) -> Result<(), EngineError> {
        let mut head = locked(self);
        let call = device.map(DeviceClock::begin);
        let rows = head.rows(states)?;
        drop(call);
        use_rows(rows);
        Ok(())
    }
}

/// The rows of chosen windows, in their order.
pub(super) struct StateRows<'h> {
    rows: Box<dyn ReadStates>,
    head: Box<dyn SharedHead + 'h>,
    device: Option<DeviceClock>,
    n_vocab: usize,
    order: Order,
    spare: Spare<Vec<f32>>,
}

impl<'h> StateRows<'h> {
    pub(super) fn new(
        rows: Box<dyn ReadStates>,
        head: Box<dyn SharedHead + 'h>,
        device: Option<DeviceClock>,
        n_vocab: usize,
        order: Vec<usize>,
    ) -> Self {
        Self {
            rows,
            head,
            device,
            n_vocab,
            order: Order::new(order),
            spare: Spare::default(),
        }
    }

    /// The window that comes next.
    pub(super) fn peek(&self) -> Result<Option<WindowSpec>, Error> {
        let next = self.order.peek();
        Ok(next.map(|i| self.rows.window(i)).transpose()?)
    }

    /// Leaves out the window that comes next.
    pub(super) fn skip(&mut self) {
        self.order.skip();
    }

    pub(super) fn next_window(&self) -> Result<Option<(WindowSpec, Computed<'_>)>, Error> {
        let Some(i) = self.order.next() else {
            return Ok(None);
        };
        if let Some(after) = self.order.peek() {
            self.rows.prefetch(after);
        }
        let spec = self.rows.window(i)?;
        let batches = WindowBatches {
            of: self,
            window: i,
            groups: Box::new(self.rows.states().groups(&spec.entry())),
            states: self.spare.take().unwrap_or_default(),
        };
        Ok(Some((spec, Computed::new(batches, self.n_vocab))))
    }
}

/// The batches of a window.
struct WindowBatches<'r> {
    of: &'r StateRows<'r>,
    /// The index of the window in the file.
    window: usize,
    /// Those that have not been computed.
    groups: Box<dyn Iterator<Item = Range<u32>> + Send>,
    /// The states of the last one.
    states: Vec<f32>,
}

impl Batches for WindowBatches<'_> {
    fn next(&mut self, skip: usize, use_rows: &mut dyn FnMut(&[&[f32]])) -> Result<(), Error> {
        let StateRows {
            rows,
            head,
            device,
            n_vocab,
            ..
        } = self.of;
        let mut skip = skip;
        for group in self.groups.by_ref() {
            let n_rows = group.len();
            if skip >= n_rows {
                skip -= n_rows;
                continue;
            }
            self.states.clear();
            rows.read(self.window, group, &mut self.states)?;
            head.rows(&self.states, device.as_ref(), &mut |logits| {
                let rows: Vec<&[f32]> = logits.chunks_exact(*n_vocab).skip(skip).collect();
                use_rows(&rows);
            })?;
            return Ok(());
        }
        let found = "fewer rows than a window has".to_owned();
        Err(Error::Inconsistent { found })
    }
}

impl Drop for WindowBatches<'_> {
    fn drop(&mut self) {
        self.of.spare.give(std::mem::take(&mut self.states));
    }
}
