//! The type in which the numbers of a hidden state are stored.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::tensors::Float;

/// The type in which the numbers of a hidden state are stored. Written `f16`, `bf16` or `f32` in
/// JSON.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum StateType {
    /// IEEE binary16.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// IEEE binary32: exact.
    F32,
}

impl StateType {
    /// Its name, in JSON and in messages.
    pub const fn name(self) -> &'static str {
        self.float().name()
    }

    /// Bytes of a number.
    pub const fn bytes(self) -> usize {
        self.float().bytes()
    }

    /// Writes numbers to `out`, little-endian, rounded to the nearest and on a tie to even, as ggml
    /// rounds them: a number too large becomes an infinity, and NaN stays NaN.
    ///
    /// # Panics
    /// If `out` is not as long as the numbers become.
    pub fn encode(self, state: &[f32], out: &mut [u8]) {
        fn each<const N: usize>(state: &[f32], out: &mut [u8], of: impl Fn(f32) -> [u8; N]) {
            let (numbers, _) = out.as_chunks_mut::<N>();
            numbers.iter_mut().zip(state).for_each(|(b, &x)| *b = of(x));
        }
        assert_eq!(
            out.len(),
            state.len() * self.bytes(),
            "an encoded state is as long as its type makes it"
        );
        match self {
            StateType::F16 => each(state, out, |x| f16::from_f32(x).to_le_bytes()),
            StateType::Bf16 => each(state, out, |x| bf16::from_f32(x).to_le_bytes()),
            StateType::F32 => each(state, out, f32::to_le_bytes),
        }
    }

    /// Decodes little-endian numbers to f32, exactly, as many as both slices hold.
    pub fn decode_into(self, bytes: &[u8], out: &mut [f32]) {
        self.float().decode(bytes, out);
    }

    const fn float(self) -> Float {
        match self {
            StateType::F16 => Float::F16,
            StateType::Bf16 => Float::Bf16,
            StateType::F32 => Float::F32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded<const N: usize>(state_type: StateType, x: f32) -> [u8; N] {
        let mut out = [0x55; N];
        state_type.encode(&[x], &mut out);
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
            assert_eq!(encoded(StateType::F16, x), bits.to_le_bytes(), "f16 {x}");
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
            assert_eq!(encoded(StateType::Bf16, x), bits.to_le_bytes(), "bf16 {x}");
        }
        assert_eq!(encoded(StateType::F32, 0.1), 0.1f32.to_le_bytes());
        for state_type in [StateType::F16, StateType::Bf16] {
            let mut out = [0.0];
            state_type.decode_into(&encoded::<2>(state_type, f32::NAN), &mut out);
            assert!(out[0].is_nan(), "{}", state_type.name());
        }
    }

    #[test]
    fn every_number_is_decoded_exactly_and_encoded_again() {
        for state_type in [StateType::F16, StateType::Bf16] {
            for bits in 0..=u16::MAX {
                let mut out = [0.0];
                state_type.decode_into(&bits.to_le_bytes(), &mut out);
                let again = u16::from_le_bytes(encoded(state_type, out[0]));
                assert!(again == bits || out[0].is_nan(), "{bits:04x}");
            }
        }
    }
}
