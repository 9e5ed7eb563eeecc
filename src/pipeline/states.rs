//! Hidden states in place of a model's rows: writes them, and computes some of the rows again, as a
//! reader will, to see that the file holds them.

use std::collections::HashMap;
use std::io::Write;
use std::time::{Duration, Instant};

use kl_formats::{Calls, Float, WindowSpec, Writer};

use super::in_turn::{LogitSource, Sources};
use super::write::{Written, write_reference};
use super::{Error, Step};
use crate::engine::{Decoder, Head, Outputs};
use crate::score::RowError;

/// Rows of a decode call that are compared where not all are.
const N_SAMPLED: usize = 16;

/// Computes rows again from hidden states, and compares them with the model's own.
pub struct RowCheck<H> {
    head: H,
    /// The largest KL divergence of a computed row from the model's own that is accepted, in nats;
    /// `None`: rows must be equal to the bit.
    tolerance: Option<f64>,
    /// States as a file holds them, and as a reader finds them there.
    bytes: Vec<u8>,
    states: Vec<f32>,
}

impl<H: Head> RowCheck<H> {
    /// Computes rows with `head`.
    pub fn new(head: H, tolerance: Option<f64>) -> Self {
        Self {
            head,
            tolerance,
            bytes: Vec::new(),
            states: Vec::new(),
        }
    }

    /// Returns whether these rows are near enough to the model's own.
    pub fn accepts(&self, rows: &RowError) -> bool {
        match self.tolerance {
            Some(most) => rows.max_kld <= most,
            None => rows.is_exact(),
        }
    }

    /// Compares each row of a decode call, in order, with what its state gives once it is stored in
    /// `state_type`; nothing where the call gave no rows.
    ///
    /// # Errors
    /// Those of the head.
    pub fn compare(
        &mut self,
        outputs: &Outputs<'_>,
        state_type: Float,
    ) -> Result<Vec<RowError>, Error> {
        let mut compared = Vec::new();
        let (mut states, mut rows) = (outputs.states, outputs.rows.unwrap_or_default());
        let n_embd = states.len() / rows.len().max(1);
        for &n in outputs.groups {
            let group = states
                .split_at_checked(n * n_embd)
                .zip(rows.split_at_checked(n));
            let ((group, more), (own, more_rows)) = group.ok_or_else(Error::too_few_rows)?;
            compared.extend(self.compare_product(group, own, state_type)?);
            (states, rows) = (more, more_rows);
        }
        Ok(compared)
    }

    /// Compares some rows of the call, evenly spread, in one small product, and all of them only if
    /// these are not near enough. Kernels may differ for another number of rows, so only rows that
    /// agree say something.
    fn compare_some(
        &mut self,
        outputs: &Outputs<'_>,
        state_type: Float,
    ) -> Result<Vec<RowError>, Error> {
        let rows = outputs.rows.unwrap_or_default();
        if rows.len() > N_SAMPLED {
            let n_embd = outputs.states.len() / rows.len();
            let (mut states, mut own) = (Vec::new(), Vec::new());
            for i in 0..N_SAMPLED {
                let row = i * (rows.len() - 1) / (N_SAMPLED - 1);
                states.extend_from_slice(&outputs.states[row * n_embd..][..n_embd]);
                own.push(rows[row]);
            }
            let some = self.compare_product(&states, &own, state_type)?;
            if some.iter().all(|row| self.accepts(row)) {
                return Ok(some);
            }
        }
        self.compare(outputs, state_type)
    }

    fn compare_product(
        &mut self,
        states: &[f32],
        own: &[&[f32]],
        state_type: Float,
    ) -> Result<Vec<RowError>, Error> {
        self.round(states, state_type);
        let again = self.head.rows(&self.states)?;
        Ok(RowError::each(own, again))
    }

    /// Returns true if rounding these states to `state_type` leaves the rows that the head makes of
    /// them as they are, to the bit.
    ///
    /// # Errors
    /// Those of the head.
    pub fn is_rounding_exact(&mut self, states: &[f32], state_type: Float) -> Result<bool, Error> {
        let exact = self.head.rows(states)?.to_vec();
        self.round(states, state_type);
        let rounded = self.head.rows(&self.states)?;
        let mut logits = exact.iter().zip(rounded);
        Ok(logits.all(|(exact, rounded)| exact.to_bits() == rounded.to_bits()))
    }

    fn round(&mut self, states: &[f32], state_type: Float) {
        self.bytes.resize(states.len() * state_type.bytes(), 0);
        self.states.resize(states.len(), 0.0);
        state_type.encode(states, &mut self.bytes);
        state_type.decode(&self.bytes, &mut self.states);
    }
}

