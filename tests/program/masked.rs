//! Logits of −∞, and the large finite ones that some programs write in their place.

use std::fs;

use kl_formats::Encoding;

use crate::numbers::{accurate, close, kld, log_softmax, mean, number};
use crate::session::{Session, fixture};

const MASK: f32 = f32::NEG_INFINITY;

/// CRC-32 as zip uses it (ISO 3309), bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
    let byte = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), step);
    !bytes.iter().fold(!0, byte)
}

/// Copies an npz of mlx-kld, stored by numpy, with `token` masked in every row.
fn mask_npz(session: &Session, from: &str, to: &str, token: usize) {
    const N_VOCAB: usize = 1024;
    const HEADER: usize = 128;
    let mut bytes = fs::read(fixture(from)).unwrap();
    let starts: Vec<usize> = (0..bytes.len())
        .filter(|&at| bytes[at..].starts_with(b"\x93NUMPY"))
        .collect();
    // The first array is the metadata.
    for &start in &starts[1..] {
        let end = start + HEADER + 32 * N_VOCAB * 4;
        let old = crc32(&bytes[start..end]).to_le_bytes();
        for row in bytes[start + HEADER..end].chunks_exact_mut(4 * N_VOCAB) {
            row[4 * token..][..4].copy_from_slice(&MASK.to_le_bytes());
        }
        let new = crc32(&bytes[start..end]).to_le_bytes();
        // In the zip's local header and in its directory.
        let stated: Vec<usize> = (0..bytes.len() - 3)
            .filter(|&at| bytes[at..at + 4] == old)
            .collect();
        assert_eq!(stated.len(), 2);
        for at in stated {
            bytes[at..at + 4].copy_from_slice(&new);
        }
    }
    session.write(to, bytes);
}

/// Without the entries that are masked.
fn unmasked(row: &[f32]) -> Vec<f32> {
    row.iter().copied().filter(|x| *x > MASK).collect()
}

#[test]
fn a_column_masked_on_both_sides_leaves_statistics_over_all_rows() {
    let session = Session::new();
    mask_npz(&session, "npz", "ref.npz", 700);
    mask_npz(&session, "peers/mlx-kld-q2_K.npz", "q2.npz", 700);
    let result = session.result("compare ref.npz q2.npz");
    assert_eq!(
        (&result["n_tokens"], &result["n_excluded"]),
        (&64.into(), &0.into())
    );
    let rows = session
        .rows("ref.npz")
        .into_iter()
        .zip(session.rows("q2.npz"));
    let klds: Vec<f64> = rows
        .map(|(p, q)| kld(&log_softmax(&unmasked(&p)), &log_softmax(&unmasked(&q))))
        .collect();
    accurate(number(&result["kld"]["mean"]["value"]), mean(&klds), "mean");
    // The same as without the column.
    let whole = session.result("compare @npz @peers/mlx-kld-q2_K.npz");
    let whole = number(&whole["kld"]["mean"]["value"]);
    assert!((mean(&klds) / whole - 1.0).abs() < 0.1, "{whole}");

    let metrics = session.result("compare ref.npz q2.npz --stats logits --no-sidecar");
    let smoothed = number(&metrics["smoothed_kld"]["mean"]["value"]);
    assert!((smoothed / mean(&klds) - 1.0).abs() < 1e-3, "{smoothed}");
    assert!(number(&metrics["jensen_shannon"]["mean"]["value"]) > 0.0);
}

#[test]
fn a_token_that_only_one_model_excludes_is_infinitely_far() {
    let session = Session::new();
    session.reference("--encoding f32");
    let is_masked = |window, row| window == 1 && [7, 8].contains(&row);
    session.rewrite("ref.gz", "masked.gz", |window, row, mut logits| {
        if is_masked(window, row) {
            logits[500] = MASK;
        }
        logits
    });
    session.kl("compare ref.gz masked.gz -q --sidecar out.kls");
    session.kl("compare masked.gz ref.gz -q --sidecar swapped.kls");
    let records = session.records("out.kls").into_iter();
    for (record, swapped) in records.zip(session.records("swapped.kls")) {
        let infinite = is_masked(record.window, record.position as usize);
        assert!(!record.is_excluded() && !swapped.is_excluded());
        assert_eq!(record.kld == f64::INFINITY, infinite);
        assert_eq!(swapped.reverse_kld == f64::INFINITY, infinite);
        assert!(record.reverse_kld < 0.1 && swapped.kld < 0.1, "{record:?}");
    }
}

#[test]
fn a_finite_mask_costs_nothing_in_u16() {
    let session = Session::new();
    session.reference("--encoding f32");
    session.reference_of("@q8", "q8.gz", "--encoding f32");
    for mask in [-1e4, -65504.0, -f32::MAX, MASK] {
        let masked = |_, _, mut logits: Vec<f32>| {
            logits
                .iter_mut()
                .skip(3)
                .step_by(16)
                .for_each(|x| *x = mask);
            logits
        };
        session.rewrite("ref.gz", "f32.gz", masked);
        session.rewrite("q8.gz", "eval.gz", masked);
        session.rewrite_as(Encoding::U16, "ref.gz", "u16.gz", masked);
        assert!(session.length("u16.gz") < session.length("f32.gz") * 6 / 10);
        let mean = |reference: &str| {
            let line = format!("compare {reference} eval.gz --no-sidecar");
            let result = session.result(&line);
            assert_eq!(result["n_excluded"], 0);
            number(&result["kld"]["mean"]["value"])
        };
        let (exact, coded) = (mean("f32.gz"), mean("u16.gz"));
        close(coded, exact, 1e-6, &format!("{mask}"));
        let rows = session
            .rows("f32.gz")
            .into_iter()
            .zip(session.rows("eval.gz"));
        let klds: Vec<f64> = rows
            .map(|(p, q)| {
                let kept = |row: Vec<f32>| -> Vec<f32> {
                    row.into_iter().filter(|x| *x != mask).collect()
                };
                kld(&log_softmax(&kept(p)), &log_softmax(&kept(q)))
            })
            .collect();
        accurate(exact, crate::numbers::mean(&klds), "mean");
    }
}
