//! Every score can be written to a sidecar and read again: readers refuse impossible records.

use kl_formats::{
    BackendIdentity, ReferenceSummary, SidecarHeader, SidecarReader, SidecarWriter, TokenTexts,
};
use kl_stats::score::{floor, score};
use proptest::prelude::*;

use super::*;

/// Two rows and the next token.
type Rows = (Vec<f32>, Vec<f32>, Option<u32>);

fn logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        30 => -20f32..20.0,
        5 => -300f32..300.0,
        3 => Just(f32::NEG_INFINITY),
        1 => prop_oneof![Just(f32::MAX), Just(-f32::MAX), prop::num::f32::ANY],
    ]
}

/// Rows that have nothing to do with each other, or are alike, or hold only what is common.
fn rows(n: usize) -> impl Strategy<Value = Rows> {
    let row = move || {
        prop_oneof![
            prop::collection::vec(logit(), n),
            prop::collection::vec(-8f32..8.0, n),
        ]
    };
    let noise = prop_oneof![Just(0.0), Just(1e-6), Just(0.1f32)];
    let next = prop::option::of(0..n as u32);
    (row(), row(), noise, any::<bool>(), next).prop_map(|(row, other, noise, is_alike, next)| {
        let alike = row
            .iter()
            .zip(&other)
            .map(|(x, y)| x + noise * y.clamp(-1.0, 1.0));
        let eval = if is_alike { alike.collect() } else { other };
        (row, eval, next)
    })
}

fn any_rows() -> impl Strategy<Value = Vec<Rows>> {
    let n = prop_oneof![1..70usize, Just(1_030)];
    n.prop_flat_map(|n| prop::collection::vec(rows(n), 1..6))
}

/// The records of a sidecar with these.
fn written(records: &[TokenRecord], n_vocab: u32, by_llama_cpp: bool) -> kl_formats::Result<usize> {
    let backend = by_llama_cpp.then(|| {
        let mut backend = BackendIdentity::default();
        backend.llama_cpp = Some("b1".to_owned());
        backend
    });
    let mut header = SidecarHeader::new(ReferenceSummary::default(), 1, n_vocab, None);
    header.reference.backend.clone_from(&backend);
    header.backend = backend;
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = SidecarWriter::create(&file, file.path(), &header)?;
    for record in records {
        writer.push(record)?;
    }
    writer.finish(&TokenTexts::default())?;
    Ok(SidecarReader::open(file.path())?.read_all()?.len())
}

proptest! {
    #[test]
    fn whatever_rows_give_is_possible(all in any_rows()) {
        let n_vocab = all[0].0.len() as u32;
        let mut records = Vec::new();
        let mut of_base_files = Vec::new();
        for (row, eval, next) in &all {
            let pair = RowPair::new(Row::F32(row), eval, *next);
            records.push(score(&pair));
            let (ref_floor, eval_floor) = (floor(Row::F32(row)), floor(Row::F32(eval)));
            for (ref_floor, eval_floor) in
                [(ref_floor, None), (None, eval_floor), (ref_floor, eval_floor)]
            {
                let pair = RowPair { ref_floor, eval_floor, ..pair };
                of_base_files.push(score(&pair));
            }
        }
        for (records, by_llama_cpp) in [(records, true), (of_base_files, false)] {
            let found = written(&records, n_vocab, by_llama_cpp);
            prop_assert_eq!(found.map_err(|e| e.to_string()), Ok(records.len()));
        }
    }
}
