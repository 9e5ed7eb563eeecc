//! The passes over a pair of rows, written once for vectors of any width.
//!
//! Everything is `inline(always)`: a kernel's entry point has its `#[target_feature]`, and what is
//! inlined into it is compiled with those features.

use kl_formats::Row;

use super::token_score::TokenScore;
use super::vector::{Codes, Simd, Source};

/// Rows whose logits are all within ± this take one pass; e^300 is 2e130, e^−300 is 5e-131.
pub(super) const ORDINARY: f32 = 300.0;

/// Rows with fewer entries take two passes, in which the largest entry weighs exactly 1.
const SHORT: usize = 64;

/// A logit below the maximum that weighs exactly 0.
const PADDING: f64 = -1e4;

/// Entries summed before the sums are added to the row's: keeps rounding errors from growing with
/// the row.
const BLOCK: usize = 1024;

/// Scores two rows of the same length, at least 1.
#[inline(always)]
pub(super) fn score<S: Simd>(reference: Row<'_>, eval: &[f32], next: Option<u32>) -> TokenScore {
    let mut decoded = Vec::new();
    let reference = match reference {
        Row::U16Masked { codes, .. } => {
            decoded.resize(codes.len(), 0.0);
            reference.decode_into(&mut decoded);
            Row::F32(&decoded)
        }
        plain => plain,
    };
    match reference {
        Row::F32(row) => score_rows::<S, _>(row, eval, next),
        Row::U16Masked { .. } => unreachable!("decoded above"),
        Row::U16 { min, step, codes } => {
            let codes = Codes::<S>::new(min, step, codes);
            score_rows::<S, _>(codes, eval, next)
        }
    }
}

#[inline(always)]
fn score_rows<S: Simd, R: Source<S>>(reference: R, eval: &[f32], next: Option<u32>) -> TokenScore {
    let sums = if eval.len() < SHORT {
        None
    } else {
        one_pass::<S, R>(reference, eval)
    };
    match sums.map_or_else(|| two_passes::<S, R>(reference, eval), Ok) {
        Ok(sums) => finish::<S, R>(reference, eval, next, &sums),
        Err(excluded) => excluded,
    }
}

/// Turns the sums into the numbers of the module's table.
#[inline(always)]
fn finish<S: Simd, R: Source<S>>(
    reference: R,
    eval: &[f32],
    next: Option<u32>,
    sums: &Sums,
) -> TokenScore {
    let (ref_top, eval_top) = (sums.ref_top, sums.eval_top);
    let ln_p = sums.p.ln();
    let ln_q = sums.q.ln();
    let (ref_nll, eval_nll) = match next.map(|next| next as usize) {
        Some(next) => (
            ln_p - (f64::from(reference.get(next)) - sums.ref_shift),
            ln_q - (f64::from(eval[next]) - sums.eval_shift),
        ),
        None => (f64::NAN, f64::NAN),
    };
    let (ref_top_rank, eval_top_rank) = if ref_top == eval_top {
        (1, 1)
    } else {
        (
            rank::<S, _>(eval, eval.len(), ref_top),
            rank::<S, R>(reference, eval.len(), eval_top),
        )
    };
    TokenScore {
        // The quotient first: the difference of two logarithms would round at their size, not at
        // that of the result.
        kld: at_least_zero(sums.p_d / sums.p + (sums.q / sums.p).ln()),
        reverse_kld: at_least_zero((sums.p / sums.q).ln() - sums.q_d / sums.q),
        ref_entropy: at_least_zero(ln_p - sums.p_a / sums.p),
        ref_nll: at_least_zero(ref_nll),
        eval_nll: at_least_zero(eval_nll),
        ref_top: ref_top as u32,
        eval_top: eval_top as u32,
        ref_top_rank,
        eval_top_rank,
        ref_top_p: at_most_one(weight(reference.get(ref_top), sums.ref_shift) / sums.p),
        eval_top_p: at_most_one(weight(eval[eval_top], sums.eval_shift) / sums.q),
        ref_finite: true,
        eval_finite: true,
    }
}

