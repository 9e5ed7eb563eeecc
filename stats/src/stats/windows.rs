//! The sums of an evaluation's windows, the parts of few long ones, and the resemblance of neighbours.
//!
//! One window of 128k tokens is one observation, whose mean has no interval. But most of what its tokens
//! share, their neighbours share: the resemblance of two tokens fades within some hundreds of positions.
//! So the means of parts that are long against that are about independent. Longer parts leave less of the
//! resemblance between neighbouring parts, more parts show better how much they differ; ten lose little
//! by either (docs/INTERVALS.md).

use std::collections::BTreeMap;
use std::ops::Range;

use super::cluster::Cluster;
use super::columns::{PIECE, Run};
use super::mean::{Powers, Sum};

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

/// From this many windows on, each is an observation: their intervals hold the true value more often
/// than those of parts, and are hardly wider.
const ENOUGH_WINDOWS: usize = 6;

/// Windows are divided into at least so many parts in all, if these are long enough.
const PARTS: usize = 10;

/// Fewer parts would show too little of how much they differ.
const MIN_PARTS: usize = 8;

/// The fewest pieces of a part: 1,024 positions.
const MIN_PIECES: usize = 4;

/// Windows in parts of equal length, but for a piece.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    windows: BTreeMap<u32, Divided>,
    /// The number of parts.
    pub(super) n: u32,
    /// Positions in the longest.
    pub(super) longest: u64,
}

/// A window in parts.
#[derive(Clone, Debug)]
struct Divided {
    stratum: u32,
    pieces: Vec<u32>,
    /// The number of its first part.
    first: u32,
    /// The first piece of each part.
    starts: Vec<u32>,
}

impl Parts {
    /// The parts of windows; `None` where these are enough by themselves, or too short.
    pub(super) fn of(windows: &Windows) -> Option<Self> {
        match windows.count() < ENOUGH_WINDOWS {
            true => Self::divide(windows.pieces()),
            false => None,
        }
    }

    /// The parts of a range of pieces of these windows; `None` where it is too short.
    pub(super) fn within(&self, range: &Range<u32>) -> Option<Self> {
        let windows = self.windows.iter().map(|(&window, of)| {
            let inside = of.pieces.iter().filter(|piece| range.contains(piece));
            (of.stratum, window, inside.copied().collect())
        });
        Self::divide(windows)
    }

    /// Gives each window its share of [`PARTS`], rounded up, of which none has fewer than
    /// [`MIN_PIECES`]. Piece i of n is in part `⌊i P / n⌋` of P.
    fn divide(windows: impl Iterator<Item = (u32, u32, Vec<u32>)>) -> Option<Self> {
        let windows: Vec<_> = windows.filter(|(.., pieces)| !pieces.is_empty()).collect();
        let all: usize = windows.iter().map(|(.., pieces)| pieces.len()).sum();
        let (mut divided, mut number, mut longest) = (BTreeMap::new(), 0, 0);
        for (stratum, window, pieces) in windows {
            let n = pieces.len();
            let n_parts = (PARTS * n).div_ceil(all).min(n / MIN_PIECES).max(1);
            let starts = (0..n_parts).map(|part| pieces[(part * n).div_ceil(n_parts)]);
            let of_window = Divided {
                stratum,
                first: number,
                starts: starts.collect(),
                pieces,
            };
            divided.insert(window, of_window);
            number += n_parts as u32;
            longest = longest.max(n.div_ceil(n_parts));
        }
        (number as usize >= MIN_PARTS).then(|| Self {
            windows: divided,
            n: number,
            longest: longest as u64 * u64::from(PIECE),
        })
    }

    /// The part of a piece.
    pub(super) fn of_piece(&self, window: u32, piece: u32) -> Cluster {
        let Some(of) = self.windows.get(&window) else {
            return Cluster::default();
        };
        let part = of.starts.partition_point(|start| *start <= piece);
        Cluster {
            stratum: of.stratum,
            number: of.first + part.saturating_sub(1) as u32,
        }
    }
}

