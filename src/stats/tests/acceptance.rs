//! Acceptances by hand; `tests/summary.rs` compares them with numpy.

use kl_formats::TokenRecord;

use super::super::oracle::{assert_close, records, summary};
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
fn a_draft_ends_at_the_first_token_that_is_not_accepted() {
    let records = window(0, &[(7, 0.5), (8, 1.0), (9, 0.25)]);
    let got = of(&records).unwrap();
    // The means of one, two and three acceptances in a row.
    let means = [(0.5 + 1.0 + 0.25) / 3.0, (0.5 + 0.25) / 2.0, 0.125];
    let expected = [means[0], means[0] + means[1], means.iter().sum()];
    for (got, expected) in values(&got).into_iter().zip(expected) {
        assert_close(got, expected, 1e-15);
    }
    assert_eq!(got.drafted.len(), 3);
    assert_eq!((got.mean, got.mean.lo), (got.drafted[0].accepted, None));
    assert_close(got.of_drafted(3).unwrap().value, expected[2], 1e-15);
    assert_eq!(got.of_drafted(4), None);
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
    assert_eq!(got.drafted.len(), 2);
    assert_close(values(&got)[1], mean + 0.5, 1e-15);
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
