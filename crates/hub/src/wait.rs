//! Waiting for a hub, in such a way that the caller can stop it.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;

use super::{HubFault, HubStep, HubWatch};

/// The time between two questions to the caller whether to stop.
pub const TICK: Duration = Duration::from_millis(200);

/// The repeats of a request without progress, and the wait before the next one.
pub struct Patience {
    repeated: u32,
    wait: Duration,
    /// The bytes that had arrived when the count of repeats began.
    furthest: u64,
}

impl Patience {
    /// The patience of a request that waits for `wait` before it is repeated for the first time.
    pub fn new(wait: Duration) -> Self {
        Self {
            repeated: 0,
            wait,
            furthest: 0,
        }
    }

    /// Waits before a request is repeated: as long as the hub asks, or twice as long as before. `arrived`: the
    /// bytes of the file that have arrived so far.
    ///
    /// # Errors
    /// The fault, if repeating will not help or has not helped.
    pub fn wait(
        &mut self,
        fault: HubFault,
        arrived: u64,
        watch: &HubWatch,
    ) -> Result<(), HubFault> {
        const MOST: u32 = 5;
        const LONGEST: Duration = Duration::from_secs(600);
        /// Less in a connection is no progress: some servers would send a file byte by byte.
        const PROGRESS: u64 = 1 << 16;
        let HubFault::Passing(why, asked) = fault else {
            return Err(fault);
        };
        if arrived.saturating_sub(self.furthest) >= PROGRESS {
            (self.repeated, self.furthest) = (0, arrived);
        }
        let wait = asked.unwrap_or(self.wait * 2_u32.pow(self.repeated));
        let in_s = format!("in {} s", wait.as_secs());
        if self.repeated == MOST || wait > LONGEST {
            return Err(anyhow!("{why}: repeat the call {in_s}, to continue").into());
        }
        self.repeated += 1;
        report(
            watch,
            HubStep::Message(&format!("{why}: trying again {in_s}")),
        )?;
        let until = Instant::now() + wait;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            thread::sleep(TICK.min(left));
            report(watch, HubStep::Arrived(arrived))?;
        }
        Ok(())
    }
}

/// Reports a step to the caller.
///
/// # Errors
/// If the caller stops.
pub fn report(watch: &HubWatch, step: HubStep) -> Result<(), HubFault> {
    if watch(step) {
        Err(HubFault::Stopped)
    } else {
        Ok(())
    }
}
