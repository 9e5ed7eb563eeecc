//! The pages: a result as one HTML file that needs nothing but a browser.
//!
//! `frame.html` is the template of every page, `macros.html` has the parts that several use. A page has
//! its folder, with its own template, the texts and tables, and `charts.js`, its charts as Vega-Lite
//! specifications; `charts.js` beside this file holds what they share, and `page.js` draws them.
//! `vendor/` has the libraries that do, as `scripts/vendor-vega.sh` fetched them.

mod comparison;

use std::io;

use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value, context};
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::{CompactFormatter, Formatter};

use super::number;
pub use comparison::{html, pick_html};

const CSS: &str = include_str!("page.css");
const LICENCES: &str = include_str!("vendor/LICENSES.txt");

/// The scripts before a page's own, in the order in which they run.
const SCRIPTS: [&str; 4] = [
    include_str!("vendor/vega.min.js"),
    include_str!("vendor/vega-lite.min.js"),
    include_str!("vendor/vega-embed.min.js"),
    include_str!("charts.js"),
];

/// Stands for a value that is missing.
const MISSING: &str = "–";

/// The script that draws a page's charts: it comes after those that describe them.
pub const DRAWING: &str = include_str!("page.js");

/// A whole HTML document, which loads nothing else. `template` extends `frame.html`, `scripts` are the page's
/// own, in the order in which they run, `values` are the template's, and `data` its charts'.
///
/// # Errors
/// If a value cannot be written as JSON, or the template fails.
pub fn render(
    template: &str,
    scripts: &[&str],
    values: Value,
    data: &impl Serialize,
) -> Result<String, Error> {
    let data =
        json(data).map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    let safe = |text: &str| Value::from_safe_string(text.to_owned());
    let scripts = SCRIPTS.iter().chain(scripts).map(|script| safe(script));
    let values = context! {
        css => safe(CSS),
        data => safe(&data),
        licences => safe(LICENCES),
        scripts => Vec::from_iter(scripts),
        ..values
    };
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    // What a result lacks is shown as a dash.
    environment.set_undefined_behavior(UndefinedBehavior::Chainable);
    add_filters(&mut environment);
    environment.add_template("frame.html", include_str!("frame.html"))?;
    environment.add_template("macros.html", include_str!("macros.html"))?;
    environment.add_template("page.html", template)?;
    environment.get_template("page.html")?.render(values)
}

/// Adds the filters by which the template shows values: a dash for what is missing.
fn add_filters(environment: &mut Environment) {
    type Show = fn(f64) -> String;
    let numbers: [(&str, Show); 8] = [
        ("kld", |x| number::significant(x, 4)),
        ("percent", number::percent),
        ("short_percent", |x| {
            format!("{} %", number::short_percent(x))
        }),
        ("quantile_name", number::quantile_name),
        ("ratio", |x| number::significant(x, 3)),
        ("p_value", number::p_value),
        ("relative", |x| number::significant(x, 2)),
        ("duration", number::duration),
    ];
    for (name, show) in numbers {
        environment.add_filter(name, move |x: Option<f64>| show_finite(x, show));
    }
    environment.add_filter("fixed", |x: Option<f64>, decimals: usize| {
        show_finite(x, |x| number::fixed(x, decimals))
    });
    environment.add_filter("sort_key", |x: Option<f64>| {
        let x = x.and_then(number::finite);
        x.map(|x| x.to_string()).unwrap_or_default()
    });
    environment.add_filter("bytes", |x: Option<u64>| or_missing(x, number::bytes));
    environment.add_filter("count", |x: Option<u64>| or_missing(x, number::count));
    environment.add_filter("short_count", |x: Option<u64>| {
        or_missing(x, number::short_count)
    });
    environment.add_filter("count_of", |n: u64, thing: String| {
        number::count_of(n, &thing)
    });
    environment.add_filter("token", |text: String| token(&text));
}

/// Shows a value, or a dash for one that is missing.
fn or_missing<T>(value: Option<T>, show: impl Fn(T) -> String) -> String {
    value.map_or_else(|| MISSING.to_owned(), show)
}

/// Shows a number; one that is not finite is as good as missing.
fn show_finite(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    or_missing(value.and_then(number::finite), show)
}

/// A token's text on one line, with its line feeds and tabs made visible.
fn token(text: &str) -> String {
    number::printable(&text.replace('\n', "↵").replace('\t', "⇥"))
}

/// The data for a script element, which ends at the first `</script`, wherever it is.
fn json(data: &impl Serialize) -> serde_json::Result<String> {
    let mut json = Vec::new();
    data.serialize(&mut Serializer::with_formatter(&mut json, ShortNumbers))?;
    Ok(String::from_utf8_lossy(&json).replace('<', "\\u003c"))
}

/// Writes numbers with five significant digits, and whole ones without a decimal point.
struct ShortNumbers;

impl Formatter for ShortNumbers {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        let rounded: f64 = format!("{value:.4e}").parse().unwrap_or(value);
        if rounded.fract() == 0.0 && rounded.abs() < 1e9 {
            write!(writer, "{}", rounded as i64)
        } else {
            CompactFormatter.write_f64(writer, rounded)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let json = |x: f64| json(&x).unwrap();
        assert_eq!(json(0.000_473_471_92), "0.00047347");
        assert_eq!(json(575.0), "575");
        assert_eq!(json(0.0), "0");
        assert_eq!(json(f64::INFINITY), "null");
        assert_eq!(json(3.123e-9), "3.123e-9");
    }
}
