//! Quants of which one is to be picked stop early: with the fake engine, and by replaying the sidecars of real models.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use kl_engine::FakeEngine;
use kl_formats::{Pace, SidecarHeader, SidecarReader, Speed, TokenRecord};
use kl_report::pick::early::EarlyRule;
use kl_report::pick::rule::Limits;
use kl_report::pick::{Pick, Wishes};

use crate::commands::evaluate;
use crate::commands::evaluation::EarlyStop;
use crate::commands::output::Existing;
use crate::commands::report::{self, Reported};
use crate::commands::settings::{EvaluateSettings, ReportSettings, ResultSettings};
use crate::commands::testing::*;
use crate::pipeline::shuffled;

/// Settings of an evaluation of 20 models over 200 windows, of which those stop that are above a mean KLD.
fn early_settings(folder: &Folder) -> EvaluateSettings {
    let mut settings = folder.write_settings("ref");
    settings.input.n_ctx = Some(5);
    written(&settings);
    let names: Vec<String> = (0..20).map(|i| format!("quant{i}")).collect();
    for name in &names {
        fs::write(folder.path(name), name).unwrap();
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    EvaluateSettings {
        early: Some(EarlyRule {
            n_quants: names.len(),
            n_windows: 200,
            context: 5,
            max_kld: Some(1e-6),
        }),
        results: ResultSettings {
            sidecar_folder: Some(folder.path("")),
            reference: folder.path("ref"),
            ..ResultSettings::default()
        },
        ..folder.evaluate_settings(&names)
    }
}

#[test]
fn what_is_surely_above_the_limit_stops_after_a_tenth() {
    let folder = Folder::new();
    let mut settings = early_settings(&folder);
    let report = evaluated(&settings);
    assert!(report.complete && report.models.len() == 20);
    // Without another beside which to say so, none stops.
    let (first, others) = report.models.split_first().unwrap();
    assert_eq!(first.summary.n_windows, 200);
    assert!(first.interrupted.is_none() && folder.path("quant0@ref.kls").exists());
    for model in others {
        let stopped = model.interrupted.as_ref().unwrap();
        assert_eq!((stopped.n_windows, stopped.of), (20, Some(200)));
        says(stopped.why.as_ref().unwrap(), &["surely above"]);
        assert_eq!(model.summary.n_windows, 20);
        assert!(model.sidecar.is_none());
    }
    assert!(folder.path("quant7@ref.kls.partial").exists());

    // The same limit stops them again, before anything is decoded.
    settings.results.existing = Existing::Resume;
    let recorder = Recorder::default();
    let again = evaluate(&settings, &FakeEngine::default(), &recorder).unwrap();
    assert_eq!(recorder.windows.load(Ordering::Relaxed), 0);
    assert_eq!(mean(&again, 7), mean(&report, 7));

    // Another goes on, to what it would have been without a stop.
    settings.early.as_mut().unwrap().max_kld = None;
    let resumed = evaluated(&settings);
    assert!(
        resumed
            .models
            .iter()
            .all(|model| model.interrupted.is_none())
    );
    settings.results.existing = Existing::Replace;
    let resumed_bytes = folder.bytes("quant7@ref.kls");
    let whole = evaluated(&settings);
    assert_eq!(folder.bytes("quant7@ref.kls"), resumed_bytes);
    assert_eq!(mean(&resumed, 7), mean(&whole, 7));
}

#[test]
fn records_in_the_order_of_the_text_are_measured_again() {
    let folder = Folder::new();
    let mut settings = early_settings(&folder);
    settings.models.truncate(1);
    let early = settings.early.take();
    let in_text_order = evaluated(&settings);
    let written = folder.bytes("quant0@ref.kls");
    settings.early = early;
    settings.results.existing = Existing::Resume;
    let in_random_order = evaluated(&settings);
    assert_ne!(folder.bytes("quant0@ref.kls"), written);
    let difference = mean(&in_random_order, 0) - mean(&in_text_order, 0);
    assert!(difference.abs() < 1e-12, "{difference}");
}

/// The tokens of the context whose memory the replay counts.
const CONTEXT: u64 = 8192;

/// A folder's evaluations of at least 20 quants over at least 100 windows, in random orders of the windows: how often the one
/// stops that is picked of what is measured to the end, with each highest KLD that just lets one pass. As if a smaller file
/// were always faster, so that most of them may stop another.
#[test]
#[ignore = "KL_SIDECARS=FOLDER names sidecars of a real model: docs/PICK.md"]
fn the_pick_is_seldom_stopped() {
    let folder = PathBuf::from(std::env::var("KL_SIDECARS").unwrap());
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "kls"))
        .collect();
    paths.sort();
    let compared = ReportSettings {
        paths: paths.clone(),
        for_context: Some(CONTEXT),
        compares_every_two: true,
        ..ReportSettings::default()
    };
    let Reported::Comparison(mut comparison) = report::report(&compared, &()).unwrap() else {
        panic!("two sidecars only");
    };
    for model in &mut comparison.models {
        model.speed = speed_by_size(model.model.file_bytes);
    }
    let mut quants: Vec<(SidecarHeader, Vec<TokenRecord>)> = paths
        .iter()
        .map(|path| {
            let reader = SidecarReader::open(path).unwrap();
            let mut header = reader.header.clone();
            header.speed = speed_by_size(header.model.as_ref().and_then(|model| model.file_bytes));
            (header, reader.read_all().unwrap())
        })
        .collect();
    quants.sort_by_key(|(header, _)| header.model.as_ref().and_then(|model| model.file_bytes));
    let n_windows = TokenRecord::windows(&quants[0].1).count();
    let uppers = comparison
        .models
        .iter()
        .filter_map(|model| model.mean_kld()?.hi);
    let limits = [None]
        .into_iter()
        .chain(uppers.map(|upper| Some(1.001 * upper)));
    for max_kld in limits {
        let wishes = Wishes {
            context: CONTEXT,
            limits: Limits {
                memory: None,
                max_kld,
            },
            is_original: true,
        };
        let pick = Pick::new((*comparison).clone(), wishes, Vec::new(), Vec::new());
        let pick = pick.pick.unwrap().label;
        let rule = EarlyRule {
            n_quants: quants.len(),
            n_windows: n_windows as u64,
            context: CONTEXT,
            max_kld,
        };
        let mut in_order: Vec<_> = quants.iter().collect();
        if max_kld.is_some() {
            in_order.reverse();
        }
        let (n_shelves, mut n_wrong, mut n_stopped) = (200, 0, 0);
        for seed in 0..n_shelves {
            let order = shuffled(n_windows, seed);
            let early = EarlyStop::new(rule);
            for (header, records) in &in_order {
                let windows: Vec<_> = TokenRecord::windows(records).collect();
                let records: Vec<TokenRecord> =
                    order.iter().flat_map(|&i| windows[i].to_vec()).collect();
                if early.why_not(header, &records).is_some() {
                    n_stopped += 1;
                    let label = report::model_of_header(header).label;
                    n_wrong += u64::from(label == pick);
                } else {
                    early.add(header, &records);
                }
            }
        }
        println!(
            "limit {max_kld:?}: {pick} is picked and stopped {n_wrong} times of {n_shelves}; {:.1} of {} quants stop",
            n_stopped as f64 / n_shelves as f64,
            quants.len()
        );
        assert!(20 * n_wrong <= n_shelves);
    }
}

/// The speed of a model that reads its file once for each token.
fn speed_by_size(file_bytes: Option<u64>) -> Option<Speed> {
    let tokens_per_s = 1e10 / file_bytes? as f64;
    let pace = Pace {
        n_tokens: 64,
        tokens_per_s,
        lo: tokens_per_s,
        hi: tokens_per_s,
    };
    Some(Speed {
        prompt: pace,
        generation: pace,
        waited: None,
    })
}
