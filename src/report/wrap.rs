//! Text in lines that fit a terminal of 80 columns.

/// The widest line, in columns.
pub const WIDTH: usize = 80;

/// Text in lines of at most 80 columns.
pub fn wrapped(text: &str) -> String {
    hanging("", 0, text)
}

/// Text in lines of at most 80 columns: the first begins with `start`, the others are indented. A
/// longer word stays whole, so that a path can be copied.
pub fn hanging(start: &str, indent: usize, text: &str) -> String {
    laid_out(start, indent, " ", text.split_whitespace())
}

/// Pieces as [`hanging`] lays out words, with `joint` between two on one line.
pub fn laid_out<'p>(
    start: &str,
    indent: usize,
    joint: &str,
    pieces: impl Iterator<Item = &'p str>,
) -> String {
    let mut text = start.to_owned();
    let mut column = start.chars().count();
    for (i, piece) in pieces.enumerate() {
        let width = piece.chars().count();
        if i > 0 {
            let width_of_joint = joint.chars().count();
            if column + width_of_joint + width > WIDTH {
                text.push_str(joint.trim_end());
                text.push('\n');
                text.push_str(&" ".repeat(indent));
                column = indent;
            } else {
                text.push_str(joint);
                column += width_of_joint;
            }
        }
        text.push_str(piece);
        column += width;
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_word_stays_whole() {
        let path = "a/".repeat(50);
        let text = hanging("  - ", 4, &format!("in {path} there"));
        assert_eq!(text, format!("  - in\n    {path}\n    there\n"));
    }
}
