//! What models are called where there is little room.

use super::Comparison;
use crate::report::number::printable;

/// Names as short as they can be told apart: labels without the part that all begin with.
pub struct Names {
    /// What the names are without; empty if they are the labels.
    pub prefix: String,
    labels: Vec<String>,
}

impl Names {
    /// Shortens the labels of a comparison.
    pub fn of(comparison: &Comparison) -> Self {
        let labels = comparison.models.iter();
        Self::of_labels(&labels.map(|model| model.label.as_str()).collect::<Vec<_>>())
    }

    /// Shortens labels.
    pub fn of_labels(labels: &[&str]) -> Self {
        let labels: Vec<String> = labels.iter().map(|label| printable(label)).collect();
        let prefix = common_prefix(&labels).to_owned();
        Self { prefix, labels }
    }

    /// The labels of a comparison, as they are.
    pub fn whole(comparison: &Comparison) -> Self {
        Self {
            prefix: String::new(),
            ..Self::of(comparison)
        }
    }

    /// The name for a label, at most `width` characters wide: its middle is left out if need be.
    pub fn short(&self, label: &str, width: usize) -> String {
        let label = printable(label);
        let name = label.strip_prefix(&self.prefix).unwrap_or(&label);
        cut(name, width)
    }

    /// The longest name's width.
    pub fn width(&self) -> usize {
        let names = self.labels.iter();
        let widths = names.map(|label| self.short(label, usize::MAX).chars().count());
        widths.max().unwrap_or(0)
    }
}

/// What several labels begin with, up to a `-`, `.` or `/`: a `_` is often within a quant's name.
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
    let start: String = name.chars().take(n_start).collect();
    let end: String = name.chars().skip(n - n_end).collect();
    format!("{start}…{end}")
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
        assert_eq!(cut("q4_K_M", 6), "q4_K_M");
        assert_eq!(cut("instruct-q4_K_M", 10), "ins…q4_K_M");
        assert_eq!(cut("éééé", 3), "…éé");
    }
}
