//! Names of models where there is little room.

use crate::report::layout::WIDTH;
use crate::report::number::printable;

/// The narrowest that names are cut to.
pub const MIN_NAME: usize = 8;

/// Short names that still distinguish the models: labels without what all begin with.
pub struct Names {
    /// The prefix that the names leave out; empty if they are the labels.
    pub prefix: String,
    /// Each label, and its name.
    names: Vec<(String, Vec<char>)>,
}

impl Names {
    /// Shortens labels.
    pub fn of(labels: &[&str]) -> Self {
        let printed: Vec<String> = labels.iter().map(|label| printable(label)).collect();
        Self::without(common_prefix(&printed), labels)
    }

    /// Labels as they are.
    pub fn whole(labels: &[&str]) -> Self {
        Self::without("", labels)
    }

    fn without(prefix: &str, labels: &[&str]) -> Self {
        let names = labels
            .iter()
            .map(|label| ((*label).to_owned(), name(label, prefix)));
        Self {
            prefix: prefix.to_owned(),
            names: names.collect(),
        }
    }

    /// The name for a label, at most `width` characters wide. Its middle is left out if it is too long,
    /// or its start if another name would then look the same.
    pub fn short(&self, label: &str, width: usize) -> String {
        let name = name(label, &self.prefix);
        let short = cut(&name, width);
        let alike = self.names.iter();
        let alike: Vec<_> = alike.filter(|(_, of)| cut(of, width) == short).collect();
        let others = alike.iter().filter(|(other, _)| other != label);
        let mut others = others.map(|(_, other)| other);
        let n_common = |other| name.iter().zip(other).take_while(|(a, b)| a == b).count();
        let Some(start) = others.clone().map(n_common).min() else {
            return short;
        };
        let from_start = cut_from(&name, start, width);
        if others.all(|other| cut_from(other, start, width) != from_start) {
            return from_start;
        }
        let number = alike.iter().position(|(other, _)| other == label);
        let number = format!(" {}", number.unwrap_or(0) + 1);
        cut(&name, width.saturating_sub(number.len())) + &number
    }

    /// Calls `draw` with a function that shortens names, and returns its text: the one with the longest
    /// names that fit a terminal.
    pub fn fitted(&self, draw: impl Fn(&dyn Fn(&str) -> String) -> String) -> String {
        let mut width = self.width();
        loop {
            let text = draw(&|label| self.short(label, width));
            let fits = text.lines().all(|line| line.chars().count() <= WIDTH);
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
    let (n, end) = match rest <= room {
        true => (rest, None),
        false => (room.saturating_sub(1), Some('…')),
    };
    let part = name.iter().skip(start).take(n).copied();
    std::iter::once('…').chain(part).chain(end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let short = |label, width| Names::of(&[label]).short(label, width);
        assert_eq!(short("q4_K_M", 6), "q4_K_M");
        assert_eq!(short("instruct-q4_K_M", 10), "ins…q4_K_M");
        assert_eq!(short("éééé", 3), "…éé");
    }

    #[test]
    fn names_stay_distinct_when_they_are_cut() {
        let short = |labels: &[&str], width| -> Vec<String> {
            let names = Names::of(labels);
            labels
                .iter()
                .map(|label| names.short(label, width))
                .collect()
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
        assert_eq!(short(&far, 8), ["…A-long…", "n….kls 2", "n….kls 3"]);
        assert_eq!(
            short(&["a\u{1b}", "a\u{7}"], 8),
            ["a\u{fffd} 1", "a\u{fffd} 2"]
        );
    }
}
