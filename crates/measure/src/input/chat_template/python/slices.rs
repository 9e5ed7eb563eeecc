//! `value[start:stop:step]`.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, Value};

use super::invalid;

/// The items of a list or the characters of a string from `start` up to `stop`, each `step` apart.
pub fn python_slice(
    value: &Value,
    start: &Value,
    stop: &Value,
    step: &Value,
) -> Result<Value, Error> {
    let given = |value: &Value| {
        if value.is_none() {
            return Ok(None);
        }
        i64::try_from(value.clone()).map(Some)
    };
    let (start, stop, step) = (given(start)?, given(stop)?, given(step)?.unwrap_or(1));
    if step == 0 {
        return Err(invalid("slice step cannot be zero"));
    }
    if let Some(text) = value.as_str() {
        let chars: Vec<char> = text.chars().collect();
        let chosen = positions(chars.len(), start, stop, step);
        return Ok(chosen
            .filter_map(|at| chars.get(at))
            .collect::<String>()
            .into());
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {}
        ValueKind::Undefined => return Ok(Value::from(Vec::<Value>::new())),
        kind => return Err(invalid(format!("a value of type {kind} cannot be sliced"))),
    }
    let items: Vec<Value> = value.try_iter()?.collect();
    let chosen = positions(items.len(), start, stop, step);
    let chosen: Vec<Value> = chosen.filter_map(|at| items.get(at).cloned()).collect();
    Ok(if value.is_tuple() {
        Value::from(Tuple::from(chosen))
    } else {
        Value::from(chosen)
    })
}

/// The positions of a slice, as `slice.indices` gives them.
fn positions(
    n: usize,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> impl Iterator<Item = usize> {
    let n = i64::try_from(n).unwrap_or(i64::MAX);
    // Backwards, a slice begins at the last item and ends before the first.
    let (least, most) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let bound = |given: i64| {
        (if given < 0 {
            given.saturating_add(n)
        } else {
            given
        })
        .clamp(least, most)
    };
    let (first, end) = if step > 0 {
        (least, most)
    } else {
        (most, least)
    };
    let (start, stop) = (start.map_or(first, bound), stop.map_or(end, bound));
    let is_inside = move |at: &i64| if step > 0 { *at < stop } else { *at > stop };
    std::iter::successors(Some(start), move |at| at.checked_add(step))
        .take_while(is_inside)
        .filter_map(|at| usize::try_from(at).ok())
}
