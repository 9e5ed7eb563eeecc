//! The type in which the numbers of a hidden state are stored.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::Float;

/// The type in which the numbers of a hidden state are stored. Written `f16`, `bf16` or `f32` in
/// JSON.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
