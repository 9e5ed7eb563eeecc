//! kl.py's intervals of quantiles, by Maritz and Jarrett's error.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::estimate::Confidence;
use super::student::normal_two_sided;

/// The interval of the p-quantile of ascending, finite samples as
/// `scipy.stats.mstats.mquantiles_cimj` computes it: `weibull(p) ± z · maritz_jarrett_error(p)`.
///
/// Its centre is not [`super::quantile::linear`]: in a sparse tail the two definitions of a
/// quantile differ by up to one gap between samples. As in scipy, the ends are not clamped to the
/// range of the samples. `None` where the error is undefined, with too few samples in the tail:
/// `n < 0.5/(1−p)` (a 99.9 % quantile needs about 500).
pub fn interval(sorted: &[f64], p: f64, confidence: Confidence) -> Option<(f64, f64)> {
    let centre = weibull(sorted, p)?;
    let half_width = normal_two_sided(confidence) * maritz_jarrett_error(sorted, p)?;
    Some((centre - half_width, centre + half_width))
}

/// Weibull plotting positions, `p (n+1)`: Hyndman & Fan's type 6, `mquantiles(alphap=0, betap=0)`.
fn weibull(sorted: &[f64], p: f64) -> Option<f64> {
    let n = sorted.len();
    if n < 2 {
        return sorted.first().copied();
    }
    let position = p * (n as f64 + 1.0);
    let k = position.clamp(1.0, n as f64 - 1.0).floor();
    let t = (position - k).clamp(0.0, 1.0);
    let k = k as usize;
    Some((1.0 - t) * sorted[k - 1] + t * sorted[k])
}

/// The standard error of the p-quantile by Maritz & Jarrett (1978), as `scipy.stats.mstats.mjci`
/// defines it.
///
/// It is the standard deviation of the samples under weights that are the beta probabilities of the
/// cells `[(i−1)/n, i/n]`, with parameters m−1 and n−m, `m = ⌊p n + ½⌋`.
///
/// `None` where that beta distribution does not exist: `m < 2` or `m = n`.
pub fn maritz_jarrett_error(sorted: &[f64], p: f64) -> Option<f64> {
    let n = sorted.len();
    let m = (p * n as f64 + 0.5) as usize;
    if m < 2 || m >= n {
        return None;
    }
    let known = weights_of(n, m);
    let (first, weights) = &*known;
    let cells = || weights.iter().zip(&sorted[*first..]);
    let total: f64 = weights.iter().sum();
    let mean = cells().map(|(w, x)| w * x).sum::<f64>() / total;
    let variance = cells().map(|(w, x)| w * (x - mean).powi(2)).sum::<f64>() / total;
    Some(variance.sqrt())
}

/// The weights of cells, and the index of the first.
type Weights = Arc<(usize, Vec<f64>)>;

/// The weights that were computed last, by n and m: models of one text need the same, and they take
/// a tenth of the time of a report.
static KNOWN: Mutex<BTreeMap<(usize, usize), Weights>> = Mutex::new(BTreeMap::new());

fn weights_of(n: usize, m: usize) -> Weights {
    /// More than the quantiles of one text.
    const MOST_KNOWN: usize = 64;
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(weights) = known().get(&(n, m)) {
        return Arc::clone(weights);
    }
    let weights = Arc::new(beta_weights(n, m));
    let mut known = known();
    if known.len() >= MOST_KNOWN {
        known.clear();
    }
    known.insert((n, m), Arc::clone(&weights));
    weights
}

/// The weights of all cells that matter, up to a common factor, and the index of the first.
///
/// Each cell's probability is the integral of the density over it, relative to the density at the
/// mode (so no special function and no large logarithm is needed), by 8-point Gauss-Legendre. The
/// walk goes outwards from the mode and ends where a cell adds nothing, after about 20 standard
/// deviations of `sqrt(n p (1−p))` cells instead of all n.
fn beta_weights(n: usize, m: usize) -> (usize, Vec<f64>) {
    /// Relative to all weight so far: what is left out is well below f64's resolution.
    const NEGLIGIBLE: f64 = 1e-20;
    let density = Density::new(n, m);
    let peak = ((density.mode * n as f64) as usize).min(n - 1);
    let mut total = 0.0;
    let mut matters = |cell: usize| {
        let weight = density.over_cell(cell);
        total += weight;
        (weight > NEGLIGIBLE * total).then_some(weight)
    };
    let mut weights: Vec<f64> = (0..=peak).rev().map_while(&mut matters).collect();
    weights.reverse();
    let first = peak + 1 - weights.len();
    weights.extend((peak + 1..n).map_while(&mut matters));
    (first, weights)
}

/// The density `x^below (1−x)^above`, relative to its own maximum.
struct Density {
    n: f64,
    below: f64,
    above: f64,
    mode: f64,
    mode_from_one: f64,
}

impl Density {
    /// Beta(m−1, n−m), `2 ≤ m < n`.
    fn new(n: usize, m: usize) -> Self {
        let (below, above) = ((m - 2) as f64, (n - m - 1) as f64);
        // Flat when both exponents are 0: any point is its mode.
        let degree = (below + above).max(1.0);
        Self {
            n: n as f64,
            below,
            above,
            mode: below / degree,
            mode_from_one: above / degree,
        }
    }

