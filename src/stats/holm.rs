//! Several tests at once.

/// p-values adjusted for how many they are, in the given order: those below α are rejected together
/// with a probability of at most α that any of the rejected hypotheses is true, however the tests
/// depend on each other.
///
/// The smallest of m values is multiplied by m, the next by m − 1, and so on; none is below a
/// smaller one's, and none above 1 (Holm 1979, "A simple sequentially rejective multiple test
/// procedure", Scandinavian Journal of Statistics 6).
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut rising: Vec<usize> = (0..p.len()).collect();
    rising.sort_by(|&i, &j| p[i].total_cmp(&p[j]));
    let mut adjusted = vec![0.0; p.len()];
    let mut at_least = 0.0_f64;
    for (rank, i) in rising.into_iter().enumerate() {
        at_least = at_least.max(p[i] * (p.len() - rank) as f64).min(1.0);
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
        let got = holm(&[0.9, 0.01, 0.03, 0.02]);
        let expected = [0.9, 0.04, 0.06, 0.06];
        assert!(got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-15));
        assert_eq!(holm(&[]), Vec::<f64>::new());
        assert_eq!(holm(&[0.7]), [0.7]);
        assert_eq!(holm(&[0.6, 1.0, 0.7]), [1.0; 3]);
    }
}
