//! Names of models where there is little room.

use std::collections::{BTreeSet, HashMap};

use crate::layout::UNBOUNDED;
use crate::number::printable;

/// The narrowest that names are cut to.
pub const MIN_NAME_WIDTH: usize = 8;

/// Short names that still distinguish the models: labels without what all begin with.
pub struct Names {
    /// The prefix that the names leave out; empty if they are the labels.
    pub prefix: String,
    /// Each label, and its name.
    names: Vec<(String, String)>,
    /// The widest line, in columns.
    line_width: usize,
}

impl Names {
    /// Shortens labels for lines of at most `line_width` columns; where lines have no bound, labels stay whole.
    pub fn of(labels: &[&str], line_width: usize) -> Self {
        if line_width == UNBOUNDED {
            return Self::whole(labels, line_width);
        }
        let printable_labels: Vec<String> = labels.iter().map(|label| printable(label)).collect();
        Self::without(common_prefix(&printable_labels), labels, line_width)
    }

    /// Labels that keep what all begin with.
    pub fn whole(labels: &[&str], line_width: usize) -> Self {
        Self::without("", labels, line_width)
    }

    fn without(prefix: &str, labels: &[&str], line_width: usize) -> Self {
        Self {
            prefix: prefix.to_owned(),
            names: BTreeSet::from_iter(labels)
                .into_iter()
                .map(|label| ((*label).to_owned(), without_prefix(label, prefix)))
                .collect(),
            line_width,
        }
    }

    /// The name of each label, at most `width` characters wide: no two are the same. The middle of a long
    /// name is left out; two that look the same then are numbered.
    pub fn within(&self, width: usize) -> impl Fn(&str) -> String + use<'_> {
        let cut_names: Vec<String> = self
            .names
            .iter()
            .map(|(_, name)| cut(name, width))
            .collect();
        let mut names_by_label: HashMap<&str, String> = HashMap::new();
        for (i, ((label, name), cut_name)) in self.names.iter().zip(&cut_names).enumerate() {
            let n_alike = |text: &String| cut_names.iter().filter(|other| *other == text).count();
            let mut numbered_names = (i + 1..).map(|number| {
                let number = format!(" {number}");
                cut(name, width.saturating_sub(number.len())) + &number
            });
            let is_free = |text: &String| {
                n_alike(text) == 0 && !names_by_label.values().any(|other| other == text)
            };
            let unique_name = Some(cut_name).filter(|name| n_alike(name) == 1);
            let shown_name = unique_name
                .cloned()
                .or_else(|| numbered_names.find(is_free));
            names_by_label.insert(label, shown_name.unwrap_or_default());
        }
        move |label| match names_by_label.get(label) {
            Some(name) => name.clone(),
            None => cut(&without_prefix(label, &self.prefix), width),
        }
    }

    /// The names in sentences, which may have several lines, but each name only one.
    pub fn in_sentences(&self) -> impl Fn(&str) -> String + use<'_> {
        /// The columns that the words beside a name take.
        const WORDS_WIDTH: usize = 20;
        self.within(
            self.line_width
                .saturating_sub(WORDS_WIDTH)
                .max(MIN_NAME_WIDTH),
        )
    }

    /// Calls `draw` with a function that shortens names, and returns its text: the one with the longest
    /// names whose lines fit.
    pub fn fitted(&self, draw: impl Fn(&dyn Fn(&str) -> String) -> String) -> String {
        let mut width = self.width();
        loop {
            let text = draw(&self.within(width));
            let fits = text
                .lines()
                .all(|line| line.chars().count() <= self.line_width);
            if fits || width <= MIN_NAME_WIDTH {
                return text;
            }
            width -= 1;
        }
    }

    /// The longest name's width.
    fn width(&self) -> usize {
        self.names
            .iter()
            .map(|(_, name)| name.chars().count())
            .max()
            .unwrap_or(0)
    }
}

/// A label without what all begin with.
fn without_prefix(label: &str, prefix: &str) -> String {
    let label = printable(label);
    label.strip_prefix(prefix).unwrap_or(&label).to_owned()
}

