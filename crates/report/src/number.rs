//! The formats of numbers for people, all in one place, and of text from files beside them.

use indicatif::{HumanBytes, HumanCount};
use kl_formats::{Sampling, Shard};
use serde::Serialize;

use kl_stats::stats::Estimate;

/// A KL divergence in nats, to six significant digits, without an exponent from 1e-5 on.
pub fn kld(value: f64) -> String {
    significant(value, 6)
}

/// The stand-in for a number that is not defined: one divided by 0, or too large.
pub const UNDEFINED: &str = "-";

/// A KL divergence in nats in a table, to three significant digits.
pub fn short_kld(value: f64) -> String {
    significant(value, 3)
}

/// A ratio, to three significant digits.
pub fn ratio(value: f64) -> String {
    significant(value, 3)
}

/// A value, or a dash for one that is missing.
pub fn or_undefined<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| UNDEFINED.to_owned(), show)
}

/// `Some(value)` if it is finite.
pub fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

/// A number to `digits` significant digits, without an exponent where it reads well.
pub fn significant(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return UNDEFINED.to_owned();
    } else if value == 0.0 {
        return "0".to_owned();
    }
    // Rounded first, so that 9.9999999 counts as 10.
    let with_exponent = format!("{value:.*e}", digits.saturating_sub(1));
    let rounded: f64 = with_exponent.parse().unwrap_or(value);
    let magnitude = rounded.abs().log10().floor() as i32;
    if (-5..=digits as i32 + 2).contains(&magnitude) {
        let decimals = (digits as i32 - 1 - magnitude).max(0) as usize;
        format!("{value:.decimals$}")
    } else {
        with_exponent
    }
}

/// A number with a fixed number of decimals.
pub fn fixed(value: f64, decimals: usize) -> String {
    or_undefined(finite(value), |value| format!("{value:.decimals$}"))
}

/// An interval by its ends, `[0.0016, 0.0019]`, or by the only one that it has, `≥ 0.0016`; empty if
/// it has none.
pub fn ends(lo: Option<f64>, hi: Option<f64>, show: impl Fn(f64) -> String) -> String {
    match (lo.and_then(finite), hi.and_then(finite)) {
        (Some(lo), Some(hi)) => format!("[{}, {}]", show(lo), show(hi)),
        (Some(lo), None) => format!("≥ {}", show(lo)),
        (None, Some(hi)) => format!("≤ {}", show(hi)),
        (None, None) => String::new(),
    }
}

/// A value as it is shown, with its interval where there is one: `2.00 [1.80, 2.22]`.
pub fn with_ends(value: String, estimate: &Estimate, show: impl Fn(f64) -> String) -> String {
    match ends(estimate.lo, estimate.hi, show) {
        ends if ends.is_empty() => value,
        ends => format!("{value} {ends}"),
    }
}

/// An interval as it stands beside its value: [`ends`], where `0.36 ≥ 0.0003` would seem to compare the two.
pub fn ends_beside(estimate: &Estimate, show: impl Fn(f64) -> String) -> String {
    match (estimate.lo.and_then(finite), estimate.hi.and_then(finite)) {
        (Some(lo), None) => format!("at least {}", show(lo)),
        (None, Some(hi)) => format!("at most {}", show(hi)),
        _ => ends(estimate.lo, estimate.hi, show),
    }
}

/// A share as a percentage with two decimals: `98.76 %`.
pub fn percent(share: f64) -> String {
    or_undefined(finite(share), |share| format!("{:.2} %", 100.0 * share))
}

