//! The data of a page's charts, as JSON that is as small as it can be.

use std::io;

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::{CompactFormatter, Formatter};

use crate::report::number::finite;

/// The data for a script element, which ends at the first `</script`, wherever it is.
pub(super) fn json(data: &impl Serialize) -> serde_json::Result<String> {
    let mut json = Vec::new();
    data.serialize(&mut Serializer::with_formatter(&mut json, Short))?;
    Ok(String::from_utf8_lossy(&json).replace('<', "\\u003c"))
}

/// A number, if a logarithmic scale has it.
pub(super) fn on_log_scale(end: Option<f64>) -> Option<f64> {
    end.filter(|end| *end > 0.0).and_then(finite)
}

/// Writes numbers with five significant digits, and whole ones without a decimal point.
struct Short;

impl Formatter for Short {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        let rounded: f64 = format!("{value:.4e}").parse().unwrap_or(value);
        match rounded.fract() == 0.0 && rounded.abs() < 1e9 {
            true => write!(writer, "{}", rounded as i64),
            false => CompactFormatter.write_f64(writer, rounded),
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

    #[test]
    fn what_is_not_finite_is_not_drawn() {
        assert_eq!(on_log_scale(Some(f64::INFINITY)), None);
        assert_eq!(on_log_scale(Some(-0.5)), None);
    }
}
