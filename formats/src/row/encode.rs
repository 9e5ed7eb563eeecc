//! The encodings of a row.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Row;

/// Bytes of a u16 row before its codes: f32 min, f32 step.
const U16_PREFIX: usize = 8;

/// The largest code.
const MAX_CODE: f32 = u16::MAX as f32;

/// How the logits of a row are stored. Written `f32` or `u16` in JSON and on the command line.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// `n_vocab` x f32: exact.
    F32,
    /// f32 min, f32 step, `n_vocab` x u16: linear over the row's own range. An entry is off by
    /// at most half a step (and a hundredth), a step being 1/65535 of the range.
    U16,
}

impl Encoding {
    /// Its name, in JSON, in messages and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Encoding::F32 => "f32",
            Encoding::U16 => "u16",
        }
    }

    /// Bytes of a row of `n_vocab` entries; `None` where that overflows.
    pub fn row_bytes(self, n_vocab: usize) -> Option<usize> {
        match self {
            Encoding::F32 => n_vocab.checked_mul(4),
            Encoding::U16 => n_vocab.checked_mul(2)?.checked_add(U16_PREFIX),
        }
    }

    /// Writes `row` to `out`, little-endian.
    ///
    /// `U16` stores a row that holds a NaN or an infinity, or that spans more than an f32 can, as
    /// all NaN (min and step NaN, codes 0), so that a reader finds and excludes it.
    ///
    /// # Panics
    /// If `out` is not [`Encoding::row_bytes`] of the row's length long.
    pub fn encode(self, row: &[f32], out: &mut [u8]) {
        assert_eq!(
            Some(out.len()),
            self.row_bytes(row.len()),
            "an encoded row is as long as its encoding makes it"
        );
        match self {
            Encoding::F32 => out.copy_from_slice(bytemuck::cast_slice(row)),
            Encoding::U16 => encode_u16(row, out),
        }
    }

    /// The row that `bytes` hold; `None` if they are not exactly one row of `n_vocab` entries, or
    /// not aligned to their elements.
    pub fn view(self, bytes: &[u8], n_vocab: usize) -> Option<Row<'_>> {
        if Some(bytes.len()) != self.row_bytes(n_vocab) {
            return None;
        }
        match self {
            Encoding::F32 => bytemuck::try_cast_slice(bytes).ok().map(Row::F32),
            Encoding::U16 => {
                let (min, rest) = bytes.split_first_chunk::<4>()?;
                let (step, codes) = rest.split_first_chunk::<4>()?;
                Some(Row::U16 {
                    min: f32::from_le_bytes(*min),
                    step: f32::from_le_bytes(*step),
                    codes: bytemuck::try_cast_slice(codes).ok()?,
                })
            }
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Encoding {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "f32" => Ok(Encoding::F32),
            "u16" => Ok(Encoding::U16),
            _ => Err(format!("unknown encoding {name:?}: give f32 or u16")),
        }
    }
}

fn encode_u16(row: &[f32], out: &mut [u8]) {
    let (prefix, codes) = out.split_at_mut(U16_PREFIX);
    let (codes, _) = codes.as_chunks_mut::<2>();
    let (min, max) = finite_range(row).unwrap_or((f32::NAN, f32::NAN));
    let step = ((f64::from(max) - f64::from(min)) / f64::from(MAX_CODE)) as f32;
    let inverse = 1.0 / step;
    // The product alone overflows first: it is at least as far from 0 as the sum with `min`,
    // unless both have one sign, and then the sum is checked.
    let decodes = (step * MAX_CODE).is_finite() && (min + step * MAX_CODE).is_finite();
    let (min, step) = if decodes {
        (min, step)
    } else {
        (f32::NAN, f32::NAN)
    };
    prefix.copy_from_slice(bytemuck::bytes_of(&[min, step]));
    if !decodes || step == 0.0 {
        codes.fill([0; 2]);
    } else if inverse.is_finite() && (max - min).is_finite() {
        for (code, &x) in codes.iter_mut().zip(row) {
            *code = nearest((x - min) * inverse).to_le_bytes();
        }
    } else {
        // A subnormal step has no f32 inverse.
        for (code, &x) in codes.iter_mut().zip(row) {
            let ratio = (f64::from(x) - f64::from(min)) / f64::from(step);
            *code = nearest(ratio as f32).to_le_bytes();
        }
    }
}

/// The nearest code to `x`, ties to even. Adding 2^23 leaves an f32 no fraction bits, so the sum
/// is rounded and its low mantissa bits are the integer: no conversion, no branch.
#[inline(always)]
fn nearest(x: f32) -> u16 {
    const TWO_POW_23: f32 = 8_388_608.0;
    let x = if x < MAX_CODE { x } else { MAX_CODE };
    (x + TWO_POW_23).to_bits() as u16
}

