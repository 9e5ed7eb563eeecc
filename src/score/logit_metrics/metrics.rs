//! The metrics of one position.

/// The distances between two rows, besides their [`TokenScore`](crate::score::TokenScore); see the
/// [module](super).
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

    /// Returns true if the metrics can be averaged.
    pub fn is_finite(&self) -> bool {
        [
            self.mean_abs_diff,
            self.max_abs_diff,
            self.cosine_distance,
            self.jensen_shannon,
            self.smoothed_kld,
        ]
        .iter()
        .all(|x| x.is_finite())
    }
}
