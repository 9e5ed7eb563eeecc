//! The two passes over a pair of rows, in lanes that the compiler vectorises.
//!
//! Both passes are in one file because the compiler vectorises them better so: in a file of its
//! own, the first one took 1.5 times as long.

use std::f64::consts::LN_2;

use super::super::ln::ln;
use super::super::pair::RowPair;
use super::super::portable::exp;
use super::metrics::LogitMetrics;

/// Added to each probability: MAX's `eps`.
const SMOOTHING: f64 = 1e-10;

/// Lanes of a sum: a power of 2, and more than one, so that the compiler can vectorise it.
const LANES: usize = 8;

/// Entries decoded and summed at a time: those of both rows stay in the innermost cache, and
/// rounding errors do not grow with the row.
const CHUNK: usize = 1024;

/// A number for each lane.
type Lanes = [f64; LANES];

/// Compares an evaluated row with a reference row that holds raw logits.
///
/// For a row of log-probabilities, as in llama.cpp's base file, only the last two numbers mean
/// anything.
///
/// # Panics
///
/// If the rows are empty or of different length. These are bugs in the caller: no input leads to
/// them.
pub fn logit_metrics(pair: &RowPair<'_>) -> LogitMetrics {
    pair.check();
    let mut first = FirstPass::default();
    let is_sound = chunks(pair, |chunk| first.chunk(chunk));
    if !is_sound {
        return LogitMetrics::EXCLUDED;
    }
    let mut second = SecondPass::new(&first);
    chunks(pair, |chunk| second.chunk(chunk));
    LogitMetrics {
        mean_abs_diff: first.abs_diff / first.n_logits as f64,
        max_abs_diff: first.max_abs_diff,
        cosine_distance: match (first.reference.squares == 0.0, first.eval.squares == 0.0) {
            (false, false) => second.cosine.min(2.0),
            (true, true) => 0.0,
            _ => 1.0,
        },
        jensen_shannon: second.jensen_shannon.min(LN_2),
        // Rounding may leave it below 0.
        smoothed_kld: second.smoothed_kld.max(0.0),
    }
}

/// Some entries of both rows.
#[derive(Clone, Copy)]
struct Chunk<'a> {
    l: &'a [f32],
    m: &'a [f32],
    /// True if one row's logits are −∞, written as the smallest f32: then there is nothing to
    /// subtract.
    is_masked: bool,
    /// Entries that both rows know: these, and those that are −∞ in both.
    n_known: usize,
}

/// Shows all entries that both rows know to `see`, a chunk at a time, without those that are −∞ in
/// both. Returns false, at the latest after the last chunk, if a row holds NaN or +∞ or nothing but
/// −∞.
fn chunks(pair: &RowPair<'_>, mut see: impl FnMut(Chunk<'_>)) -> bool {
    let mut decoded = [0.0; CHUNK];
    let mut has_logits = [false; 2];
    let are_sound = pair.eval.chunks(CHUNK).enumerate().all(|(number, m)| {
        let start = number * CHUNK;
        let l = &mut decoded[..m.len()];
        pair.reference.part(start..start + m.len()).decode_into(l);
        let l = &*l;
        if is_finite(l) && is_finite(m) && pair.ref_floor.is_none() && pair.eval_floor.is_none() {
            has_logits = [true; 2];
            let n_known = m.len();
            see(Chunk {
                l,
                m,
                is_masked: false,
                n_known,
            });
            return true;
        }
        let rows = [l, m];
        for (has_logits, row) in has_logits.iter_mut().zip(rows) {
            *has_logits |= row.iter().any(|x| *x > f32::NEG_INFINITY);
        }
        // NaN is not at or below anything.
        let at_floor = |x: f32, floor: Option<f32>| floor.is_some_and(|floor| x <= floor);
        let is_known = |l, m| !at_floor(l, pair.ref_floor) && !at_floor(m, pair.eval_floor);
        let n_masks = |l, m| [l, m].iter().filter(|x| **x == f32::NEG_INFINITY).count();
        let finite = |x| if x == f32::NEG_INFINITY { -f32::MAX } else { x };
        let entries = || l.iter().zip(m).map(|(l, m)| (*l, *m));
        let mut n_known = entries().filter(|&(l, m)| is_known(l, m)).count();
        [false, true].into_iter().all(|is_masked| {
            let mut kept = [[0.0; CHUNK]; 2];
            let wanted = usize::from(is_masked);
            let chosen = entries().filter(|&(l, m)| is_known(l, m) && n_masks(l, m) == wanted);
            let mut n = 0;
            for (l, m) in chosen {
                kept[0][n] = finite(l);
                kept[1][n] = finite(m);
                n += 1;
            }
            let (l, m) = (&kept[0][..n], &kept[1][..n]);
            see(Chunk {
                l,
                m,
                is_masked,
                n_known,
            });
            n_known = 0;
            is_finite(l) && is_finite(m)
        })
    });
    are_sound && has_logits == [true; 2]
}

fn is_finite(logits: &[f32]) -> bool {
    logits.iter().fold(true, |all, x| all & x.is_finite())
}

/// Sums over pairs of logits.
trait Sums {
    /// Adds the first `n` lanes; the others hold zeros.
    fn add(&mut self, l: Lanes, m: Lanes, n: usize);
}

/// Adds a chunk of both rows.
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

/// Widens fewer entries than there are lanes; the rest are zeros.
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

/// Applies `f` lane by lane.
#[inline(always)]
fn zip(a: Lanes, b: Lanes, f: impl Fn(f64, f64) -> f64) -> Lanes {
    let mut out = [0.0; LANES];
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
    }
    out
}

