//! The sums of an evaluation's windows.

use std::collections::BTreeMap;

use super::mean::Powers;
use super::runs::Run;

/// The sums of some tokens' finite values: of each window, by its number, in each group.
#[derive(Clone, Debug, Default)]
pub struct Windows(pub(super) BTreeMap<u32, BTreeMap<u32, Pieces>>);

/// The sums of each piece of a window, by its number, in ascending order.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces(pub(super) Vec<(u32, Powers)>);

impl Pieces {
    /// The sums of a piece, which may be new.
    fn entry(&mut self, piece: u32) -> &mut Powers {
        let index = self.0.partition_point(|(number, _)| *number < piece);
        if self.0.get(index).is_none_or(|(number, _)| *number != piece) {
            self.0.insert(index, (piece, Powers::default()));
        }
        &mut self.0[index].1
    }

    fn sums(&self) -> Powers {
        self.0.iter().map(|(_, sums)| *sums).collect()
    }
}

impl Windows {
    /// The windows of tokens with these values.
    pub fn of(runs: &[Run], values: &[f64]) -> Self {
        let mut windows = Self::default();
        windows.add(runs, values);
        windows
    }

    /// Adds tokens with these values.
    pub fn add(&mut self, runs: &[Run], values: &[f64]) {
        let mut values = values.iter().copied();
        for run in runs {
            let values = values.by_ref().take(run.n);
            *self.piece(run) += values.filter(|x| x.is_finite()).collect();
        }
    }

    /// Adds windows without a value, where tokens of theirs are left out.
    pub fn add_empty(&mut self, runs: &[Run]) {
        for run in runs {
            self.piece(run);
        }
    }

    fn piece(&mut self, run: &Run) -> &mut Powers {
        let windows = self.0.entry(run.group).or_default();
        windows.entry(run.window).or_default().entry(run.piece)
    }

    /// Returns the number of windows.
    pub fn count(&self) -> usize {
        self.0.values().map(BTreeMap::len).sum()
    }

    /// The number of each window that has a finite value, and its sums.
    pub fn sums(&self) -> impl Iterator<Item = (u32, Powers)> {
        let windows = self.0.values().flatten();
        let windows = windows.map(|(window, pieces)| (*window, pieces.sums()));
        windows.filter(|(_, sums)| sums.n > 0.0)
    }

    /// The number of each piece's window, its own, and its sums.
    pub(super) fn sums_of_pieces(&self) -> impl Iterator<Item = (u32, u32, Powers)> {
        let windows = self.0.values().flatten();
        windows.flat_map(|(&window, pieces)| {
            pieces
                .0
                .iter()
                .map(move |&(piece, sums)| (window, piece, sums))
        })
    }

    /// The windows of each group, by their numbers.
    pub(super) fn groups(&self) -> impl ExactSizeIterator<Item = (u32, Vec<u32>)> {
        let groups = self.0.iter();
        groups.map(|(&group, windows)| (group, windows.keys().copied().collect()))
    }

    /// Each window: its group, its number, and the numbers of its pieces.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (u32, u32, Vec<u32>)> {
        let groups = self.0.iter();
        groups.flat_map(|(&group, windows)| {
            windows.iter().map(move |(&window, pieces)| {
                let numbers = pieces.0.iter().map(|(number, _)| *number);
                (group, window, numbers.collect())
            })
        })
    }
}
