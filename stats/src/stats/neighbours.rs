//! The resemblance of neighbouring observations.

use super::mean::{Powers, Sum};
use super::parts::Parts;
use super::windows::Windows;

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
    use super::*;

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
