//! The sums over a pair of rows.

use fearless_simd::prelude::*;

use super::ORDINARY;
use super::rows::{Counted, Entries, SimdRows, Top, blocks, lane_sum};
use crate::score::vector::{exp, exp_ordinary};

/// Rows with fewer entries take two passes, in which the largest entry weighs exactly 1.
const SHORT: usize = 64;

/// The sums over a pair of rows; see the module's table for `a`, `b`, `d` and which entries count.
pub(super) struct Sums {
    /// Σ e^a and Σ e^b over the entries that both rows know.
    pub weights: [f64; 2],
    /// Σ e^a and Σ e^b, each over all entries that the row itself knows.
    pub all: [f64; 2],
    /// Σ e^a d and Σ e^b d
    pub differences: [f64; 2],
    /// Σ e^a a
    pub p_a: f64,
    /// `a` and `b` are the logits minus these.
    pub shifts: [f64; 2],
    pub tops: [Top; 2],
    /// Set if a logit may be −∞.
    pub may_be_masked: bool,
}

impl<S: Simd> SimdRows<'_, S> {
    /// The sums; if a row has no softmax, `Err` states for each row whether it has one.
    #[inline(always)]
    pub(super) fn sums(&self) -> Result<Sums, [bool; 2]> {
        // `counted` is a literal in each, so that the loop over every entry is compiled by itself.
        let sums = match self.floors {
            _ if self.logits[1].len() < SHORT => None,
            [None, None] => self.one_pass(Counted::Every),
            [Some(_), None] => self.one_pass(Counted::AboveFloor),
            [_, Some(_)] => self.one_pass(Counted::Known),
        };
        match sums {
            Some(sums) => Ok(sums),
            None => self.two_passes(),
        }
    }

    /// The sums of rows whose logits are all within ±[`ORDINARY`], or −∞: e^x then neither overflows nor
    /// underflows, so the maxima need not be known first. `None` for other rows, including those that
    /// cannot be scored.
    ///
    /// A block that `counted` does not fit, since a logit is −∞, is computed again.
    #[inline(always)]
    fn one_pass(&self, counted: Counted) -> Option<Sums> {
        let n = self.logits[1].len();
        let whole = n - n % S::f32s::LEN;
        let mut tops = [Top::NONE; 2];
        let mut may_be_masked = counted == Counted::Known;
        let mut total = Lanes::zero(self.simd);
        for (start, end) in blocks(n) {
            let mut block = self.block(start, end, counted);
            if block.is_none() {
                block = self.block(start, end, Counted::Known);
                may_be_masked = true;
            }
            let (sums, most) = block?;
            total.merge(&sums);
            for (top, most) in tops.iter_mut().zip(most) {
                top.block(most, start);
            }
        }
        for row in self.rest(whole) {
            may_be_masked |= row[..n - whole].contains(&f32::NEG_INFINITY);
        }
        let [l, m] = self.logits;
        let tops = [tops[0].finish(l, whole), tops[1].finish(m, whole)];
        let have_logits = tops.iter().all(|top| top.logit > f32::NEG_INFINITY);
        let sums = total.sums([0.0; 2], tops, may_be_masked);
        // Minima and maxima may miss a NaN, but `d` is NaN wherever a logit is, and so is the sum.
        (have_logits && sums.differences[0].is_finite()).then_some(sums)
    }

    /// The sums of any rows in two passes: the maxima first, then the sums relative to them.
    #[inline(always)]
    pub(super) fn two_passes(&self) -> Result<Sums, [bool; 2]> {
        let tops = self.logits.map(Top::first_of);
        let [Some(ref_top), Some(eval_top)] = tops else {
            return Err(tops.map(|top| top.is_some()));
        };
        let tops = [ref_top, eval_top];
        let shifts = tops.map(|top| f64::from(top.logit));
        let mut total = Lanes::zero(self.simd);
        for (start, end) in blocks(self.logits[1].len()) {
            let mut sums = Lanes::zero(self.simd);
            self.each(
                start,
                end,
                Counted::Known,
                #[inline(always)]
                |entries| {
                    let x = entries.less(shifts);
                    sums.push(x, exp::<S, 4>(x), &entries);
                },
            );
            total.merge(&sums);
        }
        Ok(total.sums(shifts, tops, true))
    }

    /// The sums of a block, with logits that are not shifted, and the largest logits of both rows; `None`
    /// unless all are ordinary.
    #[inline(always)]
    fn block(
        &self,
        start: usize,
        end: usize,
        counted: Counted,
    ) -> Option<(Lanes<S>, [S::f32s; 2])> {
        let mut sums = Lanes::zero(self.simd);
        let mut most: [S::f32s; 2] = [f32::NEG_INFINITY.simd_into(self.simd); 2];
        // The smallest known logits, or 0.
        let mut least: [S::f32s; 2] = [0.0.simd_into(self.simd); 2];
        self.each(
            start,
            end,
            counted,
            #[inline(always)]
            |entries| {
                for row in 0..2 {
                    most[row] = most[row].max(entries.raw[row]);
                    least[row] = least[row].min(entries.logits[row]);
                }
                let x = entries.less([0.0; 2]);
                sums.push(x, exp_ordinary::<S, 4>(x), &entries);
            },
        );
        let above = most[0].max(most[1]).simd_gt(ORDINARY);
        let below = least[0].min(least[1]).simd_lt(-ORDINARY);
        (!(above | below).any_true()).then_some((sums, most))
    }
}

/// The sums of one block or of a row, one in each lane: those of [`Sums`], in its order.
struct Lanes<S: Simd>([S::f64s; 7]);

impl<S: Simd> Lanes<S> {
    #[inline(always)]
    fn zero(simd: S) -> Self {
        Self([0.0.simd_into(simd); 7])
    }

    /// Adds entries with these `a` and `b`, and their exponentials.
    #[inline(always)]
    fn push(&mut self, x: [S::f64s; 4], exp: [S::f64s; 4], entries: &Entries<S>) {
        let [each, both] = entries.weights(exp);
        let Self([sum_p, sum_q, p_all, q_all, p_d, q_d, p_a]) = self;
        for half in 0..2 {
            let (p, q) = (both[half], both[2 + half]);
            let d = x[half] - x[2 + half];
            *sum_p += p;
            *sum_q += q;
            *p_all += each[half];
            *q_all += each[2 + half];
            *p_d = p.mul_add(d, *p_d);
            *q_d = q.mul_add(d, *q_d);
            *p_a = p.mul_add(x[half], *p_a);
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
            weights: [p, q],
            all: [p_all, q_all],
            differences: [p_d, q_d],
            p_a,
            shifts,
            tops,
            may_be_masked,
        }
    }
}
