//! How an entry of a row is stored, as a user chooses it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::RowLayout;

/// How the logits of a row are stored. Written `f32` or `u16` in JSON and on the command line.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// An f32 for each entry: exact.
    F32,
    /// A code of 16 bits for each entry, linear over the row's own range: see [`RowLayout::U16`].
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

    /// How `kl`'s own file lays out a row in this encoding.
    pub const fn layout(self) -> RowLayout {
        match self {
            Encoding::F32 => RowLayout::F32,
            Encoding::U16 => RowLayout::U16,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        for encoding in [Encoding::F32, Encoding::U16] {
            assert_eq!(encoding.to_string().parse(), Ok(encoding));
            assert_eq!(
                serde_json::to_string(&encoding).unwrap(),
                format!("\"{encoding}\"")
            );
        }
        assert!("u8".parse::<Encoding>().is_err());
    }
}
