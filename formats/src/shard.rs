//! Parts of a whole: several machines compute one file, each a part of its windows.

use serde::{Deserialize, Serialize};

/// Which part of a whole a file holds: the windows `index`, `index + count`, `index + 2 * count`, ...
/// of the whole's, counted from 0 in the order in which one run would write them.
///
/// The header of a part counts its own windows and rows; here are those of the whole. Everything
/// else in the header is as in the whole's.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Shard {
    /// Which part, from 0.
    pub index: u32,
    /// How many parts there are.
    pub count: u32,
    /// Windows of the whole that have rows.
    pub n_windows: u32,
    /// Rows of the whole; of a sidecar, records.
    pub n_rows: u64,
}

impl Shard {
    /// Windows of this part.
    pub fn n_own_windows(&self) -> u32 {
        let after = self.n_windows.saturating_sub(self.index);
        after.div_ceil(self.count.max(1))
    }

    /// What is wrong with it, if anything; `n_rows` are the file's own.
    pub(crate) fn fault(&self, n_rows: Option<u64>) -> Option<String> {
        let Self { index, count, .. } = self;
        if index >= count {
            Some(format!("shard {index} of {count}"))
        } else if n_rows.is_some_and(|n| n > self.n_rows) {
            let whole = self.n_rows;
            Some(format!(
                "a shard of more rows than the {whole} of the whole"
            ))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_whole_share_its_windows() {
        for (n_windows, count) in [(9, 1), (9, 3), (9, 7), (10, 3), (7, 7)] {
            let own = |index| {
                let shard = Shard {
                    index,
                    count,
                    n_windows,
                    n_rows: 0,
                };
                shard.n_own_windows()
            };
            for index in 0..count {
                let expected = (index..n_windows).step_by(count as usize).count();
                assert_eq!(own(index) as usize, expected, "{index}/{count}");
            }
            assert_eq!((0..count).map(own).sum::<u32>(), n_windows);
        }
    }

    #[test]
    fn a_part_that_cannot_be_is_a_fault() {
        let shard = |index, count| Shard {
            index,
            count,
            n_windows: 4,
            n_rows: 10,
        };
        assert_eq!(shard(2, 3).fault(Some(10)), None);
        assert!(shard(3, 3).fault(None).is_some());
        assert!(shard(0, 0).fault(None).is_some());
        assert!(shard(0, 3).fault(Some(11)).is_some());
    }
}