/// A share as a percentage with one decimal: `98.8 %`.
pub fn percent_1(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// A change of a share as a percentage with three decimals and its sign: `-0.022 %`.
pub fn signed_percent(change: f64) -> String {
    or_undefined(finite(change), |change| format!("{:+.3} %", 100.0 * change))
}

/// A share in percent without trailing zeros and without the sign: `99.9` for 0.999.
pub fn short_percent(share: f64) -> String {
    // Rounded because 100 * 0.999 is not quite 99.9.
    format!("{}", (share * 1e10).round() / 1e8)
}

/// A quantile's name: `median`, `99.9 %`.
pub fn quantile_name(p: f64) -> String {
    if p == 0.5 {
        "median".to_owned()
    } else {
        format!("{} %", short_percent(p))
    }
}

/// A size in bytes: `37.20 GiB`.
pub fn bytes(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}

/// A unit of sizes.
#[derive(Serialize, Debug, Clone, Copy, PartialEq)]
pub struct SizeUnit {
    /// `GiB`.
    pub symbol: &'static str,
    /// Its size in bytes.
    pub bytes: f64,
}

impl SizeUnit {
    /// The unit for sizes that are shown together, the largest of `largest` bytes.
    pub fn for_sizes(largest: u64) -> Self {
        let (symbol, bytes) = match largest {
            0x4000_0000.. => ("GiB", 1_073_741_824.0),
            0x10_0000.. => ("MiB", 1_048_576.0),
            _ => ("KiB", 1024.0),
        };
        Self { symbol, bytes }
    }
}

/// Names a part of a whole: `part 0 of 3`.
pub fn part(shard: &Shard) -> String {
    format!("part {} of {} (from 0)", shard.index, shard.count)
}

/// The way the tokens of answers were chosen, as a phrase after their number; greedily, if `None`.
pub fn sampled(sampling: Option<&Sampling>) -> String {
    let Some(sampling) = sampling else {
        return " greedily".to_owned();
    };
    let cuts: String = [
        (sampling.top_k > 0).then(|| format!("top-k {}, ", sampling.top_k)),
        (sampling.top_p < 1.0).then(|| format!("top-p {}, ", sampling.top_p)),
        (sampling.min_p > 0.0).then(|| format!("min-p {}, ", sampling.min_p)),
    ]
    .into_iter()
    .flatten()
    .collect();
    format!(
        " at temperature {} ({cuts}seed {})",
        sampling.temp, sampling.seed
    )
}

/// Says how answers were sampled, and that none is greedy.
pub fn sampled_answers(sampling: &Sampling) -> String {
    format!("sampled{}: no identical output", sampled(Some(sampling)))
}

/// A p-value to three decimals; small ones by a bound.
pub fn p_value(p: f64) -> String {
    if p < 0.001 {
        "< 0.001".to_owned()
    } else {
        format!("{p:.3}")
    }
}

/// A count, in groups of three digits: `1,234,567`.
pub fn count(value: u64) -> String {
    HumanCount(value).to_string()
}

/// The number, rounded down to its first two digits: 129,876 becomes 120,000.
pub fn rounded_down(n: u64) -> u64 {
    let unit = 10u64.pow(n.max(1).ilog10().saturating_sub(1));
    n / unit * unit
}

/// A count in few characters: `512`, `66 K`, `1.2 M`, `671 B`.
pub fn short_count(value: u64) -> String {
    let units = [(1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " K")];
    // 999.5 thousand is a million already.
    let unit = units.iter().find(|(unit, _)| value as f64 >= 0.9995 * unit);
    let Some((unit, symbol)) = unit else {
        return value.to_string();
    };
    let in_units = value as f64 / unit;
    let decimals = usize::from(in_units < 9.95);
    format!("{in_units:.decimals$}{symbol}")
}

/// A count of things: `1 window`, `1,234 windows`.
pub fn count_of(n: u64, thing: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", count(n))
}

/// The numbers of tokens left out, each with its reason, as the subject of a sentence, and its verb:
/// `2 tokens without a finite row are`.
pub fn left_out(reasons: [(u64, &str); 2]) -> String {
    let tokens: Vec<String> = reasons
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, why)| format!("{} {why}", count_of(*n, "token")))
        .collect();
    let n: u64 = reasons.iter().map(|(n, _)| n).sum();
    let verb = is_or_are(n);
    format!("{} {verb}", tokens.join(" and ").trim_end())
}

/// The verb for so many things.
pub fn is_or_are(n: u64) -> &'static str {
    if n == 1 { "is" } else { "are" }
}

/// A text with its first letter as a capital.
pub fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + chars.as_str()
}

/// Text from outside, made safe for a line on a terminal: control characters, and those that break a
/// line or turn its direction, become U+FFFD. A file's name, too, may hold them.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| {
            if is_printable(c) {
                c
            } else {
                char::REPLACEMENT_CHARACTER
            }
        })
        .collect()
}

/// True unless a character controls a terminal, breaks a line or turns its direction (Unicode's `Bidi_Control`).
pub fn is_printable(c: char) -> bool {
    let turns = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    !turns && !c.is_control()
}

/// A time in seconds: `12 ms`, `4.2 s`, `3 min 20 s`, `2 h 05 min`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    if seconds < 0.9995 {
        format!("{:.0} ms", seconds * 1e3)
    } else if seconds < 59.95 {
        format!("{seconds:.1} s")
    } else if whole < 3600 {
        format!("{} min {:02} s", whole / 60, whole % 60)
    } else {
        format!("{} h {:02} min", whole / 3600, whole % 3600 / 60)
    }
}

