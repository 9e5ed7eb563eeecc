//! Two rows of logits in, the numbers out that compare them otherwise than by KL divergence.
//!
//! Let `l` be the reference row and `m` the evaluated one, N entries each, `p = softmax(l)`, `q = softmax(m)`, natural
//! logarithms throughout.
//!
//! | number | formula | range |
//! |---|---|---|
//! | mean absolute difference | `Σ abs(l − m) / N` | 0 and up |
//! | greatest absolute difference | `max abs(l − m)` | 0 and up |
//! | cosine distance | `1 − l·m / (‖l‖ ‖m‖)` | 0 to 2 |
//! | Jensen-Shannon divergence | `½ KL(p‖h) + ½ KL(q‖h)`, `h = ½ (p + q)` | 0 to ln 2 |
//! | smoothed KLD | `KL(p'‖q')`, `p' = (1 − N ε) p + ε`, `q'` alike, `ε = 1e-10` | 0 and up |
//!
//! The first, the third and the last are what MAX's logit comparison reports, the last under the name KL divergence. The first
//! three are of the raw logits: they change if a constant is added to one of the rows, which changes no probability. The last
//! two do not.
//!
//! The smoothing takes N ε of the mass (1.3e-5 of a vocabulary of 128,256) and spreads it evenly: an entry that the evaluated
//! model holds for impossible costs at most 23 nats times its weight. For two rows that are close the smoothed KLD is a little
//! below the KLD; it is not to be compared with one that is not smoothed.
//!
//! # Zero rows
//!
//! A row of zeros has no direction. The distance of two of them is taken as 0, as they are equal, and that of one and another
//! row as 1, as their product is 0. (The formula, and scipy, give NaN.)
//!
//! # Passes
//!
//! All is f64. The first pass over chunks of 1,024 entries, decoded on the stack, takes the differences, the norms, and the
//! softmax's normalisers relative to the greatest logit so far; the second one the rest:
//!
//! - the cosine distance as `½ Σ (l/‖l‖ − m/‖m‖)²`, which is the same number but does not cancel where the rows are alike;
//! - the Jensen-Shannon divergence as `Σ ½ (p + q) j(u)` with `u = abs(ln p − ln q)`, `z = e^−u` and
//!   `j(u) = ln 2 − ln(1 + z) − u z/(1 + z)`, the weight that two probabilities in the ratio z add: no term is below 0, and
//!   for small `u`, where that cancels, its series is taken;
//! - the smoothed KLD as `Σ (p' ln(p'/q') − p' + q')`: what is added sums to 0, and leaves no term below 0.
//!
//! Equal rows give exactly 0 everywhere. The Jensen-Shannon divergence is symmetric to the bit.
//!
//! # Accuracy
//!
//! Largest errors against numpy and scipy in float64 (`scipy.spatial.distance`'s `cosine` and `jensenshannon` squared,
//! `rel_entr` of the smoothed `softmax`), absolute below 1 and relative above, over 1,921 pairs of rows: alike, apart, flat,
//! peaked, of ranges up to 1e30, of all lengths from 1 to 130 and some up to 128,259. (`cosine` gives NaN for rows of zeros.)
//!
//! | number | error |
//! |---|---|
//! | mean and greatest absolute difference | below 1e-15 |
//! | cosine distance | 4.6e-15 |
//! | Jensen-Shannon divergence | 5.4e-13 |
//! | smoothed KLD | 1.1e-12 |
//!
//! Of the cosine distance most of that is scipy's: against 80-bit arithmetic it is 7.8e-16, and 1.2e-12 relative from 1e-9 on.
//!
//! # Speed
//!
//! A pair of 128,256 entries takes 1.0 to 1.5 ms on one busy core (AMD EPYC, `target-cpu=native`), about three times what the
//! portable kernel takes to score it: five exponentials and two logarithms an entry instead of two exponentials.

use std::f64::consts::LN_2;
use std::ops::Range;

use kl_formats::Row;

use super::ln::ln;
use super::portable::exp;

/// What MAX adds to each probability: its `eps`.
pub const SMOOTHING: f64 = 1e-10;

/// Lanes of a sum. A power of 2: more than one, so that the compiler can vectorise it.
const LANES: usize = 8;

/// Entries decoded, and summed, at a time: both rows' stay in the innermost cache, and rounding errors do not grow with the row.
const CHUNK: usize = 1024;

/// One number a lane.
type Lanes = [f64; LANES];

