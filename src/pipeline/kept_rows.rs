//! Rows that are used again: a reference's in memory, where many models are evaluated against the same
//! few windows, and a file's in place of a model's.

use std::collections::HashMap;
use std::sync::Mutex;

use kl_formats::WindowSpec;

use super::in_turn::{LogitSource, Progress, Sources, in_turn};
use super::reference_rows::ReferenceRows;
use super::timing::Timing;
use super::window_rows::{KeptWindow, OpenWindow};
use super::{Error, Pool, Step, locked};

/// Rows of logits of some windows, in memory.
#[derive(Debug)]
pub struct KeptRows {
    windows: Vec<WindowSpec>,
    /// The logits of each window's rows, n_rows x n_vocab.
    logits: Vec<Vec<f32>>,
    n_vocab: usize,
    is_floored: bool,
}

impl KeptRows {
    /// Takes the rows of these windows from their source: a model's contexts, or a file. `on_rows` is
    /// called with the number of new rows.
    ///
    /// # Errors
    /// Those of the source and of `on_rows`.
    pub fn keep<S: LogitSource>(
        sources: Sources<impl Fn() -> Result<S, Error> + Sync>,
        windows: Vec<WindowSpec>,
        mut on_rows: impl FnMut(usize) -> Result<(), Error>,
    ) -> Result<(Self, Timing), Error> {
        let jobs = Mutex::new(windows.iter());
        let mut kept = Self {
            windows: Vec::new(),
            logits: Vec::new(),
            n_vocab: 0,
            is_floored: false,
        };
        let timing = in_turn(
            sources,
            || Ok(locked(&jobs).next()),
            |source: &mut S, windows, progress| {
                let about = (source.n_vocab(), source.is_floored());
                let logits = logits_of(source, &windows, progress)?;
                Ok(logits.into_iter().map(|logits| (logits, about)).collect())
            },
            |step| match step {
                Step::Rows(n) => on_rows(n),
                Step::Window((logits, (n_vocab, is_floored))) => {
                    kept.logits.push(logits);
                    (kept.n_vocab, kept.is_floored) = (n_vocab, is_floored);
                    Ok(())
                }
            },
        )?;
        kept.windows = windows;
        Ok((kept, timing))
    }

    /// Bytes that the rows of a window take, each of `n_vocab` entries.
    pub fn bytes_of(window: &WindowSpec, n_vocab: u32) -> u64 {
        4 * u64::from(window.n_rows) * u64::from(n_vocab)
    }

    /// The windows whose rows are here.
    pub fn windows(&self) -> &[WindowSpec] {
        &self.windows
    }

    pub(super) fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    pub(super) fn is_floored(&self) -> bool {
        self.is_floored
    }

    pub(super) fn window(&self, i: usize) -> KeptWindow<'_> {
        KeptWindow {
            logits: self.logits.get(i).map_or(&[], Vec::as_slice),
            n_vocab: self.n_vocab.max(1),
        }
    }
}

/// Decodes windows, and copies their rows.
fn logits_of<S: LogitSource>(
    source: &mut S,
    windows: &[&WindowSpec],
    progress: &mut Progress<'_>,
) -> Result<Vec<Vec<f32>>, Error> {
    let n_vocab = source.n_vocab();
    let room = |spec: &&WindowSpec| Vec::with_capacity(spec.n_rows as usize * n_vocab);
    let mut logits: Vec<Vec<f32>> = windows.iter().map(room).collect();
    let in_copying = progress.decode(source, windows, |i, rows| {
        rows.iter().for_each(|row| logits[i].extend_from_slice(row));
        Ok(())
    })?;
    progress.timing.score += in_copying;
    Ok(logits)
}

/// A source of a file's rows.
pub struct FileRows<'r, 'h> {
    rows: &'r ReferenceRows<'h>,
    /// Its own windows, by the number of the window that is asked for, where they differ.
    windows: HashMap<u32, WindowSpec>,
    /// The memory of logits.
    used: Pool<Vec<f32>>,
}

impl<'r, 'h> FileRows<'r, 'h> {
    /// Hands out `rows`, whose windows come in the order in which they are asked for. `windows` holds
    /// the rows to use, by the number of the window that is asked for, where those are not its own.
    pub fn new(rows: &'r ReferenceRows<'h>, windows: HashMap<u32, WindowSpec>) -> Self {
        Self {
            rows,
            windows,
            used: Pool::default(),
        }
    }

