//! The length of text that a mean needs.

use super::cluster::MIN_CLUSTERS;
use super::clustered_mean::ClusteredMean;

/// About how many windows like these `n_windows` give an interval whose half width is this share
/// of the mean: at least [`MIN_CLUSTERS`].
///
/// The width falls as the square root of the number of windows. It is that of the corrected
/// interval: from few windows their spread is underestimated, and the correction makes up for it.
/// `None` for fewer than two clusters, and for a mean of 0.
pub fn windows_for(relative: f64, mean: &ClusteredMean, n_windows: u64) -> Option<u64> {
    let now = mean.relative_half_width()?;
    let windows = n_windows as f64 * (now / relative).powi(2);
    // A float becomes the nearest integer that is in range.
    windows
        .is_finite()
        .then(|| (windows.ceil() as u64).max(MIN_CLUSTERS as u64))
}