/// What else, besides a [`TokenScore`](super::TokenScore), one pair of rows says; see the [module](self).
///
/// If a row holds NaN or an infinity anywhere, all of it is NaN: such a pair is to be counted and left out, never averaged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitMetrics {
    /// Mean over the vocabulary of the logits' absolute differences.
    pub mean_abs_diff: f64,
    /// The greatest of the logits' absolute differences.
    pub max_abs_diff: f64,
    /// One less the cosine of the angle between the rows; 0 for two rows of zeros, 1 for one.
    pub cosine_distance: f64,
    /// Jensen-Shannon divergence of the rows' softmaxes, in nats; not its square root, the distance.
    pub jensen_shannon: f64,
    /// KL(p'‖q') of the smoothed softmaxes, in nats: what MAX calls KL divergence.
    pub smoothed_kld: f64,
}

impl LogitMetrics {
    /// What there is to say of rows that are not finite.
    pub const EXCLUDED: Self = Self {
        mean_abs_diff: f64::NAN,
        max_abs_diff: f64::NAN,
        cosine_distance: f64::NAN,
        jensen_shannon: f64::NAN,
        smoothed_kld: f64::NAN,
    };

    /// Whether it can be counted. Numbers of finite rows are always finite.
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

/// Compares an evaluated row with a reference row that holds raw logits.
///
/// Of log-probabilities, as in llama.cpp's base file, only the last two numbers mean anything.
///
/// # Panics
///
/// If the rows are empty or of different length: an error of the program, not of its input.
pub fn logit_metrics(reference: Row<'_>, eval: &[f32]) -> LogitMetrics {
    assert!(!eval.is_empty(), "a row of logits has at least one entry");
    assert_eq!(reference.len(), eval.len(), "rows of different length");
    let mut sizes = Sizes::default();
    let all_finite = chunks(reference, eval, |l, m| {
        let finite = is_finite(l) && is_finite(m);
        if finite {
            sizes.chunk(l, m);
        }
        finite
    });
    if !all_finite {
        return LogitMetrics::EXCLUDED;
    }
    let mut distances = Distances::new(&sizes, eval.len());
    chunks(reference, eval, |l, m| {
        distances.chunk(l, m);
        true
    });
    LogitMetrics {
        mean_abs_diff: sizes.abs_diff / eval.len() as f64,
        max_abs_diff: sizes.max_abs_diff,
        cosine_distance: match (sizes.reference.squares == 0.0, sizes.eval.squares == 0.0) {
            (false, false) => distances.cosine.min(2.0),
            (true, true) => 0.0,
            _ => 1.0,
        },
        jensen_shannon: distances.jensen_shannon.min(LN_2),
        // Rounding may leave it below.
        smoothed_kld: distances.smoothed_kld.max(0.0),
    }
}

/// Hands over both rows, a chunk at a time, until one is refused; whether none was.
fn chunks(
    reference: Row<'_>,
    eval: &[f32],
    mut accepts: impl FnMut(&[f32], &[f32]) -> bool,
) -> bool {
    let mut decoded = [0.0; CHUNK];
    eval.chunks(CHUNK).enumerate().all(|(number, eval)| {
        let start = number * CHUNK;
        let decoded = &mut decoded[..eval.len()];
        part(reference, start..start + eval.len()).decode_into(decoded);
        accepts(decoded, eval)
    })
}

/// The entries of a range, as a row.
fn part(row: Row<'_>, range: Range<usize>) -> Row<'_> {
    match row {
        Row::F32(logits) => Row::F32(&logits[range]),
        Row::U16 { min, step, codes } => Row::U16 {
            min,
            step,
            codes: &codes[range],
        },
    }
}

fn is_finite(logits: &[f32]) -> bool {
    logits.iter().fold(true, |all, x| all & x.is_finite())
}

/// Something that is summed over pairs of logits.
trait Sums {
    /// Takes in the first `n` lanes; the others hold zeros.
    fn add(&mut self, l: Lanes, m: Lanes, n: usize);
}

/// Hands over a chunk of both rows, lane by lane.
#[inline(always)]
fn add_all(sums: &mut impl Sums, l: &[f32], m: &[f32]) {
    let (l, l_rest) = l.as_chunks::<LANES>();
    let (m, m_rest) = m.as_chunks::<LANES>();
    for (l, m) in l.iter().zip(m) {
        sums.add(l.map(f64::from), m.map(f64::from), LANES);
    }
    if !l_rest.is_empty() {
        sums.add(padded(l_rest), padded(m_rest), l_rest.len());
    }
}

/// Fewer entries than there are lanes, and zeros.
fn padded(rest: &[f32]) -> Lanes {
    let mut out = [0.0; LANES];
    for (out, &x) in out.iter_mut().zip(rest) {
        *out = f64::from(x);
    }
    out
}

/// Adds the first `n` terms, each to its own sum.
#[inline(always)]
fn add(sums: &mut Lanes, terms: Lanes, n: usize) {
    for i in 0..LANES {
        sums[i] += if i < n { terms[i] } else { 0.0 };
    }
}

/// `f` of each lane of two.
#[inline(always)]
fn zip(a: Lanes, b: Lanes, f: impl Fn(f64, f64) -> f64) -> Lanes {
    let mut out = [0.0; LANES];
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
    }
    out
}

/// What the first pass finds: the differences, and what the second one divides by.
#[derive(Default)]
struct Sizes {
    /// Σ |l − m|
    abs_diff: f64,
    max_abs_diff: f64,
    reference: Size,
    eval: Size,
}

impl Sizes {
    fn chunk(&mut self, l: &[f32], m: &[f32]) {
        self.reference.raise(l);
        self.eval.raise(m);
        let mut sums = SizeSums {
            ref_max: self.reference.max,
            eval_max: self.eval.max,
            ..SizeSums::default()
        };
        add_all(&mut sums, l, m);
        self.abs_diff += sums.abs_diff.iter().sum::<f64>();
        self.max_abs_diff = sums
            .max_abs_diff
            .into_iter()
            .fold(self.max_abs_diff, f64::max);
        self.reference.add(&sums.l_squares, &sums.l_weights);
        self.eval.add(&sums.m_squares, &sums.m_weights);
    }
}

/// The norm of one row, and the normaliser of its softmax.
struct Size {
    /// Σ l²
    squares: f64,
    /// The greatest logit so far.
    max: f64,
    /// Σ e^(l − max)
    weights: f64,
}

impl Default for Size {
    fn default() -> Self {
        Self {
            squares: 0.0,
            max: f64::NEG_INFINITY,
            weights: 0.0,
        }
    }
}

impl Size {
    /// Makes the greatest of `logits` the maximum, if it is greater.
    fn raise(&mut self, logits: &[f32]) {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let max = f64::from(max);
        if max > self.max {
            self.weights *= (self.max - max).exp();
            self.max = max;
        }
    }

