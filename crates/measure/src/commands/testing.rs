//! Every command's settings and files for the fake engine, and an observer that notes what it hears: for the tests of
//! this crate and of those above it.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::new_without_default
)]

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use kl_engine::FakeEngine;
use kl_formats::{Encoding, Kind, SidecarReader, Target};
use kl_report::Report;
use tempfile::TempDir;

use super::output::Existing;
use super::settings::{
    ComparedVocabulary, ConvertSettings, EvaluateSettings, MergeSettings, ReferenceSource,
    ResultSettings, RunSettings, Sweep, WriteSettings,
};
use super::{Event, Observer, Written, evaluate, write};
use crate::input::{ScoreFrom, Source};

/// An observer that notes what it hears, and asks to stop after some windows.
#[derive(Default)]
pub struct Recorder {
    pub heard: Mutex<Vec<String>>,
    pub windows: AtomicUsize,
    pub stop_after: Option<usize>,
}

impl Recorder {
    pub fn stopping_after(windows: usize) -> Self {
        Self {
            stop_after: Some(windows),
            ..Self::default()
        }
    }

    pub fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }
}

impl Observer for Recorder {
    fn on_event(&self, event: &Event<'_>) {
        let heard = match event {
            Event::Warning(warning) => format!("warning {}", warning.kind()),
            Event::Note(_) => "note".to_owned(),
            Event::Plan(name, _) => format!("plan {name}"),
            Event::Begin { label, .. } => format!("begin {label}"),
            Event::Rows(_) | Event::Left { .. } => return,
            Event::Window { .. } => {
                self.windows.fetch_add(1, Ordering::Relaxed);
                return;
            }
            Event::Generated(so_far) => {
                let n = so_far.n_answers as usize;
                self.windows.fetch_max(n, Ordering::Relaxed);
                return;
            }
            Event::End => "end".to_owned(),
            Event::Described(_) => "described".to_owned(),
            Event::Verified(_) => "verified".to_owned(),
            Event::Prompted(_) => "prompted".to_owned(),
            Event::Evaluated {
                index, n_models, ..
            } => format!("evaluated {} of {n_models}", index + 1),
            Event::Wrote(_) => "wrote".to_owned(),
            Event::WarningOf(warning, labels) => {
                format!("warning {} of {}", warning.kind(), labels.join(", "))
            }
            Event::Compared(comparison) => format!("compared {}", comparison.models.len()),
            Event::Failed(error) => format!("failed {error}"),
            // How often it comes is a matter of time.
            Event::File { .. } => return,
            Event::Report(report) => format!("report of {}", report.models.len()),
        };
        self.heard.lock().unwrap().push(heard);
    }

    fn should_stop(&self) -> bool {
        let windows = self.windows.load(Ordering::Relaxed);
        self.stop_after.is_some_and(|n| windows >= n)
    }
}

/// A folder with a text and files that the fake engine accepts as models.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        let text = "some words, and then some more of them. ".repeat(20);
        for (name, bytes) in [
            ("f16", "the original"),
            ("copy", "the original"),
            ("q4", "a quant"),
            ("text", &text),
        ] {
            fs::write(folder.path(name), bytes).unwrap();
        }
        folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    /// The records of a sidecar, as text, so that NaN equals NaN.
    pub fn records(&self, name: &str) -> String {
        let sidecar = SidecarReader::open(&self.path(name)).unwrap();
        let records = sidecar.read_all().unwrap();
        assert!(!records.is_empty());
        format!("{records:?}")
    }

    pub fn write_settings(&self, name: &str) -> WriteSettings {
        WriteSettings {
            model: self.path("f16"),
            input: Source {
                score: Some(ScoreFrom::All),
                ..Source::one_text(&self.path("text"), 64)
            },
            output: self.path(name),
            target: target(Kind::Kl, Some(Encoding::F32)),
            chooses_encoding: false,
            part: None,
            existing: Existing::by_flags(false, Some(false)),
            run: run(),
        }
    }

    pub fn write(&self, name: &str) -> Written {
        written(&self.write_settings(name))
    }

    /// Settings for a file of prompts, each with an answer of at most so many tokens.
    pub fn prompts(&self, lines: &[&str], generate: Option<u32>) -> Source {
        fs::write(self.path("prompts"), lines.join("\n")).unwrap();
        Source {
            prompts: Some(self.path("prompts")),
            no_chat_template: true,
            generate,
            ..Source::default()
        }
    }

    pub fn file(&self, name: &str) -> ReferenceSource {
        ReferenceSource::File {
            path: self.path(name),
            n_ctx: None,
        }
    }

    /// Has an evaluation write the sidecar `name`, from its start.
    pub fn write_anew(&self, settings: &mut EvaluateSettings, name: &str) {
        settings.results.sidecar = Some(self.path(name));
        settings.results.existing = Existing::by_flags(false, Some(false));
    }

    pub fn merge_settings(&self, parts: Vec<PathBuf>, resume: bool) -> MergeSettings {
        MergeSettings {
            output: self.path("joined"),
            parts,
            existing: Existing::by_flags(false, resume.then_some(true)),
        }
    }

    pub fn convert_settings(&self, input: &str, output: &str, target: Target) -> ConvertSettings {
        ConvertSettings {
            input: self.path(input),
            output: self.path(output),
            target,
            bos: None,
            existing: Existing::Replace,
            threads: 1,
        }
    }

    pub fn evaluate_settings(&self, models: &[&str]) -> EvaluateSettings {
        EvaluateSettings {
            models: models.iter().map(|name| self.path(name)).collect(),
            skipped: Vec::new(),
            reference: self.file("ref"),
            vocabulary: ComparedVocabulary::Same,
            until: None,
            early: None,
            measures_speed: false,
            sweep: Sweep::none(false),
            results: results(),
            run: run(),
            shelf: Arc::default(),
        }
    }

    pub fn evaluate(&self, models: &[&str]) -> Report {
        evaluated(&self.evaluate_settings(models))
    }
}

/// Writes a reference with the fake engine.
pub fn written(settings: &WriteSettings) -> Written {
    write(settings, &FakeEngine::default(), &()).unwrap()
}

/// Evaluates models with the fake engine.
pub fn evaluated(settings: &EvaluateSettings) -> Report {
    evaluate(settings, &FakeEngine::default(), &()).unwrap()
}

/// An engine that fails to decode this window.
pub fn failing_at(window: u32) -> FakeEngine {
    FakeEngine {
        fails_at: Some(window),
        ..FakeEngine::default()
    }
}

/// Checks that a message has all of `what`, and is one line.
#[track_caller]
pub fn says(message: impl ToString, what: &[&str]) {
    let message = message.to_string();
    let is_said = what.iter().all(|what| message.contains(what));
    assert!(is_said && !message.contains('\n'), "{what:?}: {message}");
}

pub fn target(kind: Kind, encoding: Option<Encoding>) -> Target {
    Target::new(kind, encoding).unwrap()
}

pub fn run() -> RunSettings {
    RunSettings {
        n_batch: Some(16),
        threads: 1,
        ..RunSettings::default()
    }
}

pub fn results() -> ResultSettings {
    ResultSettings {
        no_sidecar: true,
        ..ResultSettings::default()
    }
}

pub fn mean(report: &Report, model: usize) -> f64 {
    let kld = report.models[model].summary.kld.as_ref().unwrap();
    kld.mean.independent.value
}
