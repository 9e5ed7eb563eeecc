//! The share of a mean that the largest tokens add.

use serde::Serialize;

use super::mean::Sum;

/// The share of a mean that comes from few tokens.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Tail {
    /// The share of the sum that the largest 0.1 % of the samples add; `None` for fewer than 1,000,
    /// and for a sum of 0.
    pub top_0_1_percent: Option<f64>,
    /// The share that the largest 1 % add; `None` for fewer than 100, and for a sum of 0.
    pub top_1_percent: Option<f64>,
    /// The mean of all samples but the largest; `None` for one sample.
    pub mean_without_max: Option<f64>,
}

impl Tail {
    /// Computes them from finite samples in ascending order that are not negative.
    pub fn of(sorted: &[f64]) -> Self {
        let sum = |samples: &[f64]| samples.iter().copied().collect::<Sum>().value();
        let total = sum(sorted);
        let n = sorted.len() as f64;
        let top = |one_of: f64| {
            // The share may end within a sample, of which only that part counts.
            let count = n / one_of;
            let (rest, largest) = sorted.split_at(sorted.len() - count as usize);
            let next = rest.last().map_or(0.0, |x| x * count.fract());
            let share = (sum(largest) + next) / total;
            (!largest.is_empty() && share.is_finite()).then_some(share)
        };
        Self {
            top_0_1_percent: top(1000.0),
            top_1_percent: top(100.0),
            mean_without_max: match sorted.split_last() {
                Some((_, rest)) if !rest.is_empty() => Some(sum(rest) / (n - 1.0)),
                _ => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_the_largest() {
        let mut samples = vec![1.0; 2000];
        (samples[1998], samples[1999]) = (1001.0, 2002.0);
        let tail = Tail::of(&samples);
        // 2 of 2,000, and 20 of them; the sum is 5,001.
        assert_eq!(tail.top_0_1_percent, Some(3003.0 / 5001.0));
        assert_eq!(tail.top_1_percent, Some(3021.0 / 5001.0));
        assert_eq!(tail.mean_without_max, Some(2999.0 / 1999.0));
    }

    #[test]
    fn part_of_a_token_counts_in_proportion() {
        let mut samples = vec![1.0; 1500];
        (samples[1498], samples[1499]) = (5.0, 11.0);
        assert_eq!(Tail::of(&samples).top_0_1_percent, Some(13.5 / 1514.0));
    }

    #[test]
    fn too_few_and_only_zeros() {
        let tail = Tail::of(&[1.0; 999]);
        assert_eq!(tail.top_0_1_percent, None);
        assert!(tail.top_1_percent.is_some());
        assert_eq!(Tail::of(&[0.0; 1000]).top_0_1_percent, None);
        assert_eq!(Tail::of(&[1.0]).mean_without_max, None);
    }
}
