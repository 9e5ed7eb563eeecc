//! References of hidden states, as every command reads them: it does what it does with the rows that
//! they make.

use kl_engine::FakeStates;
use kl_formats::{Kind, Reference, Rows};
use kl_report::Warning;

use super::write_states::with;
use super::*;

/// A folder with both kinds of references of a model: rows in `ref`, their states in `hidden`.
struct Both {
    folder: Folder,
    /// The engine that computes rows of the states.
    engine: FakeEngine,
}

impl Both {
    fn new() -> Self {
        let folder = Folder::new();
        folder.write("ref");
        written(&folder.states_settings("hidden", Encoding::Hidden));
        let engine = FakeEngine::default();
        Self { folder, engine }
    }

    /// The same folder, but with an engine whose rows of states are off by up to `error`.
    fn read_with_error(self, error: f32) -> Self {
        let engine = with(FakeStates::Never { error });
        Self { engine, ..self }
    }

    /// Evaluates models against the file `reference`, with sidecars `<model>.kls`.
    fn evaluate(&self, reference: &str, change: impl Fn(&mut EvaluateSettings)) -> Report {
        let report = self.try_evaluate(reference, change);
        assert_eq!(report.failed.len(), 0, "{:?}", report.failed);
        report
    }

    fn try_evaluate(&self, reference: &str, change: impl Fn(&mut EvaluateSettings)) -> Report {
        let mut settings = self.folder.evaluate_settings(&["q4"]);
        settings.reference = self.folder.file(reference);
        settings.results.sidecar = Some(self.folder.path("q4.kls"));
        settings.results.existing = Existing::Replace;
        change(&mut settings);
        evaluate(&settings, &self.engine, &()).unwrap()
    }

    /// The records of an evaluation against the file `reference`.
    fn records(&self, reference: &str, change: impl Fn(&mut EvaluateSettings)) -> String {
        self.evaluate(reference, change);
        self.folder.records("q4.kls")
    }
}

#[test]
fn an_evaluation_resumes_and_vocabularies_are_cut_as_with_stored_rows() {
    let both = Both::new();
    let folder = &both.folder;
    let expected = both.records("hidden", |settings| {
        settings.results.existing = Existing::by_flags(false, Some(false))
    });
    let mut settings = folder.evaluate_settings(&["q4"]);
    settings.reference = folder.file("hidden");
    folder.write_anew(&mut settings, "part.kls");
    evaluate(&settings, &both.engine, &Recorder::stopping_after(3)).unwrap();
    settings.results.existing = Existing::Resume;
    let resumed = evaluate(&settings, &both.engine, &()).unwrap();
    assert!(resumed.models[0].n_resumed > 0);
    assert_eq!(folder.records("part.kls"), expected);

    // A model of fewer entries.
    let smaller = Both {
        folder: both.folder,
        engine: FakeEngine {
            n_vocab: 120,
            ..both.engine.clone()
        },
    };
    for vocabulary in [ComparedVocabulary::Common, ComparedVocabulary::Tokenizer] {
        let cut = |settings: &mut EvaluateSettings| settings.vocabulary = vocabulary;
        assert_eq!(smaller.records("hidden", cut), smaller.records("ref", cut));
    }
}

#[test]
fn rows_that_are_not_the_models_are_a_warning_or_an_error() {
    let is_moved = |warning: &Warning| warning.kind() == "rows_moved";
    let here = |report: &Report| report.reference.states.clone().unwrap().here.unwrap();
    let both = Both::new().read_with_error(1e-4);
    let near = both.evaluate("hidden", |_| ());
    let max_kld = here(&near).error.max_kld;
    assert_eq!(here(&near).is_exact, Some(false));
    assert!(max_kld > 0.0 && max_kld < 1e-6, "{max_kld}");
    assert!(!near.warnings.iter().any(is_moved));

    let both = both.read_with_error(0.2);
    let far = both.evaluate("hidden", |_| ());
    let max_kld = here(&far).error.max_kld;
    assert!((1e-3..0.1).contains(&max_kld), "{max_kld}");
    assert!(far.warnings.iter().any(is_moved));

    let wrong = both.read_with_error(8.0);
    let report = wrong.try_evaluate("hidden", |_| ());
    says(&report.failed[0].error, &["hidden: the rows computed from"]);
    let target = target(Kind::Kl, Some(Encoding::U16));
    let settings = wrong.folder.convert_settings("hidden", "out", target);
    assert!(convert(&settings, &wrong.engine, &()).is_err());
    assert!(!wrong.folder.path("out").exists());
}

#[test]
fn info_shows_the_states_and_verify_reads_the_head() {
    let both = Both::new();
    let path = both.folder.path("hidden");
    let described = || info(&path, true, None, &both.engine, &());
    let shown = described().unwrap();
    let text = kl_report::info_text(&shown);
    assert!(
        text.contains("8 numbers each, f16, from batches of 16"),
        "{text}"
    );
    assert!(
        text.contains("output.weight, f32, 4.00 KiB, sha256"),
        "{text}"
    );
    let json = serde_json::to_value(&shown).unwrap();
    assert_eq!(json["encoding"], "hidden");
    assert_eq!(json["states"]["check"]["rows"][7]["position"], 63);

    // A byte of the head, and one of a check row: every command finds the fault.
    let whole = both.folder.bytes("hidden");
    let reference = Reference::open(&path).unwrap();
    let Rows::States(rows, _) = reference.rows() else {
        panic!("hidden states")
    };
    let check_row = rows.check_rows().unwrap().remove(0);
    let mut head = Vec::new();
    rows.head().read_to_end(&mut head).unwrap();
    let logits: Vec<u8> = check_row.iter().flat_map(|x| x.to_le_bytes()).collect();
    for part in [&head[100..140], &logits[100..140]] {
        let at = whole.windows(part.len()).position(|bytes| bytes == part);
        let mut damaged = whole.clone();
        damaged[at.expect("stored, not deflated")] ^= 1;
        fs::write(&path, &damaged).unwrap();
        says(described().unwrap_err(), &["hidden"]);
        let report = both.try_evaluate("hidden", |_| ());
        let error = &report.failed[0].error;
        says(error, &["checksum"]);
        assert_eq!(error.matches(&path.display().to_string()).count(), 1);
    }
}
