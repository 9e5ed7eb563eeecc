//! A second model in the place of a reference file: everything is as if its rows had been written
//! and read.

use kl_report::Warning;
use serde_json::Value;

use super::*;
use crate::commands::settings::ReferenceModel;

/// The result of an evaluation: the report without times, paths and what names the reference.
fn numbers(report: &Report) -> Value {
    let mut json = serde_json::to_value(report).unwrap();
    let mut forget = |pointer: &str, keys: &[&str]| {
        let object = json.pointer_mut(pointer).unwrap().as_object_mut().unwrap();
        keys.iter().for_each(|&key| drop(object.remove(key)));
    };
    forget("/reference", &["path", "kind"]);
    for model in 0..report.models.len() {
        forget(&format!("/models/{model}"), &["timing", "sidecar"]);
    }
    json
}

impl Folder {
    /// Settings of an evaluation against `f16` itself, over the input of [`Folder::write_settings`].
    pub(super) fn ref_model_settings(&self, models: &[&str]) -> EvaluateSettings {
        let mut settings = self.evaluate_settings(models);
        settings.reference = ReferenceSource::Model(Box::new(ReferenceModel {
            path: self.path("f16"),
            input: self.write_settings("").input,
            run: run(),
        }));
        settings.results.json_tokens = true;
        settings
    }

    /// Evaluates in both ways, each with these settings, and compares the reports.
    fn in_both_ways(
        &self,
        models: &[&str],
        input: impl Fn() -> Source,
        change: impl Fn(&mut EvaluateSettings),
        change_run: impl Fn(&mut RunSettings),
    ) -> Report {
        let engine = FakeEngine::default();
        let mut to_write = self.write_settings("two-step");
        to_write.input = input();
        to_write.existing = Existing::Replace;
        change_run(&mut to_write.run);
        write(&to_write, &engine, &()).unwrap();
        let mut settings = self.evaluate_settings(models);
        settings.reference = self.file("two-step");
        settings.results.json_tokens = true;
        change_run(&mut settings.run);
        change(&mut settings);
        let read = evaluate(&settings, &engine, &()).unwrap();

        let mut settings = self.ref_model_settings(models);
        let model = reference_of(&mut settings);
        model.input = input();
        change_run(&mut model.run);
        change_run(&mut settings.run);
        change(&mut settings);
        let computed = evaluate(&settings, &engine, &()).unwrap();
        assert!(computed.complete && computed.failed.is_empty());
        assert_eq!(computed.reference.kind, Some(Kind::Model));
        // Thousands of numbers say nothing in a failure.
        assert!(numbers(&computed) == numbers(&read), "not the same numbers");
        computed
    }

    /// The text, cut into windows that are scored from `score` on.
    fn text(&self, n_ctx: u32, score: ScoreFrom) -> Source {
        Source {
            n_ctx: Some(n_ctx),
            score: Some(score),
            ..self.write_settings("").input
        }
    }

    fn three_prompts(&self, generate: Option<u32>) -> Source {
        let lines = ["a prompt", "another, longer prompt", "the last one"];
        self.prompts(&lines, generate)
    }
}

#[test]
fn every_input_gives_the_numbers_of_a_file() {
    let folder = Folder::new();
    fs::write(folder.path("code"), "fn main() { println!(); } ".repeat(9)).unwrap();
    let grouped = || {
        let named = |group: &str, name: &str| NamedText {
            group: Some(group.to_owned()),
            path: folder.path(name),
        };
        Source {
            texts: vec![named("words", "text"), named("code", "code")],
            n_ctx: Some(40),
            stride: Some(30),
            score: Some(ScoreFrom::New),
            ..Source::default()
        }
    };
    let inputs: [(&str, &dyn Fn() -> Source); 6] = [
        ("text", &|| folder.text(64, ScoreFrom::All)),
        // The first decode calls of a window bring no row, and the last one few.
        ("half", &|| folder.text(70, ScoreFrom::Half)),
        ("one window", &|| folder.text(5000, ScoreFrom::Text)),
        ("groups", &grouped),
        ("prompts", &|| folder.three_prompts(None)),
        ("generated", &|| folder.three_prompts(Some(5))),
    ];
    for (name, input) in inputs {
        for n_batch in [1, 7, 16, 512] {
            let in_batches = |run: &mut RunSettings| run.n_batch = Some(n_batch);
            let report = folder.in_both_ways(&["q4"], input, |_| {}, in_batches);
            assert!(report.models[0].summary.n_tokens > 10, "{name} {n_batch}");
        }
    }
}

