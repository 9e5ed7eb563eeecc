//! The encoding of a reference where none is asked for, and the advice where a disk has no room for it.

use kl_engine::FakeStates;
use kl_formats::{NativeReader, Reference};

use super::write_states::with;
use super::*;

/// An observer that keeps the lines about what is to be written.
#[derive(Default)]
struct Lines(Mutex<Vec<String>>);

impl Observer for Lines {
    fn on_event(&self, event: &Event<'_>) {
        if let Event::Plan(name, text) = event {
            self.0.lock().unwrap().push(format!("{name} {text}"));
        }
    }
}

impl Lines {
    /// The only line of this name.
    #[track_caller]
    fn one(&self, name: &str) -> String {
        let lines = self.0.lock().unwrap();
        let mut named = lines.iter().filter_map(|line| line.strip_prefix(name));
        let line = named
            .next()
            .unwrap_or_else(|| panic!("no {name}: {lines:?}"));
        assert_eq!(named.next(), None);
        line.trim_start().to_owned()
    }
}

/// An engine whose rows of 8,000 tokens take more than 1 GiB as codes, and models with such states.
fn large(states: FakeStates) -> FakeEngine {
    FakeEngine {
        n_vocab: 70_000,
        ..with(states)
    }
}

impl Folder {
    /// Settings that leave the encoding open for one of 60 parts of 8,000 tokens in windows of 64.
    fn open_settings(&self, name: &str) -> WriteSettings {
        fs::write(self.path("text"), "long ".repeat(1_600)).unwrap();
        WriteSettings {
            target: target(Kind::Kl, None),
            chooses_encoding: true,
            part: Some("0/60".parse().unwrap()),
            ..self.write_settings(name)
        }
    }

    fn encoding(&self, name: &str) -> Encoding {
        let reader = NativeReader::open(&self.path(name)).unwrap();
        reader.header.encoding
    }
}

/// Writes the reference `ref` anew, and returns what it says of the encoding.
#[track_caller]
fn encoding(
    folder: &Folder,
    settings: &mut WriteSettings,
    engine: &FakeEngine,
) -> (Encoding, String) {
    settings.existing = Existing::Replace;
    let lines = Lines::default();
    write(settings, engine, &lines).unwrap();
    (folder.encoding("ref"), lines.one("encoding"))
}

#[test]
fn hidden_states_are_stored_where_codes_would_take_far_more() {
    let folder = Folder::new();
    let mut settings = folder.open_settings("ref");
    let engine = &large(FakeStates::Half);
    for part in ["0/60", "59/60"] {
        settings.part = Some(part.parse().unwrap());
        let said = "hidden (f16): 64 rows computed again, all to the bit; u16 would take 1.06 GiB for all parts";
        let expected = (Encoding::Hidden, said.to_owned());
        assert_eq!(encoding(&folder, &mut settings, engine), expected);
        let reference = Reference::open(&folder.path("ref")).unwrap();
        assert!(reference.about().n_windows.unwrap() <= 3);
    }
    // Fewer rows are small enough.
    settings.run.max_rows = Some(7_000);
    let (found, said) = encoding(&folder, &mut settings, engine);
    assert_eq!(found, Encoding::U16);
    says(said, &["u16, the default up to 1 GiB; hidden would take "]);
    // What is asked for is stored, and nothing is said of a choice.
    settings.run.max_rows = None;
    settings.chooses_encoding = false;
    let lines = Lines::default();
    write(&settings, engine, &lines).unwrap();
    assert_eq!(folder.encoding("ref"), Encoding::U16);
    assert!(
        !lines
            .0
            .lock()
            .unwrap()
            .iter()
            .any(|line| line.starts_with("encoding"))
    );
}

