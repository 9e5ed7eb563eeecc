//! The methods of Python's strings and lists that minijinja lacks, or has in another form.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::invalid;
use super::text::to_string;

/// `c.isspace()`, which includes four control characters.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// True for the characters that end a line in `splitlines`.
fn ends_line(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

/// Calls a method of a value.
pub fn call_method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let called = match (value.kind(), value.as_str()) {
        (_, Some(text)) => string_method(text, name, args)?,
        (ValueKind::Seq, _) if name == "index" => {
            let (wanted,): (Value,) = from_args(args)?;
            let position = value.try_iter()?.position(|item| item == wanted);
            Some(Value::from(position.ok_or_else(|| {
                invalid("index: the list does not have this item")
            })?))
        }
        (ValueKind::Map, _) if name == "copy" => Some(value.clone()),
        _ => None,
    };
    called.map_or_else(|| unknown_method_callback(state, value, name, args), Ok)
}

/// `trim`: `str(value).strip(chars)`.
pub fn trim(value: &Value, chars: Option<Value>) -> Result<String, Error> {
    Ok(stripped(&to_string(value)?, chars, (true, true))?.to_owned())
}

/// The result of a method of strings; `None` if minijinja's is the same.
fn string_method(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<Value>,) = from_args(args)?;
            stripped(text, chars, (name != "rstrip", name != "lstrip"))?.into()
        }
        "split" | "rsplit" => split(text, args, name == "rsplit")?,
        "splitlines" => {
            let (keep, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
            let keep = keep.or(kwargs.get("keepends")?).unwrap_or(false);
            lines(text, keep).into_iter().map(Value::from).collect()
        }
        "isspace" => (!text.is_empty() && text.chars().all(is_space)).into(),
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let (found, missing) = if name == "partition" {
                (text.split_once(separator), [text, "", ""])
            } else {
                (text.rsplit_once(separator), ["", "", text])
            };
            let parts = found.map_or(missing, |(before, after)| [before, separator, after]);
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "find" | "index" | "rfind" | "rindex" | "count" => {
            return search(text, name, args).map(Some);
        }
        "zfill" | "ljust" | "rjust" | "center" => padded(text, name, args)?.into(),
        "title" => title(text).into(),
        "casefold" => text.to_lowercase().replace('ß', "ss").into(),
        "swapcase" => {
            let swapped = text.chars().map(|c| {
                let c = c.to_string();
                let lower = c.to_lowercase();
                if c == lower { c.to_uppercase() } else { lower }
            });
            swapped.collect::<String>().into()
        }
        "join" => {
            let (items,): (Value,) = from_args(args)?;
            let items = items.try_iter()?.map(|item| match item.as_str() {
                Some(item) => Ok(item.to_owned()),
                None => Err(invalid(format!(
                    "join: an item is of type {}, not a string",
                    item.kind()
                ))),
            });
            items.collect::<Result<Vec<_>, Error>>()?.join(text).into()
        }
        "format" if !has_specification(text) => {
            let args = args
                .iter()
                .map(printed)
                .collect::<Result<Vec<_>, Error>>()?;
            format(FormatStyle::StrFormat, text, &args)?.into()
        }
        _ => return Ok(None),
    }))
}

/// `text.strip(chars)`, at its start and its end as far as wanted.
fn stripped(text: &str, chars: Option<Value>, (start, end): (bool, bool)) -> Result<&str, Error> {
    let chars: Option<Vec<char>> = match chars.filter(|chars| !chars.is_none()) {
        Some(chars) => match chars.as_str() {
            Some(chars) => Some(chars.chars().collect()),
            None => return Err(invalid("strip: the characters must be a string")),
        },
        None => None,
    };
    let is_dropped = |c: char| {
        chars
            .as_ref()
            .map_or_else(|| is_space(c), |chars| chars.contains(&c))
    };
    let text = if start {
        text.trim_start_matches(is_dropped)
    } else {
        text
    };
    Ok(if end {
        text.trim_end_matches(is_dropped)
    } else {
        text
    })
}

