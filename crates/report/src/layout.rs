//! Text in lines that fit a terminal, in columns, and in lines of a name and a value.

use kl_stats::stats::{Estimate, QuantileEstimate, TokenLocation};

use super::number::{ends_beside, kld, printable, quantile_name};

/// The widest line of prose, in columns, and that of a table on a terminal of unknown width.
pub const WIDTH: usize = 80;

/// The columns of a table in a pipe or a file: no name is cut, however long its line becomes.
pub const UNBOUNDED: usize = usize::MAX;

/// The amount that a text shows.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// The widest line of a table, in columns: names are cut to it.
    pub width: usize,
    /// True if the text shows everything, not what most people decide by.
    pub full: bool,
    /// True if the text shows which tokens the KLD comes from.
    pub breakdown: bool,
}

/// The quantiles that most people decide by.
pub const USUAL_QUANTILES: [f64; 3] = [0.5, 0.99, 0.999];

impl View {
    /// What most people decide by, on a terminal of 80 columns.
    pub const BRIEF: Self = Self {
        width: WIDTH,
        full: false,
        breakdown: false,
    };

    /// Everything, on the same.
    pub const FULL: Self = Self {
        full: true,
        ..Self::BRIEF
    };

    /// The last line of a text, which says how to see more; empty in full.
    pub fn more_hint(&self) -> &'static str {
        if self.full {
            ""
        } else {
            "\nMore: --full. Everything: --json.\n"
        }
    }

    /// The rows that a table shows of these, and the line below it that counts the others; empty if it
    /// shows all.
    pub fn first_rows<'r, T>(&self, rows: &'r [T]) -> (&'r [T], String) {
        /// A table of more rows shows a few of them.
        const MANY: usize = 8;
        const FEW: usize = 5;
        if self.full || rows.len() <= MANY {
            return (rows, String::new());
        }
        let more = rows.len() - FEW;
        (&rows[..FEW], format!("  and {more} more: --full\n"))
    }
}

/// Text in lines of at most 80 columns.
pub fn wrapped(text: &str) -> String {
    hanging("", 0, text)
}

/// Text in lines of at most 80 columns: the first begins with `start`, the others are indented. A
/// longer word stays whole, so that a path can be copied.
pub fn hanging(start: &str, indent: usize, text: &str) -> String {
    laid_out(start, indent, " ", text.split_whitespace())
}

/// Text in lines of at most 80 columns, as [`hanging`] lays it out, but broken only between `pieces`:
/// `joint` stands between two of them on one line.
pub fn laid_out<'p>(
    start: &str,
    indent: usize,
    joint: &str,
    pieces: impl Iterator<Item = &'p str>,
) -> String {
    let mut text = start.to_owned();
    let mut column = start.chars().count();
    for (i, piece) in pieces.enumerate() {
        let [piece_width, joint_width] = [piece, joint].map(|text| text.chars().count());
        if i > 0 && column + joint_width + piece_width > WIDTH {
            text += &format!("{}\n{:indent$}", joint.trim_end(), "");
            column = indent;
        } else if i > 0 {
            text += joint;
            column += joint_width;
        }
        text += piece;
        column += piece_width;
    }
    text + "\n"
}

/// Titles, and below them lines of a name and a value. Text from outside is made printable.
pub struct Sheet {
    /// The text so far.
    pub text: String,
    /// True if values come with their intervals.
    pub has_intervals: bool,
    /// The word for a window.
    pub unit: &'static str,
    /// The width of the column of names.
    name_width: usize,
}

impl Sheet {
    /// A sheet without lines, of values with intervals.
    pub fn new(name_width: usize) -> Self {
        Self {
            text: String::new(),
            has_intervals: true,
            unit: "window",
            name_width,
        }
    }

    /// Begins a section, after an empty line unless it is the first.
    pub fn title(&mut self, title: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text += &wrapped(&printable(title));
    }

    /// A line of words, continued below where it is too long. It is split at each single space, so that a path
    /// keeps its own spaces.
    pub fn line(&mut self, name: &str, text: &str) {
        self.list(name, " ", printable(text).split(' '));
    }

    /// A line for what is known; none for what is not.
    pub fn known(&mut self, name: &str, text: Option<impl AsRef<str>>) {
        if let Some(text) = text {
            self.line(name, text.as_ref());
        }
    }

