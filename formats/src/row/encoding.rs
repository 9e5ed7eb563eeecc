//! The storage of a row's entry, as a user chooses it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::RowLayout;

/// The storage of a row's logits. Written `f32`, `u16`, `hidden` or `hidden16` in JSON and on the
/// command line.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// An f32 for each entry: exact.
    F32,
    /// A code of 16 bits for each entry, linear over the row's own range: see [`RowLayout::U16`].
    U16,
    /// Not the row but the hidden state that it is computed from, in the smallest type that gives
    /// the model's own row to the bit: see [`crate::States`].
    Hidden,
    /// The hidden state in f16.
    Hidden16,
}

/// Every encoding.
const ALL: [Encoding; 4] = [
    Encoding::F32,
    Encoding::U16,
    Encoding::Hidden,
    Encoding::Hidden16,
];

impl Encoding {
    /// Its name, in JSON, in messages and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Encoding::F32 => "f32",
            Encoding::U16 => "u16",
            Encoding::Hidden => "hidden",
            Encoding::Hidden16 => "hidden16",
        }
    }

    /// Returns the layout of a row of `kl`'s own file in this encoding; `None` for hidden states,
    /// whose type is recorded in the file.
    pub const fn layout(self) -> Option<RowLayout> {
        match self {
            Encoding::F32 => Some(RowLayout::F32),
            Encoding::U16 => Some(RowLayout::U16),
            Encoding::Hidden | Encoding::Hidden16 => None,
        }
    }

    /// Returns true if hidden states are stored, from which rows are computed.
    pub const fn holds_states(self) -> bool {
        matches!(self, Encoding::Hidden | Encoding::Hidden16)
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
        let named = ALL.into_iter().find(|encoding| encoding.name() == name);
        named.ok_or_else(|| format!("unknown encoding {name:?}: give f32, u16, hidden or hidden16"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        for encoding in ALL {
            assert_eq!(encoding.to_string().parse(), Ok(encoding));
            assert_eq!(
                serde_json::to_string(&encoding).unwrap(),
                format!("\"{encoding}\"")
            );
        }
        assert!("u8".parse::<Encoding>().is_err());
    }
}
