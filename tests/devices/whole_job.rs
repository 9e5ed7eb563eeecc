//! Writing, evaluating and checking with a device: what has to be exact is exact there too, and the rest is
//! near to what this machine's CPU computes.

use serde_json::Value;

use crate::device::{Device, bounds};
use crate::numbers::number;
use crate::session::Session;

/// Writes `ref.gz` with these flags.
#[track_caller]
fn write(session: &Session, flags: &str) {
    let write = "-m @f16 -t short.txt -c 64 -w ref.gz -q --force";
    session.ok(&format!("{write} {flags}"));
}

/// Evaluates a model against `ref.gz` with these flags.
#[track_caller]
fn evaluate(session: &Session, model: &str, flags: &str) -> Value {
    session.result(&format!("-m {model} -r ref.gz --force {flags}"))
}

#[track_caller]
fn largest_kld(result: &Value) -> f64 {
    assert_eq!(result["n_excluded"], 0);
    number(&result["kld"]["max"])
}

/// Writes a reference with these flags, and checks that the model is at 0 from it.
#[track_caller]
fn is_exact(session: &Session, flags: &str) {
    write(session, &format!("{flags} --encoding f32"));
    let kld = largest_kld(&evaluate(session, "@f16", flags));
    assert_eq!(kld, 0.0, "{flags}");
}

#[test]
fn a_model_is_no_distance_from_its_own_reference() {
    let (session, device) = (Session::with_text(), Device::new());
    let all = device.all_layers();
    for flags in ["", "-b 7", "-ctk q8_0 -ctv q8_0 -fa on", "-fa off"] {
        let flags = format!("{all} {flags}");
        is_exact(&session, &flags);
    }
}

#[test]
fn any_number_of_layers_can_be_offloaded() {
    let (session, device) = (Session::with_text(), Device::new());
    // The fixture has three layers; the fourth is its head.
    for n in 0..=4 {
        let flags = format!("{} -ngl {n}", device.flags);
        is_exact(&session, &flags);
    }
}

#[test]
fn hidden_states_stand_for_the_rows_to_the_bit() {
    let (session, device) = (Session::with_text(), Device::new());
    let all = device.all_layers();
    // Hidden states are written one window a call, and so the rows have to be.
    write(&session, &format!("{all} --encoding f32 -np 1"));
    let f32 = evaluate(&session, "@q8", &format!("{all} --sidecar f32.kls"));
    write(&session, &format!("{all} --encoding hidden"));
    assert_eq!(session.info("ref.gz")["encoding"], "hidden");
    let hidden = evaluate(&session, "@q8", &format!("{all} --sidecar hidden.kls"));
    assert_eq!(hidden["kld"], f32["kld"]);
    assert!(session.record_bits("hidden.kls") == session.record_bits("f32.kls"));
    assert_eq!(largest_kld(&evaluate(&session, "@f16", &all)), 0.0);
}

#[test]
fn sixteen_bits_come_close() {
    let (session, device) = (Session::with_text(), Device::new());
    let all = device.all_layers();
    write(&session, &format!("{all} --encoding f32"));
    let exact = number(&evaluate(&session, "@q8", &all)["kld"]["mean"]["value"]);
    write(&session, &format!("{all} --encoding u16"));
    let mean = number(&evaluate(&session, "@q8", &all)["kld"]["mean"]["value"]);
    assert!((mean / exact - 1.0).abs() < 0.01, "{mean}, not {exact}");
}

#[test]
fn two_contexts_give_the_records_of_one() {
    let (session, device) = (Session::with_text(), Device::new());
    let all = device.all_layers();
    for encoding in ["u16", "hidden"] {
        write(&session, &format!("{all} --encoding {encoding}"));
        for n in [1, 2] {
            let flags = format!("{all} --contexts {n} --sidecar {n}.kls");
            evaluate(&session, "@q4", &flags);
        }
        assert!(session.record_bits("1.kls") == session.record_bits("2.kls"));
    }
}

#[test]
fn a_reference_model_on_the_device_gives_the_numbers_of_its_file() {
    let (session, device) = (Session::with_text(), Device::new());
    let all = device.all_layers();
    // A reference model decodes one window a call, and so its file has to be written.
    write(&session, &format!("{all} --encoding f32 -np 1"));
    let file = evaluate(&session, "@q8", &format!("{all} --sidecar file.kls"));
    let both = format!("-m @q8 --ref-model @f16 -t short.txt -c 64 {all}");
    let model = session.result(&format!("{both} --sidecar model.kls"));
    assert_eq!(model["kld"], file["kld"]);
    assert!(session.record_bits("model.kls") == session.record_bits("file.kls"));
}

#[test]
fn a_device_computes_what_the_cpu_does() {
    let (session, device) = (Session::with_text(), Device::new());
    let bounds = bounds();
    // Without -dev none, llama.cpp computes large batches on a GPU.
    session.ok("-m @f16 -t short.txt -c 64 -w ref.gz --encoding f32 -q -dev none");
    let cpu = session.result("-m @q8 -r ref.gz --force -dev none");
    for n in [2, 99] {
        let flags = format!("-r ref.gz --force {} -ngl {n}", device.flags);
        let same = session.result(&format!("-m @f16 {flags}"));
        let row = number(&same["kld"]["max"]);
        assert!(row < bounds.row, "-ngl {n}: {row} nats");
        let q8 = session.result(&format!("-m @q8 {flags}"));
        let [here, there] = [&cpu, &q8].map(|result| number(&result["kld"]["mean"]["value"]));
        let moved = (there - here).abs();
        assert!(moved < bounds.mean, "-ngl {n}: {there}, not {here}");
        eprintln!("-ngl {n}: {row:e} nats at most, the q8_0's mean {here:e} becomes {there:e}");
    }
}

#[test]
fn a_device_is_checked_with_all_its_settings() {
    let (session, device) = (Session::with_text(), Device::new());
    let check = "check -m @q4 -t short.txt -c 32 -n 64";
    let found = session.json(&format!("{check} {}", device.all_layers()));
    assert_eq!(found["verdict"], "ok", "{found}");
    let cells = found["cells"].as_array().unwrap().iter();
    let of_device = cells.filter(|cell| cell["settings"]["device"] != "CPU");
    assert!(of_device.count() >= 7, "{found}");
}