#[test]
fn every_choice_of_windows_gives_the_numbers_of_a_file() {
    let folder = Folder::new();
    let text = || folder.text(9, ScoreFrom::All);
    let two = |settings: &mut EvaluateSettings| settings.run.contexts = Some(2);
    folder.in_both_ways(&["q4"], text, two, |_| {});
    let report = folder.in_both_ways(&["q4"], text, |_| {}, |run| run.max_rows = Some(100));
    assert_eq!(report.models[0].summary.n_tokens, 100);
    let until = |settings: &mut EvaluateSettings| settings.until = Some(0.03);
    let report = folder.in_both_ways(&["q4"], text, until, |_| {});
    assert!(report.models[0].until.unwrap().reached);
    for part in ["0/3", "2/3"] {
        let in_part =
            |settings: &mut EvaluateSettings| settings.results.part = Some(part.parse().unwrap());
        let report = folder.in_both_ways(&["q4"], text, in_part, |_| {});
        assert_eq!(report.models[0].shard.unwrap().count, 3);
    }
}

#[test]
fn several_models_run_beside_one_that_is_loaded_once() {
    let folder = Folder::new();
    let text = || folder.text(64, ScoreFrom::Text);
    let report = folder.in_both_ways(&["copy", "f16", "q4"], text, |_| {}, |_| {});
    assert_eq!((mean(&report, 0), mean(&report, 1)), (0.0, 0.0));
    assert!(report.models[1].is_reference_model && !report.models[2].is_reference_model);
    assert!(mean(&report, 2) > 1.0);

    let observer = Recorder::default();
    let settings = folder.ref_model_settings(&["q4", "missing"]);
    let report = evaluate(&settings, &FakeEngine::default(), &observer).unwrap();
    assert_eq!((report.models.len(), report.failed.len()), (1, 1));
    let heard = observer.heard();
    assert!(heard[0].contains("missing"), "{heard:?}");
    assert_eq!(heard[1..4], ["plan memory", "plan model", "plan text"]);
}

#[test]
fn sidecars_hold_the_same_records_and_those_of_separate_runs_belong_together() {
    let folder = Folder::new();
    let engine = FakeEngine::default();
    folder.write("ref");
    let evaluate_into = |mut settings: EvaluateSettings, name: &str| {
        settings.results.sidecar = Some(folder.path(name));
        evaluate(&settings, &engine, &()).unwrap();
        let sidecar = SidecarReader::open(&folder.path(name)).unwrap();
        sidecar.header.reference.clone()
    };
    let of_file = evaluate_into(folder.evaluate_settings(&["q4"]), "read.kls");
    let of_model = evaluate_into(folder.ref_model_settings(&["q4"]), "one.kls");
    let of_other = evaluate_into(folder.ref_model_settings(&["copy"]), "two.kls");
    assert_eq!(folder.records("one.kls"), folder.records("read.kls"));
    assert_eq!(of_model, of_other);
    assert_eq!(of_model.kind, Some(Kind::Model));
    assert_eq!(of_model.file_name.as_deref(), Some("f16"));
    assert_eq!(of_model.model, of_file.model);
    assert_eq!(of_model.backend, of_file.backend);
    assert_ne!(of_model.fingerprint, of_file.fingerprint);

    // Another text is another reference.
    fs::write(folder.path("text"), "other words ".repeat(60)).unwrap();
    let of_other_text = evaluate_into(folder.ref_model_settings(&["q4"]), "three.kls");
    assert_ne!(of_model.fingerprint, of_other_text.fingerprint);
}

#[test]
fn what_was_cut_off_resumes_to_the_same_bytes() {
    let folder = Folder::new();
    let mut settings = folder.ref_model_settings(&["q4"]);
    folder.write_anew(&mut settings, "whole.kls");
    evaluated(&settings);

    settings.results.sidecar = Some(folder.path("part.kls"));
    let failing = failing_at(2);
    let report = evaluate(&settings, &failing, &()).unwrap();
    says(&report.failed[0].error, &["--resume"]);
    for (windows, stops) in [(3, true), (usize::MAX, false)] {
        settings.results.existing = Existing::Resume;
        let observer = Recorder::stopping_after(windows);
        let report = evaluate(&settings, &FakeEngine::default(), &observer).unwrap();
        assert!(report.models[0].n_resumed > 0);
        assert_eq!(report.models[0].interrupted.is_some(), stops);
    }
    assert_eq!(folder.bytes("part.kls"), folder.bytes("whole.kls"));

    // Over another text, nothing is continued.
    folder.write_anew(&mut settings, "other.kls");
    evaluate(&settings, &failing, &()).unwrap();
    fs::write(folder.path("text"), "other words ".repeat(60)).unwrap();
    settings.results.existing = Existing::Resume;
    let report = evaluated(&settings);
    says(&report.failed[0].error, &["another"]);
}

