//! The types of numbers in files: floats of rows and of hidden states, integers of token ids.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

/// The type of a row's entries, or of a hidden state's. Written `f16`, `bf16` or `f32` in JSON.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Float {
    /// IEEE binary16.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// IEEE binary32.
    F32,
    /// IEEE binary64, rounded to f32 when read; not of hidden states.
    #[serde(skip)]
    F64,
}

impl Float {
    /// Its name, in JSON and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Float::F16 => "f16",
            Float::Bf16 => "bf16",
            Float::F32 => "f32",
            Float::F64 => "f64",
        }
    }

    /// Bytes of an entry.
    pub const fn bytes(self) -> usize {
        match self {
            Float::F16 | Float::Bf16 => 2,
            Float::F32 => 4,
            Float::F64 => 8,
        }
    }

    /// Writes entries to `out`, little-endian, rounded to the nearest and on a tie to even, as ggml
    /// rounds them: a number too large becomes an infinity, and NaN stays NaN.
    ///
    /// # Panics
    /// If `out` is not as long as the entries become.
    pub fn encode(self, entries: &[f32], out: &mut [u8]) {
        fn each<const N: usize>(entries: &[f32], out: &mut [u8], of: impl Fn(f32) -> [u8; N]) {
            let (numbers, _) = out.as_chunks_mut::<N>();
            let numbers = numbers.iter_mut().zip(entries);
            numbers.for_each(|(b, &x)| *b = of(x));
        }
        assert_eq!(
            out.len(),
            entries.len() * self.bytes(),
            "encoded entries are as long as their type makes them"
        );
        match self {
            Float::F16 => each(entries, out, |x| f16::from_f32(x).to_le_bytes()),
            Float::Bf16 => each(entries, out, |x| bf16::from_f32(x).to_le_bytes()),
            Float::F32 => each(entries, out, f32::to_le_bytes),
            Float::F64 => each(entries, out, |x| f64::from(x).to_le_bytes()),
        }
    }

    /// Decodes little-endian entries to f32, as many as both slices hold.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        fn each<const N: usize>(bytes: &[u8], out: &mut [f32], of: impl Fn([u8; N]) -> f32) {
            let (entries, _) = bytes.as_chunks::<N>();
            out.iter_mut().zip(entries).for_each(|(x, &b)| *x = of(b));
        }
        match self {
            Float::F16 => each(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
            Float::Bf16 => each(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
            Float::F32 => each(bytes, out, f32::from_le_bytes),
            Float::F64 => each(bytes, out, |b| f64::from_le_bytes(b) as f32),
        }
    }
}

/// The type of token ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Integer {
    I32,
    I64,
    U32,
    U64,
}

impl Integer {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Integer::I32 | Integer::U32 => 4,
            Integer::I64 | Integer::U64 => 8,
        }
    }

    /// Decodes little-endian ids. One that is not a u32 becomes `u32::MAX`, which is in no
    /// vocabulary.
    pub(crate) fn decode(self, bytes: &[u8]) -> Vec<u32> {
        fn each<const N: usize, T: TryInto<u32>>(
            bytes: &[u8],
            of: impl Fn([u8; N]) -> T,
        ) -> Vec<u32> {
            let (ids, _) = bytes.as_chunks::<N>();
            let ids = ids.iter().map(|&b| of(b).try_into().unwrap_or(u32::MAX));
            ids.collect()
        }
        match self {
            Integer::I32 => each(bytes, i32::from_le_bytes),
            Integer::I64 => each(bytes, i64::from_le_bytes),
            Integer::U32 => each(bytes, u32::from_le_bytes),
            Integer::U64 => each(bytes, u64::from_le_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded<const N: usize>(float: Float, x: f32) -> [u8; N] {
        let mut out = [0x55; N];
        float.encode(&[x], &mut out);
        out
    }

    /// Bits as IEEE 754 gives them, of numbers halfway between two neighbours, and beyond the range.
    #[test]
    fn rounding_is_to_the_nearest_and_on_a_tie_to_even() {
        let half = 2f32.powi(-11); // half the distance of 1 from its neighbour in f16
        for (x, bits) in [
            (1.0, 0x3c00u16),
            (1.0 + half, 0x3c00),
            (1.0 + half * 1.001, 0x3c01),
            (1.0 + 3.0 * half, 0x3c02),
            (-65504.0, 0xfbff),
            (65519.0, 0x7bff),
            (65520.0, 0x7c00),
            (-1e30, 0xfc00),
            (2f32.powi(-24), 0x0001),
            (2f32.powi(-25), 0x0000),
            (2f32.powi(-25) * 1.001, 0x0001),
            (-0.0, 0x8000),
        ] {
            assert_eq!(encoded(Float::F16, x), bits.to_le_bytes(), "f16 {x}");
        }
        let half = 2f32.powi(-8);
        for (x, bits) in [
            (1.0, 0x3f80u16),
            (1.0 + half, 0x3f80),
            (1.0 + 1.01 * half, 0x3f81),
            (1.0 + 3.0 * half, 0x3f82),
            (f32::MAX, 0x7f80),
            (-3.5, 0xc060),
        ] {
            assert_eq!(encoded(Float::Bf16, x), bits.to_le_bytes(), "bf16 {x}");
        }
        assert_eq!(encoded(Float::F32, 0.1), 0.1f32.to_le_bytes());
        for float in [Float::F16, Float::Bf16] {
            let mut out = [0.0];
            float.decode(&encoded::<2>(float, f32::NAN), &mut out);
            assert!(out[0].is_nan(), "{}", float.name());
        }
    }

    #[test]
    fn every_number_is_decoded_exactly_and_encoded_again() {
        for float in [Float::F16, Float::Bf16] {
            for bits in 0..=u16::MAX {
                let mut out = [0.0];
                float.decode(&bits.to_le_bytes(), &mut out);
                let again = u16::from_le_bytes(encoded(float, out[0]));
                assert!(again == bits || out[0].is_nan(), "{bits:04x}");
            }
        }
    }

    #[test]
    fn entries_become_f32() {
        let mut out = [0.0; 2];
        Float::F16.decode(&[0x00, 0x3c, 0x01, 0xc0], &mut out);
        assert_eq!(out, [1.0, -2.001_953_1]);
        Float::Bf16.decode(&[0x80, 0x3f, 0x20, 0xc1], &mut out);
        assert_eq!(out, [1.0, -10.0]);
        let numbers = [0.1f64, -1e300];
        Float::F64.decode(bytemuck::cast_slice(&numbers), &mut out);
        assert_eq!(out, [0.1, f32::NEG_INFINITY]);
        Float::F32.decode(&[0, 0, 0x80, 0x3f], &mut out[1..]);
        assert_eq!(out[1], 1.0);
    }
}
