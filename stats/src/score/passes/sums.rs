//! The sums over a pair of rows.

use fearless_simd::prelude::*;
use kl_formats::TokenRecord;

use super::{ORDINARY, Top, blocks, excluded, padded, top};
use crate::score::pair::Source;
use crate::score::vector::{exp, exp_ordinary};

/// The entries of two rows that enter the sums.
#[derive(Clone, Copy)]
pub(super) enum Counted {
    /// Every entry: neither row has a floor, and all logits are finite.
    Every,
    /// Entries above this floor of the reference: all logits are finite.
    AboveFloor(f32),
    /// Entries above these floors of both rows. A logit of −∞ weighs 0.
    Known([Option<f32>; 2]),
}

/// A vector of entries of both rows.
pub(super) struct Entries<S: Simd> {
    /// The logits, finite in place of −∞.
    pub l: S::f32s,
    pub m: S::f32s,
    /// The entries of each row that are at its floor or −∞; `None` if every entry counts.
    unknown: Option<[S::mask32s; 2]>,
}

impl Counted {
    /// The entries of a vector of either row. NaN stays.
    #[inline(always)]
    pub fn entries<S: Simd>(self, simd: S, l: S::f32s, m: S::f32s) -> Entries<S> {
        let (floors, zero) = match self {
            Self::Every => {
                return Entries {
                    l,
                    m,
                    unknown: None,
                };
            }
            Self::AboveFloor(floor) => {
                let unknown = l.simd_le(floor);
                let unknown = Some([unknown, unknown]);
                return Entries { l, m, unknown };
            }
            Self::Known(floors) => (floors, 0.0.simd_into(simd)),
        };
        let [l_unknown, m_unknown] = [
            l.simd_le(floors[0].unwrap_or(f32::NEG_INFINITY)),
            m.simd_le(floors[1].unwrap_or(f32::NEG_INFINITY)),
        ];
        Entries {
            l: l_unknown.select(zero, l),
            m: m_unknown.select(zero, m),
            unknown: Some([l_unknown, m_unknown]),
        }
    }

    /// The weights `exp`, [e^a, e^a, e^b, e^b], where a row knows the entry, else 0; and the same
    /// where neither row has it at its floor.
    #[inline(always)]
    pub fn weights<S: Simd>(
        self,
        simd: S,
        entries: &Entries<S>,
        exp: [S::f64s; 4],
    ) -> [[S::f64s; 4]; 2] {
        let Some([l, m]) = entries.unknown else {
            return [exp, exp];
        };
        let zero = 0.0.simd_into(simd);
        let (l, m) = (l.widen(), m.widen());
        let Self::Known(floors) = self else {
            let p = [l.0.select(zero, exp[0]), l.1.select(zero, exp[1])];
            let q = [l.0.select(zero, exp[2]), l.1.select(zero, exp[3])];
            return [[p[0], p[1], exp[2], exp[3]], [p[0], p[1], q[0], q[1]]];
        };
        let each = [
            l.0.select(zero, exp[0]),
            l.1.select(zero, exp[1]),
            m.0.select(zero, exp[2]),
            m.1.select(zero, exp[3]),
        ];
        let mut both = each;
        if floors[1].is_some() {
            both[0] = m.0.select(zero, both[0]);
            both[1] = m.1.select(zero, both[1]);
        }
        if floors[0].is_some() {
            both[2] = l.0.select(zero, both[2]);
            both[3] = l.1.select(zero, both[3]);
        }
        [each, both]
    }
}

/// The sums over a pair of rows; see the module's table for `a`, `b`, `d` and which entries count.
pub(super) struct Sums {
    /// Σ e^a
    pub p: f64,
    /// Σ e^b
    pub q: f64,
    /// Σ e^a over all entries that the reference knows.
    pub p_all: f64,
    /// Σ e^b over all entries that the evaluated row knows.
    pub q_all: f64,
    /// Σ e^a d
    pub p_d: f64,
    /// Σ e^b d
    pub q_d: f64,
    /// Σ e^a a
    pub p_a: f64,
    /// `a` is the reference's logit minus this.
    pub ref_shift: f64,
    /// `b` is the evaluated logit minus this.
    pub eval_shift: f64,
    pub ref_top: Top,
    pub eval_top: Top,
    /// Set if a logit may be −∞.
    pub may_be_masked: bool,
}

