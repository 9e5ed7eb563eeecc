//! Python literals, as `repr` writes them: the headers of kl.py's files and of numpy's arrays.

use std::str::Chars;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Parses a literal as if it were JSON; tuples become lists.
///
/// # Errors
/// A phrase that states why the bytes are not a literal, or one of another shape.
pub(crate) fn parse<T: DeserializeOwned>(literal: &[u8]) -> Result<T, String> {
    let converted = str::from_utf8(literal).ok().and_then(to_json);
    let json = converted.ok_or("not a Python literal")?;
    serde_json::from_str(&json).map_err(|error| error.to_string())
}

/// The JSON of a literal; for anything else, something that may not be JSON.
fn to_json(literal: &str) -> Option<String> {
    let mut json = String::with_capacity(literal.len());
    let mut chars = literal.chars();
    while let Some(c) = chars.next() {
        match c {
            '\'' | '"' => json += &Value::from(string(&mut chars, c)?).to_string(),
            '(' => json.push('['),
            ')' | ']' | '}' => {
                let end = json.trim_end().trim_end_matches(',').len();
                json.truncate(end);
                json.push(if c == '}' { '}' } else { ']' });
            }
            'T' | 'F' | 'N' => {
                let rest = chars.as_str();
                let words = [("rue", "true"), ("alse", "false"), ("one", "null")];
                let (word, in_json) = words.iter().find(|(word, _)| rest.starts_with(word))?;
                json += in_json;
                chars = rest.get(word.len()..)?.chars();
            }
            _ => json.push(c),
        }
    }
    Some(json)
}

/// The rest of a string up to its closing quote, without `\N{...}` and octal escapes, which `repr`
/// never writes.
fn string(chars: &mut Chars<'_>, quote: char) -> Option<String> {
    let mut text = String::new();
    loop {
        text.push(match chars.next()? {
            c if c == quote => return Some(text),
            '\\' => match chars.next()? {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'b' => '\u{8}',
                'f' => '\u{c}',
                'x' => character(chars, 2)?,
                'u' => character(chars, 4)?,
                'U' => character(chars, 8)?,
                c @ ('\\' | '\'' | '"') => c,
                _ => return None,
            },
            c => c,
        });
    }
}

/// The character whose number has `n` hexadecimal digits.
fn character(chars: &mut Chars<'_>, n: usize) -> Option<char> {
    let (digits, rest) = chars.as_str().split_at_checked(n)?;
    *chars = rest.chars();
    char::from_u32(u32::from_str_radix(digits, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// As Python's `repr` writes it, and its `json.dumps`.
    #[test]
    fn what_repr_writes_is_read() {
        let literal = r#"{'a': 'it\'s "q" \\ \n\t\x07é\u2028😀\x7f\xa0', "b'": (1, 2),
            'c': [True, False, None, -1.5e-07, (3,)], 'd': {}, 'e': (), 'f': {'x': []}, }  "#;
        let expected = json!({
            "a": "it's \"q\" \\ \n\t\u{7}\u{e9}\u{2028}\u{1f600}\u{7f}\u{a0}", "b'": [1, 2],
            "c": [true, false, null, -1.5e-7, [3]], "d": {}, "e": [], "f": {"x": []},
        });
        assert_eq!(parse::<Value>(literal.as_bytes()), Ok(expected));
        for other in [
            "{1: 2}",
            "{'a': nan}",
            "{'a'",
            "{'a': Truth}",
            r"{'a': '\xg0'}",
            "{'a': 1} 2",
        ] {
            assert!(parse::<Value>(other.as_bytes()).is_err(), "{other}");
        }
    }
}
