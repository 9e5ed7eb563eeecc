//! The sums over a pair of rows.

use super::top::Top;
use crate::score::vector::Simd;

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
    /// True if a logit may be −∞.
    pub may_be_masked: bool,
}

/// The sums of one block or of a row, one in each lane.
pub(super) struct Lanes<S: Simd> {
    pub p: S::D,
    pub q: S::D,
    pub p_all: S::D,
    pub q_all: S::D,
    p_d: S::D,
    q_d: S::D,
    p_a: S::D,
}

impl<S: Simd> Lanes<S> {
    #[inline(always)]
    pub fn zero() -> Self {
        let zero = S::splat(0.0);
        Self {
            p: zero,
            q: zero,
            p_all: zero,
            q_all: zero,
            p_d: zero,
            q_d: zero,
            p_a: zero,
        }
    }

    /// Adds entries with the given `a`, `b`, e^a and e^b that count.
    #[inline(always)]
    pub fn push(&mut self, a: S::D, b: S::D, p: S::D, q: S::D) {
        let d = S::sub(a, b);
        self.p = S::add(self.p, p);
        self.q = S::add(self.q, q);
        self.p_d = S::mul_add(p, d, self.p_d);
        self.q_d = S::mul_add(q, d, self.q_d);
        self.p_a = S::mul_add(p, a, self.p_a);
    }

    #[inline(always)]
    pub fn merge(&mut self, other: &Self) {
        self.p = S::add(self.p, other.p);
        self.q = S::add(self.q, other.q);
        self.p_all = S::add(self.p_all, other.p_all);
        self.q_all = S::add(self.q_all, other.q_all);
        self.p_d = S::add(self.p_d, other.p_d);
        self.q_d = S::add(self.q_d, other.q_d);
        self.p_a = S::add(self.p_a, other.p_a);
    }

    /// The sums of all lanes.
    #[inline(always)]
    pub fn sums(&self, shifts: [f64; 2], tops: [Top; 2], may_be_masked: bool) -> Sums {
        Sums {
            p: lane_sum::<S>(self.p),
            q: lane_sum::<S>(self.q),
            p_all: lane_sum::<S>(self.p_all),
            q_all: lane_sum::<S>(self.q_all),
            p_d: lane_sum::<S>(self.p_d),
            q_d: lane_sum::<S>(self.q_d),
            p_a: lane_sum::<S>(self.p_a),
            ref_shift: shifts[0],
            eval_shift: shifts[1],
            ref_top: tops[0],
            eval_top: tops[1],
            may_be_masked,
        }
    }
}

#[inline(always)]
pub(super) fn lane_sum<S: Simd>(x: S::D) -> f64 {
    let mut lanes = [0.0; 8];
    S::store(x, &mut lanes);
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}
