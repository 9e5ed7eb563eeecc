//! The entries of two rows that count, and the stand-ins for logits of −∞.
//!
//! Everything is arithmetic on factors of 0 and 1, with the few operations that every instruction
//! set has.

use super::sums::Lanes;
use crate::score::vector::Simd;

/// 2^99: brings the distance to the next f32 above a floor to 1 or more. A power of 2, so that
/// products with it are exact.
pub(super) const STEEP: f32 = f32::from_bits((127 + 99) << 23);

/// The way in which the entries of two rows enter the sums.
pub(super) trait Entries<S: Simd>: Copy {
    /// Factors for a vector of entries of both rows.
    type Factors: Copy;

    /// Returns the values to compute with in place of the logits of both rows, and the entries'
    /// factors.
    fn of(&self, l: S::F, m: S::F) -> ([S::F; 2], Self::Factors);

    /// The weights `exp`, [e^a, e^a, e^b, e^b], of the entries that count.
    fn counted(&self, exp: [S::D; 4], factors: Self::Factors) -> [S::D; 4];

    /// Adds entries with the given `a`, `b` and [e^a, e^a, e^b, e^b].
    fn push(
        &self,
        sums: &mut Lanes<S>,
        a: [S::D; 2],
        b: [S::D; 2],
        exp: [S::D; 4],
        factors: Self::Factors,
    );
}

/// Every entry counts, and all logits are finite.
#[derive(Clone, Copy)]
pub(super) struct Every;

impl<S: Simd> Entries<S> for Every {
    type Factors = ();

    #[inline(always)]
    fn of(&self, l: S::F, m: S::F) -> ([S::F; 2], ()) {
        ([l, m], ())
    }

    #[inline(always)]
    fn counted(&self, exp: [S::D; 4], (): ()) -> [S::D; 4] {
        exp
    }

    #[inline(always)]
    fn push(&self, sums: &mut Lanes<S>, a: [S::D; 2], b: [S::D; 2], exp: [S::D; 4], (): ()) {
        for half in 0..2 {
            sums.push(a[half], b[half], exp[half], exp[2 + half]);
        }
        (sums.p_all, sums.q_all) = (sums.p, sums.q);
    }
}

/// Entries above the reference's floor count, and all logits are finite.
pub(super) struct AboveFloor<S: Simd>(Counts<S>);

impl<S: Simd> AboveFloor<S> {
    #[inline(always)]
    pub fn new(ref_floor: f32) -> Self {
        Self(Counts::new(Some(ref_floor), 0.0))
    }
}

impl<S: Simd> Clone for AboveFloor<S> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Simd> Copy for AboveFloor<S> {}

impl<S: Simd> Entries<S> for AboveFloor<S> {
    type Factors = S::F;

    #[inline(always)]
    fn of(&self, l: S::F, m: S::F) -> ([S::F; 2], S::F) {
        ([l, m], self.0.factor(l))
    }

    #[inline(always)]
    fn counted(&self, exp: [S::D; 4], factor: S::F) -> [S::D; 4] {
        let factor = S::widen(factor);
        [
            mul::<S>(exp[0], factor[0]),
            mul::<S>(exp[1], factor[1]),
            mul::<S>(exp[2], factor[0]),
            mul::<S>(exp[3], factor[1]),
        ]
    }

    #[inline(always)]
    fn push(&self, sums: &mut Lanes<S>, a: [S::D; 2], b: [S::D; 2], exp: [S::D; 4], factor: S::F) {
        let counted = self.counted(exp, factor);
        for half in 0..2 {
            sums.push(a[half], b[half], counted[half], counted[2 + half]);
            sums.q_all = S::add(sums.q_all, exp[2 + half]);
        }
        sums.p_all = sums.p;
    }
}

/// Any rows without NaN and +∞: entries above the floors of both rows count, and a logit of −∞
/// weighs 0.
pub(super) struct Any<S: Simd> {
    reference: Counts<S>,
    eval: Counts<S>,
}

impl<S: Simd> Any<S> {
    /// For an exponential whose argument may be anything: −∞ becomes the smallest f32.
    #[inline(always)]
    pub fn new(ref_floor: Option<f32>, eval_floor: Option<f32>) -> Self {
        Self {
            reference: Counts::new(ref_floor, 0.0),
            eval: Counts::new(eval_floor, 0.0),
        }
    }

    /// For an exponential whose argument must be ordinary: −∞ becomes 0.
    #[inline(always)]
    pub fn ordinary(ref_floor: Option<f32>, eval_floor: Option<f32>) -> Self {
        Self {
            reference: Counts::new(ref_floor, f32::MAX),
            eval: Counts::new(eval_floor, f32::MAX),
        }
    }
}