/// Scores rows whose logits are all within ±[`ORDINARY`], or −∞: e^x then neither overflows nor
/// underflows, so the maxima need not be known first. `None` for other rows, including those that
/// cannot be scored.
///
/// `counted` is a literal where this is called, so that the loop over every entry is compiled by
/// itself. A block that it does not fit, since a logit is −∞, is computed again.
#[inline(always)]
pub(super) fn one_pass<S: Simd, R: Source>(
    simd: S,
    reference: R,
    eval: &[f32],
    counted: Counted,
    floors: [Option<f32>; 2],
) -> Option<Sums> {
    let n = eval.len();
    let whole = n - n % S::f32s::LEN;
    let known = Counted::Known(floors);
    let (mut ref_top, mut eval_top) = (Top::NONE, Top::NONE);
    let mut may_be_masked = matches!(counted, Counted::Known(_));
    let mut total = Lanes::zero(simd);
    for (start, end) in blocks(whole) {
        let mut block = Block::new(simd, reference, eval, counted, start, end);
        if !block.is_ordinary() {
            block = Block::new(simd, reference, eval, known, start, end);
            may_be_masked = true;
            if !block.is_ordinary() {
                return None;
            }
        }
        total.merge(&block.sums);
        ref_top.block(block.most_l, start);
        eval_top.block(block.most_m, start);
    }
    if whole < n {
        let l = padded(whole, n, floors[0], |at| reference.get(at));
        let m = padded(whole, n, floors[1], |at| eval[at]);
        let block = Block::new(simd, &l[..], &m[..], known, 0, S::f32s::LEN);
        may_be_masked |= l[..n - whole].contains(&f32::NEG_INFINITY);
        may_be_masked |= m[..n - whole].contains(&f32::NEG_INFINITY);
        if !block.is_ordinary() {
            return None;
        }
        total.merge(&block.sums);
    }
    let ref_top = ref_top.finish(reference, whole, n);
    let eval_top = eval_top.finish(eval, whole, n);
    let has_logits = ref_top.logit.min(eval_top.logit) > f32::NEG_INFINITY;
    let sums = total.sums([0.0; 2], [ref_top, eval_top], may_be_masked);
    // Minima and maxima may miss a NaN, but `d` is NaN wherever a logit is, and so is the sum.
    (has_logits && sums.p_d.is_finite()).then_some(sums)
}

/// Scores any rows in two passes: the maxima first, then the sums relative to them. `Err` is the
/// score of a pair that is left out.
#[inline(always)]
pub(super) fn two_passes<S: Simd, R: Source>(
    simd: S,
    reference: R,
    eval: &[f32],
    floors: [Option<f32>; 2],
) -> Result<Sums, TokenRecord> {
    let n = eval.len();
    let (ref_top, eval_top) = (top(simd, reference, n), top(simd, eval, n));
    let (Some(ref_top), Some(eval_top)) = (ref_top, eval_top) else {
        return Err(excluded(ref_top.is_some(), eval_top.is_some()));
    };
    let shifts = [ref_top, eval_top].map(|top| f64::from(top.logit));
    let counted = Counted::Known(floors);
    let whole = n - n % S::f32s::LEN;
    let mut total = Lanes::zero(simd);
    for (start, end) in blocks(whole) {
        total.merge(&Lanes::relative(
            simd, reference, eval, counted, shifts, start, end,
        ));
    }
    if whole < n {
        let l = padded(whole, n, floors[0], |at| reference.get(at));
        let m = padded(whole, n, floors[1], |at| eval[at]);
        let end = S::f32s::LEN;
        total.merge(&Lanes::relative(
            simd,
            &l[..],
            &m[..],
            counted,
            shifts,
            0,
            end,
        ));
    }
    Ok(total.sums(shifts, [ref_top, eval_top], true))
}

/// The sums and the range of a block, with logits that are not shifted.
struct Block<S: Simd> {
    sums: Lanes<S>,
    most_l: S::f32s,
    most_m: S::f32s,
    /// The smallest known logit of either row, or 0.
    least: S::f32s,
}

