//! Decode calls and their physical batches: how a window's tokens are split.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Fewest tokens of a call where a window is split into equal ones, unless the window is shorter.
/// ggml's CPU backend computes the attention of 64 tokens and more with another kernel than that of
/// fewer, and results move with it: by 0.5 to 1.8 % of a q8_0's mean KLD where the last call of each
/// window was shorter.
const MIN_EQUAL: u32 = 64;

/// The rule by which a window's tokens are split into decode calls, and these into physical batches:
/// the tokens that are computed together, on which a row's last bits depend.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Calls {
    /// Most tokens of a decode call. Where calls are equal, one may nevertheless have up to 127.
    pub n_batch: u32,
    /// Most tokens of a physical batch: from 1 to `n_batch`.
    pub n_ubatch: u32,
    /// True if windows are split into equal calls: as few as there can be of at most `n_batch` and at
    /// least 64 tokens, in sizes that differ by one at most, the longer ones first, each one physical
    /// batch. False if they are split as llama.cpp does it: into calls of `n_batch` tokens, and each
    /// call into physical batches of `n_ubatch` tokens; the last call and batch hold what is left.
    #[serde(
        rename = "equal_calls",
        default,
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub is_equal: bool,
}

impl Calls {
    /// Calls of `n_batch` tokens, in physical batches of `n_ubatch`.
    #[must_use]
    pub const fn new(n_batch: u32, n_ubatch: u32) -> Self {
        Self {
            n_batch,
            n_ubatch,
            is_equal: false,
        }
    }

    /// Equal calls of at most `most` tokens in a window of `n_ctx` tokens, and in shorter ones.
    #[must_use]
    pub fn equal(most: u32, n_ctx: u32) -> Self {
        let n_calls = n_equal(n_ctx.into(), most.into());
        let n_batch = u64::from(n_ctx).div_ceil(n_calls).max(1) as u32;
        Self {
            // A window that is one call is split into one by either rule, and so is a shorter one.
            is_equal: n_batch < n_ctx,
            ..Self::new(n_batch, n_batch)
        }
    }

    /// These calls in windows of at most `n_ctx` tokens: a batch never holds more tokens of one window than the
    /// window has.
    #[must_use]
    pub fn within(self, n_ctx: u32) -> Self {
        let n_batch = self.n_batch.min(n_ctx);
        Self {
            n_batch,
            n_ubatch: self.n_ubatch.min(n_batch),
            ..self
        }
    }

    /// The positions that are decoded in the same call as `position`, which is below `n_tokens`: the
    /// number of a window's tokens that are decoded, up to and including the last scored one.
    #[must_use]
    pub fn call(&self, n_tokens: u64, position: u64) -> Range<u64> {
        let (size, n_longer) = if self.is_equal {
            let n_calls = n_equal(n_tokens, self.n_batch.into());
            ((n_tokens / n_calls).max(1), n_tokens % n_calls)
        } else {
            (u64::from(self.n_batch.max(1)), 0)
        };
        // The calls that are one token longer come first.
        let longer = n_longer * (size + 1);
        let start_of = |first: u64, size: u64| position - (position - first) % size;
        let (start, size) = if position < longer {
            (start_of(0, size + 1), size + 1)
        } else {
            (start_of(longer, size), size)
        };
        start..start.saturating_add(size).min(n_tokens)
    }

    /// The positions in the same physical batch as `position`, of the first `n_tokens` tokens of a
    /// window.
    #[must_use]
    pub fn batch(&self, n_tokens: u64, position: u64) -> Range<u64> {
        let call = self.call(n_tokens, position);
        if self.is_equal {
            return call;
        }
        let n_ubatch = u64::from(self.n_ubatch.max(1));
        let start = position - (position - call.start) % n_ubatch;
        start..start.saturating_add(n_ubatch).min(call.end)
    }