/// e^a of a logit.
#[inline(always)]
fn weight(logit: f32, shift: f64) -> f64 {
    (f64::from(logit) - shift).exp()
}

/// Replaces what rounding left below 0 by 0; NaN stays.
#[inline(always)]
fn at_least_zero(x: f64) -> f64 {
    if x <= 0.0 { 0.0 } else { x }
}

/// Replaces what rounding left above 1 by 1.
#[inline(always)]
fn at_most_one(x: f64) -> f64 {
    if x >= 1.0 { 1.0 } else { x }
}

/// The sums over a pair of rows; see the module's table for `a`, `b`, `d`.
struct Sums {
    /// Σ e^a
    p: f64,
    /// Σ e^b
    q: f64,
    /// Σ e^a d
    p_d: f64,
    /// Σ e^b d
    q_d: f64,
    /// Σ e^a a
    p_a: f64,
    /// `a` is the reference's logit minus this.
    ref_shift: f64,
    /// `b` is the evaluated logit minus this.
    eval_shift: f64,
    ref_top: usize,
    eval_top: usize,
}

/// The sums of one block or of a row, one in each lane.
struct Lanes<S: Simd> {
    p: S::D,
    q: S::D,
    p_d: S::D,
    q_d: S::D,
    p_a: S::D,
}

impl<S: Simd> Lanes<S> {
    #[inline(always)]
    fn zero() -> Self {
        let zero = S::splat(0.0);
        Self {
            p: zero,
            q: zero,
            p_d: zero,
            q_d: zero,
            p_a: zero,
        }
    }

    /// Adds entries with the given `a` and `b`, and [e^a, e^a, e^b, e^b].
    #[inline(always)]
    fn push(&mut self, a: [S::D; 2], b: [S::D; 2], exp: [S::D; 4]) {
        for half in 0..2 {
            let (p, q) = (exp[half], exp[2 + half]);
            let d = S::sub(a[half], b[half]);
            self.p = S::add(self.p, p);
            self.q = S::add(self.q, q);
            self.p_d = S::mul_add(p, d, self.p_d);
            self.q_d = S::mul_add(q, d, self.q_d);
            self.p_a = S::mul_add(p, a[half], self.p_a);
        }
    }

    #[inline(always)]
    fn merge(&mut self, other: &Self) {
        self.p = S::add(self.p, other.p);
        self.q = S::add(self.q, other.q);
        self.p_d = S::add(self.p_d, other.p_d);
        self.q_d = S::add(self.q_d, other.q_d);
        self.p_a = S::add(self.p_a, other.p_a);
    }

    #[inline(always)]
    fn sums(&self, ref_top: Top, eval_top: Top, shifted: bool) -> Sums {
        let shift = |top: Top| if shifted { f64::from(top.logit) } else { 0.0 };
        Sums {
            p: lane_sum::<S>(self.p),
            q: lane_sum::<S>(self.q),
            p_d: lane_sum::<S>(self.p_d),
            q_d: lane_sum::<S>(self.q_d),
            p_a: lane_sum::<S>(self.p_a),
            ref_shift: shift(ref_top),
            eval_shift: shift(eval_top),
            ref_top: ref_top.index,
            eval_top: eval_top.index,
        }
    }
}

