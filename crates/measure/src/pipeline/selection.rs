//! The windows that a run uses where it does not use all: one part of them, or a random sample.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use kl_formats::{Random, Reference, Shard};

/// The seed of the order in which windows are chosen where not all are wanted.
pub const DEFAULT_SEED: u64 = 123;

/// One part of all windows, where several machines share the work: `index`, `index + count`, `index + 2 * count`, ...
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    index: u32,
    count: u32,
}

impl Part {
    /// This part of a whole of `n_windows` windows, which have `n_rows` rows together.
    ///
    /// # Errors
    /// If there are fewer windows than parts: one would be empty.
    pub fn shard_of(self, n_windows: usize, n_rows: u64) -> Result<Shard> {
        if n_windows < self.count as usize {
            bail!("--shard {self}: more parts than windows: use at most {n_windows}");
        }
        Ok(self.shard(u32::try_from(n_windows)?, n_rows))
    }

    /// The same without the check, also of a whole whose windows are not counted yet.
    pub fn shard(self, n_windows: u32, n_rows: u64) -> Shard {
        Shard {
            index: self.index,
            count: self.count,
            n_windows,
            n_rows,
        }
    }

    /// Keeps this part's windows; `windows` are those of the whole, in order.
    pub fn keep<T>(self, windows: Vec<T>) -> Vec<T> {
        windows
            .into_iter()
            .skip(self.index as usize)
            .step_by(self.count as usize)
            .collect()
    }

    /// True if the window with this index among all windows belongs to this part.
    pub fn has(self, index: usize) -> bool {
        index % self.count as usize == self.index as usize
    }
}

impl From<Shard> for Part {
    fn from(shard: Shard) -> Self {
        Self {
            index: shard.index,
            count: shard.count.max(1),
        }
    }
}

/// `1/3`, as in `--shard 1/3`.
impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Part {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers = text
            .split_once('/')
            .and_then(|(index, count)| Some((index.parse().ok()?, count.parse().ok()?)));
        match numbers {
            Some((index, count)) if index < count => Ok(Self { index, count }),
            _ => Err("expected I/N, such as 0/3 for the first of three parts: I from 0 to N-1"),
        }
    }
}

/// The numbers `0..n` in a random order that depends on `n` and `seed` alone: Fisher-Yates. Files carry
/// the seed, so this never changes.
pub fn shuffled(n: usize, seed: u64) -> Vec<usize> {
    let mut random = Random(seed);
    let mut order: Vec<usize> = (0..n).collect();
    for last in (1..n).rev() {
        // The high half of a 128-bit product maps 64 random bits onto 0..=last without a division.
        let pick = (u128::from(random.bits()) * (last as u128 + 1)) >> 64;
        order.swap(last, pick as usize);
    }
    order
}

/// The number of windows, and of rows, that [`super::ReferenceRows::choose`] will read without a part;
/// `None` for a stream, which has no list of them.
pub fn to_share(reference: &Reference, max_rows: Option<u64>) -> Option<(usize, u64)> {
    let rows = rows_per_window(reference)?;
    let order = choose_windows(&rows, reference.is_shuffled(), max_rows.unwrap_or(u64::MAX));
    let n_rows = count_rows(&rows, &order);
    Some((order.len(), n_rows.min(max_rows.unwrap_or(u64::MAX))))
}

/// Counts the rows of the windows of `order`.
pub(super) fn count_rows(rows: &[u32], order: &[usize]) -> u64 {
    order.iter().map(|&i| u64::from(rows[i])).sum()
}

/// Lists the number of rows of each window, in the order of the file, if the file has a list of them.
pub(super) fn rows_per_window(reference: &Reference) -> Option<Vec<u32>> {
    let windows = reference.windows()?;
    Some(windows.iter().map(|window| window.n_rows).collect())
}

/// Chooses the windows to read, by index; `rows[i]` is how many rows window `i` has. One without rows is
/// never read.
pub fn choose_windows(rows: &[u32], is_shuffled: bool, max_rows: u64) -> Vec<usize> {
    if max_rows >= rows.iter().map(|&rows| u64::from(rows)).sum() {
        return (0..rows.len()).filter(|&i| rows[i] > 0).collect();
    }
    sample(rows, is_shuffled, max_rows)
}

/// The first windows with `max_rows` rows, in random order.
pub(super) fn sample(rows: &[u32], is_shuffled: bool, max_rows: u64) -> Vec<usize> {
    let mut order = if is_shuffled {
        (0..rows.len()).collect()
    } else {
        shuffled(rows.len(), DEFAULT_SEED)
    };
    order.retain(|&i| rows[i] > 0);
    keep_until(&mut order, |i| rows[i].into(), max_rows);
    order
}

/// Keeps the first windows of `order` that together have `max_rows` rows, or all.
pub fn keep_until(order: &mut Vec<usize>, n_rows: impl Fn(usize) -> u64, max_rows: u64) {
    let mut n_before = 0;
    order.retain(|&i| {
        let is_wanted = n_before < max_rows;
        n_before += n_rows(i);
        is_wanted
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pinned by the same algorithm in Python, so that a file's seed keeps its meaning.
    #[test]
    fn the_order_of_a_seed_never_changes() {
        assert_eq!(shuffled(10, 123), PINNED_10_123);
        assert_eq!(shuffled(0, 1), Vec::<usize>::new());
        assert_eq!(shuffled(1, 1), [0]);
        let mut all = shuffled(1000, 7);
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
    }

    const PINNED_10_123: [usize; 10] = [0, 2, 1, 5, 3, 9, 4, 6, 8, 7];

    #[test]
    fn parts_count_from_0_and_share_all_windows() {
        let windows = || vec!['a', 'b', 'c', 'd', 'e'];
        let part = |text: &str| text.parse::<Part>().unwrap();
        assert_eq!(part("0/2").keep(windows()), ['a', 'c', 'e']);
        assert_eq!(part("1/2").keep(windows()), ['b', 'd']);
        assert_eq!(part("0/1").keep(windows()), windows());
        for wrong in ["", "1", "2/2", "1/0", "0/0", "-1/2", "1/2/3", "a/b", "0/"] {
            assert!(wrong.parse::<Part>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn no_part_is_empty() {
        let part: Part = "0/6".parse().unwrap();
        assert_eq!(part.shard_of(6, 60).unwrap().n_own_windows(), 1);
        let refused = part.shard_of(5, 50).unwrap_err().to_string();
        assert!(
            refused.contains("more parts than windows: use at most 5"),
            "{refused}"
        );
    }
}
