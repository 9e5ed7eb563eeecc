//! Rows with logits of −∞: probabilities of 0.

use super::*;

const MASK: f32 = f32::NEG_INFINITY;

/// A pair of rows of every length, alike but for some noise.
fn pairs(random: &mut Random) -> Vec<(Vec<f32>, Vec<f32>)> {
    let mut pairs = Vec::new();
    for n in lengths() {
        for (spread, noise) in [(2.5, 0.1), (100.0, 1.0), (1e30, 1e28)] {
            let reference = random.row(n, spread);
            let eval = random.noisy(&reference, noise);
            pairs.push((reference, eval));
        }
    }
    pairs
}

#[test]
fn what_both_rows_exclude_adds_nothing() {
    let mut random = Random(20);
    for (mut reference, mut eval) in pairs(&mut random) {
        let n = reference.len();
        let kept: Vec<usize> = (0..n).filter(|i| i % 7 != 3 || n < 4).collect();
        for (i, (l, m)) in reference.iter_mut().zip(&mut eval).enumerate() {
            if !kept.contains(&i) {
                (*l, *m) = (MASK, MASK);
            }
        }
        let got = check(Row::F32(&reference), &eval, Some(0));
        assert!(got.kld.is_finite() && got.reverse_kld.is_finite());
        let of_kept = |row: &[f32]| -> Vec<f32> { kept.iter().map(|&i| row[i]).collect() };
        let (reference, eval) = (of_kept(&reference), of_kept(&eval));
        let want = check(Row::F32(&reference), &eval, Some(0));
        close("kld", got.kld, want.kld, RELATIVE);
        close("reverse", got.reverse_kld, want.reverse_kld, RELATIVE);
        close("entropy", got.ref_entropy, want.ref_entropy, RELATIVE);
    }
}

#[test]
fn what_one_row_excludes_is_infinitely_far() {
    let mut random = Random(21);
    for (reference, eval) in pairs(&mut random) {
        let n = reference.len();
        // Where the row spans 1e30, all but the top weighs exactly 0.
        let is_wide = reference.iter().any(|x| x.abs() > 1e6);
        for at in [0, n / 2, n - 1].into_iter().filter(|_| n > 1) {
            let mut masked = eval.clone();
            masked[at] = MASK;
            let score = check(Row::F32(&reference), &masked, Some(at as u32));
            assert!(is_wide || n > 100 || score.kld == f64::INFINITY);
            assert!(score.reverse_kld.is_finite() || n == 1);
            assert_eq!(score.eval_nll, f64::INFINITY);
            assert_eq!(finite(&score), (true, true));
            let score = check(Row::F32(&masked), &reference, Some(at as u32));
            assert!(is_wide || n > 100 || score.reverse_kld == f64::INFINITY);
            assert_eq!(score.ref_nll, f64::INFINITY);
            let encoded = encode(&reference);
            check(coded(&encoded), &masked, Some(0));
        }
    }
}

#[test]
fn what_weighs_nothing_may_be_excluded() {
    // e^−800 is 0 in f64.
    let score = check(Row::F32(&[800.0, 0.0, 799.0]), &[3.0, MASK, 2.0], None);
    assert!(score.kld < 1e-9 && score.reverse_kld < 1e-9);
    // A finite logit far below is not excluded: the divergence is finite, however large.
    let score = check(Row::F32(&[1.0, 0.0, 2.0]), &[1.0, -1e30, 2.0], None);
    assert!(score.kld > 1e28 && score.kld.is_finite());
}

#[test]
fn rows_with_one_finite_logit() {
    for n in [1, 2, 40, 64, 1000, 1025] {
        for logit in [0.0, -f32::MAX, f32::MAX, -250.0] {
            let mut row = vec![MASK; n];
            row[n - 1] = logit;
            let score = check(Row::F32(&row), &row, Some(0));
            assert_eq!((score.kld, score.reverse_kld), (0.0, 0.0));
            assert_eq!(score.ref_top as usize, n - 1);
            close("top's p", score.ref_top_p, 1.0, RELATIVE);
            let mut other = vec![MASK; n];
            other[0] = logit;
            let score = check(Row::F32(&row), &other, Some(0));
            let want = if n == 1 { 0.0 } else { f64::INFINITY };
            assert_eq!((score.kld, score.reverse_kld), (want, want));
            check(Row::F32(&row), &vec![0.5; n], Some(0));
            check(Row::F32(&vec![-f32::MAX; n]), &row, Some(0));
        }
    }
}

#[test]
fn rows_without_a_finite_logit_are_left_out() {
    for n in [1, 16, 17, 64, 1000, 1030] {
        let nothing = vec![MASK; n];
        let score = check(Row::F32(&nothing), &vec![0.0; n], Some(0));
        assert_eq!(finite(&score), (false, true));
        assert!(score.kld.is_nan() && score.eval_nll.is_nan());
        let score = check(Row::F32(&vec![0.0; n]), &nothing, Some(0));
        assert_eq!(finite(&score), (true, false));
    }
}

#[test]
fn no_nan_hides_among_masks() {
    let mut random = Random(22);
    for n in [40, 64, 100, 1024, 1500] {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
            for at in [0, 1, n / 2, n - 1] {
                let mut row = random.row(n, 2.5);
                row[at / 2] = MASK;
                row[at] = bad;
                let eval = vec![MASK; n - 1]
                    .into_iter()
                    .chain([1.0])
                    .collect::<Vec<_>>();
                let score = check(Row::F32(&row), &eval, Some(0));
                assert_eq!(finite(&score), (false, true));
                let score = check(Row::F32(&eval), &row, Some(0));
                assert_eq!(finite(&score), (true, false));
            }
        }
    }
}

#[test]
fn masked_codes_are_decoded() {
    let mut random = Random(23);
    let codes: Vec<u16> = (0..1003)
        .map(|_| (random.uniform() * 65536.0) as u16 & !15)
        .collect();
    let eval = random.row(1003, 3.0);
    for masked in [MASK, -1e4, -f32::MAX] {
        let codes = &codes[..];
        let row = Row::U16 {
            masked: Some(masked),
            min: -12.5,
            step: 4.5e-4,
            codes,
        };
        check(row, &eval, Some(3));
    }
}

proptest! {
    #[test]
    fn any_rows_with_masks(
        rows in prop::collection::vec((-40.0f32..40.0, -40.0f32..40.0, 0u8..4), 1..300),
        scale in prop::sample::select(vec![1e-3f32, 1.0, 8.0, 1e3, 1e30]),
        shared in any::<bool>(),
    ) {
        let reference: Vec<f32> = rows
            .iter()
            .map(|(l, _, mask)| if *mask == 0 || (shared && *mask == 1) { MASK } else { l * scale })
            .collect();
        let eval: Vec<f32> = rows
            .iter()
            .map(|(_, m, mask)| if *mask == 1 || (shared && *mask == 0) { MASK } else { m * scale })
            .collect();
        check(Row::F32(&reference), &eval, Some(0));
    }
}
