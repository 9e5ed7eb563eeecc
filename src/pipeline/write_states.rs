//! Writes a model's hidden states into a reference, and computes some of their rows again to see
//! that the file holds them.

use std::collections::HashMap;
use std::io::Write;
use std::time::{Duration, Instant};

use kl_formats::{Calls, StateType, WindowSpec, Writer};

use super::parallel_writer::Sink;
use super::recompute::Recompute;
use super::write::{Written, write_rows};
use super::{Error, Step};
use crate::engine::{Decoder, Head};
use crate::score::Recomputed;

/// Hidden states as they are written, and how some of them are checked.
pub struct StateWriting<H> {
    /// Numbers in a state.
    pub n_embd: usize,
    /// How they are stored.
    pub state_type: StateType,
    /// How windows are split.
    pub calls: Calls,
    /// The largest KL divergence of a computed row from the model's own that is accepted, in nats;
    /// `None`: rows must be equal to the bit.
    pub tolerance: Option<f64>,
    /// Computes rows again.
    pub recompute: Recompute<H>,
    /// The states of windows that were decoded and checked already, by the windows' numbers.
    pub known: HashMap<u32, Vec<f32>>,
    /// What was checked so far.
    pub checked: Recomputed,
    /// How long that took.
    pub check_time: Duration,
}

/// Runs `decoder` over `windows` and writes the hidden states of their scored positions. Of each
/// window that is not known yet, some rows of one decode call are checked, and all of that call where
/// these do not agree. `states` counts them, also if this fails.
///
/// `on_step` is called for every decode call and for each window.
///
/// # Errors
/// Those of [`write_reference`](super::write_reference), and [`Error::RowMoved`] for the first row
/// that is not near enough to the model's own.
pub fn write_states<D: Decoder, H: Head, W: Write + Send + 'static>(
    decoder: &mut D,
    states: &mut StateWriting<H>,
    windows: &[WindowSpec],
    writer: Writer<W>,
    on_step: impl FnMut(Step<&WindowSpec>) -> Result<(), Error>,
) -> Result<Written<W>, Error> {
    let checked_before = states.check_time;
    let mut written = write_rows(
        |window, sink| match states.known.remove(&window.window) {
            Some(known) => states.write_known(&known, sink),
            None => states.write_decoded(decoder, window, sink),
        },
        windows,
        writer,
        on_step,
    )?;
    let checking = states.check_time - checked_before;
    written.timing.decode = written.timing.decode.saturating_sub(checking);
    Ok(written)
}

impl<H: Head> StateWriting<H> {
    /// Hands over a window's states, as many at a time as a decode call may bring.
    fn write_known(&self, known: &[f32], sink: Sink<'_>) -> Result<(), Error> {
        for call in known.chunks(self.n_embd * self.calls.n_batch.max(1) as usize) {
            sink(&self.split(call))?;
        }
        Ok(())
    }

    fn write_decoded<D: Decoder>(
        &mut self,
        decoder: &mut D,
        window: &WindowSpec,
        sink: Sink<'_>,
    ) -> Result<(), Error> {
        let to_check = call_to_check(window, self.calls);
        let mut n_before = 0;
        decoder.decode_states(
            window,
            |positions| positions.start == to_check,
            |outputs| {
                if outputs.rows.is_some() {
                    let started = Instant::now();
                    let mut rows = self.recompute.compare_some(outputs, self.state_type)?;
                    if !rows.iter().all(|row| self.accepts(row)) {
                        rows = self.recompute.compare(outputs, self.state_type)?;
                    }
                    self.count(&rows, window, n_before)?;
                    self.check_time += started.elapsed();
                }
                let states = self.split(outputs.states);
                n_before += states.len();
                sink(&states)
            },
        )
    }

    /// Counts rows of one decode call of a window: those compared, which are all of the call, the
    /// first being the window's row `n_before`, unless they all agree.
    fn count(
        &mut self,
        rows: &[Recomputed],
        window: &WindowSpec,
        n_before: usize,
    ) -> Result<(), Error> {
        for (index, &row) in rows.iter().enumerate() {
            self.checked += row;
            if !self.accepts(&row) {
                return Err(Error::RowMoved {
                    window: window.window,
                    position: window.first_scored as usize + n_before + index,
                    kld: row.max_kld,
                });
            }
        }
        Ok(())
    }

    fn accepts(&self, row: &Recomputed) -> bool {
        match self.tolerance {
            Some(most) => row.max_kld <= most,
            None => row.is_exact(),
        }
    }

    fn split<'s>(&self, states: &'s [f32]) -> Vec<&'s [f32]> {
        states.chunks_exact(self.n_embd.max(1)).collect()
    }
}

/// The first position of the decode call of a window whose rows are checked: one of those with
/// scored positions, in turn from window to window.
fn call_to_check(window: &WindowSpec, calls: Calls) -> usize {
    let n_tokens = window.n_decoded();
    let mut next = u64::from(window.first_scored);
    let starts: Vec<u64> = std::iter::from_fn(|| {
        let call = (next < n_tokens).then(|| calls.call(n_tokens, next))?;
        next = call.end;
        Some(call.start)
    })
    .collect();
    let turn = window.window as usize % starts.len().max(1);
    starts.get(turn).map_or(0, |&start| start as usize)
}

#[cfg(test)]
mod tests {
    use kl_formats::{About, HeadCheck, Header, States, native};

    use super::*;
    use crate::engine::{ContextOptions, Engine as _, EngineError, FakeEngine, Model as _};
    use crate::input::{Plan, ScoreFrom, Windowing};

