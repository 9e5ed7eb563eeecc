//! The parts of a sidecar that describe tokens: groups, special tokens and texts.

use std::collections::{BTreeMap, BTreeSet};

use kl_formats::{SidecarReader, TokenRecord, TokenTexts};

use super::*;

impl Folder {
    /// Settings for comparing the rows of another reference with those of `ref`.
    pub(super) fn compare_settings(&self, other: &str, sidecar: &str) -> CompareSettings {
        CompareSettings {
            reference: self.path("ref"),
            others: vec![self.path(other)],
            max_rows: None,
            vocabulary: ComparedVocabulary::Same,
            threads: 1,
            results: ResultSettings {
                sidecar: Some(self.path(sidecar)),
                ..results()
            },
        }
    }

    /// The sidecar of one evaluation.
    fn sidecar(&self, settings: &mut EvaluateSettings, name: &str) -> SidecarReader {
        settings.results.sidecar = Some(self.path(name));
        let report = evaluate(settings, &FakeEngine::default(), &()).unwrap();
        assert!(report.failed.is_empty());
        SidecarReader::open(&self.path(name)).unwrap()
    }
}

#[test]
fn a_sidecar_holds_the_text_of_every_token_that_occurs() {
    let folder = Folder::new();
    folder.write("ref");
    let sidecar = folder.sidecar(&mut folder.evaluate_settings(&["q4"]), "q4.kls");
    let texts = sidecar.texts().unwrap();
    let records = sidecar.read_all().unwrap();
    let of_record = |of: &TokenRecord| [of.token, of.ref_top, of.eval_top];
    let mut tokens: BTreeSet<u32> = records.iter().flat_map(of_record).collect();
    tokens.remove(&u32::MAX);
    assert!(texts.iter().map(|(id, _)| id).eq(tokens));
    let word = "some".bytes().map(u32::from).collect::<Vec<_>>();
    assert_eq!(texts.text(&word), "some");
    // Rows that were stored have no vocabulary.
    let rows = folder.compare_settings("ref", "rows.kls");
    compare(&rows, &FakeEngine::default(), &()).unwrap();
    let rows = SidecarReader::open(&folder.path("rows.kls")).unwrap();
    assert_eq!(rows.texts().unwrap(), TokenTexts::default());
}

#[test]
fn an_evaluation_is_resumed_under_its_own_label_only() {
    let folder = Folder::new();
    folder.write("ref");
    let labelled = |label: &str| BTreeMap::from([(folder.path("q4"), label.to_owned())]);
    let mut settings = folder.evaluate_settings(&["q4"]);
    settings.results.labels = labelled("small");
    let sidecar = folder.sidecar(&mut settings, "q4.kls");
    assert_eq!(sidecar.header.label.as_deref(), Some("small"));
    let whole = folder.bytes("q4.kls");
    let cut = whole.len() / 2;
    settings.results.existing = Existing::Resume;
    let engine = FakeEngine::default();
    for labels in [BTreeMap::new(), labelled("other")] {
        fs::remove_file(folder.path("q4.kls")).ok();
        fs::write(folder.path("q4.kls.partial"), &whole[..cut]).unwrap();
        settings.results.labels = labels;
        let report = evaluate(&settings, &engine, &()).unwrap();
        says(&report.failed[0].error, &["label: small there"]);
    }
    settings.results.labels = labelled("small");
    let report = evaluate(&settings, &engine, &()).unwrap();
    assert!(report.models[0].n_resumed > 0);
    assert!(folder.bytes("q4.kls") == whole, "the same bytes");
}
