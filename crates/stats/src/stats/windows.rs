//! The sums of an evaluation's windows, the parts of few long ones, and the resemblance of neighbours.
//!
//! One window of 128k tokens is one observation, whose mean has no interval. But most of what its tokens
//! share, their neighbours share: the resemblance of two tokens fades within some hundreds of positions.
//! So the means of parts that are long against that are about independent. Longer parts leave less of the
//! resemblance between neighbouring parts, more parts show better how much they differ; ten lose little
//! by either (docs/INTERVALS.md).

use std::collections::{BTreeMap, BTreeSet};

use kl_formats::TokenRecord;

use super::mean::{Sum, Totals};

/// Positions in a piece of a window. The parts that a long window may be divided into are of whole
/// pieces, so the sums of pieces are all that is kept of its tokens to choose them.
pub(super) const PIECE: u32 = 256;

/// A piece of a window, in its group. Pieces are sorted by group, then by window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WindowPiece {
    /// The window's group; 0 without groups.
    pub group: u32,
    pub window: u32,
    /// Its number: its tokens are at positions from `number` times 256 on.
    pub number: u32,
}

impl WindowPiece {
    /// Its depth in the window, the number of bits of its number: 0 is the first piece, 1 the second, 2 the
    /// next two, 3 the next four.
    pub(super) fn depth(&self) -> u32 {
        u32::BITS - self.number.leading_zeros()
    }
}

/// Adjacent tokens of one piece of a window, in the same span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub piece: WindowPiece,
    /// The index of the span among the spans' names; 0 without spans.
    pub span: u32,
    /// The number of tokens.
    pub n: usize,
}

impl Run {
    /// Adds the token of a record to `runs`.
    pub fn add(runs: &mut Vec<Self>, record: &TokenRecord) {
        let span = record.span;
        let piece = WindowPiece {
            group: record.group,
            window: record.window,
            number: record.position / PIECE,
        };
        match runs.last_mut() {
            Some(last) if last.piece == piece && last.span == span => last.n += 1,
            _ => runs.push(Self { piece, span, n: 1 }),
        }
    }

    /// The runs of some records' tokens.
    pub fn from_records<'r>(records: impl IntoIterator<Item = &'r TokenRecord>) -> Vec<Self> {
        let mut runs = Vec::new();
        let records = records.into_iter();
        records.for_each(|record| Self::add(&mut runs, record));
        runs
    }

    /// The number of windows that have tokens.
    pub(super) fn n_windows(runs: &[Self]) -> u64 {
        let windows: BTreeSet<u32> = runs.iter().map(|run| run.piece.window).collect();
        windows.len() as u64
    }
}

/// The sums of some tokens' finite values, of each piece of a window.
#[derive(Clone, Debug, Default)]
pub struct WindowSums(BTreeMap<WindowPiece, Totals>);

impl WindowSums {
    /// The windows of tokens with these values.
    pub fn from_tokens(runs: &[Run], values: &[f64]) -> Self {
        let mut windows = Self::default();
        windows.add(runs, values);
        windows
    }

    /// Adds tokens with these values; those beyond the last have none.
    pub fn add(&mut self, runs: &[Run], values: &[f64]) {
        let mut rest = values.iter().copied();
        for run in runs {
            let values_of_run = rest.by_ref().take(run.n);
            *self.0.entry(run.piece).or_default() +=
                values_of_run.filter(|x| x.is_finite()).collect();
        }
    }

    /// The pieces in their order.
    pub(super) fn pieces(&self) -> Vec<WindowPiece> {
        self.0.keys().copied().collect()
    }

    /// The first piece of each window.
    pub(super) fn windows(&self) -> Vec<WindowPiece> {
        let mut windows = self.pieces();
        windows.dedup_by_key(|of| (of.group, of.window));
        windows
    }

    /// The number of windows.
    pub fn count(&self) -> usize {
        self.windows().len()
    }

    /// The mean along the text: points of the number of the first window, and the mean of the finite values
    /// from it up to the next point. Each point is of equally many windows.
    pub fn means(&self) -> Vec<(f64, f64)> {
        /// More would not show in a plot.
        const MOST_POINTS: usize = 200;
        let mut windows = self.sums();
        windows.sort_by_key(|(first, _)| first.window);
        let per_point = windows.len().div_ceil(MOST_POINTS).max(1);
        let points = windows.chunks(per_point).map(|chunk| {
            let sums: Totals = chunk.iter().map(|(_, sums)| *sums).collect();
            (f64::from(chunk[0].0.window), sums.mean())
        });
        points.collect()
    }

    /// The sums of each piece, and the piece.
    pub(super) fn sums_of_pieces(&self) -> impl Iterator<Item = (&WindowPiece, &Totals)> {
        self.0.iter()
    }

    /// The sums of adjacent pieces for which `observation` returns the same, where they have a finite value,
    /// and the first of the pieces.
    fn sums_by<K: PartialEq>(
        &self,
        observation: impl Fn(&WindowPiece) -> K,
    ) -> Vec<(WindowPiece, Totals)> {
        let pieces: Vec<(&WindowPiece, &Totals)> = self.0.iter().collect();
        let observations = pieces.chunk_by(|(a, _), (b, _)| observation(a) == observation(b));
        let sums = observations.filter_map(|of| {
            let (first, _) = of.first()?;
            Some((**first, of.iter().map(|(_, sums)| **sums).collect()))
        });
        sums.filter(|(_, sums): &(WindowPiece, Totals)| sums.n > 0.0)
            .collect()
    }

    /// The sums of each window that has a finite value, and its first piece.
    pub fn sums(&self) -> Vec<(WindowPiece, Totals)> {
        self.sums_by(|of| (of.group, of.window))
    }