/// `text.split(sep, maxsplit)`, or `rsplit`.
fn split(text: &str, args: &[Value], from_end: bool) -> Result<Value, Error> {
    let (separator, most, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = match separator {
        Some(separator) => Some(separator),
        None => kwargs.get::<Option<Value>>("sep")?,
    };
    let most = most.or(kwargs.get("maxsplit")?).unwrap_or(-1);
    kwargs.assert_all_used()?;
    let n_parts = usize::try_from(most).map_or(usize::MAX, |most| most.saturating_add(1));
    let separator = separator.filter(|separator| !separator.is_none());
    let mut parts: Vec<&str> = match &separator {
        Some(separator) => match separator.as_str() {
            Some("") => return Err(invalid("split: empty separator")),
            Some(separator) if from_end => text.rsplitn(n_parts, separator).collect(),
            Some(separator) => text.splitn(n_parts, separator).collect(),
            None => return Err(invalid("split: the separator must be a string")),
        },
        None => words(text, n_parts, from_end),
    };
    if from_end {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// The words between white space, at most so many: the last one is all of the rest.
fn words(text: &str, most: usize, from_end: bool) -> Vec<&str> {
    let trimmed = if from_end {
        text.trim_end_matches(is_space)
    } else {
        text.trim_start_matches(is_space)
    };
    let (mut words, mut rest) = (Vec::new(), trimmed);
    while !rest.is_empty() {
        let end = if from_end {
            rest.rfind(is_space)
        } else {
            rest.find(is_space)
        };
        let Some(at) = end.filter(|_| words.len() + 1 < most) else {
            words.push(rest);
            break;
        };
        let (before, after) = rest.split_at(at);
        let (word, others) = if from_end {
            (after, before)
        } else {
            (before, after)
        };
        words.push(word.trim_matches(is_space));
        rest = if from_end {
            others.trim_end_matches(is_space)
        } else {
            others.trim_start_matches(is_space)
        };
    }
    words
}

/// `text.splitlines(keepends)`.
fn lines(text: &str, keep: bool) -> Vec<&str> {
    let (mut lines, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(ends_line) {
        let (line, after) = rest.split_at(at);
        let n_ending = if after.starts_with("\r\n") {
            2
        } else {
            after.chars().next().map_or(0, char::len_utf8)
        };
        let (whole, after) = rest.split_at(at + n_ending);
        lines.push(if keep { whole } else { line });
        rest = after;
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// `find` and others, in a part of a text. Positions are counted in characters.
fn search(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (wanted, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
    let n_chars = text.chars().count() as i64;
    let position =
        |given: i64| (if given < 0 { given + n_chars } else { given }).clamp(0, n_chars) as usize;
    let (start, end) = (
        start.map_or(0, position),
        end.map_or(n_chars as usize, position),
    );
    let part: String = text
        .chars()
        .skip(start)
        .take(end.saturating_sub(start))
        .collect();
    if name == "count" {
        let n = if wanted.is_empty() {
            part.chars().count() + 1
        } else {
            part.matches(wanted).count()
        };
        return Ok(n.into());
    }
    let found = if name.starts_with('r') {
        part.rfind(wanted)
    } else {
        part.find(wanted)
    };
    match found.and_then(|at| part.get(..at)) {
        Some(before) => Ok((start + before.chars().count()).into()),
        None if name.ends_with("index") => Err(invalid(format!("{name}: substring not found"))),
        None => Ok((-1).into()),
    }
}

/// `text.title()`: each letter after one that is none is a capital.
fn title(text: &str) -> String {
    let (mut title, mut is_in_word) = (String::new(), false);
    for c in text.chars() {
        if is_in_word {
            title.extend(c.to_lowercase());
        } else {
            title.extend(c.to_uppercase());
        }
        is_in_word = c.is_alphabetic();
    }
    title
}

/// `replace`: `str(value).replace(old, new)`, at most so many times.
pub fn replace(
    value: &Value,
    old: &Value,
    new: &Value,
    count: Option<i64>,
) -> Result<String, Error> {
    let [text, old, new] = [value, old, new].map(to_string);
    let n = count.and_then(|count| usize::try_from(count).ok());
    Ok(text?.replacen(&old?, &new?, n.unwrap_or(usize::MAX)))
}

/// `center`, in a line of 80 characters if no width is given.
pub fn center(value: &Value, width: Option<Value>) -> Result<String, Error> {
    padded(
        &to_string(value)?,
        "center",
        &[width.unwrap_or_else(|| 80.into())],
    )
}

/// `int`: 0 where a text is no number.
pub fn int(
    state: &mut State<'_, '_>,
    value: &Value,
    default: Option<Value>,
    base: Option<u32>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let default = match default {
        Some(default) => Some(default),
        None => kwargs.get::<Option<Value>>("default")?,
    };
    minijinja::filters::int(
        state,
        value,
        Some(default.unwrap_or_else(|| 0.into())),
        base,
        kwargs,
    )
}

/// The most characters that a text is padded to: none would be needed for a prompt.
const MAX_WIDTH: usize = 1 << 20;

/// `zfill`, `ljust`, `rjust` and `center`.
fn padded(text: &str, name: &str, args: &[Value]) -> Result<String, Error> {
    let (width, fill): (i64, Option<char>) = from_args(args)?;
    let width = usize::try_from(width).unwrap_or(0);
    if width > MAX_WIDTH {
        return Err(invalid(format!(
            "{name}: the width is more than {MAX_WIDTH}"
        )));
    }
    let fill = fill.unwrap_or(if name == "zfill" { '0' } else { ' ' });
    let n_missing = width.saturating_sub(text.chars().count());
    // Python puts an odd one before the text if the width is odd.
    let n_before = match name {
        "ljust" => 0,
        "center" => n_missing / 2 + (n_missing & width & 1),
        _ => n_missing,
    };
    let pad = |n: usize| fill.to_string().repeat(n);
    let signed = text.strip_prefix(['-', '+']).filter(|_| name == "zfill");
    let (sign, digits) = text.split_at(signed.map_or(0, |digits| text.len() - digits.len()));
    Ok(format!(
        "{sign}{}{digits}{}",
        pad(n_before),
        pad(n_missing - n_before)
    ))
}

/// True if a field of a format has more than a name: then it needs the value itself.
fn has_specification(format: &str) -> bool {
    let fields = format.split('{').skip(1);
    { fields }.any(|field| {
        field
            .split('}')
            .next()
            .is_some_and(|field| field.contains([':', '.', '[', '!']))
    })
}

/// A value as `str` writes it; what has the same text in minijinja stays as it is.
fn printed(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Iterable => {
            to_string(value).map(Value::from)
        }
        ValueKind::Map if Kwargs::try_from(value.clone()).is_err() => {
            to_string(value).map(Value::from)
        }
        _ => Ok(value.clone()),
    }
}

/// `text % args`, which for numbers is the remainder with the sign of the divisor.
pub fn python_format(left: &Value, right: &Value) -> Result<Value, Error> {
    let Some(text) = left.as_str() else {
        return remainder(left, right);
    };
    let args: Vec<Value> = if right.is_tuple() {
        right.try_iter()?.collect()
    } else {
        vec![right.clone()]
    };
    format_printf(text, &args).map(Value::from)
}

/// `format`: `text % args`.
pub fn format_filter(text: &str, args: Rest<Value>) -> Result<String, Error> {
    format_printf(text, &args)
}

fn format_printf(text: &str, args: &[Value]) -> Result<String, Error> {
    // `%s` prints any value, and needs its text.
    let only_texts = text
        .replace("%%", "")
        .split('%')
        .skip(1)
        .all(|field| field.starts_with('s'));
    if !only_texts {
        return format(FormatStyle::Printf, text, args);
    }
    let args = args
        .iter()
        .map(printed)
        .collect::<Result<Vec<_>, Error>>()?;
    format(FormatStyle::Printf, text, &args)
}

fn remainder(left: &Value, right: &Value) -> Result<Value, Error> {
    if let (true, true, Ok(left), Ok(right)) = (
        left.is_integer(),
        right.is_integer(),
        i64::try_from(left.clone()),
        i64::try_from(right.clone()),
    ) {
        let rest = left
            .checked_rem(right)
            .ok_or_else(|| invalid("division by zero"))?;
        return Ok(Value::from(if rest != 0 && (rest < 0) != (right < 0) {
            rest + right
        } else {
            rest
        }));
    }
    let of_floats = f64::try_from(left.clone())
        .ok()
        .zip(f64::try_from(right.clone()).ok());
    let (left, right) = of_floats.ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidOperation,
            "% needs two numbers, or a string",
        )
    })?;
    let rest = left % right;
    Ok(Value::from(
        if rest != 0.0 && (rest < 0.0) != (right < 0.0) {
            rest + right
        } else {
            rest
        },
    ))
}
