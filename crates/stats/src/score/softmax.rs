//! The test whether a row has a softmax.

/// Returns true if a row has a softmax: a finite logit, and neither NaN nor positive infinity.
pub fn has_softmax(row: &[f32]) -> bool {
    let (mut any_finite, mut any_wrong) = (0, 0);
    // No branch and no early end: so the compiler uses vectors.
    for &logit in row {
        any_finite |= u32::from(logit.is_finite());
        any_wrong |= u32::from(logit.is_nan()) | u32::from(logit == f32::INFINITY);
    }
    any_finite == 1 && any_wrong == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_no_fault_and_anything_else_that_is_not_finite_is() {
        let (nan, infinity) = (f32::NAN, f32::INFINITY);
        assert!(has_softmax(&[0.0, -infinity, 3.0]));
        for row in [
            &[0.0, nan][..],
            &[infinity, 1.0],
            &[-infinity, -infinity],
            &[-nan],
            &[],
        ] {
            assert!(!has_softmax(row), "{row:?}");
        }
    }
}