    /// A head that adds something to the first logit of each product after some of them.
    struct Failing<H> {
        head: H,
        after: usize,
        error: f32,
        rows: Vec<f32>,
    }

    impl<H: Head> Head for Failing<H> {
        fn n_vocab(&self) -> usize {
            self.head.n_vocab()
        }

        fn rows(&mut self, states: &[f32]) -> Result<&[f32], EngineError> {
            self.rows = self.head.rows(states)?.to_vec();
            match self.after.checked_sub(1) {
                Some(after) => self.after = after,
                None => self.rows[0] += self.error,
            }
            Ok(&self.rows)
        }

        fn device(&self) -> &str {
            self.head.device()
        }

        fn is_shared(&self) -> bool {
            self.head.is_shared()
        }
    }

    /// Writes 9 windows of 15 rows, in calls of 4 tokens, with a head that adds `error` to a logit
    /// after `after` products. The states of the first window are known.
    fn written_with(
        after: usize,
        error: f32,
        tolerance: Option<f64>,
    ) -> (Result<(), Error>, Recomputed) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        std::fs::write(&path, "a model").unwrap();
        let model = FakeEngine::default().load(&path, &Default::default());
        let model = model.unwrap();
        let options = ContextOptions {
            n_ctx: 16,
            n_batch: 4,
            n_ubatch: 4,
            threads: 1,
            states: true,
            ..ContextOptions::default()
        };
        let windowing = Windowing {
            n_ctx: 16,
            stride: None,
            score: ScoreFrom::Text,
            max_windows: None,
        };
        let tokens: Vec<u32> = (0..135).map(|i| 1 + i % 100).collect();
        let windows = Plan::cut(&tokens, &windowing, Some(0)).windows;
        let head = model.hashed_head().unwrap();
        let states = States {
            n_embd: head.n_embd,
            state_type: StateType::F16,
            head: head.tensor.clone(),
            then: Vec::new(),
            n_batch: 4,
            n_ubatch: 4,
            equal_calls: false,
            check: HeadCheck::default(),
        };
        let mut about = About::new(native::KIND, "", 16, 128);
        about.states = Some(states.clone());
        let header = Header::new(&about, kl_formats::Encoding::Hidden, &windows);
        let mut writer = Writer::native(Vec::new(), &path, &header).unwrap();
        let section = || model.read_head_tensor(&head).unwrap();
        writer.write_head(section(), &[]).unwrap();
        let failing = Failing {
            head: model.head(&states, &mut section(), 1).unwrap(),
            after,
            error,
            rows: Vec::new(),
        };
        let mut decoder = model.decoder(&options).unwrap();
        let mut first = Vec::new();
        let known = decoder.decode_states(
            &windows[0],
            |_| false,
            |outputs| {
                first.extend_from_slice(outputs.states);
                Ok::<(), Error>(())
            },
        );
        known.unwrap();
        let mut writing = StateWriting {
            n_embd: states.n_embd as usize,
            state_type: StateType::F16,
            calls: options.calls(),
            tolerance,
            recompute: Recompute::new(failing),
            known: HashMap::from([(0, first)]),
            checked: Recomputed::default(),
            check_time: Duration::ZERO,
        };
        let written = write_states(&mut decoder, &mut writing, &windows, writer, |_| Ok(()));
        (written.map(|_| ()), writing.checked)
    }

    #[test]
    fn every_window_but_those_known_is_checked() {
        let (written, checked) = written_with(usize::MAX, 0.0, None);
        written.unwrap();
        // Windows 4 and 8 check their first call, which has the unscored BOS.
        assert_eq!(checked.n_rows, 8 * 4 - 2);
        assert!(checked.is_exact());
    }

    #[test]
    fn the_first_row_that_is_not_near_enough_stops_the_run() {
        // The second product is that of window 2, in its third call.
        let (written, checked) = written_with(1, 1e-3, None);
        let error = written.unwrap_err();
        let Error::RowMoved {
            window,
            position,
            kld,
        } = error
        else {
            panic!("{error}")
        };
        assert_eq!((window, position), (2, 8));
        assert!(kld > 0.0 && kld < 1e-6, "{kld}");
        assert_eq!((checked.n_rows, checked.n_moved), (5, 1));
        // Near enough where a tolerance is given.
        let (written, checked) = written_with(1, 1e-3, Some(1e-4));
        written.unwrap();
        assert_eq!((checked.n_rows, checked.n_moved), (30, 7));
        let (written, _) = written_with(1, 3.0, Some(1e-4));
        assert!(written.is_err());
    }

    #[test]
    fn each_call_with_scored_positions_has_its_turn() {
        let checked = |window, first_scored, n_rows| {
            let window = WindowSpec {
                window,
                tokens: Vec::new(),
                first_scored,
                n_rows,
            };
            let calls = Calls {
                n_batch: 16,
                n_ubatch: 8,
                is_equal: false,
            };
            call_to_check(&window, calls)
        };
        let of_windows = |first_scored, n_rows| {
            let calls = (0..6).map(|window| checked(window, first_scored, n_rows));
            calls.collect::<Vec<_>>()
        };
        assert_eq!(of_windows(1, 63), [0, 16, 32, 48, 0, 16]);
        assert_eq!(of_windows(32, 32), [32, 48, 32, 48, 32, 48]);
        assert_eq!(of_windows(20, 5), [16; 6]);
        assert_eq!(of_windows(60, 5), [48, 64, 48, 64, 48, 64]);
    }
}
