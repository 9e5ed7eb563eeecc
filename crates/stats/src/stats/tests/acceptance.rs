//! Acceptances by hand; `tests/summary.rs` compares them with numpy.

use kl_formats::TokenRecord;

use super::super::oracle::{assert_close, records, splitmix_normals, summary};
use super::super::{ClusterRule, Estimate};
use super::Acceptance;

fn of(records: &[TokenRecord]) -> Option<Acceptance> {
    summary(records, ClusterRule::Window).acceptance
}

/// Records of a window, at these positions and with these acceptances.
fn window(window: u32, tokens: &[(u32, f64)]) -> Vec<TokenRecord> {
    let record = |&(position, acceptance): &(u32, f64)| TokenRecord {
        window,
        position,
        acceptance,
        flags: 0,
        ..records()[1]
    };
    tokens.iter().map(record).collect()
}

fn values(acceptance: &Acceptance) -> Vec<f64> {
    let drafted = acceptance.drafted.iter();
    drafted.map(|of| of.accepted.value).collect()
}

#[test]
fn rounds_begin_after_the_token_that_the_original_adds() {
    let records = window(0, &[(7, 0.5), (8, 1.0), (9, 0.25)]);
    let got = of(&records).unwrap();
    let expected = [
        // Starts at 7 for sure, at 8 if 7 is refused, at 9 if 7 is accepted: 8 then follows as the
        // original's own.
        (0.5 + 0.5 * 1.0 + 0.5 * 0.25) / 2.0,
        // At 7, and at 8 if 7 is refused; 9 has no second token.
        ((0.5 + 0.5) + 0.5 * (1.0 + 0.25)) / 1.5,
        0.5 + 0.5 + 0.125,
    ];
    for (got, expected) in values(&got).into_iter().zip(expected) {
        assert_close(got, expected, 1e-15);
    }
    assert_eq!(got.drafted.len(), 3);
    assert_close(got.mean.value, (0.5 + 1.0 + 0.25) / 3.0, 1e-15);
    assert_eq!((got.mean.lo, got.drafted[0].accepted.lo), (None, None));
    assert_close(got.of_drafted(3).unwrap().value, expected[2], 1e-15);
    assert_eq!(got.of_drafted(4), None);
}

/// The rounds of drafts of `n` tokens where these are accepted, and the tokens that they accept.
fn follow(is_accepted: &[bool], n: usize) -> [f64; 2] {
    let (mut start, mut sums) = (0, [0.0; 2]);
    while let Some(draft) = is_accepted.get(start..start + n) {
        let accepted = draft.iter().take_while(|is| **is).count();
        sums[0] += 1.0;
        sums[1] += accepted as f64;
        start += accepted + 1;
    }
    sums
}

#[test]
fn the_recursion_is_exact() {
    let acceptances = [0.9, 0.3, 1.0, 0.75, 0.1, 0.6, 0.95, 0.5];
    let tokens: Vec<(u32, f64)> = (0..).zip(acceptances).collect();
    let got = of(&window(0, &tokens)).unwrap();
    for (got, n) in values(&got).into_iter().zip(1..=acceptances.len()) {
        // Each way in which tokens may be accepted or refused.
        let mut sums = [0.0; 2];
        for way in 0..1_u32 << acceptances.len() {
            let is_accepted: Vec<bool> = (0..8).map(|i| way >> i & 1 == 1).collect();
            let each = is_accepted.iter().zip(acceptances);
            let p: f64 = each.map(|(is, x)| if *is { x } else { 1.0 - x }).product();
            for (sum, of) in sums.iter_mut().zip(follow(&is_accepted, n)) {
                *sum += p * of;
            }
        }
        assert_close(got, sums[1] / sums[0], 1e-14);
    }
}

