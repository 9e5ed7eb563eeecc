//! ggml's types of numbers, and how many bytes a tensor of each has.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A type of a tensor's elements (`ggml_type`), which are stored in blocks.
///
/// Sources: `ggml.h` for the numbers, `ggml-common.h` for the sizes, `ggml.c` for the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        let found = TYPES.into_iter().find(|row| row.0 == id);
        found.map(|(id, name, block, block_bytes, is_for_weights)| Self {
            id,
            name,
            block,
            block_bytes,
            is_for_weights,
        })
    }

    /// All types, by their numbers.
    pub fn all() -> impl Iterator<Item = Self> {
        TYPES.iter().filter_map(|row| Self::of(row.0))
    }

    /// Bits of an element, the scales of its block among them.
    pub fn bits(self) -> f64 {
        8.0 * self.block_bytes as f64 / self.block as f64
    }

    /// Bytes of `n` elements; `None` where they are not whole blocks, or too many.
    pub fn bytes(self, n: u64) -> Option<u64> {
        match n.is_multiple_of(self.block) {
            true => (n / self.block).checked_mul(self.block_bytes),
            false => None,
        }
    }
}

impl PartialOrd for GgmlType {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// By their numbers.
impl Ord for GgmlType {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.id.cmp(&other.id)
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

/// The fields of each type.
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

    #[test]
    fn bytes_are_those_of_whole_blocks() {
        let q6_k = GgmlType::of(14).unwrap();
        assert_eq!((q6_k.name, q6_k.bytes(512)), ("q6_K", Some(420)));
        assert_eq!(q6_k.bytes(511), None);
        assert_eq!(GgmlType::of(28).unwrap().bytes(u64::MAX), None);
        assert_eq!(GgmlType::of(4), None);
    }

    #[test]
    fn numbers_and_names_are_unique() {
        for (i, a) in TYPES.iter().enumerate() {
            for b in &TYPES[i + 1..] {
                assert!(a.0 < b.0 && a.1 != b.1, "{a:?} {b:?}");
            }
        }
    }
}
