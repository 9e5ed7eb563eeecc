//! Python literals: the headers of kl.py's files and of numpy's arrays.

use py_literal::Value;

/// The deepest nesting that is parsed: no header nests deeper than a dict with a shape in it.
const MAX_DEPTH: usize = 3;

/// The entries of a dict literal, in their order; `None` if it is another value, or not a literal at
/// all.
///
/// # Errors
/// A phrase, for a text that is not safe to parse.
pub(crate) fn dict(text: &str) -> Result<Option<Vec<(Value, Value)>>, &'static str> {
    if !is_shallow(text) {
        return Err("its brackets nest too deep, or it holds a \\N escape");
    }
    match text.trim().parse() {
        Ok(Value::Dict(entries)) => Ok(Some(entries)),
        _ => Ok(None),
    }
}

/// True if `text` is safe to parse: each level of nesting costs the parser more stack, and
/// doubles its time. Brackets inside strings do not count. A `\N{...}` escape, the one that may
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
