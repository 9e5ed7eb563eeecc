//! Two rows at one position, and the entries whose probability a row of
//! llama.cpp's base file does not record.

use kl_formats::Row;

/// Two rows of the same length at one position, to be compared.
///
/// A logit of −∞ is a probability of 0. Where a row has a floor, its values are log-probabilities,
/// and an entry at the floor has one that is not known: see [`floor`](fn@floor).
#[derive(Clone, Copy, Debug)]
pub struct RowPair<'a> {
    /// The reference's row.
    pub reference: Row<'a>,
    /// The evaluated model's row.
    pub eval: &'a [f32],
    /// The token that actually follows, an index into the rows.
    pub next: Option<u32>,
    /// The reference row's floor.
    pub ref_floor: Option<f32>,
    /// The evaluated row's floor.
    pub eval_floor: Option<f32>,
}

impl<'a> RowPair<'a> {
    /// Two rows whose entries are all known.
    pub fn new(reference: Row<'a>, eval: &'a [f32], next: Option<u32>) -> Self {
        Self {
            reference,
            eval,
            next,
            ref_floor: None,
            eval_floor: None,
        }
    }

    /// Checks what every pass over the rows relies on.
    ///
    /// # Panics
    ///
    /// If the rows are empty or of different length, or a floor is not one of
    /// [`floor`](fn@floor)'s.
    pub(super) fn check(&self) {
        let n = self.eval.len();
        assert!(n > 0, "a row of logits has at least one entry");
        assert_eq!(self.reference.len(), n, "rows of different length");
        assert!(u32::try_from(n).is_ok(), "a row is indexed by 32 bits");
        let is_inside = |next: u32| (next as usize) < n;
        assert!(
            self.next.is_none_or(is_inside),
            "a next token is not in a row"
        );
        let floors = [self.ref_floor, self.eval_floor];
        let are_possible = floors.into_iter().flatten().all(is_possible);
        assert!(are_possible, "floors of {floors:?}");
    }
}

/// A row that spans at least this was floored: llama-perplexity raises every logit to 16 below the
/// largest, and stores the span in f32.
const SPAN: f32 = 15.99;

/// Floors are log-probabilities, far nearer to 0 than this. Up to this size, the kernels tell a
/// floor from the next f32 above it without overflow.
const FARTHEST: f32 = 1e6;

/// The floor of a row of floored log-probabilities, as llama.cpp's base file holds: entries with
/// this value have a log-probability at or below it, and which one is not known. `None` if all
/// entries are known: then the row spans less than 16, or is not finite.
///
/// Look for it in the whole row: a part of a row may lack its largest entry.
pub fn floor(row: Row<'_>) -> Option<f32> {
    let (least, most) = match row {
        Row::F32(logits) => range(logits),
        // The codes are spread over the row's own range.
        Row::U16 {
            masked, min, step, ..
        } => {
            let largest = u16::MAX - u16::from(masked.is_some());
            (masked.unwrap_or(min), min + step * f32::from(largest))
        }
    };
    let is_floored = most - least >= SPAN && most.is_finite() && is_possible(least);
    is_floored.then_some(least)
}

/// True if [`floor`] can return this.
fn is_possible(floor: f32) -> bool {
    floor.abs() <= FARTHEST
}

/// The smallest and the largest entry that are not NaN.
#[inline(always)]
pub(super) fn range(row: &[f32]) -> (f32, f32) {
    /// Independent lanes: a float minimum is not a reduction that the compiler may reorder.
    const LANES: usize = 32;
    let mut least = [f32::INFINITY; LANES];
    let mut most = [f32::NEG_INFINITY; LANES];
    let mut add = |entries: &[f32]| {
        for ((least, most), &x) in least.iter_mut().zip(&mut most).zip(entries) {
            *least = if x < *least { x } else { *least };
            *most = if x > *most { x } else { *most };
        }
    };
    let (whole, rest) = row.as_chunks::<LANES>();
    whole.iter().for_each(|entries| add(entries));
    add(rest);
    (
        least.into_iter().fold(f32::INFINITY, f32::min),
        most.into_iter().fold(f32::NEG_INFINITY, f32::max),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floored_row_spans_sixteen() {
        let mut row = vec![-3.0; 100];
        row[7] = -0.5;
        row[70] = -16.5;
        assert_eq!(floor(Row::F32(&row)), Some(-16.5));
        row[70] = -16.4;
        assert_eq!(floor(Row::F32(&row)), None);
    }

    #[test]
    fn codes_are_spread_over_the_range() {
        let row = |step| Row::U16 {
            masked: None,
            min: -17.25,
            step,
            codes: &[0, 65_535],
        };
        assert_eq!(floor(row(16.0 / 65_535.0)), Some(-17.25));
        assert_eq!(floor(row(15.0 / 65_535.0)), None);
        assert_eq!(floor(row(f32::NAN)), None);
        let masked = |masked| Row::U16 {
            masked: Some(masked),
            min: -10.0,
            step: 1e-4,
            codes: &[0, 1],
        };
        assert_eq!(floor(masked(-20.0)), Some(-20.0));
        assert_eq!(floor(masked(-11.0)), None);
    }

    #[test]
    fn a_row_that_is_not_finite_has_none() {
        for odd in [f32::NEG_INFINITY, f32::INFINITY, -1e30] {
            assert_eq!(floor(Row::F32(&[0.0, odd])), None);
        }
        assert_eq!(floor(Row::F32(&[f32::NAN; 40])), None);
        assert_eq!(floor(Row::F32(&[])), None);
    }
}
