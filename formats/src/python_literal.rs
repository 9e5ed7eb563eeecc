//! Python literals: the headers of kl.py's files and of numpy's arrays.

use py_literal::Value;

/// The deepest nesting that is parsed; neither header nests more than a shape in its one dict.
const MAX_DEPTH: usize = 3;

/// Why a text is not parsed as a dict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotADict {
    /// Its brackets nest too deep, or it holds a `\N` escape.
    Unsafe,
    /// It is another value, or not a literal at all.
    Other,
}

/// The entries of a dict literal, in their order.
pub(crate) fn dict(text: &str) -> Result<Vec<(Value, Value)>, NotADict> {
    if !is_shallow(text) {
        return Err(NotADict::Unsafe);
    }
    match text.trim().parse() {
        Ok(Value::Dict(entries)) => Ok(entries),
        _ => Err(NotADict::Other),
    }
}

/// Returns true if `text` is safe to parse: for each level of nesting the parser needs more stack,
/// and twice the time. Brackets inside strings do not count. A `\N{...}` escape, the one that may
/// hold a quote, is refused: Python's `repr` never writes it.
fn is_shallow(text: &str) -> bool {
    let mut depth = 0usize;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(_), '\\') => {
                if chars.next() == Some('N') {
                    return false;
                }
            }
            (Some(q), c) if q == c => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '(' | '[' | '{') => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return false;
                }
            }
            (None, ')' | ']' | '}') => depth = depth.saturating_sub(1),
            (None, _) => {}
        }
    }
    true
}
