//! A model on the CPU that is larger than the memory: its weights are read from the disk once for each
//! physical batch, so a batch holds as many windows as there is room for.

use anyhow::Result;
use kl_engine::{ContextOptions, DeviceKind, Engine, Model, ModelFacts};
use kl_formats::{BackendIdentity, Calls};
use kl_report::number::{bytes, count_of, duration};

use super::{Decoding, MAX_N_SEQ, Split};
use crate::commands::observer::{Event, Watch};
use crate::commands::settings::RunSettings;

/// A context gets this share of the memory that is available, at most. The rest is for the weights at work: the
/// threads go over a matrix several times.
const MEMORY_SHARE: u64 = 2;

/// The weights of a model that do not fit into the memory beside a context.
#[derive(Debug, Clone, Copy)]
pub struct ReadFromDisk {
    weights: u64,
    /// Bytes of memory that are available.
    available: u64,
}

impl ReadFromDisk {
    /// Recognises such a model, and gives its calls as many windows as there is room for, all in one
    /// physical batch, unless the user has set the calls, or the run that is resumed (`begun`) has chosen
    /// them. `n_windows`: how many there are, if that is known.
    ///
    /// # Errors
    /// If the engine cannot be started, or a context of one window not be created.
    pub fn recognize(
        options: &mut ContextOptions,
        run: &RunSettings,
        (decoding, n_windows): (Decoding, Option<usize>),
        begun: Option<&BackendIdentity>,
        (engine, model): (&dyn Engine, &dyn Model),
    ) -> Result<Option<Self>> {
        let devices = engine.devices()?;
        let least_free = |is_counted: fn(DeviceKind) -> bool| {
            devices
                .iter()
                .filter(|device| is_counted(device.kind))
                .map(|device| device.memory_free)
                .min()
        };
        let weights = model.facts().loaded_bytes;
        let available = least_free(|kind| kind == DeviceKind::Cpu).unwrap_or(u64::MAX);
        if decoding.is_accelerated || weights <= available / MEMORY_SHARE {
            return Ok(None);
        }
        let options_with = |n_seq| ContextOptions {
            calls: in_one_batch(options.n_ctx, n_seq),
            n_seq,
            has_own_caches: n_seq > 1,
            ..options.clone()
        };
        let bytes_needed = |n_seq| -> Result<u64> {
            let n_rows = u64::from(decoding.window_rows.min(options.n_ctx)) * u64::from(n_seq);
            let row_bytes = 4 * u64::from(decoding.n_vocab) * n_rows;
            Ok(model.decoder(&options_with(n_seq))?.context_bytes() + row_bytes)
        };
        let bytes_of_one = bytes_needed(1)?;
        if weights.saturating_add(bytes_of_one) <= available {
            return Ok(None);
        }
        let is_set = run.n_batch.or(run.n_ubatch).or(run.n_parallel).is_some();
        if let Some(begun) = begun.and_then(Split::recorded).filter(|_| !is_set) {
            *options = ContextOptions {
                calls: begun.calls,
                ..options_with(begun.n_seq)
            };
        } else if !is_set {
            let mut n_seq = 1;
            if decoding.is_together {
                // A GPU that holds no layers computes large batches, in buffers of its own.
                let free = least_free(|kind| kind == DeviceKind::Cpu || kind.is_gpu())
                    .unwrap_or(available);
                let bytes_of_two = bytes_needed(2)?;
                n_seq = windows_at_once(bytes_of_one, bytes_of_two, free / MEMORY_SHARE, n_windows);
            }
            *options = options_with(n_seq);
        }
        Ok(Some(Self { weights, available }))
    }

    /// Tells how often the weights are read over `n_windows` windows, if that is known, and how long it takes.
    pub fn announce(
        self,
        options: &ContextOptions,
        n_windows: Option<usize>,
        facts: &ModelFacts,
        watch: &Watch<'_>,
    ) {
        let [weights, available] = [self.weights, self.available].map(bytes);
        let mut text = format!(
            "{weights} of weights, {available} free: read from the disk once for each physical batch"
        );
        if let Some(n_windows) = n_windows {
            let n_tokens = n_windows as u64 * u64::from(options.n_ctx);
            let n_batches = n_tokens.div_ceil(u64::from(options.calls.n_ubatch.max(1)));
            let total = bytes(n_batches.saturating_mul(self.weights));
            let time = duration(n_batches as f64 * facts.load_time.as_secs_f64());
            let times = count_of(n_batches, "time");
            text += &format!(": {times}, {total} in all, {time} at the pace of loading");
        }
        watch.event(&Event::Plan("memory", &text));
    }
}

/// The calls of a context that computes `n_seq` whole windows at once.
fn in_one_batch(n_ctx: u32, n_seq: u32) -> Calls {
    let n_tokens = n_ctx.saturating_mul(n_seq);
    Calls {
        n_batch: n_tokens,
        n_ubatch: n_tokens,
        is_equal: false,
    }
}

/// Most windows of a context that may have `room` bytes, where contexts of one and of two windows need `one`
/// and `two`: of `n_windows`, all calls get about as many.
fn windows_at_once(one: u64, two: u64, room: u64, n_windows: Option<usize>) -> u32 {
    let n_more = room.saturating_sub(one) / two.saturating_sub(one).max(1);
    let max_windows = n_more.saturating_add(1).min(MAX_N_SEQ.into());
    let n_windows = n_windows.map_or(max_windows, |n| n.max(1) as u64);
    let n_calls = n_windows.div_ceil(max_windows);
    n_windows.div_ceil(n_calls) as u32
}

#[cfg(test)]
mod tests {
    use super::windows_at_once;

    #[test]
    fn a_batch_holds_the_windows_that_there_is_room_for() {
        let windows = |room, n_windows| windows_at_once(30, 50, room, n_windows);
        assert_eq!(windows(0, None), 1);
        assert_eq!(windows(69, None), 2);
        assert_eq!(windows(70, None), 3);
        assert_eq!(windows(u64::MAX, None), 64);
        // Four calls at least.
        assert_eq!(windows(70, Some(10)), 3);
        assert_eq!(windows(90, Some(10)), 4);
        assert_eq!(windows(110, Some(10)), 5);
        assert_eq!(windows(110, Some(6)), 3);
        assert_eq!(windows(110, Some(0)), 1);
        assert_eq!(windows_at_once(30, 30, 20, None), 1);
    }
}