impl<S: Simd> Block<S> {
    #[inline(always)]
    fn new(
        simd: S,
        reference: impl Source,
        eval: &[f32],
        counted: Counted,
        start: usize,
        end: usize,
    ) -> Self {
        let none: S::f32s = f32::NEG_INFINITY.simd_into(simd);
        let zero: S::f32s = 0.0.simd_into(simd);
        let (mut most_l, mut most_m) = (none, none);
        let (mut least_l, mut least_m) = (zero, zero);
        let mut sums = Lanes::zero(simd);
        let mut at = start;
        while at < end {
            let l = reference.vector(simd, at);
            let m = eval.vector(simd, at);
            most_l = most_l.max(l);
            most_m = most_m.max(m);
            let entries = counted.entries(simd, l, m);
            least_l = least_l.min(entries.l);
            least_m = least_m.min(entries.m);
            let (l, m) = (entries.l.widen(), entries.m.widen());
            let exp = exp_ordinary::<S, 4>([l.0, l.1, m.0, m.1]);
            let weights = counted.weights(simd, &entries, exp);
            sums.push([l.0, l.1], [m.0, m.1], weights);
            at += S::f32s::LEN;
        }
        Self {
            sums,
            most_l,
            most_m,
            least: least_l.min(least_m),
        }
    }

    #[inline(always)]
    fn is_ordinary(&self) -> bool {
        let above = self.most_l.max(self.most_m).simd_gt(ORDINARY);
        !(above | self.least.simd_lt(-ORDINARY)).any_true()
    }
}

/// The sums of one block or of a row, one in each lane: those of [`Sums`], in its order.
struct Lanes<S: Simd>([S::f64s; 7]);

impl<S: Simd> Lanes<S> {
    #[inline(always)]
    fn zero(simd: S) -> Self {
        Self([0.0.simd_into(simd); 7])
    }

    /// The sums of a block, with logits relative to `shifts`.
    #[inline(always)]
    fn relative(
        simd: S,
        reference: impl Source,
        eval: &[f32],
        counted: Counted,
        shifts: [f64; 2],
        start: usize,
        end: usize,
    ) -> Self {
        let mut sums = Self::zero(simd);
        let mut at = start;
        while at < end {
            let entries = counted.entries(simd, reference.vector(simd, at), eval.vector(simd, at));
            let (l, m) = (entries.l.widen(), entries.m.widen());
            let a = [l.0 - shifts[0], l.1 - shifts[0]];
            let b = [m.0 - shifts[1], m.1 - shifts[1]];
            let exp = exp::<S, 4>([a[0], a[1], b[0], b[1]]);
            sums.push(a, b, counted.weights(simd, &entries, exp));
            at += S::f32s::LEN;
        }
        sums
    }

    /// Adds entries with the given `a` and `b`, and their [weights](Counted::weights).
    #[inline(always)]
    fn push(&mut self, a: [S::f64s; 2], b: [S::f64s; 2], [each, both]: [[S::f64s; 4]; 2]) {
        let Self([sum_p, sum_q, p_all, q_all, p_d, q_d, p_a]) = self;
        for half in 0..2 {
            let (p, q) = (both[half], both[2 + half]);
            let d = a[half] - b[half];
            *sum_p += p;
            *sum_q += q;
            *p_all += each[half];
            *q_all += each[2 + half];
            *p_d = p.mul_add(d, *p_d);
            *q_d = q.mul_add(d, *q_d);
            *p_a = p.mul_add(a[half], *p_a);
        }
    }

    #[inline(always)]
    fn merge(&mut self, other: &Self) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum += more;
        }
    }

    /// The sums of all lanes.
    #[inline(always)]
    fn sums(self, shifts: [f64; 2], tops: [Top; 2], may_be_masked: bool) -> Sums {
        let [p, q, p_all, q_all, p_d, q_d, p_a] = self.0.map(lane_sum::<S>);
        Sums {
            p,
            q,
            p_all,
            q_all,
            p_d,
            q_d,
            p_a,
            ref_shift: shifts[0],
            eval_shift: shifts[1],
            ref_top: tops[0],
            eval_top: tops[1],
            may_be_masked,
        }
    }
}

#[inline(always)]
pub(super) fn lane_sum<S: Simd>(x: S::f64s) -> f64 {
    let mut lanes = [0.0; 8];
    x.store_slice(&mut lanes[..S::f64s::LEN]);
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}