    fn add(&mut self, squares: &Lanes, weights: &Lanes) {
        self.squares += squares.iter().sum::<f64>();
        self.weights += weights.iter().sum::<f64>();
    }

    /// 1/‖l‖; of no use for a row of zeros.
    fn inverse_norm(&self) -> f64 {
        1.0 / self.squares.sqrt()
    }
}

/// [`Sizes`] of a chunk.
#[derive(Default)]
struct SizeSums {
    ref_max: f64,
    eval_max: f64,
    abs_diff: Lanes,
    max_abs_diff: Lanes,
    l_squares: Lanes,
    m_squares: Lanes,
    l_weights: Lanes,
    m_weights: Lanes,
}

impl Sums for SizeSums {
    #[inline(always)]
    fn add(&mut self, l: Lanes, m: Lanes, n: usize) {
        let abs_diff = zip(l, m, |l, m| (l - m).abs());
        // Lanes that are not counted are 0.
        self.max_abs_diff = zip(
            self.max_abs_diff,
            abs_diff,
            |a, b| if a > b { a } else { b },
        );
        add(&mut self.abs_diff, abs_diff, n);
        add(&mut self.l_squares, l.map(|l| l * l), n);
        add(&mut self.m_squares, m.map(|m| m * m), n);
        add(&mut self.l_weights, exp(l.map(|l| l - self.ref_max)), n);
        add(&mut self.m_weights, exp(m.map(|m| m - self.eval_max)), n);
    }
}

/// What the second pass finds.
struct Distances {
    cosine: f64,
    jensen_shannon: f64,
    smoothed_kld: f64,
    /// The sums of a chunk start as this.
    start: DistanceSums,
}

impl Distances {
    /// Of rows of `n` entries with these sizes.
    fn new(sizes: &Sizes, n: usize) -> Self {
        let (l, m) = (&sizes.reference, &sizes.eval);
        Self {
            cosine: 0.0,
            jensen_shannon: 0.0,
            smoothed_kld: 0.0,
            start: DistanceSums {
                ref_max: l.max,
                eval_max: m.max,
                ref_scale: 1.0 / l.weights,
                eval_scale: 1.0 / m.weights,
                // Not the quotient's logarithm: this one only changes its sign when the rows are swapped.
                ln_ratio: l.weights.ln() - m.weights.ln(),
                ref_inverse_norm: l.inverse_norm(),
                eval_inverse_norm: m.inverse_norm(),
                kept: 1.0 - n as f64 * SMOOTHING,
                cosine: [0.0; LANES],
                jensen_shannon: [0.0; LANES],
                smoothed_kld: [0.0; LANES],
            },
        }
    }