impl<S: Simd> Clone for Any<S> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Simd> Copy for Any<S> {}

impl<S: Simd> Entries<S> for Any<S> {
    /// Masks of the entries that are above their floors and finite, for both rows.
    type Factors = [S::F; 2];

    #[inline(always)]
    fn of(&self, l: S::F, m: S::F) -> ([S::F; 2], [S::F; 2]) {
        let factors = [self.reference.factor(l), self.eval.factor(m)];
        let logits = [
            self.reference.finite(l, factors[0]),
            self.eval.finite(m, factors[1]),
        ];
        (logits, factors)
    }

    #[inline(always)]
    fn counted(&self, exp: [S::D; 4], factors: [S::F; 2]) -> [S::D; 4] {
        self.of_both(self.of_each(exp, factors), factors)
    }

    #[inline(always)]
    fn push(
        &self,
        sums: &mut Lanes<S>,
        a: [S::D; 2],
        b: [S::D; 2],
        exp: [S::D; 4],
        factors: [S::F; 2],
    ) {
        let each = self.of_each(exp, factors);
        let both = self.of_both(each, factors);
        for half in 0..2 {
            sums.push(a[half], b[half], both[half], both[2 + half]);
            sums.p_all = S::add(sums.p_all, each[half]);
            sums.q_all = S::add(sums.q_all, each[2 + half]);
        }
    }
}

impl<S: Simd> Any<S> {
    /// The weights, each times its own row's factor.
    #[inline(always)]
    fn of_each(&self, exp: [S::D; 4], factors: [S::F; 2]) -> [S::D; 4] {
        let [l, m] = [S::widen(factors[0]), S::widen(factors[1])];
        [
            mul::<S>(exp[0], l[0]),
            mul::<S>(exp[1], l[1]),
            mul::<S>(exp[2], m[0]),
            mul::<S>(exp[3], m[1]),
        ]
    }

    /// The weights, each times whether the other row knows the entry.
    #[inline(always)]
    fn of_both(&self, each: [S::D; 4], factors: [S::F; 2]) -> [S::D; 4] {
        let l = S::widen(S::max_f(factors[0], self.reference.is_unfloored));
        let m = S::widen(S::max_f(factors[1], self.eval.is_unfloored));
        [
            mul::<S>(each[0], m[0]),
            mul::<S>(each[1], m[1]),
            mul::<S>(each[2], l[0]),
            mul::<S>(each[3], l[1]),
        ]
    }
}

/// The entries of one row that count.
struct Counts<S: Simd> {
    scale: S::F,
    offset: S::F,
    /// Added to the smallest f32 in place of −∞.
    lift: S::F,
    /// 1 for a row without a floor, else 0.
    is_unfloored: S::F,
}

impl<S: Simd> Clone for Counts<S> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Simd> Copy for Counts<S> {}

impl<S: Simd> Counts<S> {
    #[inline(always)]
    fn new(floor: Option<f32>, lift: f32) -> Self {
        // Without a floor, x/2 + MAX is −∞ for −∞, and more than 1 for any finite x.
        let (scale, offset) = match floor {
            Some(floor) => (STEEP, -STEEP * floor),
            None => (0.5, f32::MAX),
        };
        // Where there is a floor, no logit is −∞.
        let (lift, is_unfloored) = match floor {
            Some(_) => (0.0, 0.0),
            None => (lift, 1.0),
        };
        Self {
            scale: S::splat_f(scale),
            offset: S::splat_f(offset),
            lift: S::splat_f(lift),
            is_unfloored: S::splat_f(is_unfloored),
        }
    }

    /// 1 for entries above the floor, or above −∞ where there is none; else 0.
    #[inline(always)]
    fn factor(&self, x: S::F) -> S::F {
        let above = S::add_f(S::mul_f(x, self.scale), self.offset);
        S::min_f(S::max_f(above, S::splat_f(0.0)), S::splat_f(1.0))
    }

    /// The logits, finite in place of −∞; NaN stays.
    #[inline(always)]
    fn finite(&self, x: S::F, factor: S::F) -> S::F {
        let finite = S::max_f(S::splat_f(-f32::MAX), x);
        let missing = S::add_f(S::splat_f(1.0), S::mul_f(factor, S::splat_f(-1.0)));
        S::add_f(finite, S::mul_f(missing, self.lift))
    }
}

#[inline(always)]
pub(super) fn mul<S: Simd>(a: S::D, b: S::D) -> S::D {
    S::mul_add(a, b, S::splat(0.0))
}
