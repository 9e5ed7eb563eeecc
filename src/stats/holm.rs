//! Several tests at once.

/// p-values adjusted for a family of `n_tests` tests that these are some of, in the given order. Of
/// all of the family that are rejected because theirs is below α, none is a true hypothesis with a
/// probability of at least 1 − α, however the tests depend on each other, and whatever chose which
/// of them are given.
///
/// The smallest value is multiplied by `n_tests`, the next by one less, and so on; none is below a
/// smaller one's, and none above 1 (Holm 1979, "A simple sequentially rejective multiple test
/// procedure", Scandinavian Journal of Statistics 6). Tests that are not given could only make the
/// factors smaller.
pub fn holm(p: &[f64], n_tests: usize) -> Vec<f64> {
    debug_assert!(p.len() <= n_tests);
    let mut rising: Vec<usize> = (0..p.len()).collect();
    rising.sort_by(|&i, &j| p[i].total_cmp(&p[j]));
    let mut adjusted = vec![0.0; p.len()];
    let mut at_least = 0.0_f64;
    for (rank, i) in rising.into_iter().enumerate() {
        at_least = at_least.max(p[i] * (n_tests - rank) as f64).min(1.0);
        adjusted[i] = at_least;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: 0.01 · 4, 0.02 · 3, 0.03 · 2 (not below the one before), 0.9 · 1.
    #[test]
    fn adjusts_each_by_how_many_are_left() {
        let got = holm(&[0.9, 0.01, 0.03, 0.02], 4);
        let expected = [0.9, 0.04, 0.06, 0.06];
        assert!(got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-15));
        assert_eq!(holm(&[], 0), Vec::<f64>::new());
        assert_eq!(holm(&[0.7], 1), [0.7]);
        assert_eq!(holm(&[0.6, 1.0, 0.7], 3), [1.0; 3]);
    }
    /// By hand: 0.001 · 10, 0.002 · 9.
    #[test]
    fn tests_that_are_not_given_count() {
        let got = holm(&[0.001, 0.002], 10);
        let expected = [0.01, 0.018];
        assert!(got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-15));
    }
}
