//! Tokens that samplers choose, against the distribution that they should have.

use super::*;
use crate::Sampler;
use kl_formats::Sampling;

const OFF: Sampling = Sampling {
    temp: 1.0,
    top_k: 0,
    top_p: 1.0,
    min_p: 0.0,
    seed: 11,
};

/// The probabilities that llama.cpp's documentation gives for these settings, in doubles: the top k,
/// then of these the fewest with probability `top_p`, then those at least `min_p` as probable as the
/// top one, then the temperature.
fn expected(row: &[f32], sampling: &Sampling) -> Vec<f64> {
    let softmax = |logits: &[(usize, f64)], temp: f64| {
        let weights = logits
            .iter()
            .map(|&(i, x)| (i, ((x - logits[0].1) / temp).exp()));
        let weights: Vec<(usize, f64)> = weights.collect();
        let sum: f64 = weights.iter().map(|(_, w)| w).sum();
        weights
            .into_iter()
            .map(|(i, w)| (i, w / sum))
            .collect::<Vec<_>>()
    };
    let mut left: Vec<(usize, f64)> = row.iter().map(|&x| x.into()).enumerate().collect();
    left.sort_by(|a, b| b.1.total_cmp(&a.1));
    if sampling.top_k > 0 {
        left.truncate(sampling.top_k as usize);
    }
    let mut before = 0.0;
    let n = softmax(&left, 1.0).into_iter().take_while(|(_, p)| {
        let is_kept = before < f64::from(sampling.top_p);
        before += p;
        is_kept
    });
    let n = n.count();
    left.truncate(n);
    let most = left[0].1;
    left.retain(|(_, x)| (x - most).exp() >= f64::from(sampling.min_p));
    let mut all = vec![0.0; row.len()];
    for (i, p) in softmax(&left, sampling.temp.into()) {
        all[i] = p;
    }
    all
}

/// Checks counts of draws by the chi-squared statistic, whose value is normal enough for its degrees of
/// freedom; rare tokens are counted together.
#[track_caller]
fn check_counts(counts: &[u64], expected: &[f64]) {
    let n: u64 = counts.iter().sum();
    let (mut statistic, mut n_bins) = (0.0, 0.0);
    let mut rare = (0.0, 0.0);
    let mut add = |count: f64, mean: f64| {
        statistic += (count - mean).powi(2) / mean;
        n_bins += 1.0;
    };
    for (&count, &p) in counts.iter().zip(expected) {
        assert!(p > 0.0 || count == 0, "a token that was cut off is drawn");
        let (count, mean) = (count as f64, p * n as f64);
        match mean >= 10.0 {
            true => add(count, mean),
            false => rare = (rare.0 + count, rare.1 + mean),
        }
    }
    if rare.1 >= 10.0 {
        add(rare.0, rare.1);
    }
    let freedom = n_bins - 1.0;
    assert!(freedom >= 1.0, "too few tokens to test");
    // Wilson and Hilferty: the cube root of chi-squared over its freedom is nearly normal.
    let spread = 2.0 / (9.0 * freedom);
    let z = ((statistic / freedom).cbrt() - (1.0 - spread)) / spread.sqrt();
    assert!(z.abs() < 4.0, "chi-squared {statistic} of {freedom}");
}

/// Draws `n` tokens of one answer, or the first one of `n` answers.
fn draw(row: &[f32], sampling: &Sampling, n: u32, of_one: bool) -> Vec<u64> {
    let mut counts = vec![0; row.len()];
    let mut sampler = Sampler::new(sampling, 0).unwrap();
    for window in 0..n {
        if !of_one {
            sampler = Sampler::new(sampling, window).unwrap();
        }
        counts[sampler.choose(row).unwrap().unwrap() as usize] += 1;
    }
    counts
}

#[test]
fn tokens_are_drawn_from_the_models_own_distribution() {
    let model = load(&fixture("tiny-f16.gguf"));
    let text = model
        .tokenize("Once upon a time, there was a little", false)
        .unwrap();
    let window = WindowSpec {
        window: 0,
        n_rows: text.len() as u32,
        tokens: text,
        first_scored: 0,
    };
    let rows = plain_rows(&model, &options(64, 64), &window);
    let warm = Sampling { temp: 1.3, ..OFF };
    for sampling in [
        OFF,
        Sampling { temp: 0.6, ..OFF },
        Sampling { temp: 2.0, ..OFF },
        Sampling { top_k: 7, ..OFF },
        Sampling { top_p: 0.8, ..warm },
        Sampling {
            min_p: 0.05,
            ..warm
        },
        Sampling {
            top_k: 40,
            top_p: 0.95,
            min_p: 0.02,
            temp: 0.8,
            seed: 13,
        },
    ] {
        for row in [&rows[0], &rows[rows.len() - 1]] {
            let expected = expected(row, &sampling);
            if expected.iter().filter(|&&p| p > 1e-3).count() < 2 {
                continue;
            }
            check_counts(&draw(row, &sampling, 20_000, true), &expected);
            check_counts(&draw(row, &sampling, 5000, false), &expected);
        }
    }
}

#[test]
fn cuts_leave_the_tokens_that_they_should() {
    let row = [0.05_f32, 0.3, 0.1, 0.4, 0.15].map(f32::ln);
    let (top_2, hot) = (Sampling { top_k: 2, ..OFF }, Sampling { temp: 10.0, ..OFF });
    for (sampling, kept) in [
        (OFF, &[0, 1, 2, 3, 4][..]),
        (Sampling { top_k: 3, ..OFF }, &[1, 3, 4]),
        (Sampling { top_p: 0.69, ..OFF }, &[1, 3]),
        (Sampling { top_p: 0.71, ..OFF }, &[1, 3, 4]),
        (Sampling { top_p: 1e-6, ..OFF }, &[3]),
        (Sampling { min_p: 0.3, ..OFF }, &[1, 3, 4]),
        (Sampling { min_p: 1.0, ..OFF }, &[3]),
        // Of the top two, 0.57 and 0.43, the first is not enough for 0.6.
        (
            Sampling {
                top_p: 0.5,
                ..top_2
            },
            &[3],
        ),
        (
            Sampling {
                top_p: 0.6,
                ..top_2
            },
            &[1, 3],
        ),
        // The temperature comes last, so it moves no cut.
        (Sampling { min_p: 0.3, ..hot }, &[1, 3, 4]),
    ] {
        let counts = draw(&row, &sampling, 3000, true);
        let drawn: Vec<usize> = (0..5).filter(|&i| counts[i] > 0).collect();
        assert_eq!(drawn, kept, "{sampling:?}");
    }
}

#[test]
fn a_row_that_is_not_a_distribution_gives_no_token() {
    let mut sampler = Sampler::new(&OFF, 0).unwrap();
    let mut choose = |row: &[f32]| sampler.choose(row).unwrap();
    let infinity = f32::INFINITY;
    assert_eq!(choose(&[1.0, f32::NAN]), None);
    assert_eq!(choose(&[-infinity, -infinity]), None);
    assert_eq!(choose(&[1.0, infinity]), None);
    assert_eq!(choose(&[]), None);
    assert_eq!(choose(&[-infinity, 1.0, -infinity]), Some(1));
}
