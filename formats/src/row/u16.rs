//! The u16 rows of `kl`'s own file: codes where their error does not matter, else the f32 logits
//! themselves.

use std::ops::AddAssign;

use super::Row;

/// Most nats that the rounding of a row may add to its KL divergence from itself.
///
/// Rounding to steps of `s` moves each logit by an error of variance s²/12, and a KL divergence by
/// half of that, since it is of second order in the logits.
const MAX_ERROR_NATS: f64 = 1e-6;

/// The distance below a row's largest entry, in nats, from which entries may be masked: their
/// probability is below 1e-130. The other entries span less than [`MAX_ERROR_NATS`] allows.
const FAR_BELOW: f64 = 300.0;

/// Bytes of a row of codes before them: u32 form, f32 masked, f32 min, f32 step.
const PREFIX_BYTES: usize = 16;

/// Bytes of an exact row before its logits: u32 form.
const FORM_BYTES: usize = 4;

/// The form in which a u16 row is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum U16Form {
    /// [`Row::U16`], without masked entries.
    Linear,
    /// [`Row::U16`], with masked entries.
    Masked,
    /// [`Row::F32`].
    Exact,
}

/// The numbers of u16 rows of `kl`'s own file, by how they are stored; all 0 for other files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowForms {
    /// All rows.
    pub total: u64,
    /// Those stored as f32: the row's KL divergence from its coded copy would have been more than 1e-6
    /// nats, or the row holds a NaN or a positive infinity, or no finite logit.
    pub exact: u64,
}

impl AddAssign for RowForms {
    fn add_assign(&mut self, other: Self) {
        self.total += other.total;
        self.exact += other.exact;
    }
}

impl U16Form {
    /// The form of the row that starts with these bytes.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        let forms = [U16Form::Linear, U16Form::Masked, U16Form::Exact];
        let number = u32::from_le_bytes(*bytes.first_chunk()?);
        forms.into_iter().find(|&form| form as u32 == number)
    }

    /// Bytes of a row of this form.
    pub(crate) fn row_bytes(self, n_vocab: usize) -> usize {
        match self {
            U16Form::Linear | U16Form::Masked => PREFIX_BYTES.saturating_add(padded_bytes(n_vocab)),
            U16Form::Exact => n_vocab.saturating_mul(4).saturating_add(FORM_BYTES),
        }
    }
}

/// Bytes of `n_vocab` codes, padded to an even count.
pub(super) fn padded_bytes(n_vocab: usize) -> usize {
    n_vocab.div_ceil(2).saturating_mul(4)
}

/// Writes a row of codes to `out`, which is as long as one; of a row that must be exact, only the
/// form.
pub(super) fn encode(row: &[f32], out: &mut [u8]) {
    let (prefix, rest) = out.split_at_mut(PREFIX_BYTES);
    let (bytes, padding) = rest.split_at_mut(2 * row.len());
    padding.fill(0);
    let (codes, _) = bytes.as_chunks_mut::<2>();
    let mut put_prefix = |form: U16Form, masked: f32, min: f32, step: f32| {
        let numbers = [masked, min, step].map(f32::to_bits);
        let all = [form as u32, numbers[0], numbers[1], numbers[2]];
        prefix.copy_from_slice(bytemuck::cast_slice(&all));
    };
    if let Some((min, max)) = finite_range(row)
        && let Some(step) = step_of::<0>(min, max)
    {
        put_prefix(U16Form::Linear, 0.0, min, step);
        put_codes::<0>(row, min, step, codes);
    } else if let Some((masked, min, max)) = masked_range(row)
        && let Some(step) = step_of::<1>(min, max)
    {
        put_prefix(U16Form::Masked, masked, min, step);
        put_codes::<1>(row, min, step, codes);
    } else {
        put_prefix(U16Form::Exact, 0.0, 0.0, 0.0);
    }
}

/// Appends to `out` a row that [`encode`] has only marked.
pub(crate) fn append_exact(row: &[f32], out: &mut Vec<u8>) {
    out.extend_from_slice(&(U16Form::Exact as u32).to_le_bytes());
    out.extend_from_slice(bytemuck::cast_slice(row));
}

/// The step of codes from `FIRST` for `min` to the largest for `max`; `None` if it is too coarse.
fn step_of<const FIRST: u16>(min: f32, max: f32) -> Option<f32> {
    let step = (f64::from(max) - f64::from(min)) / f64::from(u16::MAX - FIRST);
    (step * step / 24.0 <= MAX_ERROR_NATS).then_some(step as f32)
}

/// The value that all entries far below the largest share, minus infinity among them, and the smallest
/// and the largest of the others; `None` for a row without such entries, or with different ones.
fn masked_range(row: &[f32]) -> Option<(f32, f32, f32)> {
    let max = row.iter().fold(f32::NEG_INFINITY, |max, &x| max.max(x));
    if !max.is_finite() || row.iter().any(|x| x.is_nan()) {
        return None;
    }
    let floor = f64::from(max) - FAR_BELOW;
    let is_far = |x: f32| f64::from(x) < floor;
    let masked = row.iter().copied().find(|&x| is_far(x))?;
    if row.iter().any(|&x| is_far(x) && x != masked) {
        return None;
    }
    let others = row.iter().copied().filter(|&x| !is_far(x));
    Some((masked, others.fold(max, f32::min), max))
}

/// The row that `bytes` hold; `None` if they are not exactly one row of `n_vocab` entries, or not
/// aligned to their elements.
pub(super) fn view(bytes: &[u8], n_vocab: usize) -> Option<Row<'_>> {
    let form = U16Form::of(bytes)?;
    if bytes.len() != form.row_bytes(n_vocab) {
        return None;
    }
    if form == U16Form::Exact {
        let logits = bytes.get(FORM_BYTES..)?;
        return bytemuck::try_cast_slice(logits).ok().map(Row::F32);
    }
    let ([_, masked, min, step], codes) = numbers_and_codes(bytes, n_vocab)?;
    Some(Row::U16 {
        masked: (form == U16Form::Masked).then_some(masked),
        min,
        step,
        codes,
    })
}

/// The numbers before a row's codes, and the codes; `None` if they are not aligned.
pub(super) fn numbers_and_codes<const N: usize>(
    bytes: &[u8],
    n_vocab: usize,
) -> Option<([f32; N], &[u16])> {
    let (start, rest) = bytes.split_at_checked(4 * N)?;
    let numbers: &[f32] = bytemuck::try_cast_slice(start).ok()?;
    let codes = bytemuck::try_cast_slice(rest.get(..n_vocab * 2)?).ok()?;
    Some((numbers.try_into().ok()?, codes))
}

/// Writes the code of each entry: `FIRST` for `min`, one more for each `step` above it, rounded to
/// the nearest; 0 for an entry below `min`, which only a `FIRST` above 0 allows.
fn put_codes<const FIRST: u16>(row: &[f32], min: f32, step: f32, codes: &mut [[u8; 2]]) {
    let code = |x: f32, steps: f32| {
        if FIRST > 0 && x < min {
            [0; 2]
        } else {
            (nearest::<FIRST>(steps) + FIRST).to_le_bytes()
        }
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

#[cfg(test)]
#[path = "tests/u16.rs"]
mod tests;
