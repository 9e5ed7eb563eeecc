//! The mean of samples that are correlated within their window.

use std::collections::BTreeMap;

use serde::Serialize;

use super::estimate::{Confidence, Estimate, finite};
use super::mean::{Moments, Sum};
use super::student::student_two_sided;

/// A mean with two intervals: one that treats tokens as independent, one that treats windows so.
///
/// Tokens of one window share a text and a context, so the first interval (`lo`, `hi`, `se`) is
/// too narrow. The clustered interval is right as long as windows are independent of each other.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
pub struct ClusteredMean {
    /// The mean, and its interval with tokens as independent.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// The standard error with tokens as independent; `None` for fewer than two samples.
    pub se: Option<f64>,
    /// The lower end of the interval clustered by window; `None` for fewer than two windows.
    pub cluster_lo: Option<f64>,
    /// The upper end of the interval clustered by window; `None` for fewer than two windows.
    pub cluster_hi: Option<f64>,
}

impl ClusteredMean {
    /// Estimates the mean of `samples`, where `samples[i]` is from window `windows[i]`.
    ///
    /// Both slices have the same length. `None` without samples.
    pub fn of(windows: &[u32], samples: &[f64], confidence: Confidence) -> Option<Self> {
        let moments = Moments::of(samples)?;
        let clustered = standard_error(windows, samples, moments.mean);
        let interval = clustered.and_then(|clustered| {
            let half_width = student_two_sided(confidence, clustered.degrees) * clustered.se;
            Estimate::symmetric(moments.mean, half_width).interval()
        });
        Some(Self {
            estimate: moments.estimate(confidence),
            se: moments.standard_error().and_then(finite),
            cluster_lo: interval.map(|(lo, _)| lo),
            cluster_hi: interval.map(|(_, hi)| hi),
        })
    }
}

/// A cluster-robust standard error and its degrees of freedom.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClusteredError {
    /// The standard error of the mean.
    pub se: f64,
    /// The number of windows, minus 1.
    pub degrees: f64,
}

/// Computes the cluster-robust standard error of `mean`, the mean of all `samples`.
///
/// ```text
/// SE² = G/(G−1) · Σ_g ( Σ_{i in g} (x_i − mean) )² / n²
/// ```
///
/// over G windows of any sizes (Liang & Zeger 1986 with the finite-sample factor G/(G−1); the
/// linearised variance of a ratio of window totals to window sizes, Cochran 1977, ch. 6). With one
/// sample per window it is the ordinary standard error. `None` for fewer than two windows.
///
/// The samples of a window need not be adjacent.
pub fn standard_error(windows: &[u32], samples: &[f64], mean: f64) -> Option<ClusteredError> {
    debug_assert_eq!(windows.len(), samples.len());
    let mut residuals = BTreeMap::<u32, Sum>::new();
    // Adjacent samples mostly share a window: one look-up for each run of them.
    let mut rest = windows.iter().zip(samples).peekable();
    while let Some(&(&window, _)) = rest.peek() {
        let residual = residuals.entry(window).or_default();
        while let Some((_, x)) = rest.next_if(|(w, _)| **w == window) {
            residual.add(x - mean);
        }
    }
    if residuals.len() < 2 {
        return None;
    }
    let clusters = residuals.len() as f64;
    let squares: Sum = residuals.values().map(|r| r.value().powi(2)).collect();
    let variance = clusters / (clusters - 1.0) * squares.value();
    Some(ClusteredError {
        se: variance.sqrt() / samples.len() as f64,
        degrees: clusters - 1.0,
    })
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{assert_close, skewed, splitmix_normals};
    use super::*;

    #[test]
    fn one_sample_per_window_gives_the_ordinary_error() {
        let samples = skewed(500);
        let windows: Vec<u32> = (0..500).collect();
        let moments = Moments::of(&samples).unwrap();
        let clustered = standard_error(&windows, &samples, moments.mean).unwrap();
        assert_close(clustered.se, moments.standard_error().unwrap(), 1e-13);
        assert_eq!(clustered.degrees, 499.0);
    }

    #[test]
    fn matches_the_formula_by_hand() {
        // mean 3; residual sums: window 7 -> -3, window 2 -> +3; 2/1 * (9 + 9) / 4² = 2.25
        let error = standard_error(&[7, 2, 7, 7], &[1.0, 6.0, 2.0, 3.0], 3.0).unwrap();
        assert_eq!((error.se, error.degrees), (1.5, 1.0));
    }

    #[test]
    fn one_window_has_no_clustered_interval() {
        let mean =
            ClusteredMean::of(&[3; 4], &[1.0, 2.0, 3.0, 4.0], Confidence::default()).unwrap();
        assert!(mean.estimate.lo.is_some() && mean.se.is_some());
        assert_eq!((mean.cluster_lo, mean.cluster_hi), (None, None));
        assert_eq!(ClusteredMean::of(&[], &[], Confidence::default()), None);
    }

    /// Samples of a window share a term, as the tokens of a text do: intra-window correlation 1/4.
    #[test]
    fn clustered_interval_covers_what_it_promises() {
        const REPLICATIONS: usize = 1000;
        const WINDOWS: u32 = 30;
        const TRUTH: f64 = 0.25;
        let mut normals = splitmix_normals(7);
        let mut normal = || normals.next().unwrap();
        let (mut naive, mut clustered) = (0, 0);
        for _ in 0..REPLICATIONS {
            let (mut windows, mut samples) = (Vec::new(), Vec::new());
            for window in 0..WINDOWS {
                let shared = normal() / 3f64.sqrt();
                // Unequal sizes: the last window of a text is short.
                for _ in 0..20 + window % 3 * 10 {
                    windows.push(window);
                    samples.push(TRUTH + shared + normal());
                }
            }
            let mean = ClusteredMean::of(&windows, &samples, Confidence::default()).unwrap();
            let holds = |lo: Option<f64>, hi: Option<f64>| {
                (lo.unwrap()..=hi.unwrap()).contains(&TRUTH) as usize
            };
            naive += holds(mean.estimate.lo, mean.estimate.hi);
            clustered += holds(mean.cluster_lo, mean.cluster_hi);
        }
        // A true share of 95 % lies within 93..97 in 99.6 % of such experiments.
        let share = |hits: usize| hits as f64 / REPLICATIONS as f64;
        assert!(
            (0.93..=0.97).contains(&share(clustered)),
            "{}",
            share(clustered)
        );
        assert!(share(naive) < 0.7, "{}", share(naive));
    }
}
