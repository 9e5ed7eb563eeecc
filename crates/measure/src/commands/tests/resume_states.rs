//! References of hidden states whose run was stopped, and what `--resume` makes of them.

use kl_engine::FakeStates;

use super::write_states::with;
use super::*;

#[test]
fn a_write_of_hidden_states_that_is_stopped_resumes_to_the_same_bytes() {
    let folder = Folder::new();
    let engine = with(FakeStates::Single { error: 1e-3 });
    let mut whole = folder.states_settings("whole", Encoding::Hidden);
    whole.existing = Existing::Replace;
    write(&whole, &engine, &()).unwrap();
    for windows in [1, 2, 7] {
        let name = format!("hidden{windows}");
        let mut settings = folder.states_settings(&name, Encoding::Hidden);
        write(&settings, &engine, &Recorder::stopping_after(windows)).unwrap_err();
        settings.existing = Existing::Resume;
        let observer = Recorder::default();
        let written = write(&settings, &engine, &observer).unwrap();
        assert!(!written.file.was_whole);
        assert!(folder.bytes(&name) == folder.bytes("whole"), "{name}");
        // What the first run's trial has found is in the header.
        let tried = observer.heard().contains(&"begin checking".to_owned());
        assert_eq!(tried, windows == 1, "{windows}");
        assert!(write(&settings, &engine, &()).unwrap().file.was_whole);
    }
}

#[test]
fn an_interrupted_trial_leaves_nothing() {
    let folder = Folder::new();
    let settings = folder.states_settings("ref", Encoding::Hidden);
    let stopping = Recorder::stopping_after(0);
    let error = write(&settings, &FakeEngine::default(), &stopping);
    says(error.unwrap_err(), &["interrupted"]);
    assert!(!folder.path("ref").exists() && !folder.path("ref.partial").exists());
}