/// The settings of the reference model.
fn reference_of(settings: &mut EvaluateSettings) -> &mut ReferenceModel {
    match &mut settings.reference {
        ReferenceSource::Model(model) => model,
        ReferenceSource::File { .. } => unreachable!("a model"),
    }
}

#[test]
fn another_measurement_is_refused_before_answers_are_generated() {
    let folder = Folder::new();
    // Returns why each model was refused, and how many models were loaded.
    let evaluated = |models: &[&str], change: &dyn Fn(&mut EvaluateSettings)| {
        let mut settings = folder.ref_model_settings(models);
        reference_of(&mut settings).input = folder.three_prompts(Some(5));
        folder.write_anew(&mut settings, "s.kls");
        change(&mut settings);
        let (engine, observer) = (FakeEngine::default(), Recorder::default());
        let report = evaluate(&settings, &engine, &observer).unwrap();
        let has_generated = observer.heard().contains(&"begin generating".to_owned());
        assert_eq!(has_generated, report.failed.is_empty());
        let failed = report.failed.into_iter().map(|failure| failure.error);
        let n_loaded = engine.n_loaded.load(Ordering::Relaxed);
        (failed.collect::<Vec<_>>(), n_loaded)
    };
    assert_eq!(evaluated(&["q4"], &|_| ()), (vec![], 2));
    assert_eq!(evaluated(&["q4"], &|_| ()), (vec![], 2), "the same again");
    fn prompts(settings: &mut EvaluateSettings) -> &mut Source {
        &mut reference_of(settings).input
    }
    type Change<'c> = &'c dyn Fn(&mut EvaluateSettings);
    // The reference model must tokenize the prompts first where their windows may be others.
    let refused: [(&str, usize, Change<'_>); 6] = [
        ("(reference.model.", 0, &|of| {
            reference_of(of).path = folder.path("q4");
        }),
        ("(reference.text.", 0, &|of| {
            prompts(of).prompts = Some(folder.path("text"));
        }),
        ("(reference.sampling: none there, ", 0, &|of| {
            prompts(of).temp = Some(1.0)
        }),
        ("(model.file_name: q4 there, copy here)", 0, &|of| {
            of.models = vec![folder.path("copy"); 2]
        }),
        ("there, ", 1, &|of| prompts(of).generate = Some(6)),
        ("there, ", 1, &|of| prompts(of).max_windows = Some(2)),
    ];
    for (what, n_loaded, change) in refused {
        for models in [&["q4"][..], &["q4", "q4"]] {
            let (failed, loaded) = evaluated(models, change);
            failed.iter().for_each(|why| says(why, &[what]));
            assert_eq!(loaded, n_loaded, "{what}");
        }
    }
}

#[test]
fn what_is_wrong_is_found_before_any_model_is_loaded() {
    let folder = Folder::new();
    let refused = |models: &[&str], change: &dyn Fn(&mut ReferenceModel)| {
        let mut settings = folder.ref_model_settings(models);
        change(reference_of(&mut settings));
        let (engine, observer) = (FakeEngine::default(), Recorder::default());
        let why = match evaluate(&settings, &engine, &observer) {
            Ok(report) => report.failed[0].error.clone(),
            Err(error) => error.to_string(),
        };
        assert_eq!(engine.n_loaded.load(Ordering::Relaxed), 0);
        why
    };
    says(refused(&["missing"], &|_| {}), &["missing"]);
    let original = refused(&["q4"], &|model| model.path = folder.path("original"));
    says(original, &["original"]);
    let no_text = refused(&["q4", "copy"], &|model| {
        fs::remove_file(folder.path("text")).unwrap();
        model.input = folder.text(64, ScoreFrom::All);
    });
    says(no_text, &["text"]);
}

#[test]
fn two_models_larger_than_the_memory_are_warned_of() {
    let folder = Folder::new();
    let settings = folder.ref_model_settings(&["q4"]);
    let warns = |memory_free: u64| {
        let engine = FakeEngine {
            memory_free,
            ..FakeEngine::default()
        };
        let report = evaluate(&settings, &engine, &()).unwrap();
        let mut kinds = report.warnings.iter().map(Warning::kind);
        kinds.any(|kind| kind == "larger_than_memory")
    };
    // "the original" and "a quant".
    assert!(warns(18) && !warns(19));
}
