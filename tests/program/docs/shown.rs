//! Whether a block of a page shows what a command prints, on any CPU.
//!
//! The last bits of a model's logits are each CPU's own. Numbers move with them, and so do choices between
//! things that are nearly equal: which tensor is farthest off, which token is the worst. So a block shows an
//! output if
//!
//! - its lines have the forms of lines that were printed one after the other: the same words, and a number, a
//!   time or a name in the place of another;
//! - a line whose words, names included, are among these has numbers near those printed;
//! - all names in it are printed on the page.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::{Captures, Regex};

/// A line of a block that stands for lines which are left out.
const LEFT_OUT: &str = "...";

/// How far a number may be from the printed one, as a share of the larger of both.
const OTHER_CPU: f64 = 0.5;

/// A line without the widths of its columns.
struct Line {
    /// Its words, with `#` in the place of each number, time and place in a text, and `NAME` in that of each name.
    form: String,
    /// The same, with its names.
    words: String,
    names: Vec<String>,
    numbers: Vec<f64>,
}

/// The parts of a line that another run or another CPU prints otherwise: names of tensors and of types, times,
/// the places of tokens, other numbers.
static PART: LazyLock<Regex> = LazyLock::new(|| {
    let name = r"(?i:\b(blk\.\d+\.)?(token_embd|(attn|ffn)_[a-z]+)|\bi?q\d_\w+)";
    let time = r"(\d+ min )?[\d.,]+ (ms|s|min|h|scored tokens/s|MiB/s|GiB/s)\b";
    let place = r#"window \d+, position \d+|before "[^"]*""#;
    let number = r"[-+]?\d([\d.,]*\d)?(e-\d+)?";
    let parts = format!("(?<name>{name})|{time}|{place}|(?<number>{number})");
    Regex::new(&parts).unwrap()
});

impl Line {
    fn new(line: &str) -> Self {
        let (mut names, mut numbers) = (Vec::new(), Vec::new());
        let words = PART.replace_all(line, |part: &Captures<'_>| {
            if let Some(name) = part.name("name") {
                names.push(name.as_str().to_owned());
                return name.as_str().to_owned();
            }
            let number = part.name("number").map(|of| of.as_str().replace(',', ""));
            numbers.extend(number.and_then(|of| of.parse::<f64>().ok()));
            "#".to_owned()
        });
        let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        let form = PART.replace_all(&words, |part: &Captures<'_>| {
            if part.name("name").is_some() {
                "NAME"
            } else {
                "#"
            }
        });
        Self {
            form: form.into_owned(),
            words,
            names,
            numbers,
        }
    }

    /// Whether the numbers are near those of a line of the same words.
    fn is_near(&self, printed: &Self) -> bool {
        let mut pairs = self.numbers.iter().zip(&printed.numbers);
        pairs.all(|(shown, printed)| {
            (shown - printed).abs() <= OTHER_CPU * shown.abs().max(printed.abs())
        })
    }
}

fn lines(text: &str) -> Vec<Line> {
    text.lines().map(Line::new).collect()
}

/// Whether the lines of a part of a block have the forms of these lines, and numbers near them.
fn are_shown(shown: &[Line], printed: &[Line]) -> bool {
    let pairs = shown.iter().zip(printed);
    let is_formed = pairs
        .clone()
        .all(|(shown, printed)| shown.form == printed.form);
    is_formed
        && shown.iter().all(|shown| {
            let mut same = printed
                .iter()
                .filter(|of| of.words == shown.words)
                .peekable();
            same.peek().is_none() || same.any(|printed| shown.is_near(printed))
        })
}

/// Whether a block shows lines that were printed one after the other. What starts at the top of an output
/// is all of it, unless the block says that lines are left out.
fn is_shown_in(block: &str, printed: &str) -> bool {
    let (shown, printed) = (lines(block), lines(printed));
    let is_left_out = |line: &Line| line.form == LEFT_OUT;
    let mut rest = &printed[..];
    for part in shown.split(is_left_out) {
        let mut places = rest.windows(part.len().max(1));
        let Some(place) = places.position(|printed| part.is_empty() || are_shown(part, printed))
        else {
            return false;
        };
        rest = &rest[place + part.len()..];
    }
    let is_whole = shown.len() == printed.len() || shown.iter().any(is_left_out);
    let [first_shown, first_printed] = [&shown, &printed].map(|of| of.first().map(|of| &of.form));
    is_whole || first_shown != first_printed
}