    /// Goes on to the window with this number.
    fn find(&self, number: u32) -> Result<OpenWindow<'r>, Error> {
        while let Some(window) = self.rows.next_window()? {
            if window.spec.window == number {
                return Ok(window);
            }
        }
        Err(Error::inconsistent(&format!("no window {number}")))
    }
}

impl LogitSource for FileRows<'_, '_> {
    fn n_vocab(&self) -> usize {
        self.rows.source.n_vocab
    }

    fn is_floored(&self) -> bool {
        self.rows.source.is_floored
    }

    /// Hands `sink` the logits of a window's rows, a bounded number at a time: all or some of those of
    /// the file's window with that number. Windows before it are skipped.
    fn decode(
        &mut self,
        window: &WindowSpec,
        sink: impl FnMut(&[&[f32]]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let wanted = self.windows.get(&window.window).unwrap_or(window);
        let mut found = self.find(wanted.window)?;
        let (spec, n_rows) = (&found.spec, wanted.n_rows);
        let before = wanted.first_scored.checked_sub(spec.first_scored);
        let before = before.filter(|before| before + n_rows <= spec.n_rows);
        let number = wanted.window;
        let before = before.ok_or_else(|| {
            Error::inconsistent(&format!("different rows for window {number} than before"))
        })?;
        found.rows.skip(before as usize);
        found.logits(n_rows as usize, self.n_vocab(), &self.used, sink)
    }
}

#[cfg(test)]
mod tests {
    use super::super::evaluate;
    use super::super::tests::{NOTHING_MORE, fake, plan, write_native};
    use super::*;
    use crate::engine::{Engine as _, FakeEngine};
    use crate::input::ScoreFrom;
    use crate::score::RowPair;

    /// The windows and KLDs of an evaluation against `rows`.
    fn klds(rows: &ReferenceRows<'_>, seed: u64) -> Vec<(u32, Vec<f64>)> {
        let mut klds = Vec::new();
        let measure: fn(&RowPair<'_>) = NOTHING_MORE;
        evaluate(Sources::ready(fake(seed, 5)), rows, measure, |step| {
            if let Step::Window(scored) = step {
                let window = scored.records[0].window;
                let of_window = scored.records.iter().map(|record| record.kld);
                klds.push((window, of_window.collect()));
            }
            Ok(())
        })
        .unwrap();
        klds
    }

    #[test]
    fn kept_rows_are_those_of_the_model_and_of_its_file() {
        let plan = plan(ScoreFrom::Text);
        let n_rows = |windows: &[WindowSpec]| kl_formats::n_rows(windows) as usize;
        let mut n = 0;
        let of_model = KeptRows::keep(Sources::ready(fake(1, 7)), plan.windows.clone(), |rows| {
            n += rows;
            Ok(())
        });
        let (of_model, _) = of_model.unwrap();
        assert_eq!(n, n_rows(&plan.windows));
        let all = klds(&ReferenceRows::kept(&of_model, 0..plan.windows.len()), 2);
        assert!(all.iter().flat_map(|(_, klds)| klds).any(|kld| *kld > 0.1));
        assert_eq!(klds(&ReferenceRows::kept(&of_model, 1..3), 2), all[1..3]);
        let control = klds(&ReferenceRows::kept(&of_model, 0..2), 1);
        assert!(
            control
                .iter()
                .flat_map(|(_, klds)| klds)
                .all(|kld| *kld == 0.0)
        );

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ref");
        write_native(&path, &plan, kl_formats::Encoding::F32, 7, 3);
        let reference = kl_formats::Reference::open(&path).unwrap();
        let engine = FakeEngine::default();
        let rows = ReferenceRows::open(reference, |states, section| {
            engine.load_head(states, section, 1)
        });
        let rows = rows.unwrap().at(vec![4, 2]);
        let windows = [4, 2].map(|i: usize| plan.windows[i].clone()).to_vec();
        let file = Sources::ready(FileRows::new(&rows, HashMap::new()));
        let (of_file, _) = KeptRows::keep(file, windows, |_| Ok(())).unwrap();
        assert_eq!(
            klds(&ReferenceRows::kept(&of_file, 0..2), 2),
            [all[4].clone(), all[2].clone()]
        );
    }
}
