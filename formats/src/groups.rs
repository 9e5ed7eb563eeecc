//! Groups of windows, such as one for each kind of text in a reference. Consecutive windows of one
//! group are a run.

use std::collections::HashMap;

/// The groups of a reference's windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    names: Vec<String>,
    /// Each run's group and number of windows: [`Groups::window_groups`].
    runs: Vec<(u32, u32)>,
    /// The window that follows each run.
    ends: Vec<u32>,
}

impl Groups {
    /// Groups with these names. `runs` are those of [`Groups::window_groups`].
    ///
    /// # Errors
    /// A phrase that states what is wrong: a name that is empty or that two groups have, a run of a
    /// group without a name or of no windows, or more windows than can be numbered.
    pub fn new(names: Vec<String>, runs: Vec<(u32, u32)>) -> Result<Self, String> {
        let mut sorted: Vec<&String> = names.iter().collect();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair.first() == pair.last()) {
            return Err(format!("groups: two are named {twice:?}"));
        }
        if names.is_empty() || sorted.first().is_some_and(|name| name.is_empty()) {
            return Err("groups: one has no name".to_owned());
        }
        let (mut ends, mut end) = (Vec::with_capacity(runs.len()), 0u32);
        for &(group, n_windows) in &runs {
            if group as usize >= names.len() {
                return Err(format!("window_groups: group {group} of {}", names.len()));
            }
            end = match end.checked_add(n_windows) {
                Some(end) if n_windows > 0 => end,
                Some(_) => return Err("window_groups: a run of no windows".to_owned()),
                None => return Err("window_groups: more than 2^32 windows".to_owned()),
            };
            ends.push(end);
        }
        Ok(Self { names, runs, ends })
    }

    /// The groups of windows whose groups' names are given, in the order of the windows. Groups are
    /// numbered in the order of their first windows.
    pub fn of_each<'n>(names_of_windows: impl IntoIterator<Item = &'n str>) -> Self {
        let mut indices = HashMap::new();
        let (mut names, mut runs): (_, Vec<(u32, u32)>) = (Vec::new(), Vec::new());
        for name in names_of_windows {
            let group = *indices.entry(name).or_insert_with(|| {
                names.push(name.to_owned());
                names.len() as u32 - 1
            });
            match runs.last_mut() {
                Some((last, n_windows)) if *last == group => *n_windows += 1,
                _ => runs.push((group, 1)),
            }
        }
        let ends = runs.iter().scan(0, |end, (_, n_windows)| {
            *end += n_windows;
            Some(*end)
        });
        let ends = ends.collect();
        Self { names, runs, ends }
    }

    /// The groups' names, in the order of their indices.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The runs from window 0 on: each a group, as an index into the names, and a number of windows.
    pub fn window_groups(&self) -> &[(u32, u32)] {
        &self.runs
    }

    /// The group of the window with this number; 0 beyond the last run.
    pub fn of_window(&self, window: u32) -> u32 {
        let run = self.ends.partition_point(|&end| end <= window);
        self.runs.get(run).map_or(0, |&(group, _)| group)
    }

    /// Windows that have a group.
    pub fn n_windows(&self) -> u32 {
        self.ends.last().copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn windows_in_sequence_share_a_run() {
        let groups = Groups::of_each(["wiki", "wiki", "code", "wiki", "chat"]);
        assert_eq!(groups.names(), ["wiki", "code", "chat"]);
        assert_eq!(groups.window_groups(), [(0, 2), (1, 1), (0, 1), (2, 1)]);
        let of_windows: Vec<u32> = (0..6).map(|window| groups.of_window(window)).collect();
        assert_eq!(of_windows, [0, 0, 1, 0, 2, 0]);
        assert_eq!(groups.n_windows(), 5);
        let again = Groups::new(groups.names().to_vec(), groups.window_groups().to_vec());
        assert_eq!(again, Ok(groups));
    }

    #[test]
    fn hostile_groups_are_refused() {
        for (list, runs, what) in [
            (&["a", "b", "a"][..], &[(0, 1)][..], "two are named"),
            (&["a", ""], &[(0, 1)], "no name"),
            (&[], &[], "no name"),
            (&["a"], &[(1, 1)], "group 1 of 1"),
            (&["a"], &[(u32::MAX, 1)], "group 4294967295"),
            (&["a"], &[(0, 0)], "no windows"),
            (&["a"], &[(0, u32::MAX), (0, 1)], "more than"),
        ] {
            let error = Groups::new(names(list), runs.to_vec()).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
    }
}