/// Whether a block shows lines of one of a page's outputs, and names only what the page's commands print.
pub fn is_shown(block: &str, outputs: &[String]) -> bool {
    let names = |text: &str| lines(text).into_iter().flat_map(|line| line.names);
    let printed: BTreeSet<String> = outputs.iter().flat_map(|of| names(of)).collect();
    outputs.iter().any(|of| is_shown_in(block, of)) && names(block).all(|of| printed.contains(&of))
}

/// The block as it should be, from the output that is most like it: each of its parts from the first to the
/// last line that has changed only in digits and names. `None` where a part has no such line.
pub fn as_printed(block: &str, outputs: &[String]) -> Option<String> {
    let forms = |text: &str| Vec::from_iter(lines(text).into_iter().map(|line| line.form));
    let shown = forms(block);
    let n_alike = |text: &&String| {
        let printed = forms(text);
        let is_alike = |line: &&String| !line.is_empty() && printed.contains(line);
        shown.iter().filter(is_alike).count()
    };
    let output = outputs.iter().max_by_key(n_alike)?;
    let (printed, lines) = (forms(output), Vec::from_iter(output.lines()));
    let parts = shown.split(|line| line == LEFT_OUT).map(|part| {
        let place = |line: &String| printed.iter().position(|of| of == line && !line.is_empty());
        let mut known = part.iter().filter_map(place);
        let first = known.next()?;
        let last = known.next_back().unwrap_or(first);
        Some(lines.get(first..=last)?.join("\n"))
    });
    let parts = parts.collect::<Option<Vec<_>>>()?;
    Some(parts.join(&format!("\n{LEFT_OUT}\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The head of a table, three rows, and a line below.
    const PRINTED: &str = "\
Predicted, then measured
  tensor          type  predicted             interval
  blk.0.ffn_gate  q5_K    9.28e-6   [2.7e-6, 0.000011]
  token_embd      q8_0    4.89e-6   [7.8e-6, 0.000012]
  blk.0.attn_q    q4_0  0.0000142 [0.000012, 0.000022]
The largest KLD is 0.0690731 at window 6, position 369, before \"an\".
";

    fn shows(block: &str) -> bool {
        is_shown(block, &["another output\n".to_owned(), PRINTED.to_owned()])
    }

    #[test]
    fn a_block_shows_what_another_cpu_prints() {
        assert!(shows(PRINTED));
        assert!(shows("Predicted, then measured\n...\n"));
        // Other last bits: other numbers, another order, another token.
        let rows = "\
  token_embd     q8_0 4.87e-6 [6.8e-6, 0.000012]
  blk.0.attn_q   q4_0 9.98e-6 [8.1e-6, 0.000019]
  blk.0.ffn_gate q5_K 9.15e-6 [2.9e-6, 0.000013]
";
        assert!(shows(rows));
        assert!(shows(
            "The largest KLD is 0.08 at window 12, position 3, before \"the\"."
        ));
    }

    #[test]
    fn a_wrong_block_shows_nothing() {
        for (right, wrong) in [
            // A number far off, a word, a column, a name that nothing prints, a name of another line.
            ("4.89e-6", "4.89e-5"),
            ("0.0690731", "0.690731"),
            ("predicted  ", "measured  "),
            ("9.28e-6 ", ""),
            ("blk.0.attn_q ", "blk.9.attn_q "),
            ("q4_0", "q4_1"),
            ("token_embd      q8_0", "blk.0.attn_q    q4_0"),
            ("window", "prompt"),
            (
                "  blk.0.attn_q    q4_0  0.0000142 [0.000012, 0.000022]\n",
                "",
            ),
            // All of an output that starts at its top.
            ("The largest", "...\nThe smallest"),
        ] {
            let block = PRINTED.replacen(right, wrong, 1);
            assert_ne!(block, PRINTED);
            assert!(!shows(&block), "{block}");
        }
        assert!(!shows("Predicted, then measured\n"));
    }
}