    /// The physical batches of a window of `n_tokens` tokens, in order, from the one that holds the
    /// position `from`.
    pub fn batches(self, from: u64, n_tokens: u64) -> impl Iterator<Item = Range<u64>> {
        let mut next = from;
        std::iter::from_fn(move || {
            let batch = (next < n_tokens).then(|| self.batch(n_tokens, next))?;
            next = batch.end;
            Some(batch)
        })
    }

    /// Most tokens of a call in windows of at most `n_ctx` tokens.
    #[must_use]
    pub fn most_tokens(&self, n_ctx: u32) -> u32 {
        let most = if self.is_equal {
            self.n_batch.max(2 * MIN_EQUAL - 1)
        } else {
            self.n_batch
        };
        most.min(n_ctx).max(1)
    }
}

/// The number of equal calls of a window: as few as there can be of at most `most` tokens, unless
/// they would be too short.
fn n_equal(n_tokens: u64, most: u64) -> u64 {
    let fitting = n_tokens.div_ceil(most.max(1));
    fitting.min(n_tokens / u64::from(MIN_EQUAL)).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lengths(calls: Calls, n_tokens: u32) -> Vec<u64> {
        let batches = calls.batches(0, n_tokens.into());
        batches.map(|batch| batch.end - batch.start).collect()
    }

    #[test]
    fn equal_calls_are_as_few_as_fit() {
        let of_window = |most, n_ctx| lengths(Calls::equal(most, n_ctx), n_ctx);
        // 128,256 entries, then 152,064 and 248,320.
        assert_eq!(of_window(130, 512), [128; 4]);
        assert_eq!(of_window(110, 512), [103, 103, 102, 102, 102]);
        assert_eq!(of_window(67, 512), [64; 8]);
        assert_eq!(of_window(67, 511), [73; 7]);
        assert_eq!(of_window(67, 127), [127]);
        assert_eq!(of_window(67, 63), [63]);
        assert_eq!(of_window(1, 200), [67, 67, 66]);
        // A shorter window of the same reference.
        assert_eq!(lengths(Calls::equal(130, 512), 300), [100; 3]);
        assert!(lengths(Calls::equal(130, 512), 0).is_empty());
        // One call.
        let one = Calls::new(512, 512);
        assert_eq!(Calls::equal(512, 512), one);
        assert_eq!(Calls::equal(600, 512), one);
    }

    #[test]
    fn llama_cpp_cuts_off_whole_batches() {
        let calls = Calls::new(100, 40);
        assert_eq!(lengths(calls, 230), [40, 40, 20, 40, 40, 20, 30]);
        assert_eq!(
            (calls.call(230, 99), calls.call(230, 229)),
            (0..100, 200..230)
        );
        assert_eq!((calls.most_tokens(512), calls.most_tokens(7)), (100, 7));
    }

    proptest! {
        #[test]
        fn no_equal_call_is_short_and_all_are_of_one_size(
            most in 0u32..700, n_ctx in 1u32..9000, shorter in 0u32..9000
        ) {
            let calls = Calls::equal(most, n_ctx);
            let n_tokens = n_ctx - shorter.min(n_ctx - 1);
            let lengths = lengths(calls, n_tokens);
            let (least, longest) = (*lengths.iter().min().unwrap(), *lengths.iter().max().unwrap());
            prop_assert!(longest - least <= 1);
            prop_assert!(least >= u64::from(MIN_EQUAL.min(n_tokens)));
            prop_assert!(longest <= u64::from(calls.most_tokens(n_ctx)));
            prop_assert!(longest <= u64::from(most.max(2 * MIN_EQUAL - 1)));
            prop_assert_eq!(lengths.iter().sum::<u64>(), u64::from(n_tokens));
            let n_tokens = u64::from(n_tokens);
            for batch in calls.batches(0, n_tokens) {
                for position in batch.clone() {
                    prop_assert_eq!(calls.batch(n_tokens, position), batch.clone());
                }
            }
        }
    }
}
