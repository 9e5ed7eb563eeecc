//! Names of models where there is little room.

use std::collections::{HashMap, HashSet};

use crate::report::layout::UNBOUNDED;
use crate::report::number::printable;

/// The narrowest that names are cut to.
pub const MIN_NAME: usize = 8;

/// Short names that still distinguish the models: labels without what all begin with.
pub struct Names {
    /// The prefix that the names leave out; empty if they are the labels.
    pub prefix: String,
    /// Each label, and its name.
    names: Vec<(String, Vec<char>)>,
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
        let mut seen = HashSet::new();
        let names = labels
            .iter()
            .filter(|label| seen.insert(**label))
            .map(|label| ((*label).to_owned(), name(label, prefix)));
        Self {
            prefix: prefix.to_owned(),
            names: names.collect(),
            line,
        }
    }

    /// The name of each label, at most `width` characters wide: no two are the same. Words that all
    /// names have go first, then the middle of a name, or its start if another would look the same.
    pub fn within(&self, width: usize) -> impl Fn(&str) -> String + use<'_> {
        let names: Vec<Vec<char>> = if self.width() > width {
            self.without_shared_words()
        } else {
            self.names.iter().map(|(_, name)| name.clone()).collect()
        };
        let cut_names: Vec<String> = names.iter().map(|name| cut(name, width)).collect();
        let mut n_alike: HashMap<&str, usize> = HashMap::new();
        for name in &cut_names {
            *n_alike.entry(name).or_default() += 1;
        }
        let mut taken = HashSet::new();
        let mut shown = HashMap::new();
        for (i, (name, plain)) in names.iter().zip(&cut_names).enumerate() {
            let is_free =
                |text: &String| !n_alike.contains_key(text.as_str()) && !taken.contains(text);
            let alike = names.iter().zip(&cut_names).enumerate();
            let alike = alike.filter(|(j, (_, other))| *j != i && *other == plain);
            let n_common = alike.map(|(_, (other, _))| {
                let both = name.iter().zip(other);
                both.take_while(|(a, b)| a == b).count()
            });
            let text = match n_common.min() {
                None => plain.clone(),
                Some(start) => {
                    let numbered = (i + 1..).map(|number| {
                        let number = format!(" {number}");
                        cut(name, width.saturating_sub(number.len())) + &number
                    });
                    // Of two names that print the same, nothing tells them apart.
                    let differs = start < name.len();
                    let from_start = differs.then(|| cut_from(name, start, width));
                    let mut texts = from_start.into_iter().chain(numbered);
                    texts.find(is_free).unwrap_or_default()
                }
            };
            taken.insert(text.clone());
            shown.insert(self.names[i].0.as_str(), text);
        }
        move |label| match shown.get(label) {
            Some(name) => name.clone(),
            None => cut(&name(label, &self.prefix), width),
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
    pub fn width(&self) -> usize {
        let widths = self.names.iter().map(|(_, name)| name.len());
        widths.max().unwrap_or(0)
    }

    /// The names with `…` in place of the words that all of them have; whole where they would then look
    /// the same.
    fn without_shared_words(&self) -> Vec<Vec<char>> {
        let of_each: Vec<Vec<&[char]>> = self.names.iter().map(|(_, name)| words(name)).collect();
        let is_shared =
            |word: &[char]| of_each.len() > 1 && of_each.iter().all(|words| words.contains(&word));
        let names: Vec<Vec<char>> = of_each
            .iter()
            .map(|words| {
                let mut name = Vec::new();
                for word in words {
                    match is_shared(word) {
                        false => name.extend_from_slice(word),
                        true if name.last() == Some(&'…') => {}
                        true => name.push('…'),
                    }
                }
                name
            })
            .collect();
        if names.iter().collect::<HashSet<_>>().len() == names.len() {
            names
        } else {
            self.names.iter().map(|(_, name)| name.clone()).collect()
        }
    }
}

/// The words of a name, each with the `-`, `.`, `/` or space after it.
fn words(name: &[char]) -> Vec<&[char]> {
    name.split_inclusive(|c| matches!(c, '-' | '.' | '/' | ' '))
        .collect()
}

/// A label without what all begin with.
fn name(label: &str, prefix: &str) -> Vec<char> {
    let label = printable(label);
    let name = label.strip_prefix(prefix).unwrap_or(&label);
    name.chars().collect()
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
fn cut(name: &[char], width: usize) -> String {
    let n = name.len();
    if n <= width {
        return name.iter().collect();
    }
    // The end mostly names the quantization.
    let n_end = (width.saturating_sub(1) * 2).div_ceil(3);
    let n_start = width.saturating_sub(1 + n_end);
    let start = name.iter().take(n_start);
    let end = name.iter().skip(n - n_end);
    start.chain(&['…']).chain(end).collect()
}

/// A name from `start` on, with `…` for what is left out.
fn cut_from(name: &[char], start: usize, width: usize) -> String {
    let rest = name.len().saturating_sub(start);
    let room = width.saturating_sub(1);
    let (n, end) = if rest <= room {
        (rest, None)
    } else {
        (room.saturating_sub(1), Some('…'))
    };
    let part = name.iter().skip(start).take(n).copied();
    std::iter::once('…').chain(part).chain(end).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::report::layout::WIDTH;

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
    fn what_all_share_goes_before_what_tells_them_apart() {
        let labels = [
            "Meta-Llama-3.1-8B-Instruct-Q8_0",
            "Hermes-3-8B-Instruct-Q8_0",
        ];
        let names = Names::of(&labels, WIDTH);
        assert_eq!(labels.map(names.within(31)), labels);
        let short = ["Meta-Llama-3.1-…", "Hermes-3-…"];
        assert_eq!(labels.map(names.within(20)), short);
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
        assert_eq!(short(&paths, 9), ["…a/x/sam…", "…b/x/sam…", "q8_0"]);
        assert_eq!(short(&paths, 19), paths);
        // Each differs from the next elsewhere.
        let far = [
            "nameA-long-1-end.kls",
            "nameB-long-1-end.kls",
            "nameB-long-2-end.kls",
        ];
        assert_eq!(short(&far, 8), ["…A-…1-…", "…B-…1-…", "na…-…2-…"]);
        assert_eq!(
            short(&["a\u{1b}", "a\u{7}"], 8),
            ["a\u{fffd} 1", "a\u{fffd} 2"]
        );
    }
}
