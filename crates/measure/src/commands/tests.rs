//! Every command on the fake engine: what it reports, what it returns, and what it leaves behind.

mod changed;
mod check;
mod default_encoding;
mod device;
mod early;
mod finished;
mod parts;
mod read_states;
mod recorded;
mod ref_model;
mod resume_states;
mod sweep;
mod together;
mod write_states;

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use kl_engine::{CacheType, FakeEngine};
use kl_formats::{Encoding, Kind, SidecarReader};
use kl_report::Report;
use kl_stats::stats::Confidence;

use super::settings::{
    CompareSettings, ComparedVocabulary, EvaluateSettings, ReferenceSource, ResultSettings,
    RunSettings, WriteSettings,
};
use super::testing::*;
use super::{Event, Observer, compare, convert, evaluate, info, one_line, write};
use crate::commands::output::Existing;
use crate::input::{NamedText, ScoreFrom, Source};

#[test]
fn a_model_against_its_own_reference_is_exactly_0_and_another_is_not() {
    let folder = Folder::new();
    let written = folder.write("ref");
    assert!(!written.file.was_whole && written.file.n_rows > 0);
    let report = folder.evaluate(&["copy", "q4"]);
    assert!(report.complete && report.failed.is_empty());
    assert!(report.models[0].is_reference_model && !report.models[1].is_reference_model);
    assert_eq!(mean(&report, 0), 0.0);
    assert!(mean(&report, 1) > 1.0);
    assert_eq!(report.models[1].summary.n_tokens, written.file.n_rows);
}

#[test]
fn an_observer_hears_what_happens_in_order() {
    let folder = Folder::new();
    let observer = Recorder::default();
    let engine = FakeEngine::default();
    write(&folder.write_settings("ref"), &engine, &observer).unwrap();
    let order = "warning few_windows, plan model, plan text, plan window, plan windows, plan rows, \
         plan sizes, plan file, begin writing, end";
    assert_eq!(observer.heard().join(", "), order);
    let observer = Recorder::default();
    let settings = folder.evaluate_settings(&["copy", "missing", "q4"]);
    let report = evaluate(&settings, &engine, &observer).unwrap();
    let heard = observer.heard();
    assert!(heard[0].starts_with("failed") && heard[0].contains("missing"));
    // A fake model is as large as its file, and its rows are noise.
    let order = "report of 0, begin copy, end, warning few_windows, warning high_perplexity, \
         evaluated 1 of 3, report of 1, warning other_model, begin q4, end, warning far_apart, \
         evaluated 3 of 3, report of 2, compared 2, warning other_model of q4";
    assert_eq!(heard[1..].join(", "), order);
    assert_eq!((report.models.len(), report.failed.len()), (2, 1));
    let kinds = report.warnings.iter().map(|warning| warning.kind());
    let once = ["few_windows", "high_perplexity", "other_model", "far_apart"];
    assert!(kinds.eq(once), "once per run");
}

#[test]
fn a_write_that_is_stopped_resumes_to_the_same_bytes() {
    let folder = Folder::new();
    let engine = FakeEngine::default();
    folder.write("whole");
    for (windows, contexts) in [(0, 1), (1, 1), (5, 1), (0, 2), (3, 2)] {
        let name = format!("ref{windows}-{contexts}");
        let mut settings = folder.write_settings(&name);
        settings.run.contexts = Some(contexts);
        let stopping = Recorder::stopping_after(windows);
        let error = write(&settings, &engine, &stopping).unwrap_err();
        says(error, &["interrupted"]);
        assert!(!settings.output.exists());
        settings.existing = Existing::Resume;
        let written = write(&settings, &engine, &()).unwrap();
        assert!(!written.file.was_whole);
        assert_eq!(folder.bytes(&name), folder.bytes("whole"));
        let again = write(&settings, &engine, &()).unwrap();
        assert!(again.file.was_whole, "nothing is left to do");
    }
}

