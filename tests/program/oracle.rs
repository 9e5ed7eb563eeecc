//! Every number of the sidecar against a plain float64 computation from both models' logits.

use kl::score::RowPair;
use kl::score::testing::score;
use kl_formats::{Row, TokenRecord};

use crate::numbers::accurate;
use crate::session::Session;

fn check(encoding: &str) {
    let session = Session::with_reference(&format!("--encoding {encoding}"));
    session.ok("-m @q2 -r ref.gz -q --sidecar out.kls");
    let records = session.records("out.kls");
    // The evaluated model's own logits, of the same tokens in the same batches.
    session.reference_of("@q2", "eval.gz", "--encoding f32");

    let (reference, evaluated) = (session.rows("ref.gz"), session.rows("eval.gz"));
    let n = evaluated.len();
    assert!(n > 300 && (records.len(), reference.len()) == (n, n));
    for ((record, reference), evaluated) in records.iter().zip(&reference).zip(&evaluated) {
        let (row, next) = (Row::F32(reference), record.next_token());
        let exact = score(&RowPair::new(row, evaluated, next));
        for (ours, exact, what) in [
            (record.kld, exact.kld, "KLD"),
            (record.reverse_kld, exact.reverse_kld, "reverse KLD"),
            (record.ref_entropy, exact.ref_entropy, "entropy"),
        ] {
            accurate(ours, exact, &format!("{what} of {record:?}"));
        }
        assert!((record.acceptance - exact.acceptance).abs() < 1e-6);
        if record.next_token().is_some() {
            accurate(record.ref_nll, exact.ref_nll, "reference NLL");
            accurate(record.eval_nll, exact.eval_nll, "NLL");
        } else {
            assert!(record.ref_nll.is_nan() && record.eval_nll.is_nan());
        }
        let whole = |of: &TokenRecord| {
            let tops = (of.ref_top, of.eval_top);
            (tops, of.ref_top_rank, of.eval_top_rank, of.token)
        };
        assert_eq!(whole(record), whole(&exact));
    }
}

#[test]
fn the_numbers_against_an_exact_reference_are_right() {
    check("f32");
}

#[test]
fn the_numbers_against_an_encoded_reference_are_right() {
    check("u16");
}
