//! Linear codes of 16 bits, written fast.

/// Writes the code of each entry: `FIRST` for `min`, one more for each `step` above it, rounded to
/// the nearest; 0 for an entry below `min`, which only a `FIRST` above 0 allows.
pub(super) fn put<const FIRST: u16>(row: &[f32], min: f32, step: f32, codes: &mut [[u8; 2]]) {
    let code = |x: f32, steps: f32| match FIRST > 0 && x < min {
        true => [0; 2],
        false => (nearest::<FIRST>(steps) + FIRST).to_le_bytes(),
    };
    let inverse = 1.0 / step;
    let codes = codes.iter_mut().zip(row);
    if step == 0.0 {
        codes.for_each(|(out, &x)| *out = code(x, 0.0));
    } else if inverse.is_finite() {
        codes.for_each(|(out, &x)| *out = code(x, (x - min) * inverse));
    } else {
        // A subnormal step has no f32 inverse.
        let steps = |x: f32| (f64::from(x) - f64::from(min)) / f64::from(step);
        codes.for_each(|(out, &x)| *out = code(x, steps(x) as f32));
    }
}

/// The nearest integer to `x`, ties to even, at most `u16::MAX - FIRST`. Adding 2^23 leaves an f32
/// no fraction bits, so the sum is rounded and its low mantissa bits are the integer: no
/// conversion, no branch.
#[inline(always)]
fn nearest<const FIRST: u16>(x: f32) -> u16 {
    const TWO_POW_23: f32 = 8_388_608.0;
    let most = f32::from(u16::MAX - FIRST);
    let x = if x < most { x } else { most };
    (x + TWO_POW_23).to_bits() as u16
}

/// The smallest and the largest entry, or `None` if the row is empty or an entry is not finite.
pub(super) fn finite_range(row: &[f32]) -> Option<(f32, f32)> {
    /// Independent lanes: a float minimum is not a reduction that the compiler may reorder.
    const LANES: usize = 32;
    const EXPONENT: u32 = 0x7f80_0000;
    let first = *row.first()?;
    let (mut min, mut max, mut bad) = ([first; LANES], [first; LANES], [0u32; LANES]);
    let mut step = |lanes: &[f32]| {
        let found = min.iter_mut().zip(&mut max).zip(&mut bad);
        for (((min, max), bad), &x) in found.zip(lanes) {
            *min = if x < *min { x } else { *min };
            *max = if x > *max { x } else { *max };
            *bad |= u32::from(x.to_bits() & EXPONENT == EXPONENT);
        }
    };
    let (whole, rest) = row.as_chunks::<LANES>();
    whole.iter().for_each(|lanes| step(lanes));
    step(rest);
    if bad.iter().any(|&b| b != 0) {
        return None;
    }
    Some((
        min.into_iter().fold(first, f32::min),
        max.into_iter().fold(first, f32::max),
    ))
}