/// An observer that asks to stop after a warning of this kind, and keeps what it hears.
struct StopsAt(&'static str, Recorder);

impl Observer for StopsAt {
    fn on_event(&self, event: &Event<'_>) {
        self.1.on_event(event);
    }

    fn should_stop(&self) -> bool {
        self.1.heard().contains(&format!("warning {}", self.0))
    }
}

#[test]
fn a_reference_that_may_not_fit_is_told_before_the_first_answer() {
    let folder = Folder::new();
    let mut settings = folder.write_settings("ref");
    let prompts = |generate| folder.prompts(&["one", "two", "three", "four"], Some(generate));
    settings.input = prompts(200_000);
    // 13 TB, of which a fourth is the part's.
    let engine = FakeEngine {
        n_vocab: 1 << 22,
        ..FakeEngine::default()
    };
    for part in [None, Some("1/4".parse().unwrap())] {
        settings.part = part;
        let observer = StopsAt("may_not_fit", Recorder::default());
        let stopped = write(&settings, &engine, &observer).unwrap_err();
        says(stopped, &["interrupted"]);
        let expected = ["warning may_not_fit", "begin generating", "end"];
        let heard = observer.1.heard();
        assert!(heard.ends_with(&expected.map(str::to_owned)), "{heard:?}");
        // Of a part, nobody knows how many windows the others have.
        assert_eq!(heard[0] == "warning few_windows", part.is_none());
    }
    // What fits is not warned of.
    let observer = Recorder::default();
    settings.part = None;
    settings.input = prompts(3);
    write(&settings, &FakeEngine::default(), &observer).unwrap();
    let begun = ["warning few_windows", "begin generating"];
    assert_eq!(observer.heard()[..2], begun);
}

#[test]
fn a_model_that_fails_keeps_its_records_and_does_not_keep_the_others_from_theirs() {
    let folder = Folder::new();
    folder.write("ref");
    let failing = failing_at(2);
    let mut settings = folder.evaluate_settings(&["q4"]);
    folder.write_anew(&mut settings, "q4.kls");
    let report = evaluate(&settings, &failing, &()).unwrap();
    assert!(report.models.is_empty());
    says(&report.failed[0].error, &["window 2", "--resume"]);
    assert!(folder.path("q4.kls.partial").exists());
}

/// Settings of an evaluation of 200 windows that stops long before its end.
fn until_settings(folder: &Folder) -> EvaluateSettings {
    let mut settings = folder.write_settings("ref");
    settings.input.n_ctx = Some(5);
    written(&settings);
    let mut settings = folder.evaluate_settings(&["q4"]);
    settings.until = Some(0.03);
    settings
}

#[test]
fn an_evaluation_stops_where_the_mean_is_known_well_enough() {
    let folder = Folder::new();
    let mut settings = until_settings(&folder);
    settings.results.sidecar = Some(folder.path("one.kls"));
    let report = evaluated(&settings);
    let model = &report.models[0];
    let until = model.until.unwrap();
    let n_windows = model.summary.n_windows;
    assert!(until.reached && (100..190).contains(&n_windows));
    assert_eq!((until.target, until.of), (0.03, Some(200)));
    let width = until.relative_half_width.unwrap();
    assert!(width < 0.03 && width > 0.02, "{width}");
    assert!(model.timing.is_some() && report.complete);

    // Decoding ahead changes nothing, nor does a window that fails beyond the end.
    settings.run.contexts = Some(2);
    settings.results.sidecar = Some(folder.path("two.kls"));
    evaluated(&settings);
    assert_eq!(folder.bytes("two.kls"), folder.bytes("one.kls"));

    // A width that is never reached.
    settings.until = Some(0.001);
    settings.results.sidecar = None;
    let report = evaluated(&settings);
    let until = report.models[0].until.unwrap();
    assert_eq!(report.models[0].summary.n_windows, 200);
    assert!(!until.reached);

    // Fewer rows may be asked for as well: whichever comes first.
    settings.run.max_rows = Some(100);
    let report = evaluated(&settings);
    assert_eq!(report.models[0].summary.n_tokens, 100);
}

#[test]
fn an_evaluation_that_is_stopped_resumes_to_the_same_end() {
    let folder = Folder::new();
    let engine = FakeEngine::default();
    let mut settings = until_settings(&folder);
    folder.write_anew(&mut settings, "whole.kls");
    let whole = evaluate(&settings, &engine, &()).unwrap();
    let n_windows = whole.models[0].summary.n_windows as usize;
    // The last part ends where nothing but the file's end is missing.
    for windows in [1, 101, n_windows] {
        let name = format!("part{windows}.kls");
        folder.write_anew(&mut settings, &name);
        let part = evaluate(&settings, &engine, &Recorder::stopping_after(windows)).unwrap();
        if windows < n_windows {
            assert!(!part.models[0].until.unwrap().reached);
        }
        settings.results.existing = Existing::Resume;
        let resumed = evaluate(&settings, &engine, &()).unwrap();
        assert_eq!(mean(&resumed, 0), mean(&whole, 0), "{windows}");
        assert_eq!(folder.bytes(&name), folder.bytes("whole.kls"), "{windows}");
        assert!(resumed.models[0].until.unwrap().reached);
    }
    // What is done is not repeated, as long as it would end in the same place.
    settings.results.sidecar = Some(folder.path("whole.kls"));
    let again = evaluate(&settings, &engine, &()).unwrap();
    assert!(again.models[0].timing.is_none());
    settings.results.confidence = Confidence::new(0.99).unwrap();
    let refused = evaluate(&settings, &engine, &()).unwrap();
    assert!(refused.failed[0].error.contains("--confidence"));
    settings.results.existing = Existing::Replace;
    let wider = evaluate(&settings, &engine, &()).unwrap();
    assert!(wider.models[0].summary.n_windows as usize > n_windows);
}
