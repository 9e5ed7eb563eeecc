//! Compares two rows of logits by other numbers than their KL divergence: differences, angle, other
//! divergences.
//!
//! Let `l` be the reference row and `m` the evaluated one, N entries each, `p = softmax(l)`,
//! `q = softmax(m)`, natural logarithms throughout.
//!
//! | number | formula | range |
//! |---|---|---|
//! | mean absolute difference | `Σ abs(l − m) / N` | 0 and up |
//! | largest absolute difference | `max abs(l − m)` | 0 and up |
//! | cosine distance | `1 − l·m / (‖l‖ ‖m‖)` | 0 to 2 |
//! | Jensen-Shannon divergence | `½ KL(p‖h) + ½ KL(q‖h)`, `h = ½ (p + q)` | 0 to ln 2 |
//! | smoothed KLD | `KL(p'‖q')`, `p' = (1 − N ε) p + ε`, `q'` alike, `ε = 1e-10` | 0 and up |
//!
//! MAX's logit comparison reports the first, the third and the last, which it calls KL divergence.
//! The first three are of the raw logits: they change if a constant is added to one of the rows,
//! which changes no probability. The last two do not.
//!
//! The smoothing spreads N ε of the mass (1.3e-5 for a vocabulary of 128,256) evenly: an entry that
//! is impossible for the evaluated model costs at most 23 nats times its weight. For two similar
//! rows the smoothed KLD is a little below the KLD; do not compare it with one that is not
//! smoothed.
//!
//! # Masked and unknown entries
//!
//! A logit of −∞ is a probability of 0. An entry that has one in either row has no difference of
//! logits: the first three numbers, and their N, are over the others. An entry at the floor of a row
//! of log-probabilities (see [`floor`](super::floor())) has no known probability: the last two
//! numbers are over the entries that both rows know, their probabilities renormalised.
//!
//! # Zero rows
//!
//! A row of zeros has no direction. The cosine distance of two such rows counts as 0, since they
//! are equal, and that of one and any other row as 1, since their product is 0. (The formula, and
//! scipy, give NaN.)
//!
//! # Passes
//!
//! Everything is f64. The maxima and the softmax's normalisers are those of [`score`](super::score) for
//! rows of any range. A further pass sums the differences and the norms; the last one sums the rest:
//!
//! - the cosine distance as `½ Σ (l/‖l‖ − m/‖m‖)²`, which is the same number but does not cancel
//!   where the rows are alike;
//! - the Jensen-Shannon divergence as `Σ ½ (p + q) j(u)` with `u = abs(ln p − ln q)`, `z = e^−u`
//!   and `j(u) = ln 2 − ln(1 + z) − u z/(1 + z)`, the weight that two probabilities in the ratio z
//!   add: no term is below 0, and for small `u`, where this cancels, its series is used;
//! - the smoothed KLD as `Σ (p' ln(p'/q') − p' + q')`: the added terms sum to 0, and leave no term
//!   below 0.
//!
//! Equal rows give exactly 0 everywhere. The Jensen-Shannon divergence is symmetric to the bit.
//!
//! # Accuracy
//!
//! Largest errors against numpy and scipy in float64 (`scipy.spatial.distance`'s `cosine` and
//! `jensenshannon` squared, `rel_entr` of the smoothed `softmax`), absolute below 1 and relative
//! above, over 1,921 pairs of rows: alike, apart, flat, peaked, of ranges up to 1e30, of all
//! lengths from 1 to 130 and some up to 128,259. (`cosine` gives NaN for rows of zeros.)
//!
//! | number | error |
//! |---|---|
//! | mean and largest absolute difference | below 1e-15 |
//! | cosine distance | 4.6e-15 |
//! | Jensen-Shannon divergence | 5.4e-13 |
//! | smoothed KLD | 1.1e-12 |
//!
//! Most of the cosine distance's error is scipy's: against 80-bit arithmetic it is 7.8e-16, and
//! 1.2e-12 relative from 1e-9 on.
//!
//! # Speed
//!
//! A pair of 128,256 entries takes 0.9 ms on one core of a Zen 4 with AVX-512, seven times as long as
//! scoring it: five exponentials and two logarithms an entry instead of two exponentials.

/// Added to each probability: MAX's `eps`.
pub(super) const SMOOTHING: f64 = 1e-10;

/// The distances between two rows, besides their [`TokenRecord`](kl_formats::TokenRecord); see the
/// module.
///
/// If a row holds NaN or +∞ anywhere, or nothing but −∞, every number is NaN; if no entry has a logit
/// in both rows, the mean difference is. Count such a pair and leave it out, never average it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitMetrics {
    /// The mean over the vocabulary of the logits' absolute differences.
    pub mean_abs_diff: f64,
    /// The largest of the logits' absolute differences.
    pub max_abs_diff: f64,
    /// 1 minus the cosine of the angle between the rows; 0 if both rows are zeros, 1 if one is.
    pub cosine_distance: f64,
    /// Jensen-Shannon divergence of the rows' softmaxes, in nats; not its square root, the
    /// distance.
    pub jensen_shannon: f64,
    /// KL(p'‖q') of the smoothed softmaxes, in nats: what MAX calls KL divergence.
    pub smoothed_kld: f64,
}

impl LogitMetrics {
    /// The metrics of rows without a softmax.
    pub const EXCLUDED: Self = Self {
        mean_abs_diff: f64::NAN,
        max_abs_diff: f64::NAN,
        cosine_distance: f64::NAN,
        jensen_shannon: f64::NAN,
        smoothed_kld: f64::NAN,
    };

    /// True if every metric is finite, so that they can be averaged.
    pub fn is_finite(&self) -> bool {
        self.numbers().iter().all(|x| x.is_finite())
    }

    fn numbers(&self) -> [f64; 5] {
        [
            self.mean_abs_diff,
            self.max_abs_diff,
            self.cosine_distance,
            self.jensen_shannon,
            self.smoothed_kld,
        ]
    }
}

#[cfg(test)]
mod tests;
