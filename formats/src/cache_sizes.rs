//! The bytes of a context's cache, by the number of tokens that it holds.

use serde::{Deserialize, Serialize};

/// The bytes in which a context keeps the tokens before, by the number of tokens for which it was made: those of its KV
/// cache, and of the states of recurrent layers.
///
/// Some layers keep every token, those with a sliding window no more than it sees, and recurrent ones a
/// state. So the bytes grow along straight lines, and these are points on them, `[tokens, bytes]`, by rising
/// tokens: the ends of the lines, the last of which goes on.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct CacheSizes(pub Vec<(u64, u64)>);

impl CacheSizes {
    /// llama.cpp rounds the tokens of a context up to a multiple of this (`GGML_PAD` in `llama-context.cpp`).
    pub const PADDING: u32 = 256;

    /// The bytes of the cache of a context of `n_tokens`. `None` without points.
    pub fn of_context(&self, n_tokens: u64) -> Option<u64> {
        let padding = u64::from(Self::PADDING);
        let n_tokens = n_tokens.max(1).checked_next_multiple_of(padding)?;
        // The line on which this lies ends at the first point that is not before it, or is the last one.
        let n_before = self.0.partition_point(|(n, _)| *n < n_tokens);
        let end = n_before.min(self.0.len().saturating_sub(1)).max(1);
        let start = *self.0.get(end - 1)?;
        let end = *self.0.get(end).unwrap_or(&start);
        let [n_start, n_end, n] = [start.0, end.0, n_tokens].map(i128::from);
        let [at_start, at_end] = [start.1, end.1].map(i128::from);
        let grown = (at_end - at_start).checked_mul(n - n_start)?;
        let grown = grown.checked_div(n_end - n_start).unwrap_or(0);
        u64::try_from((at_start + grown).max(0)).ok()
    }

    /// True if the bytes of any two contexts are in proportion to their tokens.
    pub fn are_in_proportion(&self) -> bool {
        let mut points = self.0.iter();
        let Some(&(n_first, first)) = points.next() else {
            return true;
        };
        let are_equal = |a: u64, b: u64, c: u64, d: u64| {
            u128::from(a) * u128::from(b) == u128::from(c) * u128::from(d)
        };
        points.all(|&(n, bytes)| are_equal(n, first, n_first, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_lie_on_the_lines() {
        // Two layers of 4 bytes a token, one with a window of 1,024 cells, and a state of 100 bytes.
        let bytes = |n: u64| 4 * n + 4 * n.min(1024) + 100;
        let sizes = CacheSizes([256, 1024, 65_536].map(|n| (n, bytes(n))).to_vec());
        for (n_tokens, cells) in [
            (0, 256),
            (1, 256),
            (256, 256),
            (257, 512),
            (1000, 1024),
            (1025, 1280),
            (32_768, 32_768),
            (1_000_000, 1_000_192),
        ] {
            assert_eq!(sizes.of_context(n_tokens), Some(bytes(cells)), "{n_tokens}");
        }
        assert!(!sizes.are_in_proportion());
    }

    #[test]
    fn few_points_are_enough_where_nothing_bends() {
        let grows = CacheSizes(vec![(256, 512), (512, 1024)]);
        assert_eq!(grows.of_context(100_000), Some(2 * 100_096));
        assert!(grows.are_in_proportion());
        let state = CacheSizes(vec![(256, 77)]);
        assert_eq!(state.of_context(100_000), Some(77));
        assert_eq!(CacheSizes::default().of_context(1), None);
    }

    /// Whatever a file holds.
    #[test]
    fn odd_points_give_some_number() {
        let most = u64::MAX;
        for points in [
            vec![(0, 0), (0, 9)],
            vec![(most, 0), (0, most)],
            vec![(0, 0), (1, most)],
            vec![(512, most), (256, 0)],
        ] {
            let sizes = CacheSizes(points);
            for n_tokens in [0, 1, 300, most] {
                let _ = sizes.of_context(n_tokens);
                let _ = sizes.are_in_proportion();
            }
        }
        assert_eq!(CacheSizes(vec![(256, 5), (256, 9)]).of_context(1), Some(5));
    }
}
