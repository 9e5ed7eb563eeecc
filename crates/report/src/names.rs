//! Names of models where there is little room.

use std::collections::{BTreeSet, HashMap};

use crate::layout::UNBOUNDED;
use crate::number::printable;

/// The narrowest that names are cut to.
pub const MIN_NAME: usize = 8;

/// Short names that still distinguish the models: labels without what all begin with.
pub struct Names {
    /// The prefix that the names leave out; empty if they are the labels.
    pub prefix: String,
    /// Each label, and its name.
    names: Vec<(String, String)>,
    /// The widest line, in columns.
    line: usize,
}

impl Names {
    /// Shortens labels for lines of at most `line` columns; where lines have no bound, labels stay whole.
    pub fn of(labels: &[&str], line: usize) -> Self {
        if line == UNBOUNDED {
            return Self::whole(labels, line);
        }
        let printed: Vec<String> = labels.iter().map(|label| printable(label)).collect();
        Self::without(common_prefix(&printed), labels, line)
    }

    /// Labels that keep what all begin with.
    pub fn whole(labels: &[&str], line: usize) -> Self {
        Self::without("", labels, line)
    }

    fn without(prefix: &str, labels: &[&str], line: usize) -> Self {
        let labels = BTreeSet::from_iter(labels).into_iter();
        let names = labels.map(|label| ((*label).to_owned(), without_prefix(label, prefix)));
        Self {
            prefix: prefix.to_owned(),
            names: names.collect(),
            line,
        }
    }

    /// The name of each label, at most `width` characters wide: no two are the same. The middle of a long
    /// name is left out; two that look the same then are numbered.
    pub fn within(&self, width: usize) -> impl Fn(&str) -> String + use<'_> {
        let names = self.names.iter();
        let plain: Vec<String> = names.map(|(_, name)| cut(name, width)).collect();
        let mut shown: HashMap<&str, String> = HashMap::new();
        for (i, ((label, name), plain_name)) in self.names.iter().zip(&plain).enumerate() {
            let n_alike = |text: &String| plain.iter().filter(|other| *other == text).count();
            let mut numbered = (i + 1..).map(|number| {
                let number = format!(" {number}");
                cut(name, width.saturating_sub(number.len())) + &number
            });
            let is_free =
                |text: &String| n_alike(text) == 0 && !shown.values().any(|other| other == text);
            let single = Some(plain_name).filter(|name| n_alike(name) == 1);
            let text = single.cloned().or_else(|| numbered.find(is_free));
            shown.insert(label, text.unwrap_or_default());
        }
        move |label| match shown.get(label) {
            Some(name) => name.clone(),
            None => cut(&without_prefix(label, &self.prefix), width),
        }
    }

    /// The names in sentences, which may have several lines, but each name only one.
    pub fn in_sentences(&self) -> impl Fn(&str) -> String + use<'_> {
        /// The words beside a name.
        const BESIDE: usize = 20;
        self.within(self.line.saturating_sub(BESIDE).max(MIN_NAME))
    }

    /// Calls `draw` with a function that shortens names, and returns its text: the one with the longest
    /// names whose lines fit.
    pub fn fitted(&self, draw: impl Fn(&dyn Fn(&str) -> String) -> String) -> String {
        let mut width = self.width();
        loop {
            let text = draw(&self.within(width));
            let fits = text.lines().all(|line| line.chars().count() <= self.line);
            if fits || width <= MIN_NAME {
                return text;
            }
            width -= 1;
        }
    }

    /// The longest name's width.
    fn width(&self) -> usize {
        let widths = self.names.iter().map(|(_, name)| name.chars().count());
        widths.max().unwrap_or(0)
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
    let Some((first, rest)) = labels.split_first().filter(|(_, rest)| !rest.is_empty()) else {
        return "";
    };
    // What is in parentheses was added to tell rows of one name apart.
    let mut end = first.find(" (").unwrap_or(first.len());
    for label in rest {
        let common = first.bytes().zip(label.bytes());
        end = end.min(common.take_while(|(a, b)| a == b).count());
    }
    let common = first.get(..end).unwrap_or_default();
    let separator = common.rfind(['-', '.', '/']);
    separator.and_then(|at| first.get(..=at)).unwrap_or("")
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
            width in MIN_NAME..26,
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