/// The common start of several labels, up to a `-`, `.` or `/`: a `_` is often within a quant's
/// name.
fn common_prefix(labels: &[String]) -> &str {
    let Some((first, others)) = labels
        .split_first()
        .filter(|(_, others)| !others.is_empty())
    else {
        return "";
    };
    // What is in parentheses was added to tell rows of one name apart.
    let mut end = first.find(" (").unwrap_or(first.len());
    for label in others {
        let n_common = first
            .bytes()
            .zip(label.bytes())
            .take_while(|(a, b)| a == b)
            .count();
        end = end.min(n_common);
    }
    let common = first.get(..end).unwrap_or_default();
    let separator = common.rfind(['-', '.', '/']);
    separator
        .and_then(|separator| first.get(..=separator))
        .unwrap_or("")
}

/// The start and the end of a name that is too long, with `…` between them.
fn cut(name: &str, width: usize) -> String {
    let n = name.chars().count();
    if n <= width {
        return name.to_owned();
    }
    // The end mostly names the quantization.
    let n_end = (width.saturating_sub(1) * 2).div_ceil(3);
    let n_start = width.saturating_sub(1 + n_end);
    let start = name.chars().take(n_start);
    let end = name.chars().skip(n - n_end);
    start.chain(['…']).chain(end).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::layout::WIDTH;

    fn prefix(labels: &[&str]) -> String {
        let labels: Vec<String> = labels.iter().map(|&label| label.to_owned()).collect();
        common_prefix(&labels).to_owned()
    }

    #[test]
    fn quants_keep_their_whole_names() {
        assert_eq!(prefix(&["tiny-q4_K_M", "tiny-q4_0"]), "tiny-");
        assert_eq!(prefix(&["q4_K_M", "q4_0"]), "");
        assert_eq!(
            prefix(&["L-3.1-8B-Q4_0", "L-3.1-8B-UD-Q4_K_XL"]),
            "L-3.1-8B-"
        );
        assert_eq!(prefix(&["a.Q4_0", "a.Q8_0", "b.Q8_0"]), "");
        assert_eq!(prefix(&["m-q4 (-fa on)", "m-q4 (-fa off)"]), "m-");
        assert_eq!(prefix(&["m-q4"]), "");
        assert_eq!(prefix(&["é-q4", "è-q4"]), "");
    }

    #[test]
    fn a_long_name_keeps_its_end() {
        let short = |label, width| Names::of(&[label], WIDTH).within(width)(label);
        assert_eq!(short("q4_K_M", 6), "q4_K_M");
        assert_eq!(short("instruct-q4_K_M", 10), "ins…q4_K_M");
        assert_eq!(short("éééé", 3), "…éé");
    }

    #[test]
    fn a_pipe_gets_whole_labels() {
        let labels = ["m-q4 (-fa on)", &"m-long-".repeat(40)];
        let names = Names::of(&labels, UNBOUNDED);
        assert_eq!(names.prefix, "");
        let line = |name: &dyn Fn(&str) -> String| labels.map(name).join(" ");
        assert_eq!(names.fitted(line), labels.join(" "));
    }

    proptest! {
        #[test]
        fn no_two_names_are_the_same(
            labels in prop::collection::hash_set("[aq48_. /-]{1,24}", 1..9),
            width in MIN_NAME_WIDTH..26,
        ) {
            let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
            let names = Names::of(&labels, WIDTH);
            let short: HashSet<String> = labels.iter().map(|label| names.within(width)(label)).collect();
            prop_assert_eq!(short.len(), labels.len());
            prop_assert!(short.iter().all(|name| name.chars().count() <= width), "{:?}", short);
        }
    }

    #[test]
    fn names_stay_distinct_when_they_are_cut() {
        let short = |labels: &[&str], width| -> Vec<String> {
            let names = Names::of(labels, WIDTH);
            let name = names.within(width);
            labels.iter().map(|label| name(label)).collect()
        };
        let paths = ["same (a/x/same.kls)", "same (b/x/same.kls)", "q8_0"];
        assert_eq!(short(&paths, 9), ["sa…kls) 2", "sa…kls) 3", "q8_0"]);
        assert_eq!(short(&paths, 19), paths);
        assert_eq!(
            short(&["a\u{1b}", "a\u{7}"], 8),
            ["a\u{fffd} 2", "a\u{fffd} 1"]
        );
    }
}
