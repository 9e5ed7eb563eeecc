//! Several windows in a decode call, and the batches of runs that are resumed.

use kl_formats::{Kind, Reference};
use kl_report::Warning;

use super::*;

/// Decodes up to so many windows of 64 tokens in a call.
fn together(run: &mut RunSettings, n: u32) {
    run.n_batch = Some(64 * n);
    run.n_parallel = Some(n);
}

/// The batch, and the windows in a call, that a file records.
fn recorded(folder: &Folder, name: &str) -> (Option<u32>, Option<u32>) {
    let reference = Reference::open(&folder.path(name)).unwrap();
    let backend = reference.about().backend.clone().unwrap();
    (backend.n_batch, backend.n_seq)
}

#[test]
fn windows_that_are_decoded_together_give_the_records_of_one_by_one() {
    let folder = Folder::new();
    let write_together = |name: &str, n: u32| {
        let mut settings = folder.write_settings(name);
        together(&mut settings.run, n);
        written(&settings);
    };
    write_together("ref", 1);
    let evaluate_together = |n: u32, max_rows: Option<u64>| {
        let mut settings = folder.evaluate_settings(&["q4"]);
        together(&mut settings.run, n);
        settings.run.max_rows = max_rows;
        settings.results.sidecar = Some(folder.path("q4.kls"));
        settings.results.existing = Existing::Replace;
        let report = evaluated(&settings);
        assert!(report.failed.is_empty());
        folder.records("q4.kls")
    };
    // 13 windows, the last one short.
    for max_rows in [None, Some(100)] {
        let alone = evaluate_together(1, max_rows);
        for n in [2, 3, 13, 20] {
            assert!(evaluate_together(n, max_rows) == alone, "{n}");
        }
    }
    let alone = evaluate_together(1, None);
    for n in [2, 5] {
        fs::remove_file(folder.path("ref")).unwrap();
        write_together("ref", n);
        assert_eq!(recorded(&folder, "ref"), (Some(64 * n), Some(n)));
        assert!(evaluate_together(n, None) == alone, "written {n} at a time");
    }
}

/// LongRoPE: what a row is depends on the context that is allocated to a sequence.
#[test]
fn rows_do_not_depend_on_what_shares_a_context() {
    let folder = Folder::new();
    let engine = FakeEngine {
        long_rope_above: Some(256),
        offloads: true,
        ..FakeEngine::default()
    };
    let mut written = folder.write_settings("ref");
    write(&written, &engine, &()).unwrap();
    let alone = folder.bytes("ref");
    written.existing = Existing::Replace;
    for (n, expected) in [(2, 2), (4, 4), (5, 4), (13, 4)] {
        together(&mut written.run, n);
        write(&written, &engine, &()).unwrap();
        assert_eq!(recorded(&folder, "ref").1, Some(expected), "{n}");
        let mut settings = folder.evaluate_settings(&["f16"]);
        settings.run.n_batch = Some(64 * n);
        settings.run.n_parallel = Some(n);
        let report = evaluate(&settings, &engine, &()).unwrap();
        assert_eq!(mean(&report, 0), 0.0, "{n}");
    }
    fs::write(folder.path("ref"), alone).unwrap();
    let mut settings = folder.evaluate_settings(&["f16"]);
    together(&mut settings.run, 13);
    assert_eq!(mean(&evaluate(&settings, &engine, &()).unwrap(), 0), 0.0);
}

#[test]
fn hidden_states_are_those_of_one_window_at_a_time() {
    let folder = Folder::new();
    for (encoding, expected) in [
        (Encoding::Hidden, (Some(64), None)),
        (Encoding::U16, (Some(192), Some(3))),
    ] {
        let mut settings = folder.write_settings("ref");
        settings.target = target(Kind::Kl, Some(encoding));
        settings.existing = Existing::Replace;
        together(&mut settings.run, 3);
        written(&settings);
        assert_eq!(recorded(&folder, "ref"), expected, "{encoding}");
    }
}

#[test]
fn a_resumed_run_uses_the_batches_that_it_began_with() {
    let folder = Folder::new();
    let fails = failing_at(7);
    let mut settings = folder.write_settings("ref");
    together(&mut settings.run, 2);
    written(&settings);
    let whole = folder.bytes("ref");
    fs::remove_file(folder.path("ref")).unwrap();
    write(&settings, &fails, &()).unwrap_err();
    // What is best may have changed since: it depends on the memory that is free.
    (settings.run.n_batch, settings.run.n_parallel) = (None, None);
    settings.existing = Existing::Resume;
    let resumed = written(&settings);
    assert!(resumed.file.n_rows < 9 * 64);
    assert!(folder.bytes("ref") == whole);
    // It is whole.
    assert!(written(&settings).file.was_whole);
}