    /// The correlation of the rank of an observation's mean with that of the next one of its group;
    /// `None` for fewer than three, and where all means are equal.
    ///
    /// Observations are windows, or the parts of few long ones. Ranks are of all, and about the mean
    /// rank of the group: that groups differ does not make neighbours alike.
    pub fn autocorrelation(&self) -> Option<f64> {
        let sums = match Parts::of_few(self) {
            Some(parts) => self.sums_by(|piece| parts.clusters.get(piece)),
            None => self.sums(),
        };
        let means: Vec<f64> = sums.iter().map(|(_, sums)| sums.mean()).collect();
        let mut ranks = ranks(&means).into_iter();
        let groups = sums.chunk_by(|(one, _), (next, _)| one.group == next.group);
        autocorrelation(groups.map(|group| ranks.by_ref().take(group.len()).collect()))
    }
}

/// One observation: the tokens of a window, of a block of windows, or of a part of a window, in its
/// stratum.
///
/// Groups of a text are strata: clusters never straddle them, and how many tokens each group has is
/// not left to chance. A number makes a cluster of the only stratum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cluster {
    pub(super) stratum: u32,
    pub(super) number: u32,
}

impl From<u32> for Cluster {
    fn from(number: u32) -> Self {
        Self { stratum: 0, number }
    }
}

/// From this many windows on, each is an observation: their intervals hold the true value more often
/// than those of parts, and are hardly wider.
const ENOUGH_WINDOWS: usize = 6;

/// The fewest parts that windows are divided into in all, if these are long enough.
const PARTS: usize = 10;

/// Fewer parts would show too little of how much they differ.
const MIN_PARTS: u32 = 8;

/// The fewest pieces of a part: 1,024 positions.
const MIN_PIECES: usize = 4;

/// Pieces, or whole windows, in parts of about equal length.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    /// The part of each.
    pub clusters: BTreeMap<WindowPiece, Cluster>,
    /// The number of parts.
    pub n: u32,
    /// The number of pieces or windows in the longest.
    pub longest: usize,
}

impl Parts {
    /// The parts of windows; `None` where these are enough by themselves, or too short.
    pub fn of_few(windows: &WindowSums) -> Option<Self> {
        (windows.count() < ENOUGH_WINDOWS).then(|| Self::of_windows(&windows.pieces()))?
    }

    /// Gives each window its share of [`PARTS`], rounded up, in parts of at least [`MIN_PIECES`] pieces;
    /// `None` if there are fewer than [`MIN_PARTS`].
    pub fn of_windows(pieces: &[WindowPiece]) -> Option<Self> {
        let parts = Self::divide(
            pieces,
            |of| of.window,
            |n| {
                let share = (PARTS * n).div_ceil(pieces.len());
                share.min(n / MIN_PIECES).max(1)
            },
        );
        (parts.n >= MIN_PARTS).then_some(parts)
    }

    /// Divides each run of n adjacent pieces with the same `whole` into P = `n_parts(n)` parts: piece i is in
    /// part `⌊i P / n⌋`.
    pub fn divide(
        pieces: &[WindowPiece],
        whole: impl Fn(&WindowPiece) -> u32,
        n_parts: impl Fn(usize) -> usize,
    ) -> Self {
        let (mut clusters, mut all, mut longest) = (BTreeMap::new(), 0, 0);
        for pieces_of_whole in pieces.chunk_by(|one, next| whole(one) == whole(next)) {
            let n = pieces_of_whole.len();
            let n_parts = n_parts(n);
            for (i, piece) in pieces_of_whole.iter().enumerate() {
                let (stratum, number) = (piece.group, all + (i * n_parts / n) as u32);
                clusters.insert(*piece, Cluster { stratum, number });
            }
            all += n_parts as u32;
            longest = longest.max(n.div_ceil(n_parts));
        }
        Self {
            clusters,
            n: all,
            longest,
        }
    }
}

/// The rank of each value among all, from 1; equal values share their mean rank.
///
/// A few windows with large KLDs dominate the autocorrelation of the values themselves, and would
/// hide that the others resemble their neighbours.
fn ranks(series: &[f64]) -> Vec<f64> {
    let mut rising: Vec<(usize, f64)> = series.iter().copied().enumerate().collect();
    rising.sort_unstable_by(|(_, a), (_, b)| a.total_cmp(b));
    let mut ranks = vec![0.0; series.len()];
    let mut before = 0;
    for equal in rising.chunk_by(|(_, a), (_, b)| a == b) {
        let rank = before as f64 + 0.5 * (equal.len() as f64 + 1.0);
        for (index, _) in equal {
            ranks[*index] = rank;
        }
        before += equal.len();
    }
    ranks
}

/// The lag-1 autocorrelation of series, `Σ (x_i − mean)(x_{i+1} − mean) / Σ (x_i − mean)²`, each
/// about its own mean.
///
/// `None` for fewer than three values, and for equal ones.
fn autocorrelation(series: impl IntoIterator<Item = Vec<f64>>) -> Option<f64> {
    let (mut n, mut squares, mut products) = (0, Sum::default(), Sum::default());
    for series in series {
        let mean = series.iter().copied().collect::<Sum>().value() / series.len() as f64;
        let from_mean: Vec<f64> = series.iter().map(|x| x - mean).collect();
        n += series.len();
        from_mean.iter().for_each(|x| squares.add(x * x));
        let pairs = from_mean.windows(2);
        pairs.for_each(|pair| products.add(pair[0] * pair[1]));
    }
    let r = products.value() / squares.value();
    (n >= 3 && r.is_finite()).then_some(r)
}

#[cfg(test)]
#[path = "tests/windows.rs"]
mod tests;
