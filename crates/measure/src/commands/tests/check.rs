//! Checks on the fake engine, whose accelerator can have a fault.

use kl_engine::{FAKE_DEVICE, FakeFault, FlashAttention, GpuLayers, ModelOptions};
use kl_report::check::{CellVerdict, Check, CheckedCell, FirstDifference, Outcome};

use super::*;
use crate::commands::check;
use crate::commands::settings::CheckSettings;

fn checked(fault: Option<FakeFault>, run: RunSettings) -> anyhow::Result<Check> {
    let folder = Folder::new();
    let settings = CheckSettings {
        model: folder.path("f16"),
        text: None,
        n_ctx: Some(64),
        max_tokens: 512,
        run: RunSettings { threads: 2, ..run },
    };
    let engine = FakeEngine {
        fault,
        ..FakeEngine::default()
    };
    check(&settings, &engine, &())
}

fn with_fault(layer: Option<u32>, size: f32, most: u32) -> Check {
    with_fault_and(layer, size, most, RunSettings::default())
}

fn with_fault_and(layer: Option<u32>, size: f32, most: u32, mut run: RunSettings) -> Check {
    let fault = FakeFault { layer, size, most };
    run.model.n_gpu_layers = GpuLayers::All;
    checked(Some(fault), run).unwrap()
}

#[test]
fn a_build_without_an_accelerator_agrees_with_itself() {
    let check = checked(None, RunSettings::default()).unwrap();
    assert_eq!(check.verdict, Outcome::Ok);
    assert!(check.cells.len() > 6 && check.skipped.is_empty());
    let mut cells = check.cells.iter();
    assert!(cells.all(|cell| cell.verdict == CellVerdict::Same));
    let floor = check.floor.unwrap();
    assert_eq!((floor.kld, floor.same_top), (0.0, 1.0));
    assert!(check.noise.kld > Some(0.0));
    let text = check.text();
    assert!(text.starts_with("This build computes the model"), "{text}");
    let mut lines = text.lines();
    assert!(lines.all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn the_roundings_of_an_accelerator_are_no_fault() {
    let check = with_fault(Some(1), 0.0, 512);
    assert_eq!(check.verdict, Outcome::Ok);
    let mut cells = check.cells;
    cells.retain(|cell| cell.settings.device == FAKE_DEVICE);
    let is_rounding = |cell: &CheckedCell| cell.verdict == CellVerdict::Rounding;
    assert!(
        cells.len() > 8 && cells.iter().all(is_rounding),
        "{cells:?}"
    );
}

#[test]
fn a_wrong_kernel_is_named_with_its_batches_and_its_layer() {
    for (layer, size, most) in [(1, 0.02, 8), (2, 0.02, 8), (0, -0.5, 1)] {
        let check = with_fault(Some(layer), size, most);
        assert_eq!(check.verdict, Outcome::Wrong);
        for cell in &check.cells {
            let settings = &cell.settings;
            let is_wrong = settings.device == FAKE_DEVICE && settings.n_ubatch <= most;
            assert_eq!(cell.verdict == CellVerdict::Wrong, is_wrong, "{cell:?}");
            let first = FirstDifference {
                layer: Some(layer),
                node: Some("ffn_down".to_owned()),
            };
            assert_eq!(cell.first_difference, is_wrong.then_some(first));
        }
        let text = check.text().replace('\n', " ");
        let when = match most {
            1 => "one token at a time",
            _ => "with batches of at most 8 tokens",
        };
        let start = format!(
            "On {FAKE_DEVICE}, {when}, this model is computed wrongly: layer {layer} is the first that differs (ffn_down). All other settings agree to rounding."
        );
        assert!(text.starts_with(&start), "{text}");
    }
}

#[test]
fn a_fault_everywhere_needs_no_condition_and_rows_that_are_not_finite_are_counted() {
    let text = with_fault(Some(0), 0.5, 512).text();
    let start = "On FAKE0, this model is computed wrongly: layer 0";
    assert!(text.starts_with(start), "{text}");
    let check = with_fault(None, 0.0, 512);
    let cell = check.cells.last().unwrap();
    assert_eq!((cell.verdict, cell.moved.kld), (CellVerdict::Wrong, None));
    assert!(cell.moved.n_not_finite > 500 && cell.first_difference.is_none());
    assert_eq!(check.floor, None);
    assert!(check.text().contains("not finite"), "{}", check.text());
}

#[test]
fn several_windows_are_decoded_at_once_in_a_setting_of_each_place() {
    let n_seqs = |n_parallel| {
        let run = RunSettings {
            n_parallel,
            ..RunSettings::default()
        };
        let check = with_fault_and(Some(1), 0.0, 512, run);
        let together = check.cells.iter().filter(|of| of.settings.n_seq > 1);
        let found: Vec<(String, u32)> = together
            .map(|of| (of.settings.device.clone(), of.settings.n_seq))
            .collect();
        assert!(found.is_empty() || check.text().contains("windows at once"));
        found
    };
    let both = |n| vec![("CPU".to_owned(), n), (FAKE_DEVICE.to_owned(), n)];
    assert_eq!(n_seqs(None), both(4));
    assert_eq!(n_seqs(Some(3)), both(3));
    assert_eq!(n_seqs(Some(1)), []);
}

#[test]
fn the_users_settings_come_last_and_types_of_the_cache_are_in_all() {
    let run = RunSettings {
        model: ModelOptions::on_cpu(),
        type_k: CacheType::Q8_0,
        type_v: CacheType::Q8_0,
        n_ubatch: Some(32),
        flash_attn: Some(FlashAttention::On),
        ..RunSettings::default()
    };
    let check = checked(None, run).unwrap();
    let yours = &check.cells.last().unwrap().settings;
    assert!(yours.is_yours && yours.n_ubatch == 32 && yours.device == "CPU");
    let mut all = check.cells.iter().map(|cell| &cell.settings);
    // llama.cpp keeps quantized values with flash attention only.
    assert!(all.all(|of| of.type_v == "q8_0" && of.flash_attn == "on"));
    assert_eq!(check.base.flash_attn, "on");
}
