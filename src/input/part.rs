//! One part of the windows, where several machines share the work.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use kl_formats::Shard;

/// Which part of all windows is wanted: `index`, `index + count`, `index + 2 * count`, ...
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    index: u32,
    count: u32,
}

impl Part {
    /// This part of a whole with so many windows and rows.
    ///
    /// # Errors
    /// If there are fewer windows than parts: one would be empty.
    pub fn of(self, n_windows: usize, n_rows: u64) -> Result<Shard> {
        let Self { index, count } = self;
        if n_windows < count as usize {
            bail!(
                "--shard {self}: there are only {n_windows} windows: use at most {n_windows} parts"
            );
        }
        Ok(Shard {
            index,
            count,
            n_windows: u32::try_from(n_windows)?,
            n_rows,
        })
    }

    /// Keeps those of `windows`, all there are in their order, that belong to this part.
    pub fn keep<T>(self, windows: Vec<T>) -> Vec<T> {
        let from = windows.into_iter().skip(self.index as usize);
        from.step_by(self.count as usize).collect()
    }

    /// `1-of-3`.
    pub fn in_a_file_name(self) -> String {
        format!("{}-of-{}", self.index, self.count)
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

/// `1/3`, as `--shard` takes it.
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
            _ => Err("expected I/N, as 0/3 for the first of three parts: I from 0 to N-1"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(part.of(6, 60).unwrap().n_own_windows(), 1);
        let refused = part.of(5, 50).unwrap_err().to_string();
        assert!(refused.contains("at most 5 parts"), "{refused}");
    }
}
