use super::*;

fn backend(n_batch: u32, n_ubatch: u32, flash_attn: &str) -> BackendIdentity {
    let mut backend = BackendIdentity::default();
    backend.n_batch = Some(n_batch);
    backend.n_ubatch = Some(n_ubatch);
    backend.flash_attn = Some(flash_attn.to_owned());
    backend.n_gpu_layers = Some(0);
    backend.type_k = Some("f16".to_owned());
    backend
}

/// Lists the settings that differ, each with the flags to match.
fn of_set_ups(here: &BackendIdentity, there: &BackendIdentity, has_attention: bool) -> Vec<String> {
    let differences = super::differences(here, there, 64, has_attention).into_iter();
    differences
        .map(|(of, flags)| format!("{}: {flags}", of.what.name()))
        .collect()
}

fn differences(here: &BackendIdentity, there: &BackendIdentity) -> Vec<String> {
    of_set_ups(here, there, true)
}

#[test]
fn batches_differ_where_they_split_a_window_in_other_places() {
    let there = backend(32, 16, "auto");
    for (n_batch, n_ubatch, expected) in [
        (32, 16, None),
        (64, 16, None),
        (16, 16, None),
        (48, 16, None),
        (40, 16, Some("the batch: --n-batch 32")),
        (32, 8, Some("the physical batch: --n-ubatch 16")),
        (8, 8, Some("the batch: --n-batch 32 --n-ubatch 16")),
    ] {
        let found = differences(&backend(n_batch, n_ubatch, "auto"), &there);
        assert_eq!(found, Vec::from_iter(expected), "{n_batch} {n_ubatch}");
    }
    // A reference of equal calls is evaluated in these unless a batch is set.
    let mut equal = backend(32, 32, "auto");
    equal.equal_calls = Some(true);
    assert!(differences(&equal, &equal).is_empty());
    assert_eq!(
        differences(&backend(32, 32, "auto"), &equal),
        ["the batch: "]
    );
    let flags = "the batch: --n-batch 32 --n-ubatch 16";
    assert_eq!(differences(&equal, &there), [flags]);
    // Several windows in a call.
    let with = |n_batch, n_seq| {
        let mut backend = backend(n_batch, 32, "auto");
        backend.n_seq = Some(n_seq).filter(|&n| n > 1);
        backend
    };
    let (four, alone) = (with(256, 4), with(64, 1));
    assert!(differences(&four, &four).is_empty());
    let windows = |flags: &str| [format!("the number of windows in a call: {flags}")];
    assert_eq!(
        differences(&alone, &four),
        windows("--parallel 4 --n-batch 256")
    );
    assert_eq!(differences(&four, &alone), windows("--parallel 1"));
    let mut unknown = BackendIdentity::default();
    unknown.n_gpu_layers = Some(0);
    assert!(differences(&four, &unknown).is_empty());
    // A window holds less than either batch.
    let larger = backend(512, 512, "auto");
    assert!(differences(&backend(64, 64, "auto"), &larger).is_empty());
}

#[test]
fn automatic_flash_attention_is_on_where_the_cpu_computes_all_layers() {
    let auto = backend(32, 16, "auto");
    assert!(differences(&backend(32, 16, "on"), &auto).is_empty());
    let off = ["flash attention: --flash-attn auto"];
    assert_eq!(differences(&backend(32, 16, "off"), &auto), off);
    let mut offloaded = backend(32, 16, "on");
    offloaded.n_gpu_layers = Some(9);
    let mut there = auto.clone();
    there.n_gpu_layers = Some(9);
    assert_eq!(differences(&offloaded, &there).len(), 1);
    // Where both leave it to llama.cpp, nothing is known to differ but the layers.
    let layers = ["the number of offloaded layers: -ngl 0"];
    assert_eq!(differences(&there, &auto), layers);
}

#[test]
fn layers_and_where_they_are_placed_differ() {
    let with = |n_gpu_layers: u32, placement: &[&str]| {
        let mut backend = backend(32, 16, "on");
        backend.n_gpu_layers = Some(n_gpu_layers);
        let flags = placement.iter().map(ToString::to_string).collect();
        backend.placement = Some(flags).filter(|flags: &Vec<_>| !flags.is_empty());
        backend
    };
    let all = with(33, &[]);
    let layers = ["the number of offloaded layers: -ngl 20"];
    assert_eq!(differences(&all, &with(20, &[])), layers);
    let split = with(33, &["-ts 3,1", "-nkvo"]);
    assert_eq!(differences(&all, &split), ["the placement: -ts 3,1 -nkvo"]);
    assert_eq!(differences(&split, &all), ["the placement: "]);
    // Of equal devices, each computes a layer alike.
    let of_equal = |placement: &[&str]| {
        let mut backend = with(33, placement);
        let devices = ["CPU (a)", "CUDA0 (b)", "CUDA1 (b)"];
        backend.devices = Some(devices.map(str::to_owned).to_vec());
        backend
    };
    assert!(differences(&of_equal(&["-ts 3,1"]), &of_equal(&[])).is_empty());
    let rows = of_equal(&["-sm row", "-ts 3,1"]);
    let by_row = ["the placement: -sm row"];
    assert_eq!(differences(&rows, &of_equal(&["-sm row"])), by_row);
    // On the CPU, it has no effect.
    assert!(differences(&with(0, &["-nkvo"]), &with(0, &[])).is_empty());
}

#[test]
fn a_model_without_attention_has_no_settings_of_it() {
    let there = backend(32, 16, "auto");
    let mut here = backend(32, 16, "off");
    here.type_k = Some("q8_0".to_owned());
    assert_eq!(differences(&here, &there).len(), 2);
    assert!(of_set_ups(&here, &there, false).is_empty());
}
