//! The means of windows, and how much neighbouring ones resemble each other.

use std::collections::BTreeMap;

use super::mean::Sum;

/// The mean of each window, in the order of the windows' numbers, from tokens in any order.
#[derive(Clone, Debug, Default)]
pub(super) struct WindowMeans(BTreeMap<u32, Total>);

/// The tokens of a window with a finite value.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Total {
    /// The group of the window; 0 without groups.
    pub group: u32,
    pub n: u64,
    pub sum: Sum,
}

impl Total {
    fn push(&mut self, group: u32, value: f64) {
        self.group = group;
        if value.is_finite() {
            self.n += 1;
            self.sum.add(value);
        }
    }
}

impl WindowMeans {
    /// The means of tokens, each with its window, its group and its value.
    pub fn of(tokens: impl IntoIterator<Item = (u32, u32, f64)>) -> Self {
        let mut means = Self::default();
        // Adjacent tokens mostly share a window: one look-up for each run of them.
        let mut open: Option<(u32, Total)> = None;
        for (window, group, value) in tokens {
            let mut total = match open {
                Some((last, total)) if last == window => total,
                _ => {
                    means.0.extend(open);
                    means.0.get(&window).copied().unwrap_or_default()
                }
            };
            total.push(group, value);
            open = Some((window, total));
        }
        means.0.extend(open);
        means
    }

    /// Adds a token. One whose value is not finite adds only its window.
    pub fn push(&mut self, window: u32, group: u32, value: f64) {
        self.0.entry(window).or_default().push(group, value);
    }

    /// Each window's total, in the order of their numbers.
    pub fn totals(&self) -> impl Iterator<Item = (u32, Total)> {
        self.0.iter().map(|(window, total)| (*window, *total))
    }

    /// Returns the number of windows.
    pub fn n_windows(&self) -> usize {
        self.0.len()
    }

    /// The windows of each group, in the order of their numbers.
    pub fn by_group(&self) -> BTreeMap<u32, Vec<u32>> {
        let mut groups = BTreeMap::<u32, Vec<u32>>::new();
        for (window, total) in self.totals() {
            groups.entry(total.group).or_default().push(window);
        }
        groups
    }

    /// The correlation of the rank of a window's mean with that of the next window of its group;
    /// `None` for fewer than three windows, and where all means are equal.
    ///
    /// Ranks are of all windows, and about the mean rank of the group: that groups differ does not
    /// make neighbours alike.
    pub fn autocorrelation(&self) -> Option<f64> {
        let with_mean = self.totals().filter(|(_, total)| total.n > 0);
        let (groups, means): (Vec<u32>, Vec<f64>) = with_mean
            .map(|(_, total)| (total.group, total.sum.value() / total.n as f64))
            .unzip();
        let mut by_group = BTreeMap::<u32, Vec<f64>>::new();
        for (group, rank) in groups.iter().zip(ranks(&means)) {
            by_group.entry(*group).or_default().push(rank);
        }
        autocorrelation(by_group.values().map(Vec::as_slice))
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
fn autocorrelation<'s>(series: impl IntoIterator<Item = &'s [f64]>) -> Option<f64> {
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
    use super::*;

    /// By hand: from the mean 3, −2 −1 0 1 2; (2 + 0 + 0 + 2) / (4 + 1 + 0 + 1 + 4).
    #[test]
    fn autocorrelation_is_of_neighbours() {
        let of = |series: &[f64]| autocorrelation([series]);
        assert_eq!(of(&[1.0, 2.0, 3.0, 4.0, 5.0]), Some(0.4));
        assert_eq!(of(&[1.0, 2.0]), None);
        assert_eq!(of(&[2.0; 9]), None);
    }

    /// By hand: (−1 0 1) and (−1 1); (0 + 0 − 1) / (1 + 0 + 1 + 1 + 1).
    #[test]
    fn groups_that_differ_do_not_make_neighbours_alike() {
        let apart: [&[f64]; 2] = [&[1.0, 2.0, 3.0], &[101.0, 103.0]];
        assert_eq!(autocorrelation(apart), Some(-0.25));
    }

    #[test]
    fn equal_values_share_their_rank() {
        assert_eq!(ranks(&[5.0, 1.0, 5.0, 0.0, 9.0]), [3.5, 2.0, 3.5, 1.0, 5.0]);
        assert_eq!(ranks(&[]), Vec::<f64>::new());
    }
}
