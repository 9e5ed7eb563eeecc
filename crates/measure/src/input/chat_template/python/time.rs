//! transformers' `strftime_now`.

use minijinja::Error;

use super::invalid;

/// The constant day that `strftime_now` returns, so that a reference written tomorrow holds the
/// same prompts. Llama 3.1's own template falls back to this day.
///
/// Each directive's letter, and its value.
const DAY: &str = "d26 bJul BJuly m07 Y2024 y24 j208 aFri AFriday e26 H00 M00 S00 %%";

/// `strftime_now(format)`, on the constant [`DAY`].
pub fn strftime_now(format: &str) -> Result<String, Error> {
    let (mut text, mut rest) = (String::new(), format);
    while let Some((before, after)) = rest.split_once('%') {
        // `%-d` has no leading zero.
        let bare = after.strip_prefix('-');
        let known = DAY.split(' ').find_map(|directive| {
            let (letter, value) = directive.split_at_checked(1)?;
            let rest = bare.unwrap_or(after).strip_prefix(letter)?;
            Some((bare.and(value.strip_prefix('0')).unwrap_or(value), rest))
        });
        let (value, after) = known.ok_or_else(|| {
            invalid(format!(
                "strftime_now: '{format}' has a directive that is not supported"
            ))
        })?;
        text.extend([before, value]);
        rest = after;
    }
    Ok(text + rest)
}
