//! Several windows in a decode call.

use crate::device::{Device, has_servers};
use crate::numbers::number;
use crate::session::Session;

/// How far rows may be from those of one window a call, in nats. A GPU may compute in half precision.
fn bound() -> f64 {
    if has_servers() { 1e-5 } else { 1e-2 }
}

/// Texts and prompts of any length, with windows that end anywhere in a physical batch.
const WINDOWS: [&str; 4] = [
    "-t short.txt -c 64",
    "-t short.txt -c 64 --score half",
    "-t short.txt -c 96 --stride 40 -n 300",
    "--prompts @prompts",
];

#[test]
fn rows_are_those_of_one_window_a_call() {
    let (session, device) = (Session::with_text(), Device::new());
    let all = device.all_layers();
    for windows in WINDOWS {
        for n in [1, 3, 16] {
            let write = format!("-m @f16 {windows} -w {n}.gz -q --force --encoding f32 {all}");
            session.ok(&format!("{write} -b 2048 -ub 128 -np {n}"));
            let own = session.result(&format!("-m @f16 -r {n}.gz --no-sidecar {all}"));
            assert_eq!(number(&own["kld"]["max"]), 0.0, "{windows}: {n}");
            let alone = session.result(&format!("-m @f16 -r {n}.gz --no-sidecar {all} -np 1"));
            let moved = number(&alone["kld"]["max"]);
            assert!(moved < bound(), "{windows}: {n} and one by one: {moved}");
        }
        let backends = [1, 3].map(|n| session.info(&format!("{n}.gz"))["backend"].clone());
        assert!(backends[0]["n_seq"].is_null());
        assert_eq!(backends[1]["n_seq"], 3);
    }
}

#[test]
fn a_device_decodes_several_windows_a_call_unless_layers_are_recurrent() {
    let (session, device) = (Session::with_text(), Device::new());
    let all = device.all_layers();
    let n_seq = |model: &str| {
        let write = format!("-m {model} -t short.txt -c 64 -w ref.gz --force --encoding u16 {all}");
        let told = session.ok(&write).stderr;
        let n_seq = session.info("ref.gz")["backend"]["n_seq"].as_u64();
        let is_told = told.contains("windows in a call");
        assert_eq!(is_told, n_seq.is_some(), "{told}");
        assert!(told.contains("logits of a call"), "{told}");
        n_seq
    };
    assert_eq!(n_seq("@f16"), Some(32));
    for model in ["mamba", "falcon-h1", "lfm2"] {
        let model = format!("@architectures/{model}.gguf");
        assert_eq!(n_seq(&model), None, "{model}");
    }
}
