//! The types of numbers in files: floats of rows and of hidden states, integers of token ids, and
//! ggml's types of tensors.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

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
            let pairs = numbers.iter_mut().zip(entries);
            pairs.for_each(|(b, &x)| *b = of(x));
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

/// The type of an array's numbers in another program's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    Float(Float),
    /// Token ids of 4 bytes, with a sign or without.
    Id32,
    /// Token ids of 8 bytes.
    Id64,
    /// Bytes: mlx-kld's `meta_json`.
    Byte,
    /// A type that is not read here.
    Other,
}

/// The types by numpy's name, little-endian, and by that of `safetensors`.
const NUMBERS: [(&str, &str, Number); 9] = [
    ("<f2", "F16", Number::Float(Float::F16)),
    ("", "BF16", Number::Float(Float::Bf16)),
    ("<f4", "F32", Number::Float(Float::F32)),
    ("<f8", "F64", Number::Float(Float::F64)),
    ("<i4", "I32", Number::Id32),
    ("<i8", "I64", Number::Id64),
    ("<u4", "U32", Number::Id32),
    ("<u8", "U64", Number::Id64),
    ("|u1", "U8", Number::Byte),
];

impl Number {
    /// The type with this name.
    pub(crate) fn named(name: &str) -> Self {
        let mut all = NUMBERS.iter();
        let found = all.find(|(numpy, other, _)| [*numpy, *other].contains(&name));
        found.map_or(Number::Other, |found| found.2)
    }

    /// Bytes of an array of this shape; `None` for a type that is not read here, and where that
    /// overflows.
    pub(crate) fn bytes_of(self, shape: &[u64]) -> Option<u64> {
        let bytes = match self {
            Number::Float(float) => float.bytes() as u64,
            Number::Id32 => 4,
            Number::Id64 => 8,
            Number::Byte => 1,
            Number::Other => return None,
        };
        shape.iter().try_fold(bytes, |n, &size| n.checked_mul(size))
    }

    /// Decodes little-endian ids. One that is negative, or larger than a u32, becomes one that is in no
    /// vocabulary.
    pub(crate) fn decode_ids(self, bytes: &[u8]) -> Vec<u32> {
        if self == Number::Id32 {
            return bytemuck::pod_collect_to_vec(bytes);
        }
        let (stored, _) = bytes.as_chunks();
        let ids = stored.iter().map(|&id| u64::from_le_bytes(id).try_into());
        ids.map(|id| id.unwrap_or(u32::MAX)).collect()
    }
}

/// A type of a tensor's elements (`ggml_type`), which are stored in blocks.
///
/// In JSON it is its name, and in order it is its number.
///
/// Sources: `ggml.h` for the numbers, `ggml-common.h` for the sizes, `ggml.c` for the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct GgmlType {
    /// Its number in a GGUF.
    pub id: u32,
    /// ggml's name for it, such as `q6_K`.
    pub name: &'static str,
    /// Elements of a block.
    pub block: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// True if ggml multiplies matrices of this type with activations: not integers, f64 and the
    /// types into which it quantizes activations.
    pub is_for_weights: bool,
}

impl GgmlType {
    /// The type with this number; `None` for one that is not known here.
    pub fn of(id: u32) -> Option<Self> {
        Self::all().find(|kind| kind.id == id)
    }

    /// All types, by their numbers.
    pub fn all() -> impl Iterator<Item = Self> {
        let types = TYPES.into_iter();
        types.map(|(id, name, block, block_bytes, is_for_weights)| Self {
            id,
            name,
            block,
            block_bytes,
            is_for_weights,
        })
    }

    /// Bits of an element, the scales of its block among them.
    pub fn bits(self) -> f64 {
        8.0 * self.block_bytes as f64 / self.block as f64
    }

    /// Bytes of `n` elements; `None` where they are not whole blocks, or too many.
    pub fn bytes(self, n: u64) -> Option<u64> {
        let n_blocks = n.is_multiple_of(self.block).then(|| n / self.block);
        n_blocks?.checked_mul(self.block_bytes)
    }
}

/// ggml's name.
impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

/// ggml's name, in any case.
impl FromStr for GgmlType {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let mut all = Self::all();
        all.find(|kind| kind.name.eq_ignore_ascii_case(name))
            .ok_or_else(|| format!("no type '{name}': use ggml's names, such as q4_K or iq4_xs"))
    }
}

impl Serialize for GgmlType {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name)
    }
}

impl<'de> Deserialize<'de> for GgmlType {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        name.parse().map_err(de::Error::custom)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for GgmlType {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "GgmlType".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string"})
    }
}

/// Every type, in the order of the fields of [`GgmlType`].
const TYPES: [(u32, &str, u64, u64, bool); 35] = [
    (0, "f32", 1, 4, true),
    (1, "f16", 1, 2, true),
    (2, "q4_0", 32, 18, true),
    (3, "q4_1", 32, 20, true),
    (6, "q5_0", 32, 22, true),
    (7, "q5_1", 32, 24, true),
    (8, "q8_0", 32, 34, true),
    (9, "q8_1", 32, 36, false),
    (10, "q2_K", 256, 84, true),
    (11, "q3_K", 256, 110, true),
    (12, "q4_K", 256, 144, true),
    (13, "q5_K", 256, 176, true),
    (14, "q6_K", 256, 210, true),
    (15, "q8_K", 256, 292, false),
    (16, "iq2_xxs", 256, 66, true),
    (17, "iq2_xs", 256, 74, true),
    (18, "iq3_xxs", 256, 98, true),
    (19, "iq1_s", 256, 50, true),
    (20, "iq4_nl", 32, 18, true),
    (21, "iq3_s", 256, 110, true),
    (22, "iq2_s", 256, 82, true),
    (23, "iq4_xs", 256, 136, true),
    (24, "i8", 1, 1, false),
    (25, "i16", 1, 2, false),
    (26, "i32", 1, 4, false),
    (27, "i64", 1, 8, false),
    (28, "f64", 1, 8, false),
    (29, "iq1_m", 256, 56, true),
    (30, "bf16", 1, 2, true),
    (34, "tq1_0", 256, 54, true),
    (35, "tq2_0", 256, 66, true),
    (39, "mxfp4", 32, 17, true),
    (40, "nvfp4", 64, 36, true),
    (41, "q1_0", 128, 18, true),
    (42, "q2_0", 64, 18, true),
];

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
}

#[cfg(test)]
mod ggml_tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_whole_blocks() {
        let q6_k = GgmlType::of(14).unwrap();
        assert_eq!((q6_k.name, q6_k.bytes(512)), ("q6_K", Some(420)));
        assert_eq!(q6_k.bytes(511), None);
        assert_eq!(GgmlType::of(28).unwrap().bytes(u64::MAX), None);
        assert_eq!(GgmlType::of(4), None);
    }
}