/// Difficulty that stays for a while: the logits of acceptances are an autoregression.
#[test]
fn matches_simulated_rounds() {
    let mut normals = splitmix_normals(36);
    let mut normal = || normals.next().unwrap();
    for correlation in [0.0, 0.5, 0.9_f64] {
        let mut sums = [[0.0; 2]; 3];
        let mut records = Vec::new();
        for number in 0..200 {
            let mut level = normal();
            let tokens: Vec<(u32, f64)> = (0..200)
                .map(|position| {
                    let innovation = (1.0 - correlation * correlation).sqrt() * normal();
                    level = correlation * level + innovation;
                    (position, 1.0 / (1.0 + (-1.5 - 1.5 * level).exp()))
                })
                .collect();
            for _ in 0..5 {
                // The angle of two normals is uniform.
                let mut uniform = || 0.5 + normal().atan2(normal()) / std::f64::consts::TAU;
                let accepted: Vec<bool> = tokens.iter().map(|(_, x)| uniform() < *x).collect();
                for (sums, n) in sums.iter_mut().zip([3, 8, 16]) {
                    let of = follow(&accepted, n);
                    (sums[0], sums[1]) = (sums[0] + of[0], sums[1] + of[1]);
                }
            }
            records.extend(window(number, &tokens));
        }
        let got = of(&records).unwrap();
        for ([rounds, accepted], n) in sums.into_iter().zip([3, 8, 16]) {
            assert_close(got.of_drafted(n).unwrap().value, accepted / rounds, 0.02);
        }
    }
}

/// Drafts do not reach over a gap between positions, a token that is left out, one of unknown
/// acceptance, or into the next window.
#[test]
fn drafts_have_no_gaps() {
    let nan = f64::NAN;
    let mut tokens = window(0, &[(0, 0.5), (1, 1.0), (3, 0.5), (4, nan), (5, 0.5)]);
    tokens.extend(window(1, &[(6, 0.5), (7, 0.25), (8, 0.125)]));
    tokens[6].flags = TokenRecord::EVAL_NOT_FINITE;
    let got = of(&tokens).unwrap();
    let mean = (4.0 * 0.5 + 1.0 + 0.125) / 6.0;
    assert_close(got.mean.value, mean, 1e-15);
    // Only the first two follow each other.
    assert_eq!(got.drafted.len(), 2);
    assert_close(values(&got)[0], (4.0 * 0.5 + 0.5 + 0.125) / 5.5, 1e-15);
    assert_close(values(&got)[1], 1.0, 1e-15);
}

#[test]
fn unknown_acceptances_give_none() {
    assert_eq!(of(&[]), None);
    assert_eq!(of(&window(0, &[(0, f64::NAN), (1, f64::NAN)])), None);
}

#[test]
fn no_more_tokens_are_accepted_than_drafted() {
    let equal: Vec<(u32, f64)> = (0..20).map(|position| (position, 1.0)).collect();
    let records: Vec<TokenRecord> = (0..5).flat_map(|i| window(i, &equal)).collect();
    let got = of(&records).unwrap();
    for (drafted, n) in got.drafted.iter().zip(1..) {
        let all = f64::from(n);
        assert_eq!(drafted.n_drafted, n);
        assert_eq!(drafted.accepted, Estimate::within(all, all, all));
    }
    assert_eq!(got.drafted.len(), 16);
    // One token that is hardly ever accepted makes an interval that would reach beyond 1.
    let mut records = records;
    records[0].acceptance = 0.01;
    let mean = of(&records).unwrap().mean;
    assert!(mean.value < 1.0 && mean.hi == Some(1.0), "{mean:?}");
}

/// Nearly equal models: the sums do not cancel.
#[test]
fn intervals_hold_where_nearly_all_tokens_are_accepted() {
    let small = |i: u32| 1e-9 * f64::from(i * 7919 % 31);
    let records: Vec<TokenRecord> = (0..40)
        .flat_map(|i| {
            let tokens: Vec<(u32, f64)> = (0..20).map(|j| (j, 1.0 - small(i) - small(j))).collect();
            window(i, &tokens)
        })
        .collect();
    let mut lost = records.clone();
    for record in &mut lost {
        record.acceptance = 1e6 * (1.0 - record.acceptance);
    }
    let (got, lost) = (of(&records).unwrap().mean, of(&lost).unwrap().mean);
    assert_close(1e6 * (1.0 - got.value), lost.value, 1e-6);
    assert_close(1e6 * (1.0 - got.lo.unwrap()), lost.hi.unwrap(), 1e-5);
    assert_close(1e6 * (1.0 - got.hi.unwrap()), lost.lo.unwrap(), 1e-5);
}