#[test]
fn codes_are_stored_where_hidden_states_cannot_stand_for_rows() {
    let folder = Folder::new();
    let mut settings = folder.open_settings("ref");
    for (states, said) in [
        (
            FakeStates::Unknown,
            "u16; rows of this model (fake) cannot be computed from hidden states",
        ),
        (
            FakeStates::Never { error: 0.5 },
            "u16; rows computed from hidden states are not the model's own (fake: ",
        ),
    ] {
        let (found, line) = encoding(&folder, &mut settings, &large(states));
        assert_eq!(found, Encoding::U16);
        says(line, &[said]);
        // As if they had been asked for.
        let chosen = folder.bytes("ref");
        settings.chooses_encoding = false;
        write(&settings, &large(states), &()).unwrap();
        assert!(folder.bytes("ref") == chosen);
        settings.chooses_encoding = true;
    }
    // They would need the weights for each window, from the disk.
    let engine = FakeEngine {
        memory_free: 0,
        ..large(FakeStates::Half)
    };
    let (found, line) = encoding(&folder, &mut settings, &engine);
    assert_eq!(found, Encoding::U16);
    says(line, &["read the weights from the disk for each window"]);
}

#[test]
fn a_run_that_is_resumed_keeps_the_encoding_that_it_began_with() {
    let folder = Folder::new();
    let engine = &large(FakeStates::Half);
    let mut settings = folder.open_settings("whole");
    write(&settings, engine, &()).unwrap();
    settings.output = folder.path("ref");
    let begin = |settings: &mut WriteSettings| {
        let _ = fs::remove_file(&settings.output);
        settings.existing = Existing::Replace;
        write(settings, engine, &Recorder::stopping_after(2)).unwrap_err();
        settings.existing = Existing::Resume;
    };
    begin(&mut settings);
    // The trial does not fail again: there is none.
    write(&settings, &large(FakeStates::Rarely { error: 0.0 }), &()).unwrap();
    assert!(folder.bytes("ref") == folder.bytes("whole"));
    // A finished one is left as it is.
    assert!(write(&settings, engine, &()).unwrap().file.was_whole);

    // The other way round: what was asked for.
    (settings.chooses_encoding, settings.target) = (false, target(Kind::Kl, Some(Encoding::F32)));
    begin(&mut settings);
    (settings.chooses_encoding, settings.target) = (true, target(Kind::Kl, None));
    write(&settings, engine, &()).unwrap();
    assert_eq!(folder.encoding("ref"), Encoding::F32);
    begin(&mut settings);
    (settings.chooses_encoding, settings.target) = (false, target(Kind::Kl, None));
    let error = write(&settings, engine, &()).unwrap_err();
    says(error, &["encoding: hidden there, u16 here"]);
}

#[test]
fn where_the_disk_has_no_room_the_error_names_what_would_fit() {
    let folder = Folder::new();
    let mut settings = folder.write_settings("ref");
    fs::write(folder.path("text"), "long ".repeat(800_000)).unwrap();
    let refused = |settings: &WriteSettings, states| {
        // 17 TB in f32.
        let engine = FakeEngine {
            n_vocab: 1 << 20,
            ..with(states)
        };
        write(settings, &engine, &()).unwrap_err().to_string()
    };
    let error = refused(&settings, FakeStates::Half);
    says(
        &error,
        &[
            "may take ",
            " free: use --encoding hidden (",
            "), or -n ",
            ", or another disk",
        ],
    );
    // As many rows fit, and a tenth more do not.
    let n_rows = |error: &str| -> u64 {
        let number = error.split("-n ").nth(1).unwrap();
        number.split(',').next().unwrap().parse().unwrap()
    };
    settings.run.max_rows = Some(n_rows(&error) * 11 / 10 + 1);
    says(refused(&settings, FakeStates::Half), &["or -n "]);
    settings.run.max_rows = None;
    let error = refused(&settings, FakeStates::Unknown);
    says(&error, &[" free: use -n "]);
    settings.run.max_rows = Some(n_rows(&error));
    let observer = StopsWriting::default();
    let engine = FakeEngine {
        n_vocab: 1 << 20,
        ..FakeEngine::default()
    };
    let stopped = write(&settings, &engine, &observer).unwrap_err();
    says(stopped, &["interrupted"]);
    assert!(observer.0.heard().contains(&"begin writing".to_owned()));
}

/// An observer that asks to stop once rows are written.
#[derive(Default)]
struct StopsWriting(Recorder);

impl Observer for StopsWriting {
    fn on_event(&self, event: &Event<'_>) {
        self.0.on_event(event);
    }

    fn should_stop(&self) -> bool {
        self.0.heard().contains(&"begin writing".to_owned())
    }
}
