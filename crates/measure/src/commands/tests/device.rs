//! The busy time of a device that computes everything.

use kl_report::DeviceTime;
use kl_report::TimingInfo;

use super::*;

/// An engine whose models an accelerator computes.
fn on_device() -> FakeEngine {
    FakeEngine {
        offloads: true,
        ..FakeEngine::default()
    }
}

fn check(device: DeviceTime) {
    let all = device.busy_s + device.waited_cpu_s + device.waited_file_s;
    assert!((device.busy_share - device.busy_s / all).abs() < 1e-9);
    assert!(
        device.busy_s > 0.0 && device.busy_share <= 1.0,
        "{device:?}"
    );
}

#[test]
fn a_write_tells_how_busy_its_device_was_and_writes_the_same_file() {
    let folder = Folder::new();
    assert!(folder.write("cpu").timing.device.is_none());
    for contexts in [Some(1), None] {
        let mut settings = folder.write_settings("device");
        settings.run.contexts = contexts;
        settings.existing = Existing::Replace;
        let written = write(&settings, &on_device(), &()).unwrap();
        check(written.timing.device.unwrap());
        assert_eq!(folder.bytes("device"), folder.bytes("cpu"));
    }
}

#[test]
fn an_evaluation_tells_how_busy_its_device_was() {
    let folder = Folder::new();
    folder.write("ref");
    let against_file = || folder.evaluate_settings(&["q4"]);
    let against_model = || folder.ref_model_settings(&["q4"]);
    let ways: [&dyn Fn() -> EvaluateSettings; 2] = [&against_file, &against_model];
    for settings in ways {
        for contexts in [Some(1), None] {
            let mut settings = settings();
            settings.run.contexts = contexts;
            let timing = |engine: &FakeEngine| -> TimingInfo {
                let report = evaluate(&settings, engine, &()).unwrap();
                report.models[0].timing.unwrap()
            };
            assert!(timing(&FakeEngine::default()).device.is_none());
            let timing = timing(&on_device());
            let device = timing.device.unwrap();
            check(device);
            // One context leaves the device idle while its rows are scored.
            if contexts.is_some() {
                assert!(device.busy_s <= timing.wall_s - timing.score_s);
            }
        }
    }
}
