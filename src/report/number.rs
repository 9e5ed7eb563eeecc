//! How numbers look, in one place.

/// A KL divergence, in nats: six significant digits, without an exponent from 1e-5 on.
#[must_use]
pub fn kld(value: f64) -> String {
    significant(value, 6)
}

/// `value` with `digits` significant digits, without an exponent where it reads well.
#[must_use]
pub fn significant(value: f64, digits: usize) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if !value.is_finite() {
        return format!("{value}");
    }
    // Rounded first, so that 9.9999999 is seen as 10.
    let rounded: f64 = format!("{value:.*e}", digits.saturating_sub(1))
        .parse()
        .unwrap_or(value);
    let magnitude = rounded.abs().log10().floor() as i32;
    if (-5..=digits as i32 + 2).contains(&magnitude) {
        let decimals = (digits as i32 - 1 - magnitude).max(0) as usize;
        format!("{value:.decimals$}")
    } else {
        format!("{value:.*e}", digits.saturating_sub(1))
    }
}

/// A share as a percentage: `98.76 %`.
#[must_use]
pub fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

/// A size in bytes: `37.2 GiB`.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    let mut size = bytes as f64 / 1024.0;
    let mut unit = 0;
    while size >= 999.5 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{} {}", significant(size, 3), UNITS[unit])
}

/// A count, in groups of three digits: `1,234,567`.
#[must_use]
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A text from a file, fit for a line on a terminal: control characters as U+FFFD.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c.is_control() {
                char::REPLACEMENT_CHARACTER
            } else {
                c
            }
        })
        .collect()
}

/// A time in seconds: `4.2 s`, `3 min 20 s`, `2 h 05 min`.
#[must_use]
pub fn duration(seconds: f64) -> String {
    if seconds < 1.0 {
        format!("{:.0} ms", seconds * 1e3)
    } else if seconds < 59.95 {
        format!("{seconds:.1} s")
    } else if seconds < 3600.0 {
        format!("{} min {:02} s", seconds as u64 / 60, seconds as u64 % 60)
    } else {
        format!(
            "{} h {:02} min",
            seconds as u64 / 3600,
            seconds as u64 % 3600 / 60
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(significant(value, 6), text);
        }
    }

    #[test]
    fn sizes_counts_and_times() {
        assert_eq!(bytes(17), "17 bytes");
        assert_eq!(bytes(1 << 20), "1.00 MiB");
        assert_eq!(bytes(37 << 30), "37.0 GiB");
        assert_eq!(bytes(u64::MAX), "16384 PiB");
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(duration(0.0123), "12 ms");
        assert_eq!(duration(59.99), "0 min 59 s");
        assert_eq!(duration(200.0), "3 min 20 s");
        assert_eq!(duration(7500.0), "2 h 05 min");
        assert_eq!(percent(0.98765), "98.77 %");
        assert_eq!(printable("a\nb\u{1b}[1m é"), "a\u{fffd}b\u{fffd}[1m é");
    }
}
