//! A finished sidecar gives way to the same measurement only.

use super::*;

/// Evaluates `q4` against `ref`, with the sidecar `s.kls`, and returns why it was refused.
fn result(folder: &Folder, change: impl Fn(&mut EvaluateSettings)) -> Result<(), String> {
    let mut settings = folder.evaluate_settings(&["q4"]);
    folder.write_anew(&mut settings, "s.kls");
    change(&mut settings);
    let failed = evaluated(&settings).failed;
    failed.into_iter().next().map_or(Ok(()), |of| Err(of.error))
}

#[test]
fn another_measurement_is_refused_and_named() {
    let folder = Folder::new();
    folder.write("ref");
    fs::create_dir(folder.path("other")).unwrap();
    fs::write(folder.path("other/q4"), "another quant").unwrap();
    let mut other = folder.write_settings("other.ref");
    other.input.n_ctx = Some(32);
    written(&other);
    result(&folder, |_| {}).unwrap();
    let whole = folder.bytes("s.kls");
    let cached = "(the type of cached keys: f16 there, q8_0 here):";
    type Change<'c> = &'c dyn Fn(&mut EvaluateSettings);
    let refused: [(&str, Change<'_>); 8] = [
        (
            "of q4 against ref (model.file_name: q4 there, copy here):",
            &|of| of.models = vec![folder.path("copy")],
        ),
        ("of q4 against ref (model.", &|of| {
            of.models = vec![folder.path("other/q4")];
        }),
        ("of q4 against ref (reference.", &|of| {
            of.reference = folder.file("other.ref");
        }),
        ("(n_records: 813 there, 100 here):", &|of| {
            of.run.max_rows = Some(100)
        }),
        ("(shard: none there, ", &|of| {
            of.results.part = Some("1/3".parse().unwrap());
        }),
        ("(until: none there, 0.05 here):", &|of| {
            of.until = Some(0.05)
        }),
        (cached, &|of| {
            of.run.type_k = CacheType::Q8_0;
        }),
        ("(the batch: 16 there, 8 here):", &|of| {
            of.run.n_batch = Some(8)
        }),
    ];
    let advice = "with --sidecar, or overwrite it with --force";
    for (what, change) in refused {
        for resume in [false, true] {
            let error = result(&folder, |settings| {
                change(settings);
                settings.results.existing = Existing::by_flags(false, Some(resume));
            });
            says(
                error.unwrap_err(),
                &["s.kls: holds another evaluation, ", what, advice],
            );
            assert!(folder.bytes("s.kls") == whole, "{what}");
            assert!(!folder.path("s.kls.partial").exists(), "{what}");
        }
    }
    // Both vocabularies are the same: so is the measurement.
    result(&folder, |of| of.vocabulary = ComparedVocabulary::Common).unwrap();
    result(&folder, |settings| {
        settings.run.max_rows = Some(100);
        settings.results.existing = Existing::Replace;
    })
    .unwrap();
    assert!(folder.bytes("s.kls").len() < whole.len());
}

#[test]
fn the_same_measurement_replaces_its_own_file() {
    let folder = Folder::new();
    folder.write("ref");
    result(&folder, |_| {}).unwrap();
    let records = folder.records("s.kls");
    // Names and threads move no number, and a damaged file still shows what it holds.
    fs::rename(folder.path("q4"), folder.path("renamed")).unwrap();
    fs::rename(folder.path("ref"), folder.path("also renamed")).unwrap();
    let again = |settings: &mut EvaluateSettings| {
        settings.models = vec![folder.path("renamed")];
        settings.reference = folder.file("also renamed");
        settings.run.threads = 2;
        settings.results.labels = [(folder.path("renamed"), "label".to_owned())].into();
    };
    result(&folder, again).unwrap();
    assert_eq!(folder.records("s.kls"), records);
    let damaged = folder.bytes("s.kls");
    fs::write(folder.path("s.kls"), &damaged[..damaged.len() - 50]).unwrap();
    result(&folder, again).unwrap();
    assert_eq!(folder.records("s.kls"), records);
    // Without its header, it does not.
    let mut damaged = folder.bytes("s.kls");
    damaged[20] ^= 1;
    fs::write(folder.path("s.kls"), &damaged).unwrap();
    says(result(&folder, again).unwrap_err(), &["s.kls", "--force"]);
    fs::write(folder.path("s.kls"), "notes").unwrap();
    says(result(&folder, again).unwrap_err(), &["exists already"]);
    assert_eq!(folder.bytes("s.kls"), b"notes");
}

#[test]
fn a_file_of_other_rows_is_refused() {
    let folder = Folder::new();
    folder.write("ref");
    folder.write("rows");
    let compared = |sidecar: &str| {
        let settings = folder.compare_settings("rows", sidecar);
        compare(&settings, &FakeEngine::default(), &()).unwrap()
    };
    assert_eq!(compared("s.kls").unwritten, [""; 0]);
    assert_eq!(compared("s.kls").unwritten, [""; 0]);
    let whole = folder.bytes("s.kls");
    // Of the same model in the same set-up, but rounded.
    let mut rounded = folder.write_settings("rows");
    rounded.target = target(Kind::Kl, Some(Encoding::U16));
    rounded.existing = Existing::Replace;
    written(&rounded);
    let report = compared("s.kls");
    assert_eq!(report.models.len(), 1, "the numbers are not lost");
    assert_eq!(report.unwritten.len(), 1);
    says(&report.unwritten[0], &["s.kls: holds other values"]);
    assert!(folder.bytes("s.kls") == whole);
}

#[test]
fn a_run_that_is_to_be_timed_replaces_one_that_was_not() {
    let folder = Folder::new();
    folder.write("ref");
    result(&folder, |_| {}).unwrap();
    let mut settings = folder.evaluate_settings(&["q4"]);
    settings.results.sidecar = Some(folder.path("s.kls"));
    settings.results.existing = Existing::Resume;
    let speed = |settings: &EvaluateSettings| evaluated(settings).models[0].speed;
    assert_eq!(speed(&settings), None);
    settings.measures_speed = true;
    let timed = speed(&settings);
    assert!(timed.is_some());
    // Now it is done, with its speed.
    assert_eq!(speed(&settings), timed);
    settings.measures_speed = false;
    assert_eq!(speed(&settings), timed);
}
