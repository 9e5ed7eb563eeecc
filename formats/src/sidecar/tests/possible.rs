//! Values that no pair of rows gives, under checksums that match.

use super::*;

/// A record like those that scoring makes, of a vocabulary of 5.
fn good() -> TokenRecord {
    TokenRecord {
        ref_top: 4,
        eval_top: 0,
        ref_top_rank: 2,
        eval_top_rank: 5,
        ..crate::common::record()
    }
}

/// Reads a file whose second record is this.
fn read_record(header: SidecarHeader, record: TokenRecord) -> Result<Vec<TokenRecord>> {
    let mut writer = SidecarWriter::create(Vec::new(), Path::new("out"), &header).unwrap();
    writer.push(&good()).unwrap();
    writer.push(&record).unwrap();
    let scratch = Scratch::new();
    let bytes = writer.finish(&texts()).unwrap();
    SidecarReader::open(scratch.file(&bytes))?.read_all()
}

type Change = fn(&mut TokenRecord);

#[test]
fn impossible_values_are_damage() {
    let cases: &[(&str, Change)] = &[
        ("kld is -0.5,", |r| r.kld = -0.5),
        ("kld is -1e-8,", |r| r.kld = -1e-8),
        ("kld is 1e308,", |r| r.kld = 1e308),
        ("kld is NaN,", |r| r.kld = f64::NAN),
        ("kld is -inf,", |r| r.kld = f64::NEG_INFINITY),
        ("reverse_kld is -1.0,", |r| r.reverse_kld = -1.0),
        ("reverse_kld is NaN,", |r| r.reverse_kld = f64::NAN),
        ("ref_nll is -2.0,", |r| r.ref_nll = -2.0),
        ("eval_nll is -inf,", |r| r.eval_nll = f64::NEG_INFINITY),
        ("eval_nll is 1e300,", |r| r.eval_nll = 1e300),
        ("ref_nll is 1.0,", |r| r.token = u32::MAX),
        ("ref_entropy is 1.7,", |r| r.ref_entropy = 1.7),
        ("ref_entropy is inf,", |r| r.ref_entropy = f64::INFINITY),
        ("ref_entropy is NaN,", |r| r.ref_entropy = f64::NAN),
        ("ref_top_p is 1.5,", |r| r.ref_top_p = 1.5),
        ("eval_top_p is NaN,", |r| r.eval_top_p = f64::NAN),
        ("eval_top_p is -0.1,", |r| r.eval_top_p = -0.1),
        ("ref_unknown_p is 2.0,", |r| r.ref_unknown_p = 2.0),
        ("ref_top is 5.0,", |r| r.ref_top = 5),
        ("eval_top is 4294967295.0,", |r| r.eval_top = u32::MAX),
        ("token is 5.0,", |r| r.token = 5),
        ("ref_top_rank is 0.0,", |r| r.ref_top_rank = 0),
        ("eval_top_rank is 6.0,", |r| r.eval_top_rank = 6),
    ];
    for (said, change) in cases {
        let mut record = TokenRecord {
            window: 7,
            position: 6,
            ..good()
        };
        change(&mut record);
        let error = read_record(header(2), record).unwrap_err().to_string();
        let place = format!("corrupt: record 1, of position 6: {said}");
        assert!(error.contains(&place), "{said}: {error}");
        assert!(error.contains("at window 7, byte "), "{error}");
        // Nobody uses the values of an excluded record.
        record.flags = TokenRecord::REF_NOT_FINITE;
        assert!(read_record(header(2), record).is_ok(), "{said}");
    }
}

#[test]
fn extreme_values_are_read() {
    let changes: [Change; 8] = [
        |_| {},
        |r| (r.kld, r.reverse_kld) = (f64::INFINITY, f64::INFINITY),
        |r| (r.ref_nll, r.eval_nll) = (f64::INFINITY, f64::INFINITY),
        |r| (r.kld, r.eval_nll) = (2.0 * f64::from(f32::MAX), 2.0 * f64::from(f32::MAX)),
        |r| (r.kld, r.reverse_kld, r.ref_entropy) = (-1e-12, -0.0, 5f64.ln() + 1e-9),
        |r| (r.ref_top_p, r.eval_top_p, r.ref_unknown_p) = (1.0, 0.0, 1.0),
        |r| (r.ref_top_p, r.eval_top_p, r.ref_unknown_p) = (-1e-12, 1.0 + 1e-12, -1e-12),
        |r| (r.token, r.ref_nll, r.eval_nll) = (u32::MAX, f64::NAN, f64::NAN),
    ];
    for (i, change) in changes.into_iter().enumerate() {
        let mut record = good();
        change(&mut record);
        assert!(read_record(header(2), record).is_ok(), "{i}: {record:?}");
    }
}

#[test]
fn only_rows_of_a_base_file_leave_probabilities_unknown() {
    let by_llama_cpp = Some(crate::common::backend());
    let (mut of_ref, mut of_eval) = (header(2), header(2));
    of_ref.reference.backend = by_llama_cpp.clone();
    of_eval.backend = by_llama_cpp;
    let unknown: [(SidecarHeader, Change); 2] = [
        (of_ref, |r| r.ref_nll = f64::NAN),
        (of_eval, |r| r.eval_nll = f64::NAN),
    ];
    for (by_llama_cpp, change) in unknown {
        let mut record = good();
        change(&mut record);
        assert!(read_record(header(2), record).is_ok());
        let error = read_record(by_llama_cpp, record).unwrap_err().to_string();
        assert!(error.contains("nll is NaN"), "{error}");
    }
}
