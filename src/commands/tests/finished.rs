//! A finished sidecar gives way to the same measurement only.

use clap::ValueEnum as _;

use super::*;

/// Evaluates `q4` against `ref`, with the sidecar `s.kls`, and returns why it was refused.
fn evaluated(folder: &Folder, change: impl Fn(&mut EvaluateSettings)) -> Result<(), String> {
    let mut settings = folder.evaluate_settings(&["q4"]);
    settings.results.sidecar = Some(folder.path("s.kls"));
    settings.results.existing = Existing::asked(false, Some(false));
    change(&mut settings);
    let report = evaluate(&settings, &FakeEngine::default(), &()).unwrap();
    match report.failed.first() {
        Some(failure) => Err(failure.error.clone()),
        None => Ok(()),
    }
}

#[test]
fn another_measurement_is_refused_and_named() {
    let folder = Folder::new();
    folder.write("ref");
    fs::create_dir(folder.path("other")).unwrap();
    fs::write(folder.path("other/q4"), "another quant").unwrap();
    let mut other = folder.write_settings("other.ref");
    let Source::Texts(text) = &mut other.input else {
        unreachable!("a text");
    };
    text.windowing.n_ctx = 32;
    write(&other, &FakeEngine::default(), &()).unwrap();
    evaluated(&folder, |_| {}).unwrap();
    let whole = folder.bytes("s.kls");
    type Change<'c> = &'c dyn Fn(&mut EvaluateSettings);
    let refused: [(Change<'_>, &str); 9] = [
        (
            &|settings| settings.models = vec![folder.path("copy")],
            "holds another model, q4:",
        ),
        (
            &|settings| settings.models = vec![folder.path("other/q4")],
            "holds another model that is also named q4:",
        ),
        (
            &|settings| {
                settings.reference = ReferenceSource::File {
                    path: folder.path("other.ref"),
                    n_ctx: None,
                };
            },
            "holds q4 against another reference, ref (text by f16):",
        ),
        (
            &|settings| settings.run.max_rows = Some(100),
            "holds 813 tokens, not 100 tokens:",
        ),
        (
            &|settings| settings.results.part = Some("1/3".parse().unwrap()),
            "holds all parts, not part 1/3:",
        ),
        (
            &|settings| settings.until = Some(0.05),
            "holds all tokens, not tokens --until 5%:",
        ),
        (
            &|settings| settings.run.type_k = CacheType::from_str("q8_0", false).unwrap(),
            "holds this model in another set-up (the type of cached keys: f16 there, q8_0 here):",
        ),
        (
            &|settings| settings.run.n_batch = Some(8),
            "(the batch: 16 there, 8 here):",
        ),
        (&|settings| settings.vocabulary = Vocabulary::Common, ""),
    ];
    for (change, what) in refused {
        for resume in [false, true] {
            let error = evaluated(&folder, |settings| {
                change(settings);
                settings.results.existing = Existing::asked(false, Some(resume));
            });
            let Err(error) = error else {
                // Both vocabularies are the same: so is the measurement.
                assert_eq!(what, "");
                continue;
            };
            let starts = format!("{}: ", folder.path("s.kls").display());
            assert!(error.starts_with(&starts), "{error}");
            assert!(error.contains(what), "{what}: {error}");
            assert!(
                error.ends_with("with --sidecar, or overwrite it with --force"),
                "{error}"
            );
            assert!(folder.bytes("s.kls") == whole, "{what}");
            assert!(!folder.path("s.kls.partial").exists(), "{what}");
        }
    }
    evaluated(&folder, |settings| {
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
    evaluated(&folder, |_| {}).unwrap();
    let records = folder.records("s.kls");
    // Names and threads move no number, and a damaged file still shows what it holds.
    fs::rename(folder.path("q4"), folder.path("renamed")).unwrap();
    fs::rename(folder.path("ref"), folder.path("also renamed")).unwrap();
    let again = |settings: &mut EvaluateSettings| {
        settings.models = vec![folder.path("renamed")];
        settings.reference = ReferenceSource::File {
            path: folder.path("also renamed"),
            n_ctx: None,
        };
        settings.run.threads = 2;
        settings.results.labels = [(folder.path("renamed"), "label".to_owned())].into();
    };
    evaluated(&folder, again).unwrap();
    assert_eq!(folder.records("s.kls"), records);
    let damaged = folder.bytes("s.kls");
    fs::write(folder.path("s.kls"), &damaged[..damaged.len() - 50]).unwrap();
    evaluated(&folder, again).unwrap();
    assert_eq!(folder.records("s.kls"), records);
    // Without its header, it does not.
    let mut damaged = folder.bytes("s.kls");
    damaged[20] ^= 1;
    fs::write(folder.path("s.kls"), &damaged).unwrap();
    let error = evaluated(&folder, again).unwrap_err();
    assert!(
        error.contains("s.kls") && error.contains("--force"),
        "{error}"
    );
    fs::write(folder.path("s.kls"), "notes").unwrap();
    let error = evaluated(&folder, again).unwrap_err();
    assert!(error.contains("exists already"), "{error}");
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
    write(&rounded, &FakeEngine::default(), &()).unwrap();
    let report = compared("s.kls");
    assert_eq!(report.models.len(), 1, "the numbers are not lost");
    let [error] = &report.unwritten[..] else {
        panic!("{:?}", report.unwritten);
    };
    assert!(error.contains("s.kls: holds other values"), "{error}");
    assert!(folder.bytes("s.kls") == whole);
}