#[inline(always)]
fn lane_sum<S: Simd>(x: S::D) -> f64 {
    let mut lanes = [0.0; 8];
    S::store(x, &mut lanes);
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// A row's first maximum so far.
#[derive(Clone, Copy)]
struct Top {
    logit: f32,
    /// Its index; while blocks are read, the start of the first block that holds it.
    index: usize,
}

impl Top {
    const NONE: Self = Self {
        logit: f32::NEG_INFINITY,
        index: 0,
    };

    /// Updates the maximum by those of the block that starts at `start`.
    #[inline(always)]
    fn block<S: Simd>(&mut self, most: S::F, start: usize) {
        if S::any_above(most, S::splat_f(self.logit)) {
            let mut lanes = [f32::NEG_INFINITY; 16];
            S::store_f(most, &mut lanes);
            self.logit = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
            self.index = start;
        }
    }

    /// Looks at the entries from `whole` on, which no block held, and finds the maximum's index.
    #[inline(always)]
    fn finish<S: Simd, R: Source<S>>(mut self, row: R, whole: usize, n: usize) -> Self {
        for index in whole..n {
            let logit = row.get(index);
            if logit > self.logit {
                self = Self { logit, index };
            }
        }
        // Bounded by `n`, so that the loop ends for a row with NaN.
        while self.index + 1 < n && row.get(self.index) != self.logit {
            self.index += 1;
        }
        self
    }
}

/// Scores rows whose logits are all within ±[`ORDINARY`], as those of language models are, in one
/// pass: e^x then neither overflows nor underflows, so the maxima need not be known first. `None` for
/// other rows, including those that are not finite.
#[inline(always)]
fn one_pass<S: Simd, R: Source<S>>(reference: R, eval: &[f32]) -> Option<Sums> {
    let n = eval.len();
    let whole = n - n % S::LANES;
    let (mut ref_top, mut eval_top) = (Top::NONE, Top::NONE);
    let (mut least_l, mut least_m) = (S::splat_f(0.0), S::splat_f(0.0));
    let (lower, upper) = (S::splat_f(-ORDINARY), S::splat_f(ORDINARY));
    let mut total = Lanes::<S>::zero();
    let mut start = 0;
    while start < whole {
        let end = (start + BLOCK).min(whole);
        let (mut most_l, mut most_m) =
            (S::splat_f(f32::NEG_INFINITY), S::splat_f(f32::NEG_INFINITY));
        let mut block = Lanes::<S>::zero();
        let mut at = start;
        while at < end {
            let l = reference.vector(at);
            let m = Source::<S>::vector(&eval, at);
            most_l = S::max_f(most_l, l);
            most_m = S::max_f(most_m, m);
            least_l = S::min_f(least_l, l);
            least_m = S::min_f(least_m, m);
            let (l, m) = (S::widen(l), S::widen(m));
            block.push(l, m, S::exp_ordinary([l[0], l[1], m[0], m[1]]));
            at += S::LANES;
        }
        let most = S::max_f(most_l, most_m);
        let least = S::min_f(least_l, least_m);
        if S::any_above(most, upper) || S::any_above(lower, least) {
            return None;
        }
        total.merge(&block);
        ref_top.block::<S>(most_l, start);
        eval_top.block::<S>(most_m, start);
        start = end;
    }
    let ref_top = ref_top.finish::<S, R>(reference, whole, n);
    let eval_top = eval_top.finish::<S, _>(eval, whole, n);
    let mut sums = total.sums(ref_top, eval_top, false);
    for (at, &m) in eval.iter().enumerate().skip(whole) {
        let l = reference.get(at);
        if !(l.abs() <= ORDINARY && m.abs() <= ORDINARY) {
            return None;
        }
        let (l, m) = (f64::from(l), f64::from(m));
        let (p, q) = (l.exp(), m.exp());
        sums.p += p;
        sums.q += q;
        sums.p_d += p * (l - m);
        sums.q_d += q * (l - m);
        sums.p_a += p * l;
    }
    // Minima and maxima may miss a NaN, but `d` is NaN wherever a logit is, and so is the sum.
    sums.p_d.is_finite().then_some(sums)
}

/// Scores any rows in two passes; Err is the score of a pair that is not finite.
#[inline(always)]
fn two_passes<S: Simd, R: Source<S>>(reference: R, eval: &[f32]) -> Result<Sums, TokenScore> {
    let n = eval.len();
    let (ref_top, eval_top) = (top::<S, R>(reference, n), top::<S, _>(eval, n));
    let (Some(ref_top), Some(eval_top)) = (ref_top, eval_top) else {
        return Err(TokenScore::excluded(ref_top.is_some(), eval_top.is_some()));
    };
    let whole = n - n % S::LANES;
    let ref_max = S::splat(f64::from(ref_top.logit));
    let eval_max = S::splat(f64::from(eval_top.logit));
    let mut total = Lanes::<S>::zero();
    let mut start = 0;
    while start < whole {
        let end = (start + BLOCK).min(whole);
        let mut block = Lanes::<S>::zero();
        let mut at = start;
        while at < end {
            let l = S::widen(reference.vector(at));
            let m = S::widen(Source::<S>::vector(&eval, at));
            let a = [S::sub(l[0], ref_max), S::sub(l[1], ref_max)];
            let b = [S::sub(m[0], eval_max), S::sub(m[1], eval_max)];
            block.push(a, b, S::exp([a[0], a[1], b[0], b[1]]));
            at += S::LANES;
        }
        total.merge(&block);
        start = end;
    }
    // The rest, which fills no vector, is padded with entries that weigh exactly 0 in both rows and
    // differ by 0.
    let mut a = [PADDING; 16];
    let mut b = [PADDING; 16];
    for (at, &m) in eval.iter().enumerate().skip(whole) {
        a[at - whole] = f64::from(reference.get(at)) - f64::from(ref_top.logit);
        b[at - whole] = f64::from(m) - f64::from(eval_top.logit);
    }
    let a = [S::load(&a), S::load(&a[S::LANES / 2..])];
    let b = [S::load(&b), S::load(&b[S::LANES / 2..])];
    total.push(a, b, S::exp([a[0], a[1], b[0], b[1]]));
    Ok(total.sums(ref_top, eval_top, true))
}

/// A row's first maximum, or None if any entry is not finite.
#[inline(always)]
fn top<S: Simd, R: Source<S>>(row: R, n: usize) -> Option<Top> {
    let zero = S::splat_f(0.0);
    let whole = n - n % S::LANES;
    let mut top = Top::NONE;
    // x·0 is 0 only for a finite x.
    let mut zeros = zero;
    let mut start = 0;
    while start < whole {
        let end = (start + BLOCK).min(whole);
        let mut most = S::splat_f(f32::NEG_INFINITY);
        let mut at = start;
        while at < end {
            let x = row.vector(at);
            most = S::max_f(most, x);
            zeros = S::add_f(zeros, S::mul_f(x, zero));
            at += S::LANES;
        }
        top.block::<S>(most, start);
        start = end;
    }
    let mut lanes = [0.0; 16];
    S::store_f(zeros, &mut lanes);
    let finite = lanes.iter().all(|&x| x == 0.0) && (whole..n).all(|at| row.get(at).is_finite());
    finite.then(|| top.finish::<S, R>(row, whole, n))
}

/// 1 + the number of entries above the one at `of`, equal ones at lower indices included.
#[inline(always)]
fn rank<S: Simd, R: Source<S>>(row: R, n: usize, of: usize) -> u32 {
    let bar = row.get(of);
    // x ≥ bar is x > the float below it.
    let before = count_above::<S, R>(row, 0, of, bar.next_down());
    1 + before + count_above::<S, R>(row, of + 1, n, bar)
}

#[inline(always)]
fn count_above<S: Simd, R: Source<S>>(row: R, start: usize, end: usize, bar: f32) -> u32 {
    let bars = S::splat_f(bar);
    let mut counts = S::count_zero();
    let mut at = start;
    while at + S::LANES <= end {
        counts = S::count_above(counts, row.vector(at), bars);
        at += S::LANES;
    }
    let tail = (at..end).filter(|&at| row.get(at) > bar).count();
    S::count_sum(counts) + tail as u32
}
