//! Parsers for numbers, sizes, names and patterns.

use std::path::is_separator;
use std::str::FromStr;

use kl_formats::Encoding;
use regex::Regex;

use crate::commands::settings::Bos;
use crate::stats::share;

/// Parses the address of a server.
pub fn server_address(text: &str) -> Result<String, &'static str> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
            Ok(text.to_owned())
        }
        _ => Err("expected HOST:PORT, such as 192.168.1.2:50052, and commas between several"),
    }
}

/// Parses the name of a device.
pub fn device_name(text: &str) -> Result<String, &'static str> {
    if text.is_empty() {
        return Err("expected names of devices, as --list-devices shows them");
    }
    Ok(text.to_owned())
}

/// Parses the first token of each window.
pub fn bos(text: &str) -> Result<Bos, &'static str> {
    if text == "none" {
        return Ok(Bos::None);
    }
    let id = text.parse().map(Bos::Token);
    id.map_err(|_| "expected a token ID or none")
}

/// Parses the number of scored tokens to stop after, or -1 for all.
pub fn max_rows(text: &str) -> Result<Option<u64>, &'static str> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(n) if n >= 1 => Ok(u64::try_from(n).ok()),
        _ => Err("expected at least 1, or -1 for all"),
    }
}

/// Parses the `--encoding` of `kl convert`, which has no model that could give hidden states.
pub fn row_encoding(text: &str) -> Result<Encoding, &'static str> {
    match text.parse::<Encoding>() {
        Ok(encoding) if encoding.holds_states() => {
            Err("only a run of the model, with -m and -w, writes hidden states")
        }
        encoding => encoding.map_err(|_| "expected u16 or f32"),
    }
}

/// Parses the user's name for an evaluation: one that a file can have.
pub fn label(text: &str) -> Result<String, String> {
    /// Most file systems end a file's name at 255 bytes.
    const MAX_BYTES: usize = 200;
    let is_unsafe = |c: char| is_separator(c) || c.is_control();
    if text.trim().is_empty() {
        Err("a label names a file: it cannot be empty".into())
    } else if text.starts_with('.') || text.contains(is_unsafe) {
        Err("a label names a file: use no / or control character, and no dot in front".into())
    } else if text.len() > MAX_BYTES {
        Err(format!("a label has at most {MAX_BYTES} bytes"))
    } else {
        Ok(text.to_owned())
    }
}

/// Parses a share of the mean from 0.1 % to 50 %, as a fraction.
pub fn relative_width(text: &str) -> Result<f64, &'static str> {
    let in_range = share(text).filter(|share| (0.001..=0.5).contains(share));
    in_range.ok_or("expected a share of the mean from 0.1% to 50%, such as 5% or 0.05")
}

/// Parses a number that `is_right`; else says what was `expected`.
fn number<N: FromStr>(
    text: &str,
    is_right: impl FnOnce(&N) -> bool,
    expected: &'static str,
) -> Result<N, &'static str> {
    text.parse().ok().filter(is_right).ok_or(expected)
}

/// Parses a temperature.
pub fn temperature(text: &str) -> Result<f32, &'static str> {
    let is_right = |of: &f32| (0.0..f32::INFINITY).contains(of);
    number(text, is_right, "expected a number from 0 on, such as 0.7")
}

/// Parses the probability that tokens have together.
pub fn top_p(text: &str) -> Result<f32, &'static str> {
    let expected = "expected a number above 0, and at most 1, such as 0.95";
    number(text, |&of| of > 0.0 && of <= 1.0, expected)
}

/// Parses the share of the top token's probability.
pub fn min_p(text: &str) -> Result<f32, &'static str> {
    let is_right = |of: &f32| (0.0..=1.0).contains(of);
    number(
        text,
        is_right,
        "expected a number from 0 to 1, such as 0.05",
    )
}

/// Parses a number above 0.
pub fn above_0(text: &str) -> Result<f64, &'static str> {
    let is_right = |&of: &f64| of.is_finite() && of > 0.0;
    number(text, is_right, "not a number above 0")
}

/// Parses a ratio of at least 1.
pub fn near(text: &str) -> Result<f64, &'static str> {
    let is_right = |of: &f64| (1.0..f64::INFINITY).contains(of);
    number(text, is_right, "not a number of at least 1")
}

/// Parses a size in bytes: `G` and `GiB` are powers of 1024, as `ls -h` shows them, `GB` is one of 1000.
pub fn size(text: &str) -> Result<u64, &'static str> {
    const WRONG: &str = "expected a size such as 4.2G, 900M, 5.5GB or a number of bytes";
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, rest) = text.split_at(digits.unwrap_or(text.len()));
    let unit = rest.trim_start().to_ascii_lowercase();
    let (letter, base) = match unit.strip_suffix("ib").or(unit.strip_suffix('b')) {
        None => (&*unit, 1024.0),
        Some(letter) if unit.ends_with("ib") => (letter, 1024.0),
        Some(letter) => (letter, 1000.0_f64),
    };
    let power = match letter {
        "" if !unit.ends_with("ib") => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        _ => return Err(WRONG),
    };
    let parsed = number.parse().map(|number: f64| number * base.powi(power));
    let bytes = parsed.map_err(|_| WRONG)?.floor();
    let in_range = Some(bytes).filter(|bytes| (1.0..u64::MAX as f64).contains(bytes));
    in_range.map(|bytes| bytes as u64).ok_or(WRONG)
}

/// Parses a regular expression, whose error has one line.
pub fn regex(text: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|error| {
        let error = error.to_string();
        let last = error.lines().last().unwrap_or_default();
        format!(
            "not a regular expression: {}",
            last.trim_start_matches("error: ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_as_people_write_them() {
        for (text, bytes) in [
            ("4509715660", 4_509_715_660),
            ("7b", 7),
            ("900M", 900 << 20),
            ("4.2G", 4_509_715_660),
            ("4.2 GiB", 4_509_715_660),
            ("5.5GB", 5_500_000_000),
            ("1.5kb", 1500),
            ("2t", 2 << 40),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in " 0 -7 4.2.1G 1e9 G 7ib 7X 9999999999T".split(' ') {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