#[test]
fn a_resumed_evaluation_uses_the_batches_that_it_began_with() {
    let folder = Folder::new();
    // kl_py's files record no batch.
    let mut settings = folder.write_settings("ref");
    settings.target = target(Kind::KlPy, None);
    written(&settings);
    let fails = failing_at(7);
    let mut settings = folder.evaluate_settings(&["q4"]);
    settings.results.sidecar = Some(folder.path("q4.kls"));
    together(&mut settings.run, 2);
    evaluated(&settings);
    let whole = folder.bytes("q4.kls");
    fs::remove_file(folder.path("q4.kls")).unwrap();
    settings.results.existing = Existing::by_flags(false, Some(false));
    let failed = evaluate(&settings, &fails, &()).unwrap();
    assert_eq!(failed.failed.len(), 1);
    (settings.run.n_batch, settings.run.n_parallel) = (None, None);
    settings.results.existing = Existing::Resume;
    let resumed = evaluated(&settings);
    assert!(resumed.failed.is_empty(), "{:?}", resumed.failed);
    assert!(folder.bytes("q4.kls") == whole);
}

/// An engine whose CPU has room for a context of so many windows of 64 tokens with all their rows, in the half
/// of its memory that a context may have.
fn with_room_for(n: u64) -> FakeEngine {
    let window = 64 * 4 + 64 * 128 * 4;
    FakeEngine {
        memory_free: 2 * n * window,
        ..FakeEngine::default()
    }
}

#[test]
fn a_model_larger_than_the_memory_is_read_for_as_many_windows_as_there_is_room_for() {
    let folder = Folder::new();
    fs::write(folder.path("f16"), vec![b'x'; 600_000]).unwrap();
    let mut settings = folder.write_settings("ref");
    settings.run.n_batch = None;
    let engine = with_room_for(6);
    let recorder = Recorder::default();
    write(&settings, &engine, &recorder).unwrap();
    assert!(recorder.heard().contains(&"plan memory".to_owned()));
    // Of 13 windows, in three calls.
    assert_eq!(recorded(&folder, "ref"), (Some(320), Some(5)));
    let whole = folder.bytes("ref");

    // What has begun is continued as it began, whatever is free now.
    for room in [2, 100] {
        fs::remove_file(folder.path("ref")).unwrap();
        settings.existing = Existing::by_flags(false, Some(false));
        let mut fails = engine.clone();
        fails.fails_at = Some(11);
        write(&settings, &fails, &()).unwrap_err();
        settings.existing = Existing::Resume;
        let resumed = write(&settings, &with_room_for(room), &()).unwrap();
        assert!(resumed.file.n_rows <= 3 * 64);
        assert!(folder.bytes("ref") == whole, "{room}");
    }

    // What the user sets counts, and one window needs no room.
    for (n_parallel, room, expected) in [
        (Some(2), 6, (Some(128), Some(2))),
        (None, 0, (Some(64), None)),
    ] {
        settings.existing = Existing::Replace;
        settings.run.n_parallel = n_parallel;
        write(&settings, &with_room_for(room), &()).unwrap();
        assert_eq!(recorded(&folder, "ref"), expected);
    }
}

#[test]
fn models_that_fit_are_evaluated_in_smaller_batches_than_one_that_does_not() {
    let folder = Folder::new();
    let text = "some words, and then some more of them. ".repeat(100);
    fs::write(folder.path("text"), text).unwrap();
    fs::write(folder.path("f16"), vec![b'x'; 9_000_000]).unwrap();
    let mut settings = folder.write_settings("ref");
    settings.run.n_batch = None;
    let engine = with_room_for(64);
    write(&settings, &engine, &()).unwrap();
    assert_eq!(recorded(&folder, "ref"), (Some(64 * 64), Some(64)));

    let mut settings = folder.evaluate_settings(&["q4", "f16"]);
    settings.run.n_batch = None;
    let report = evaluate(&settings, &engine, &()).unwrap();
    let set_up = |model: usize| {
        let backend = report.models[model].set_up.as_ref().unwrap();
        (backend.n_batch, backend.n_ubatch, backend.n_seq)
    };
    assert_eq!(set_up(0), (Some(2048), Some(2048), Some(32)));
    assert_eq!(set_up(1), (Some(64 * 64), Some(64 * 64), Some(64)));
    assert_eq!(mean(&report, 1), 0.0);
    let mut kinds = report.warnings.iter().map(Warning::kind);
    assert!(kinds.all(|kind| kind != "set_up_differs"));
}