    /// A line of several things, continued below, after one of them, where it is too long.
    pub fn list<'i>(&mut self, name: &str, joint: &str, items: impl Iterator<Item = &'i str>) {
        let start = self.line_start(name);
        self.text += &laid_out(&start, self.name_width + 3, joint, items);
    }

    fn line_start(&self, name: &str) -> String {
        format!("  {:<width$} ", printable(name), width = self.name_width)
    }

    /// A line with a value, in the column of values, and what follows it.
    pub fn value(&mut self, name: &str, value: &str, remark: &str) {
        let gap = if remark.is_empty() { "" } else { "  " };
        let (start, remark) = (self.line_start(name), printable(remark));
        self.text += &format!("{start}{value:>12}{gap}{remark}\n");
    }

    /// A value and its interval, or the one end that it has.
    pub fn estimate(&mut self, name: &str, estimate: &Estimate, show: impl Fn(f64) -> String) {
        let interval = if self.has_intervals {
            ends_beside(estimate, &show)
        } else {
            String::new()
        };
        self.value(name, &show(estimate.value), &interval);
    }

    /// The quantiles of a divergence, a line each.
    pub fn quantiles<'q>(&mut self, quantiles: impl IntoIterator<Item = &'q QuantileEstimate>) {
        for quantile in quantiles {
            self.estimate(&quantile_name(quantile.p), &quantile.estimate, kld);
        }
    }

    /// The maximum of a divergence and where it is; `next` is the text of the token that follows.
    pub fn maximum(&mut self, max: f64, location: &TokenLocation, next: Option<&str>) {
        let position = self.position(location.window, location.position);
        let before = next.map(|text| format!("before {text:?}"));
        let start = format!("{}{:>12}  ", self.line_start("maximum"), kld(max));
        let pieces = [Some(position.as_str()), before.as_deref()]
            .into_iter()
            .flatten();
        self.text += &laid_out(&start, start.chars().count(), ", ", pieces);
    }

    /// A position in a window, in words.
    pub fn position(&self, window: u32, position: u32) -> String {
        format!("{} {window}, position {position}", self.unit)
    }
}

/// The start of a text, or its end, in quotes, cut to fit `width` columns whatever it holds.
pub fn quoted(text: &str, width: usize, is_end: bool) -> String {
    /// Some characters from here on take two columns.
    const FIRST_WIDE: char = '\u{1100}';
    let columns = |c: char| if c < FIRST_WIDE || c == '…' { 1 } else { 2 };
    let chars = Vec::from_iter(text.chars());
    let part = |n: usize| {
        let cut = if n < chars.len() { "…" } else { "" };
        let start = if is_end { chars.len() - n } else { 0 };
        let part: String = chars.iter().skip(start).take(n).collect();
        let [before, after] = if is_end { [cut, ""] } else { ["", cut] };
        format!("{:?}", format!("{before}{part}{after}"))
    };
    (0..=chars.len().min(width))
        .rev()
        .map(part)
        .find(|text| text.chars().map(columns).sum::<usize>() <= width)
        .unwrap_or_default()
}

/// `a`, `a and b`, `a, b and c`, or the first few and how many others there are.
pub fn list(mut names: Vec<String>) -> String {
    /// The number of models that a sentence names before it counts the others.
    const NAMED: usize = 4;
    if names.len() > NAMED {
        let n_others = names.len() - (NAMED - 1);
        names.truncate(NAMED - 1);
        names.push(format!("{n_others} others"));
    }
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_texts_fit_their_columns() {
        for (text, width, is_end, cut) in [
            (" there", 10, false, "\" there\""),
            (" therefore", 10, false, "\" theref…\""),
            ("\n\n\n\n\n", 8, false, "\"\\n\\n…\""),
            ("\u{202e}", 10, false, "\"\\u{202e}\""),
            ("Once upon", 10, true, "\"…ce upon\""),
            ("Once", 10, true, "\"Once\""),
            ("", 10, true, "\"\""),
            ("消息消息", 9, false, "\"消息消…\""),
            ("消息消息", 10, false, "\"消息消息\""),
        ] {
            assert_eq!(quoted(text, width, is_end), cut);
        }
    }
    #[test]
    fn a_long_word_stays_whole() {
        let path = "a/".repeat(50);
        let text = hanging("  - ", 4, &format!("in {path} there"));
        assert_eq!(text, format!("  - in\n    {path}\n    there\n"));
    }
}