/// The smallest and the largest entry, or `None` if the row is empty or an entry is not finite.
pub(crate) fn finite_range(row: &[f32]) -> Option<(f32, f32)> {
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes aligned as [`Encoding::view`] wants them, through storage of words.
    fn round_trip(encoding: Encoding, row: &[f32]) -> Vec<f32> {
        let n_bytes = encoding.row_bytes(row.len()).unwrap();
        let mut words = vec![0u32; n_bytes.div_ceil(4)];
        let bytes = &mut bytemuck::cast_slice_mut(&mut words)[..n_bytes];
        encoding.encode(row, bytes);
        let mut out = vec![0.0; row.len()];
        let view = encoding.view(bytes, row.len()).unwrap();
        view.decode_into(&mut out);
        for (i, x) in out.iter().enumerate() {
            assert_eq!(x.to_bits(), view.get(i).to_bits());
        }
        assert_eq!(view.is_finite(), out.iter().all(|x| x.is_finite()));
        out
    }

    #[test]
    fn a_u16_row_spelled_out() {
        let mut out = [0; 14];
        Encoding::U16.encode(&[-1.0, 65534.0, 32766.6], &mut out);
        assert_eq!(
            out,
            [
                0x00, 0x00, 0x80, 0xbf, // min: -1
                0x00, 0x00, 0x80, 0x3f, // step: 1
                0x00, 0x00, // code 0
                0xff, 0xff, // code 65535
                0x00, 0x80, // 32767.6 is nearest to 32768
            ]
        );
    }

    #[test]
    fn rows_that_are_not_finite_are_marked() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for i in [0, 31, 32, 40] {
                let mut row = vec![1.0; 41];
                row[i] = bad;
                assert!(round_trip(Encoding::U16, &row).iter().all(|x| x.is_nan()));
            }
        }
        let wide = round_trip(Encoding::U16, &[f32::MIN, f32::MAX]);
        assert!(wide.iter().all(|x| x.is_nan()));
    }

    #[test]
    fn constant_and_tiny_rows_keep_their_values() {
        assert_eq!(round_trip(Encoding::U16, &[7.5; 40]), [7.5; 40]);
        assert_eq!(round_trip(Encoding::U16, &[0.0, 1e-42]).len(), 2);
        let tiny = round_trip(Encoding::U16, &[0.0, 1e-36, 2e-36]);
        assert!((tiny[1] - 1e-36).abs() < 2e-41, "{tiny:?}");
    }

    #[test]
    fn names_are_parsed_and_sizes_do_not_overflow() {
        for encoding in [Encoding::F32, Encoding::U16] {
            assert_eq!(encoding.to_string().parse(), Ok(encoding));
            assert_eq!(
                serde_json::to_string(&encoding).unwrap(),
                format!("\"{encoding}\"")
            );
        }
        assert!("u8".parse::<Encoding>().is_err());
        assert_eq!(Encoding::F32.row_bytes(usize::MAX), None);
        assert_eq!(Encoding::U16.row_bytes(usize::MAX / 2), None);
    }

    proptest! {
        #[test]
        fn f32_is_exact(row in prop::collection::vec(any::<f32>(), 1..200)) {
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&round_trip(Encoding::F32, &row)), bits(&row));
        }

        #[test]
        fn u16_is_within_half_a_step(row in prop::collection::vec(-60f32..60.0, 1..200)) {
            let (min, max) = finite_range(&row).unwrap();
            let half = f64::from(max - min) / 65535.0 * 0.51;
            for (x, y) in row.iter().zip(round_trip(Encoding::U16, &row)) {
                // Beside the code, the decoded sum is rounded to f32.
                let bound = half + f64::from(f32::EPSILON) * f64::from(x.abs().max(y.abs())) + 1e-12;
                prop_assert!(f64::from((x - y).abs()) <= bound, "{x} {y}");
            }
        }

        #[test]
        fn u16_of_anything_decodes_to_finite_or_nan(
            row in prop::collection::vec(any::<f32>(), 1..80)
        ) {
            let out = round_trip(Encoding::U16, &row);
            let finite = out.iter().all(|x| x.is_finite());
            prop_assert!(finite || out.iter().all(|x| x.is_nan()));
            prop_assert!(!finite || row.iter().all(|x| x.is_finite()));
        }

        #[test]
        fn view_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64), n in 0usize..40) {
            for encoding in [Encoding::F32, Encoding::U16] {
                if let Some(row) = encoding.view(&bytes, n) {
                    prop_assert_eq!(row.len(), n);
                    row.is_finite();
                }
            }
        }
    }
}
