//! `{% generation %}` and `{% endgeneration %}`, by which a template marks the assistant's words for
//! training (`return_assistant_tokens_mask` in transformers). They print nothing.

use std::ops::Range;

/// What is printed where the assistant's words begin, and where they end: noncharacters, which no text
/// for interchange has.
const BEGIN: char = '\u{fdd0}';
const END: char = '\u{fdd1}';

/// The source of a template with blocks that print [`BEGIN`] and [`END`] in place of the tags.
///
/// Two blocks take the place of each tag, so that the blanks around it are kept or stripped as they were.
pub(super) fn with_marks(source: &str) -> String {
    let mut marked = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tag, after)) = next_tag(rest) {
        let inside = tag.trim_start_matches(['-', '+']);
        let open = tag.strip_suffix(inside).unwrap_or_default();
        let name = inside.trim_end_matches(['-', '+']);
        let close = inside.strip_prefix(name).unwrap_or_default();
        let blocks = match name.trim() {
            "generation" => Some(("if true", BEGIN)),
            "endgeneration" => Some(("endif", END)),
            _ => None,
        };
        marked += before;
        marked += &match blocks {
            Some((block, mark)) => {
                format!("{{%{open} {block} %}}{{{{ '{mark}' }}}}{{% {block} {close}%}}")
            }
            None => format!("{{%{tag}%}}"),
        };
        rest = after;
    }
    marked + rest
}

/// The text before the first tag, what is inside of its brackets, and the text after it.
fn next_tag(source: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = source.split_once("{%")?;
    let (tag, after) = rest.split_once("%}")?;
    Some((before, tag, after))
}

/// A rendered text without the marks, and the ranges of bytes that were between them.
pub(super) fn without_marks(text: String) -> (String, Vec<Range<usize>>) {
    if !text.contains(BEGIN) {
        return (text, Vec::new());
    }
    let (mut plain, mut ranges, mut start) = (String::with_capacity(text.len()), Vec::new(), None);
    for c in text.chars() {
        match c {
            BEGIN => start = Some(plain.len()),
            END => ranges.extend(start.take().map(|start| start..plain.len())),
            _ => plain.push(c),
        }
    }
    (plain, ranges)
}