/// Sums of the differences, and the numbers that the second pass divides by.
#[derive(Default)]
struct FirstPass {
    /// Σ |l − m|
    abs_diff: f64,
    max_abs_diff: f64,
    /// Entries with a logit in both rows.
    n_logits: usize,
    n_known: usize,
    reference: Norms,
    eval: Norms,
}

impl FirstPass {
    fn chunk(&mut self, chunk: Chunk<'_>) {
        let Chunk { l, m, .. } = chunk;
        self.n_known += chunk.n_known;
        self.reference.raise(l);
        self.eval.raise(m);
        let mut sums = FirstSums {
            ref_max: self.reference.max,
            eval_max: self.eval.max,
            ..FirstSums::default()
        };
        add_all(&mut sums, l, m);
        self.reference.weights += sums.l_weights.iter().sum::<f64>();
        self.eval.weights += sums.m_weights.iter().sum::<f64>();
        if chunk.is_masked {
            return;
        }
        self.n_logits += l.len();
        self.reference.squares += sums.l_squares.iter().sum::<f64>();
        self.eval.squares += sums.m_squares.iter().sum::<f64>();
        self.abs_diff += sums.abs_diff.iter().sum::<f64>();
        self.max_abs_diff = sums
            .max_abs_diff
            .into_iter()
            .fold(self.max_abs_diff, f64::max);
    }
}

/// The norm of one row, and the normaliser of its softmax.
struct Norms {
    /// Σ l²
    squares: f64,
    /// The largest logit so far.
    max: f64,
    /// Σ e^(l − max)
    weights: f64,
}

impl Default for Norms {
    fn default() -> Self {
        Self {
            squares: 0.0,
            max: f64::NEG_INFINITY,
            weights: 0.0,
        }
    }
}

impl Norms {
    /// Raises the maximum to the largest of `logits`.
    fn raise(&mut self, logits: &[f32]) {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let max = f64::from(max);
        if max > self.max {
            self.weights *= (self.max - max).exp();
            self.max = max;
        }
    }

    /// 1/‖l‖: infinite for a row of zeros.
    fn inverse_norm(&self) -> f64 {
        1.0 / self.squares.sqrt()
    }
}

/// The sums over one chunk.
#[derive(Default)]
struct FirstSums {
    ref_max: f64,
    eval_max: f64,
    abs_diff: Lanes,
    max_abs_diff: Lanes,
    l_squares: Lanes,
    m_squares: Lanes,
    l_weights: Lanes,
    m_weights: Lanes,
}

impl Sums for FirstSums {
    #[inline(always)]
    fn add(&mut self, l: Lanes, m: Lanes, n: usize) {
        let abs_diff = zip(l, m, |l, m| (l - m).abs());
        // In lanes past the first n both are 0, and so is the difference.
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

/// The sums that need the norms and normalisers of both rows.
struct SecondPass {
    cosine: f64,
    jensen_shannon: f64,
    smoothed_kld: f64,
    /// Every chunk's sums start as this.
    start: SecondSums,
}

impl SecondPass {
    /// With what the first pass found.
    fn new(first: &FirstPass) -> Self {
        let (l, m) = (&first.reference, &first.eval);
        Self {
            cosine: 0.0,
            jensen_shannon: 0.0,
            smoothed_kld: 0.0,
            start: SecondSums {
                ref_max: l.max,
                eval_max: m.max,
                ref_scale: 1.0 / l.weights,
                eval_scale: 1.0 / m.weights,
                // Not the logarithm of the quotient: this only changes its sign when the rows are
                // swapped.
                ln_ratio: l.weights.ln() - m.weights.ln(),
                ref_inverse_norm: l.inverse_norm(),
                eval_inverse_norm: m.inverse_norm(),
                kept: 1.0 - first.n_known as f64 * SMOOTHING,
                cosine: [0.0; LANES],
                jensen_shannon: [0.0; LANES],
                smoothed_kld: [0.0; LANES],
            },
        }
    }

    fn chunk(&mut self, chunk: Chunk<'_>) {
        let mut sums = self.start;
        add_all(&mut sums, chunk.l, chunk.m);
        if !chunk.is_masked {
            self.cosine += sums.cosine.iter().sum::<f64>();
        }
        self.jensen_shannon += sums.jensen_shannon.iter().sum::<f64>();
        self.smoothed_kld += sums.smoothed_kld.iter().sum::<f64>();
    }
}

/// The sums over one chunk, and the rows' constants.
#[derive(Clone, Copy)]
struct SecondSums {
    ref_max: f64,
    eval_max: f64,
    /// p is e^(l − max) times this.
    ref_scale: f64,
    eval_scale: f64,
    /// Logarithm of the reference's normaliser over the evaluated row's.
    ln_ratio: f64,
    ref_inverse_norm: f64,
    eval_inverse_norm: f64,
    /// The share of the mass that smoothing does not spread.
    kept: f64,
    cosine: Lanes,
    jensen_shannon: Lanes,
    smoothed_kld: Lanes,
}

impl Sums for SecondSums {
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

/// Below this `u` the Jensen-Shannon divergence is computed by its series, whose relative error
/// there is 1e-13.
const SERIES: f64 = 0.25;

/// The `j(u)` of the [metrics' documentation](super), for u ≥ 0. With v = u/2 it is
/// `v tanh v − ln cosh v = v²/2 − v⁴/4 + v⁶/9 − …`.
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
