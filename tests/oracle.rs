//! Every number of the sidecar against a plain float64 computation from both models' logits.

mod common;

use common::Session;
use kl_formats::sidecar::{SidecarReader, TokenRecord};
use kl_formats::{NativeReader, Row};

/// Rows of a reference, in its order.
fn rows(session: &Session, name: &str) -> Vec<Vec<f64>> {
    let reader = NativeReader::open(&session.path(name)).unwrap();
    let mut rows = Vec::new();
    for place in 0..reader.windows().len() {
        for piece in 0..reader.n_pieces(place) {
            let block = reader.piece(place, piece, None).unwrap();
            rows.extend((0..block.n_rows()).map(|row| decoded(block.row(row))));
        }
    }
    rows
}

fn decoded(row: Row<'_>) -> Vec<f64> {
    (0..row.len())
        .map(|entry| f64::from(row.get(entry)))
        .collect()
}

fn log_softmax(row: &[f64]) -> Vec<f64> {
    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log_sum = row
        .iter()
        .map(|logit| (logit - max).exp())
        .sum::<f64>()
        .ln();
    row.iter().map(|logit| logit - max - log_sum).collect()
}

fn top(row: &[f64]) -> usize {
    (0..row.len()).fold(
        0,
        |best, entry| if row[entry] > row[best] { entry } else { best },
    )
}

fn rank(row: &[f64], entry: usize) -> u32 {
    let above =
        |&other: &usize| row[other] > row[entry] || (row[other] == row[entry] && other < entry);
    1 + (0..row.len()).filter(above).count() as u32
}

/// The accuracy that is promised: 1e-6 relative or 1e-9 absolute.
fn close(ours: f64, exact: f64, what: &str, record: &TokenRecord) {
    let bound = (1e-6 * exact.abs()).max(1e-9);
    assert!(
        (ours - exact).abs() <= bound,
        "{what}: {ours}, float64 {exact}, {record:?}"
    );
}

fn check(encoding: &str) {
    let session = Session::new();
    session.reference(&["--encoding", encoding]);
    session.ok(&[
        "-m",
        "@tiny-q2_K.gguf",
        "-r",
        "ref.gz",
        "-q",
        "--sidecar",
        "out.kls",
    ]);
    let records = SidecarReader::open(&session.path("out.kls"))
        .unwrap()
        .read_all()
        .unwrap();
    // The evaluated model's own logits, of the same tokens in the same batches.
    let text = ["-t", "short.txt", "-c", "64", "-q", "--encoding", "f32"];
    session.ok(&[&["-m", "@tiny-q2_K.gguf", "-w", "eval.gz"], &text[..]].concat());

    let (reference, evaluated) = (rows(&session, "ref.gz"), rows(&session, "eval.gz"));
    assert_eq!(
        (records.len(), reference.len()),
        (evaluated.len(), evaluated.len())
    );
    assert!(records.len() > 300);
    for ((record, reference), evaluated) in records.iter().zip(&reference).zip(&evaluated) {
        let (ln_p, ln_q) = (log_softmax(reference), log_softmax(evaluated));
        let kl = |ln_a: &[f64], ln_b: &[f64]| -> f64 {
            ln_a.iter().zip(ln_b).map(|(a, b)| a.exp() * (a - b)).sum()
        };
        close(record.kld, kl(&ln_p, &ln_q), "KLD", record);
        close(record.reverse_kld, kl(&ln_q, &ln_p), "reverse KLD", record);
        close(
            record.ref_entropy,
            -ln_p.iter().map(|ln| ln.exp() * ln).sum::<f64>(),
            "entropy",
            record,
        );
        match record.next_token() {
            Some(next) => {
                close(
                    record.ref_nll,
                    -ln_p[next as usize],
                    "reference NLL",
                    record,
                );
                close(record.eval_nll, -ln_q[next as usize], "NLL", record);
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
fn against_an_exact_reference() {
    check("f32");
}

#[test]
fn against_an_encoded_reference() {
    check("u16");
}