/// Hidden states as they are written, and how some of them are checked.
pub struct StateWriting<H> {
    /// Numbers in a state.
    pub n_embd: usize,
    /// The type in which they are stored.
    pub state_type: Float,
    /// The rule by which windows are split.
    pub calls: Calls,
    /// Computes rows again.
    pub check: RowCheck<H>,
    /// The states of windows that were decoded and checked already, by the windows' numbers.
    pub known: HashMap<u32, Vec<f32>>,
    /// The rows that were checked so far.
    pub checked: RowError,
    /// The time that the check took.
    pub check_time: Duration,
}

/// Runs `decoder` over `windows` and writes the hidden states of their scored positions. Of each
/// window that is not known yet, some rows of one decode call are checked, and all of that call where
/// these do not agree. `states` counts them, also if this fails.
///
/// `on_step` is called for every decode call and for each window.
///
/// # Errors
/// Those of [`write_reference`], and [`Error::RowMoved`] for the first row that is not near enough to
/// the model's own.
pub fn write_states<D: Decoder + Send, H: Head, W: Write + Send + 'static>(
    decoder: &mut D,
    states: &mut StateWriting<H>,
    windows: &[WindowSpec],
    writer: Writer<W>,
    on_step: impl FnMut(Step<&WindowSpec>) -> Result<(), Error>,
) -> Result<Written<W>, Error> {
    let source = StateSource {
        decoder,
        writing: &mut *states,
    };
    let mut written = write_reference(Sources::ready(source), windows, writer, on_step)?;
    written.timing.decode = written.timing.decode.saturating_sub(states.check_time);
    Ok(written)
}

/// A source of hidden states, which are written as rows are.
struct StateSource<'s, D, H> {
    decoder: &'s mut D,
    writing: &'s mut StateWriting<H>,
}

impl<D: Decoder, H: Head> LogitSource for StateSource<'_, D, H> {
    fn n_vocab(&self) -> usize {
        self.writing.n_embd
    }

    fn decode(
        &mut self,
        window: &WindowSpec,
        mut sink: impl FnMut(&[&[f32]]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let writing = &mut *self.writing;
        let n_embd = writing.n_embd.max(1);
        if let Some(known) = writing.known.remove(&window.window) {
            // As many at a time as a decode call may bring.
            let mut calls = known.chunks(n_embd * writing.calls.n_batch.max(1) as usize);
            return calls.try_for_each(|call| sink(&split(call, n_embd)));
        }
        let to_check = call_to_check(window, writing.calls);
        let wants_rows = |positions: std::ops::Range<usize>| positions.start == to_check;
        let mut n_before = 0;
        self.decoder.decode_states(window, wants_rows, |outputs| {
            if outputs.rows.is_some() {
                writing.check(window, n_before, outputs)?;
            }
            let states = split(outputs.states, n_embd);
            n_before += states.len();
            sink(&states)
        })
    }
}

fn split(states: &[f32], n_embd: usize) -> Vec<&[f32]> {
    states.chunks_exact(n_embd).collect()
}

impl<H: Head> StateWriting<H> {
    /// Checks a decode call, whose first row is the window's row `n_before`.
    fn check(
        &mut self,
        window: &WindowSpec,
        n_before: usize,
        outputs: &Outputs<'_>,
    ) -> Result<(), Error> {
        let started = Instant::now();
        // Those of all the call, unless they all agree.
        let rows = self.check.compare_some(outputs, self.state_type)?;
        for (index, row) in rows.iter().enumerate() {
            self.checked += *row;
            if !self.check.accepts(row) {
                return Err(Error::RowMoved {
                    window: window.window,
                    position: window.first_scored as usize + n_before + index,
                    kld: row.max_kld,
                });
            }
        }
        self.check_time += started.elapsed();
        Ok(())
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
    use kl_formats::{About, HeadCheck, Header, Kind, States};

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
    ) -> (Result<(), Error>, RowError) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        std::fs::write(&path, "a model").unwrap();
        let model = FakeEngine::default().load(&path, &Default::default());
        let model = model.unwrap();
        let options = ContextOptions {
            n_ctx: 16,
            calls: Calls {
                n_batch: 4,
                n_ubatch: 4,
                is_equal: false,
            },
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
            state_type: Float::F16,
            head: head.tensor.clone(),
            then: Vec::new(),
            n_batch: 4,
            n_ubatch: 4,
            equal_calls: false,
            check: HeadCheck::default(),
        };
        let mut about = About::new(Kind::Kl, "", 16, 128);
        about.states = Some(states.clone());
        let header = Header::new(&about, kl_formats::Encoding::Hidden, &windows);
        let mut writer = Writer::native(Vec::new(), &path, &header).unwrap();
        let section = || model.read_head().unwrap();
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
            state_type: Float::F16,
            calls: options.calls,
            check: RowCheck::new(failing, tolerance),
            known: HashMap::from([(0, first)]),
            checked: RowError::default(),
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
