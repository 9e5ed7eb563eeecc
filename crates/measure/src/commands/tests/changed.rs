//! Models whose file changes while they are used.

use super::*;

#[test]
fn nothing_of_a_model_that_changes_is_left_to_be_resumed() {
    let folder = Folder::new();
    written(&folder.write_settings("ref"));
    let fails = failing_at(7);
    let changes = FakeEngine {
        changes: true,
        ..fails.clone()
    };
    for (engine, is_kept) in [(&fails, true), (&changes, false)] {
        let mut settings = folder.evaluate_settings(&["q4"]);
        settings.results.sidecar = Some(folder.path("q4.kls"));
        settings.results.existing = Existing::Replace;
        let report = evaluate(&settings, engine, &()).unwrap();
        assert_eq!(report.failed.len(), 1);
        assert_eq!(folder.path("q4.kls.partial").exists(), is_kept);
        let mut settings = folder.write_settings("new");
        settings.existing = Existing::Replace;
        write(&settings, engine, &()).unwrap_err();
        assert_eq!(folder.path("new.partial").exists(), is_kept);
    }
}
