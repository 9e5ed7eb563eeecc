//! Sweeps of KV-cache types.

use kl_engine::{FlashAttention, Layers};

use super::*;
use crate::commands::settings::CacheTypes;

fn cell(k: &str, v: &str) -> CacheTypes {
    let of = |name: &str| name.parse().unwrap();
    CacheTypes { k: of(k), v: of(v) }
}

/// Three cells for each model.
fn swept(folder: &Folder, models: &[&str]) -> EvaluateSettings {
    let mut settings = folder.evaluate_settings(models);
    settings.sweep.caches = vec![
        cell("f16", "f16"),
        cell("q8_0", "f16"),
        cell("q8_0", "q4_0"),
    ];
    // The names of sidecars begin with the folder, as that of the reference.
    settings.results.sidecar = None;
    settings
}

#[test]
fn each_cell_is_an_evaluation_and_a_model_is_loaded_once() {
    let folder = Folder::new();
    folder.write("ref");
    let (engine, observer) = (FakeEngine::default(), Recorder::default());
    let settings = swept(&folder, &["q4", "copy"]);
    let report = evaluate(&settings, &engine, &observer).unwrap();
    assert_eq!(engine.n_loaded.load(Ordering::Relaxed), 2);
    // The fake engine's types have 2 bytes for each token, or 1.
    let cells = report.models.iter().map(|model| {
        let set_up = model.set_up.as_ref().unwrap();
        let [k, v] = [&set_up.type_k, &set_up.type_v].map(|name| name.clone().unwrap());
        let bytes = set_up.kv_cache_bytes.unwrap();
        format!("{} {k} {v} {bytes}", model.label)
    });
    let expected = [
        "q4-k_f16-v_f16 f16 f16 256",
        "q4-k_q8_0-v_f16 q8_0 f16 192",
        "q4-k_q8_0-v_q4_0 q8_0 q4_0 128",
        "copy-k_f16-v_f16 f16 f16 256",
        "copy-k_q8_0-v_f16 q8_0 f16 192",
        "copy-k_q8_0-v_q4_0 q8_0 q4_0 128",
    ];
    assert!(cells.eq(expected));
    // That the types differ from the reference's is what the sweep is for.
    let heard = observer.heard().join(", ");
    assert!(!heard.contains("set_up_differs"), "{heard}");
    assert!(heard.contains("evaluated 6 of 6"), "{heard}");
}

#[test]
fn models_are_loaded_for_each_cell_if_fitted_to_the_memory_and_freed_before_the_next() {
    let folder = Folder::new();
    folder.write("ref");
    let n_loaded = |settings: &EvaluateSettings| {
        let engine = FakeEngine::default();
        evaluate(settings, &engine, &()).unwrap();
        engine.n_loaded.load(Ordering::Relaxed)
    };
    let mut settings = swept(&folder, &["q4"]);
    settings.run.model.n_gpu_layers = kl_engine::GpuLayers::Auto;
    assert_eq!(n_loaded(&settings), 3);
    assert_eq!(n_loaded(&folder.evaluate_settings(&["q4", "q4"])), 2);
}

#[test]
fn quantized_values_without_flash_attention_are_refused_before_anything_is_loaded() {
    let folder = Folder::new();
    folder.write("ref");
    let engine = FakeEngine::default();
    let refused = |change: &dyn Fn(&mut EvaluateSettings)| {
        let mut settings = swept(&folder, &["q4"]);
        settings.run.flash_attn = Some(FlashAttention::Off);
        change(&mut settings);
        let error = evaluate(&settings, &engine, &()).err();
        let is_loaded = engine.n_loaded.swap(0, Ordering::Relaxed) > 0;
        assert_eq!(is_loaded, error.is_none());
        error.map(|error| one_line(&error)).unwrap_or_default()
    };
    let off = ["--sweep ctv=q4_0: ", "--flash-attn is off"];
    says(refused(&|_| {}), &off);
    // Keys may be quantized without it.
    assert_eq!(refused(&|settings| settings.sweep.caches.truncate(2)), "");
    let error = refused(&|settings| {
        settings.sweep.caches.clear();
        settings.run.type_v = cell("f16", "q8_0").v;
    });
    says(error, &["--cache-type-v q8_0: "]);
    // The reference records how it was written.
    let mut write_settings = folder.write_settings("off");
    write_settings.run.flash_attn = Some(FlashAttention::Off);
    written(&write_settings);
    let error = refused(&|settings| {
        settings.run.flash_attn = None;
        settings.reference = folder.file("off");
    });
    says(error, &["the reference was written without it"]);
}

#[test]
fn what_headers_show_to_be_impossible_is_refused_before_a_model_is_loaded() {
    let folder = Folder::new();
    folder.write("ref");
    let engine = FakeEngine {
        layers: Layers::Recurrent,
        ..FakeEngine::default()
    };
    let error_of = |settings: &EvaluateSettings| {
        let report = evaluate(settings, &engine, &()).unwrap();
        assert_eq!(engine.n_loaded.load(Ordering::Relaxed), 0);
        report.failed[0].error.clone()
    };
    let error = error_of(&swept(&folder, &["q4"]));
    says(error, &["has no KV cache to sweep"]);
    let mut settings = folder.evaluate_settings(&["q4"]);
    settings.results.sidecar = None;
    settings.run.n_parallel = Some(2);
    let recurrent = "-np 2: a model with recurrent layers";
    says(error_of(&settings), &[recurrent]);
    let mut settings = folder.write_settings("other");
    settings.run.n_parallel = Some(2);
    assert!(write(&settings, &engine, &()).is_err());
    assert_eq!(engine.n_loaded.load(Ordering::Relaxed), 0);
}
