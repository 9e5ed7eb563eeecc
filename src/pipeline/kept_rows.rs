//! Rows in memory, where many models are evaluated against the same few windows of a reference.

use std::sync::Mutex;

use kl_formats::WindowSpec;

use super::in_turn::{LogitSource, RowSink, Sources, in_turn};
use super::timing::Timing;
use super::{Error, Step, locked};

/// Rows of logits of some windows, in memory.
#[derive(Debug, Default)]
pub struct KeptRows {
    windows: Vec<WindowSpec>,
    /// The logits of each window's rows, n_rows x n_vocab.
    pub(super) logits: Vec<Vec<f32>>,
    pub(super) n_vocab: usize,
    pub(super) is_floored: bool,
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
        let left = Mutex::new(windows.iter());
        let mut kept = Self::default();
        let next = || {
            let next = locked(&left).next();
            Ok(next.map(|window| Keeping(window, Vec::new(), (0, false))))
        };
        let timing = in_turn(sources, next, |step| match step {
            Step::Rows(n) => on_rows(n),
            Step::Window((logits, about)) => {
                kept.logits.push(logits);
                (kept.n_vocab, kept.is_floored) = about;
                Ok(())
            }
        })?;
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
}

/// A window, the copies of its rows so far, and the entries of a row and whether these have a floor.
struct Keeping<'w>(&'w WindowSpec, Vec<f32>, (usize, bool));

impl RowSink for Keeping<'_> {
    type Done = (Vec<f32>, (usize, bool));

    fn window(&self) -> &WindowSpec {
        self.0
    }

    fn begin(&mut self, n_vocab: usize, is_floored: bool) -> Result<(), Error> {
        self.1.reserve_exact(self.0.n_rows as usize * n_vocab);
        self.2 = (n_vocab, is_floored);
        Ok(())
    }

    fn push(&mut self, rows: &[&[f32]]) -> Result<(), Error> {
        rows.iter().for_each(|row| self.1.extend_from_slice(row));
        Ok(())
    }

    fn finish(self) -> Result<Self::Done, Error> {
        Ok((self.1, self.2))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::tests::{NOTHING_MORE, fake, plan, write_native};
    use super::super::{FileRows, ReferenceRows, evaluate};
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
