//! `--list-devices`.

use crate::session::Session;

#[test]
fn devices_are_listed_without_a_model() {
    let listed = Session::new().ok("--list-devices").stdout;
    assert!(listed.starts_with("Available devices:\n"), "{listed}");
    assert!(listed.contains("\n  CPU: "), "{listed}");
}