    fn at(&self, x: f64) -> f64 {
        let from_mode = x - self.mode;
        // With an exponent of 0 the mode is on the border; the factor is 1.
        let mut ln = 0.0;
        if self.below > 0.0 {
            ln += self.below * (from_mode / self.mode).ln_1p();
        }
        if self.above > 0.0 {
            ln += self.above * (-from_mode / self.mode_from_one).ln_1p();
        }
        ln.exp()
    }

    /// The integral over the cell `[cell/n, (cell+1)/n]`, in units of a cell.
    fn over_cell(&self, cell: usize) -> f64 {
        /// (distance from the middle, weight) on [-1, 1]: Abramowitz & Stegun table 25.4, n = 8.
        const GAUSS_LEGENDRE_8: [(f64, f64); 4] = [
            (0.183_434_642_495_649_8, 0.362_683_783_378_362),
            (0.525_532_409_916_329, 0.313_706_645_877_887_3),
            (0.796_666_477_413_626_7, 0.222_381_034_453_374_5),
            (0.960_289_856_497_536_3, 0.101_228_536_290_376_3),
        ];
        let middle = cell as f64 + 0.5;
        GAUSS_LEGENDRE_8
            .iter()
            .map(|(distance, weight)| {
                let left = self.at((middle - 0.5 * distance) / self.n);
                let right = self.at((middle + 0.5 * distance) / self.n);
                0.5 * weight * (left + right)
            })
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{assert_close, skewed};
    use super::super::quantile::linear;
    use super::*;

    fn sorted(n: usize) -> Vec<f64> {
        let mut samples = skewed(n);
        samples.sort_unstable_by(f64::total_cmp);
        samples
    }

    /// scipy computes each weight as a difference of beta CDFs and the variance as a difference of
    /// squares: at n = 1e5 that costs it 1.3e-10, compared with 30-digit arithmetic.
    const SCIPY_DIGITS: f64 = 1e-9;

    /// numpy.quantile and scipy.stats.mstats.mquantiles_cimj on `skewed(n)`, from `oracle.py`.
    #[test]
    fn matches_numpy_and_scipy() {
        for (n, p, value, lo, hi) in CIMJ {
            let sorted = sorted(n);
            assert_close(linear(&sorted, p).unwrap(), value, 1e-15);
            let got = interval(&sorted, p, Confidence::default()).unwrap();
            assert_close(got.0, lo, SCIPY_DIGITS);
            assert_close(got.1, hi, SCIPY_DIGITS);
        }
    }

    const CIMJ: [(usize, f64, f64, f64, f64); 15] = [
        (
            3,
            0.5,
            0.01646408232403317,
            -0.9843420989728664,
            1.0172702636209328,
        ),
        (
            6,
            0.9,
            3.8434813810938318,
            1.0881046144767947,
            7.002522840955715,
        ),
        (
            17,
            0.5,
            0.05145971478790969,
            -0.10668007117868641,
            0.2095995007545058,
        ),
        (
            40,
            0.95,
            25.374263492760768,
            11.193224052329489,
            42.853983462214124,
        ),
        (
            200,
            0.01,
            2.2942853737429163e-07,
            -7.182603020254283e-07,
            7.282516676954507e-07,
        ),
        (
            501,
            0.999,
            830.8023694227961,
            440.32495972488346,
            1445.301337861723,
        ),
        (
            1000,
            0.5,
            0.11449330626773904,
            0.07166804455151556,
            0.15731856798396254,
        ),
        (
            1000,
            0.9,
            6.655068069993859,
            4.967866880815274,
            8.52290816971126,
        ),
        (
            1000,
            0.95,
            16.556066113973397,
            10.819051216329733,
            24.011349706591204,
        ),
        (
            1000,
            0.99,
            187.37543311214228,
            89.42462571473129,
            289.38084781334106,
        ),
        (
            1000,
            0.999,
            634.3724919524436,
            495.3574853467296,
            960.2762255208363,
        ),
        (
            100000,
            0.1,
            0.00010838997172140052,
            0.00010049509667832239,
            0.0001162358537169087,
        ),
        (
            100000,
            0.5,
            0.12276751801666866,
            0.11902680234178893,
            0.12650823369154837,
        ),
        (
            100000,
            0.99,
            91.1266231097868,
            86.10681306924492,
            96.16040059936905,
        ),
        (
            100000,
            0.999,
            564.0728336773611,
            501.0205432594786,
            636.1106593014448,
        ),
    ];

    #[test]
    fn no_interval_where_scipy_has_none() {
        let at = |n, p| interval(&sorted(n), p, Confidence::default());
        assert_eq!(at(0, 0.5), None);
        for (n, p) in [
            (1, 0.5),
            (2, 0.5),
            (2, 0.999),
            (4, 0.9),
            (499, 0.999),
            (100, 0.01),
        ] {
            assert_eq!(at(n, p), None, "n {n} p {p}");
        }
        for (n, p) in [(3, 0.5), (6, 0.9), (501, 0.999), (200, 0.01)] {
            assert!(at(n, p).is_some(), "n {n} p {p}");
        }
    }

    #[test]
    fn equal_samples_have_an_interval_of_width_0() {
        let got = interval(&[0.1; 1000], 0.9, Confidence::default()).unwrap();
        assert_close(got.0, 0.1, 1e-15);
        assert_close(got.1, 0.1, 1e-15);
    }

    /// Only a few thousand cells of a million are looked at.
    #[test]
    fn few_cells_matter() {
        let (first, weights) = beta_weights(1_000_000, 500_000);
        assert!(weights.len() < 11_000, "{}", weights.len());
        assert!(first > 490_000 && first + weights.len() < 510_000);
    }
}