impl Windows {
    /// The correlation of the rank of an observation's mean with that of the next one of its group;
    /// `None` for fewer than three, and where all means are equal.
    ///
    /// Observations are windows, or the parts of few long ones. Ranks are of all, and about the mean
    /// rank of the group: that groups differ does not make neighbours alike.
    pub fn autocorrelation(&self) -> Option<f64> {
        let parts = Parts::of(self);
        let groups = self.0.values().map(|windows| {
            let sums = windows.iter().flat_map(|(&window, pieces)| {
                let part = |number: u32| {
                    let of_window = parts.as_ref().map(|parts| parts.of_piece(window, number));
                    of_window.map_or(0, |part| part.number)
                };
                let of_part = pieces.0.chunk_by(|(a, _), (b, _)| part(*a) == part(*b));
                let sums = of_part.map(|of| of.iter().map(|(_, sums)| *sums).collect::<Powers>());
                sums.collect::<Vec<_>>()
            });
            let means = sums.filter(|sums| sums.n > 0.0).map(|sums| sums.mean());
            means.collect::<Vec<f64>>()
        });
        let groups: Vec<Vec<f64>> = groups.collect();
        let mut ranks = ranks(&groups.concat()).into_iter();
        autocorrelation(
            groups
                .iter()
                .map(|of| ranks.by_ref().take(of.len()).collect()),
        )
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
mod tests {
    mod parts {
        use kl_formats::TokenRecord;

        use super::super::*;
        use crate::stats::oracle::{assert_close, records, skewed, statistics};
        use crate::stats::{ClusterKind, ClusterRule, Clusters, Run};

        /// Windows of these lengths, and the means of each piece of theirs.
        fn windows(lengths: &[u32], mean: impl Fn(u32, u32) -> f64) -> (Vec<Run>, Windows) {
            let (mut runs, mut values) = (Vec::new(), Vec::new());
            for (window, &length) in (0..).zip(lengths) {
                for position in 1..length {
                    Run::add(&mut runs, window, 0, position);
                    values.push(mean(window, position / PIECE));
                }
            }
            let windows = Windows::of(&runs, &values);
            (runs, windows)
        }

        fn lengths(lengths: &[u32]) -> Option<Vec<usize>> {
            let (runs, windows) = windows(lengths, |_, piece| f64::from(piece % 2));
            let parts = Parts::of(&windows)?;
            let mut n = vec![0; parts.n as usize];
            for run in runs {
                n[parts.of_piece(run.window, run.piece).number as usize] += run.n;
            }
            Some(n)
        }

        #[test]
        fn there_are_ten_parts_of_equal_length() {
            let one = lengths(&[25_600]).unwrap();
            assert_eq!((one.len(), one[0], &one[1..]), (10, 2559, &[2560; 9][..]));
            assert_eq!(lengths(&[12_800; 2]).map(|n| n.len()), Some(10));
            assert_eq!(lengths(&[12_800; 3]).map(|n| n.len()), Some(12));
            assert_eq!(lengths(&[12_800; 4]).map(|n| n.len()), Some(12));
            assert_eq!(lengths(&[12_800; 5]).map(|n| n.len()), Some(10));
            // Enough by themselves.
            assert_eq!(lengths(&[12_800; 6]), None);
            // In proportion to their lengths.
            assert_eq!(lengths(&[20_480, 5_120]).map(|n| n.len()), Some(10));
            assert_eq!(lengths(&[20_480, 300]).map(|n| n.len()), Some(11));
        }

        #[test]
        fn parts_are_of_1024_positions_or_more() {
            let shortest = lengths(&[8192]).unwrap();
            assert_eq!((shortest.len(), shortest[7]), (8, 1024));
            assert_eq!(lengths(&[7936]), None);
            assert_eq!(
                lengths(&[2048; 4]),
                Some(vec![1023, 1024, 1023, 1024, 1023, 1024, 1023, 1024])
            );
            assert_eq!(lengths(&[512; 5]), None);
            assert_eq!(lengths(&[]), None);
        }

        /// Pieces that alternate do not resemble their neighbours, those of a window of its own level do.
        #[test]
        fn auto_uses_windows_where_parts_of_one_resemble_each_other() {
            let of = |lengths: &[u32], rule, mean: &dyn Fn(u32, u32) -> f64| {
                let (_, windows) = windows(lengths, mean);
                let clusters = Clusters::of(&windows, rule);
                let others = clusters.others(&windows).map(|of| of.clustering.kind);
                (clusters.clustering, others)
            };
            let alternate = |_, piece: u32| f64::from(piece / 10 % 2);
            let (parts, others) = of(&[12_800; 3], ClusterRule::Auto, &alternate);
            assert_eq!(
                (parts.kind, parts.n, others),
                (ClusterKind::Part, 12, Some(ClusterKind::Window))
            );
            assert_eq!(
                (parts.windows_per_block, parts.positions_per_part),
                (1, Some(3328))
            );
            let levels = |window: u32, piece: u32| f64::from(10 * window + piece / 10 % 2);
            let (by_window, others) = of(&[12_800; 3], ClusterRule::Auto, &levels);
            assert!(by_window.autocorrelation.unwrap() > 0.5);
            assert_eq!(
                (by_window.kind, by_window.n, others),
                (ClusterKind::Window, 3, Some(ClusterKind::Part))
            );
            // One window leaves no choice.
            let rising = |_, piece: u32| f64::from(piece);
            let (one, others) = of(&[25_600], ClusterRule::Auto, &rising);
            assert_eq!((one.kind, one.n, others), (ClusterKind::Part, 10, None));
            let (asked, others) = of(&[25_600], ClusterRule::Window, &rising);
            assert_eq!(
                (asked.kind, asked.n, others),
                (ClusterKind::Window, 1, None)
            );
            assert_eq!(of(&[25_600], ClusterRule::Block, &rising).0.n, 1);
        }

        /// Each power of two has parts of its own, where it is long enough.
        #[test]
        fn depths_are_divided_by_themselves() {
            let (runs, windows) = windows(&[65_536], |_, piece| f64::from(piece % 3));
            let clusters = Clusters::of(&windows, ClusterRule::Auto);
            let by_depth = clusters.of_tokens_by_depth(&runs);
            let n_parts = |positions: Range<usize>| {
                let mut parts = by_depth[positions.start - 1..positions.end - 1].to_vec();
                parts.dedup();
                parts.len()
            };
            assert_eq!([1..256, 256..4096, 4096..8192].map(n_parts), [1, 1, 1]);
            assert_eq!(
                [8192..16_384, 16_384..32_768, 32_768..65_536].map(n_parts),
                [8, 10, 10]
            );
        }

        /// `oracle.py` makes the same windows.
        #[test]
        fn intervals_by_parts_match_numpy_and_scipy() {
            let positions = (0..).zip([16_384, 5_120]);
            let places =
                positions.flat_map(|(window, n)| (1..n).map(move |position| (window, position)));
            let (klds, template) = (skewed(16_383 + 5_119).into_iter(), records()[1]);
            let records = places
                .zip(klds)
                .map(|((window, position), kld)| TokenRecord {
                    window,
                    position,
                    flags: 0,
                    kld,
                    ..template
                });
            let records: Vec<TokenRecord> = records.collect();
            let of = statistics(&records, &[], ClusterRule::Auto);
            let clusters = of.summary.clusters;
            assert_eq!((clusters.kind, clusters.n), (ClusterKind::Part, 11));
            let all = of.summary.kld.unwrap().mean.by_cluster();
            let bins = of.breakdown.by_position;
            for (got, (value, lo, hi)) in [all, bins.last().unwrap().kld.unwrap()].iter().zip(LONG)
            {
                assert_close(got.value, value, 1e-12);
                assert_close(got.lo.unwrap(), lo, 1e-10);
                assert_close(got.hi.unwrap(), hi, 1e-10);
            }
            // Too short for parts, in both windows, and in the first alone.
            let ends = |from: f64| {
                let bin = bins.iter().find(|bin| bin.from == Some(from));
                bin.unwrap().kld.unwrap().lo
            };
            assert!(ends(1024.0).is_some());
            let one = statistics(&records[..16_383], &[], ClusterRule::Auto)
                .breakdown
                .by_position;
            assert!(
                one.iter()
                    .all(|bin| bin.kld.unwrap().lo.is_some() == (bin.from == Some(8192.0)))
            );
        }

        const LONG: [(f64, f64, f64); 2] = [
            (4.702664839324497, 4.309050406275147, 5.211513395632307),
            (4.651138797501188, 4.03885595722442, 5.649316269061349),
        ];
    }

    mod neighbours {
        use super::super::*;

        /// By hand: from the mean 3, −2 −1 0 1 2; (2 + 0 + 0 + 2) / (4 + 1 + 0 + 1 + 4).
        #[test]
        fn autocorrelation_is_of_neighbours() {
            let of = |series: &[f64]| autocorrelation([series.to_vec()]);
            assert_eq!(of(&[1.0, 2.0, 3.0, 4.0, 5.0]), Some(0.4));
            assert_eq!(of(&[1.0, 2.0]), None);
            assert_eq!(of(&[2.0; 9]), None);
        }

        /// By hand: (−1 0 1) and (−1 1); (0 + 0 − 1) / (1 + 0 + 1 + 1 + 1).
        #[test]
        fn groups_that_differ_do_not_make_neighbours_alike() {
            let apart = [vec![1.0, 2.0, 3.0], vec![101.0, 103.0]];
            assert_eq!(autocorrelation(apart), Some(-0.25));
        }

        #[test]
        fn equal_values_share_their_rank() {
            assert_eq!(ranks(&[5.0, 1.0, 5.0, 0.0, 9.0]), [3.5, 2.0, 3.5, 1.0, 5.0]);
            assert_eq!(ranks(&[]), Vec::<f64>::new());
        }
    }
}
