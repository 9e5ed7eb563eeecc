//! How the template formats values: by [`number`], a dash for what is
//! missing.

use std::fmt::Write;

use minijinja::{Environment, HtmlEscape, Value};

use crate::report::number;

const MISSING: &str = "–";

/// More names than this are cut short.
const MAX_NAMES: usize = 8;

pub(super) fn add_to(environment: &mut Environment) {
    let numbers: [(&str, fn(f64) -> String); 6] = [
        ("kld", |x| number::significant(x, 4)),
        ("percent", number::percent),
        ("short_percent", |x| {
            format!("{} %", number::short_percent(x))
        }),
        ("quantile_name", number::quantile_name),
        ("ratio", |x| number::significant(x, 3)),
        ("p_value", p_value),
    ];
    for (name, shown) in numbers {
        environment.add_filter(name, move |x: Option<f64>| finite(x, shown));
    }
    environment.add_filter("fixed", |x: Option<f64>, decimals: usize| {
        finite(x, |x| number::fixed(x, decimals))
    });
    environment.add_filter("sort_key", |x: Option<f64>| {
        let x = x.filter(|x| x.is_finite());
        x.map(|x| x.to_string()).unwrap_or_default()
    });
    environment.add_filter("bytes", |x: Option<u64>| show(x, number::bytes));
    environment.add_filter("count", |x: Option<u64>| show(x, number::count));
    environment.add_filter("count_of", |n: u64, thing: String| {
        number::count_of(n, &thing)
    });
    environment.add_filter("capitalised", |text: String| capitalised(&text));
    environment.add_filter("token", |text: String| token(&text));
    environment.add_filter("names", |names: Vec<String>| {
        Value::from_safe_string(emphasised(&names))
    });
}

fn show<T>(value: Option<T>, show: impl Fn(T) -> String) -> String {
    value.map_or_else(|| MISSING.to_owned(), show)
}

/// A number that is not finite is as good as missing.
fn finite(value: Option<f64>, shown: impl Fn(f64) -> String) -> String {
    show(value.filter(|value| value.is_finite()), shown)
}

fn p_value(p: f64) -> String {
    match p < 1e-3 {
        true => "< 0.001".to_owned(),
        false => number::significant(p, 2),
    }
}

/// A token's text on one line, with its line feeds and tabs made visible.
fn token(text: &str) -> String {
    number::printable(&text.replace('\n', "↵").replace('\t', "⇥"))
}

/// The text with its first letter as a capital.
fn capitalised(text: &str) -> String {
    let mut rest = text.chars();
    let first = rest.next().into_iter().flat_map(char::to_uppercase);
    first.chain(rest.by_ref()).collect()
}

/// HTML: `<strong>a</strong>, <strong>b</strong> and <strong>c</strong>`.
fn emphasised(names: &[String]) -> String {
    let shown = match names.len() > MAX_NAMES {
        true => MAX_NAMES - 1,
        false => names.len(),
    };
    let mut html = String::new();
    for (i, name) in names.iter().take(shown).enumerate() {
        let joint = match i {
            0 => "",
            _ if i + 1 == names.len() => " and ",
            _ => ", ",
        };
        // Writing to a string cannot fail.
        let _ = write!(html, "{joint}<strong>{}</strong>", HtmlEscape(name));
    }
    if shown < names.len() {
        let _ = write!(html, " and {} more", names.len() - shown);
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_joined_and_escaped() {
        let names = |n: usize| emphasised(&vec!["a<b".to_owned(); n]);
        assert_eq!(names(1), "<strong>a&lt;b</strong>");
        assert_eq!(
            names(2),
            "<strong>a&lt;b</strong> and <strong>a&lt;b</strong>"
        );
        assert!(names(8).ends_with(" and <strong>a&lt;b</strong>"));
        assert!(names(9).ends_with("</strong> and 2 more"));
    }

    #[test]
    fn tokens_stay_on_a_line() {
        assert_eq!(token(" a\n\tb\u{7}"), " a↵⇥b\u{fffd}");
    }

    #[test]
    fn small_p_values_are_cut() {
        assert_eq!(p_value(1e-9), "< 0.001");
        assert_eq!(p_value(0.0123), "0.012");
    }
}