/// A number per second: a slow pace with decimals, `0.25`, `1.4`, and a fast one without, `123`.
pub fn per_second(n: f64) -> String {
    let decimals = match n {
        ..0.995 => 2,
        ..9.95 => 1,
        _ => 0,
    };
    format!("{n:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_pace_has_a_decimal() {
        let shown = [0.04, 0.999, 1.26, 9.94, 9.96, 123.4].map(per_second);
        assert_eq!(shown, ["0.04", "1.0", "1.3", "9.9", "10", "123"]);
    }

    #[test]
    fn significant_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.071_940_123, "0.0719401"),
            (0.000_012_345_678, "0.0000123457"),
            (0.000_001_234, "1.23400e-6"),
            (9.999_999_9, "10.0000"),
            (123_456.78, "123457"),
            (1.0, "1.00000"),
            (1e300, "1.00000e300"),
            (f64::INFINITY, "-"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(significant(value, 6), text);
        }
    }

    #[test]
    fn sizes_and_counts() {
        assert_eq!(bytes(17), "17 B");
        assert_eq!(bytes(1 << 20), "1.00 MiB");
        assert_eq!(bytes(37 << 30), "37.00 GiB");
        let symbol = |largest| SizeUnit::for_sizes(largest).symbol;
        assert_eq!((symbol(0), symbol((1 << 20) - 1)), ("KiB", "KiB"));
        assert_eq!((symbol(1 << 20), symbol((1 << 30) - 1)), ("MiB", "MiB"));
        assert_eq!(symbol(1 << 30), "GiB");
        assert_eq!(count(0), "0");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count_of(0, "window"), "0 windows");
        assert_eq!(count_of(1, "window"), "1 window");
        assert_eq!(count_of(1234, "window"), "1,234 windows");
        let rounded = [0, 7, 10, 99, 100, 129, 1_999, 129_876].map(rounded_down);
        assert_eq!(rounded, [0, 7, 10, 99, 100, 120, 1_900, 120_000]);
        let short = [
            0, 999, 1000, 65_536, 999_499, 999_500, 1_249_000, 12_345_678,
        ];
        let shown = [
            "0", "999", "1.0 K", "66 K", "999 K", "1.0 M", "1.2 M", "12 M",
        ];
        assert_eq!(short.map(short_count), shown);
        assert_eq!(short_count(671_026_419_200), "671 B");
    }

    #[test]
    fn shares_and_times() {
        assert_eq!(percent(0.98765), "98.77 %");
        assert_eq!(signed_percent(-0.000_22), "-0.022 %");
        assert_eq!(signed_percent(0.5), "+50.000 %");
        assert_eq!(short_percent(0.999), "99.9");
        assert_eq!(quantile_name(0.5), "median");
        assert_eq!(quantile_name(0.95), "95 %");
        assert_eq!(
            [1e-9, 0.0123, 0.3].map(p_value),
            ["< 0.001", "0.012", "0.300"]
        );
        assert_eq!(duration(0.0123), "12 ms");
        assert_eq!(duration(0.9999), "1.0 s");
        assert_eq!(duration(59.9), "59.9 s");
        assert_eq!(duration(59.97), "1 min 00 s");
        assert_eq!(duration(3599.7), "1 h 00 min");
        assert_eq!(duration(200.0), "3 min 20 s");
        assert_eq!(duration(7500.0), "2 h 05 min");
    }

    #[test]
    fn an_interval_may_be_open() {
        assert_eq!(ends(Some(0.125), Some(0.25), kld), "[0.125000, 0.250000]");
        assert_eq!(ends(Some(0.125), None, kld), "≥ 0.125000");
        assert_eq!(ends(None, Some(0.25), kld), "≤ 0.250000");
        assert_eq!(ends(None, None, kld), "");
        let shown = |lo, hi| {
            let value = 0.2;
            ends_beside(&Estimate { value, lo, hi }, kld)
        };
        assert_eq!(shown(Some(0.125), None), "at least 0.125000");
        assert_eq!(shown(None, Some(0.25)), "at most 0.250000");
        assert_eq!(shown(Some(0.125), Some(0.25)), "[0.125000, 0.250000]");
        assert_eq!(ends(Some(f64::NAN), Some(f64::INFINITY), kld), "");
    }

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(printable("a\nb\u{1b}[1m é"), "a\u{fffd}b\u{fffd}[1m é");
        assert_eq!(printable("a\u{202e}b\u{2067}"), "a\u{fffd}b\u{fffd}");
    }
}
