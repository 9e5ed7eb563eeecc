//! The tokens of a tag, as jinja2's lexer finds them.

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Name,
    /// A number or a string.
    Literal,
    Operator,
}

/// A token of a tag.
#[derive(Clone, Copy, Debug)]
pub struct Token<'s> {
    pub kind: Kind,
    pub text: &'s str,
    /// The position of its first byte after the tag's opening.
    pub start: usize,
}

/// The operators of more than one character.
const LONG_OPERATORS: [&str; 6] = ["**", "//", "==", "!=", "<=", ">="];

/// The tokens of a tag, and what follows the tag. `closing` ends it, outside of brackets and strings. `None`
/// if nothing does.
pub fn tokens<'s>(code: &'s str, closing: &str) -> Option<(Vec<Token<'s>>, &'s str)> {
    let (mut found, mut n_open, mut start) = (Vec::new(), 0usize, 0);
    loop {
        let rest = code.get(start..)?;
        let trimmed = rest.trim_start();
        start += rest.len() - trimmed.len();
        if n_open == 0
            && let Some(rest) = trimmed.strip_prefix(closing)
        {
            return Some((found, rest));
        }
        let (kind, n_bytes) = first_token(trimmed)?;
        let text = trimmed.get(..n_bytes)?;
        match text {
            "(" | "[" | "{" => n_open += 1,
            ")" | "]" | "}" => n_open = n_open.saturating_sub(1),
            _ => {}
        }
        found.push(Token { kind, text, start });
        start += n_bytes;
    }
}

/// The kind and the bytes of a text's first token; `None` at its end, or in a string without one.
fn first_token(text: &str) -> Option<(Kind, usize)> {
    let first = text.chars().next()?;
    let is_of_name = |c: char| c.is_alphanumeric() || c == '_';
    let while_of =
        |is_part: &dyn Fn(char) -> bool| text.find(|c| !is_part(c)).unwrap_or(text.len());
    Some(match first {
        '"' | '\'' => (Kind::Literal, string_length(text, first)?),
        '0'..='9' => (Kind::Literal, number_length(text)),
        _ if is_of_name(first) => (Kind::Name, while_of(&is_of_name)),
        _ => {
            let long = LONG_OPERATORS.iter().find(|long| text.starts_with(**long));
            (
                Kind::Operator,
                long.map_or(first.len_utf8(), |long| long.len()),
            )
        }
    })
}

/// The bytes of the string with which a text begins, its quotation marks included.
fn string_length(text: &str, quote: char) -> Option<usize> {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// The bytes of the number with which a text begins. A point belongs to it if a digit follows.
fn number_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut end = 0;
    while let Some(byte) = bytes.get(end) {
        let is_part = match byte {
            b'.' => is_digit(end + 1),
            b'+' | b'-' => {
                matches!(bytes.get(end.wrapping_sub(1)), Some(b'e' | b'E')) && is_digit(end + 1)
            }
            _ => byte.is_ascii_alphanumeric() || *byte == b'_',
        };
        if !is_part {
            break;
        }
        end += 1;
    }
    end
}