    fn chunk(&mut self, l: &[f32], m: &[f32]) {
        let mut sums = self.start;
        add_all(&mut sums, l, m);
        self.cosine += sums.cosine.iter().sum::<f64>();
        self.jensen_shannon += sums.jensen_shannon.iter().sum::<f64>();
        self.smoothed_kld += sums.smoothed_kld.iter().sum::<f64>();
    }
}

/// [`Distances`] of a chunk, and the row's constants.
#[derive(Clone, Copy)]
struct DistanceSums {
    ref_max: f64,
    eval_max: f64,
    /// What e^(l − max) is multiplied with to give p.
    ref_scale: f64,
    eval_scale: f64,
    /// Logarithm of the normalisers' ratio, reference to evaluated.
    ln_ratio: f64,
    ref_inverse_norm: f64,
    eval_inverse_norm: f64,
    /// Share of the mass that smoothing leaves where it is.
    kept: f64,
    cosine: Lanes,
    jensen_shannon: Lanes,
    smoothed_kld: Lanes,
}

impl Sums for DistanceSums {
    #[inline(always)]
    fn add(&mut self, l: Lanes, m: Lanes, n: usize) {
        let angle = zip(l, m, |l, m| {
            l * self.ref_inverse_norm - m * self.eval_inverse_norm
        });
        add(&mut self.cosine, angle.map(|x| 0.5 * x * x), n);

        let a = l.map(|l| l - self.ref_max);
        let b = m.map(|m| m - self.eval_max);
        let p = exp(a).map(|weight| weight * self.ref_scale);
        let q = exp(b).map(|weight| weight * self.eval_scale);
        let u = zip(a, b, |a, b| ((a - b) - self.ln_ratio).abs());
        let mean = zip(p, q, |p, q| 0.5 * (p + q));
        let divergence = zip(mean, jensen_shannon(u), |mean, j| mean * j);
        add(&mut self.jensen_shannon, divergence, n);

        let p = p.map(|p| self.kept * p + SMOOTHING);
        let q = q.map(|q| self.kept * q + SMOOTHING);
        let product = zip(p, ln(zip(p, q, |p, q| p / q)), |p, ln| p * ln);
        let change = zip(q, p, |q, p| q - p);
        let divergence = zip(product, change, |product, change| product + change);
        add(&mut self.smoothed_kld, divergence, n);
    }
}

/// Up to this `u` the Jensen-Shannon divergence's series is taken; what it leaves out is 1e-13 of it there.
const SERIES: f64 = 0.25;

/// The `j(u)` of the [module](self), for u ≥ 0: with v = u/2 it is `v tanh v − ln cosh v = v²/2 − v⁴/4 + v⁶/9 − …`.
#[inline(always)]
fn jensen_shannon(u: Lanes) -> Lanes {
    const COEFFICIENTS: [f64; 6] = [
        1.0 / 2.0,
        -1.0 / 4.0,
        1.0 / 9.0,
        -17.0 / 360.0,
        31.0 / 1575.0,
        -691.0 / 85050.0,
    ];
    let z = exp(u.map(|u| -u));
    let ln_sum = ln(z.map(|z| 1.0 + z));
    let mut out = [0.0; LANES];
    for i in 0..LANES {
        let square = 0.25 * u[i] * u[i];
        let mut series = 0.0;
        for coefficient in COEFFICIENTS.into_iter().rev() {
            series = series * square + coefficient;
        }
        let closed = LN_2 - ln_sum[i] - u[i] * z[i] / (1.0 + z[i]);
        out[i] = if u[i] < SERIES {
            series * square
        } else {
            closed
        };
    }
    out
}

#[cfg(test)]
#[path = "logit_metrics_tests.rs"]
mod tests;
