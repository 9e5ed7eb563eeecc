//! Every number of the sidecar against a plain float64 computation from both models' logits.

use crate::numbers::{accurate, kld, log_softmax, top};
use crate::session::Session;

fn rank(row: &[f32], entry: usize) -> u32 {
    let above =
        |&other: &usize| row[other] > row[entry] || (row[other] == row[entry] && other < entry);
    1 + (0..row.len()).filter(above).count() as u32
}

fn check(encoding: &str) {
    let session = Session::new();
    session.reference(&format!("--encoding {encoding}"));
    session.ok("-m @q2 -r ref.gz -q --sidecar out.kls");
    let records = session.records("out.kls");
    // The evaluated model's own logits, of the same tokens in the same batches.
    session.reference_of("@q2", "eval.gz", "--encoding f32");

    let (reference, evaluated) = (session.rows("ref.gz"), session.rows("eval.gz"));
    assert_eq!(
        (records.len(), reference.len()),
        (evaluated.len(), evaluated.len())
    );
    assert!(records.len() > 300);
    for ((record, reference), evaluated) in records.iter().zip(&reference).zip(&evaluated) {
        let (ln_p, ln_q) = (log_softmax(reference), log_softmax(evaluated));
        let close = |ours: f64, exact: f64, what: &str| {
            accurate(ours, exact, &format!("{what} of {record:?}"));
        };
        close(record.kld, kld(&ln_p, &ln_q), "KLD");
        close(record.reverse_kld, kld(&ln_q, &ln_p), "reverse KLD");
        let entropy = -ln_p.iter().map(|ln| ln.exp() * ln).sum::<f64>();
        close(record.ref_entropy, entropy, "entropy");
        let both = ln_p.iter().zip(&ln_q);
        let acceptance: f64 = both.map(|(p, q)| p.exp().min(q.exp())).sum();
        assert!((record.acceptance - acceptance).abs() < 1e-6, "{record:?}");
        match record.next_token() {
            Some(next) => {
                close(record.ref_nll, -ln_p[next as usize], "reference NLL");
                close(record.eval_nll, -ln_q[next as usize], "NLL");
            }
            None => assert!(record.ref_nll.is_nan() && record.eval_nll.is_nan()),
        }
        assert_eq!(record.ref_top as usize, top(reference));
        assert_eq!(record.eval_top as usize, top(evaluated));
        assert_eq!(record.ref_top_rank, rank(evaluated, top(reference)));
        assert_eq!(record.eval_top_rank, rank(reference, top(evaluated)));
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
