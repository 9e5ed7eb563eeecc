use super::*;
use crate::commands::testing::run;

const CPU: Decoding = Decoding {
    n_vocab: 32_000,
    window_rows: u32::MAX,
    is_accelerated: false,
    is_quantized: false,
    is_together: true,
    min_n_ctx: 0,
    max_tokens_together: u32::MAX,
};

const GPU: Decoding = Decoding {
    is_accelerated: true,
    ..CPU
};

fn unset() -> RunSettings {
    RunSettings {
        n_batch: None,
        ..run()
    }
}

#[test]
fn calls_hold_as_many_whole_windows_as_the_device_likes_or_the_user_asks_for() {
    // The device, the window, and the -b and -np of the user.
    for (decoding, n_ctx, n_batch, n_parallel, expected) in [
        (GPU, 512, None, None, (2048, 512, 4)),
        (GPU, 700, None, None, (1400, 512, 2)),
        (GPU, 4096, None, None, (2048, 512, 1)),
        (GPU, 512, Some(1024), None, (1024, 512, 2)),
        (GPU, 512, None, Some(2), (1024, 512, 2)),
        (GPU.one_by_one(), 512, None, None, (512, 512, 1)),
        (CPU, 512, None, None, (512, 512, 1)),
        (CPU, 128, None, None, (128, 128, 1)),
        (CPU, 128, None, Some(3), (384, 128, 3)),
        (CPU, 128, None, Some(9), (512, 128, 4)),
        (CPU.one_by_one(), 128, None, Some(3), (128, 128, 1)),
    ] {
        let run = RunSettings {
            n_batch,
            n_parallel,
            ..run()
        };
        let Split { calls, n_seq } = Split::choose(&run, n_ctx, decoding, None);
        assert_eq!((calls.n_batch, calls.n_ubatch, n_seq), expected, "{n_ctx}");
    }
}

#[test]
fn as_many_answers_grow_together_as_give_the_same_tokens() {
    let quantized = Decoding {
        is_quantized: true,
        ..CPU
    };
    let no_flash = RunSettings {
        flash_attn: Some(FlashAttention::Off),
        ..unset()
    };
    let asked = RunSettings {
        n_parallel: Some(5),
        ..unset()
    };
    for (decoding, run, n_ctx, expected) in [
        (CPU, &unset(), 500, 8),
        (CPU, &unset(), 2000, 4),
        (CPU, &unset(), 9000, 1),
        (quantized, &unset(), 500, 2),
        (CPU, &no_flash, 500, 1),
        (GPU, &unset(), 500, 16),
        (GPU, &unset(), 10, 64),
        (GPU, &no_flash, 500, 16),
        (quantized, &asked, 500, 5),
        (CPU.one_by_one(), &asked, 500, 1),
    ] {
        assert_eq!(decoding.n_answers(run, n_ctx), expected, "{n_ctx}");
    }
}

#[test]
fn windows_that_share_a_cache_fit_in_the_context_that_one_would_have() {
    let limited = Decoding {
        max_tokens_together: 1024,
        ..GPU
    };
    let n_seq = |decoding, n_ctx| Split::choose(&unset(), n_ctx, decoding, None).n_seq;
    assert_eq!([512, 300, 1024, 2000].map(|n| n_seq(GPU, n)), [4, 6, 2, 1]);
    assert_eq!(
        [512, 300, 1024, 2000].map(|n| n_seq(limited, n)),
        [2, 3, 1, 1]
    );
    // Whatever a run that is continued, or the reference, has chosen.
    let begun = Split::choose(&unset(), 512, GPU, None);
    let split = Split::choose(&unset(), 512, limited, Some(begun));
    assert_eq!((split.n_seq, split.calls.n_batch), (2, 1024));
}

#[test]
fn a_reference_is_evaluated_as_it_was_written() {
    for (n_ctx, writer, other) in [(512, GPU, CPU), (600, CPU, GPU)] {
        let written = Split::choose(&unset(), n_ctx, writer, None);
        let evaluated = Split::choose(&unset(), n_ctx, other, Some(written));
        assert_eq!(evaluated, written);
        assert_eq!(written.calls.is_equal, n_ctx == 600);
    }
}

#[test]
fn only_wanted_rows_take_memory() {
    let half = Decoding {
        window_rows: 255,
        ..GPU
    };
    assert_eq!(half.call_rows(2048, 512), 4 * 255);
    assert_eq!(half.one_by_one().call_rows(512, 512), 255);
    // A long window's second half may fill a call.
    let long = Decoding {
        window_rows: 2047,
        ..GPU
    };
    assert_eq!(long.call_rows(2048, 4096), 2047);
    assert_eq!(long.call_rows(512, 4096), 512);
    assert_eq!(GPU.call_rows(2048, 512), 2048);
}

#[test]
fn rows_are_bounded_by_memory_but_hold_a_physical_batch() {
    for (rows, n_batch) in [
        (None, 2048),
        (Some(5000), 2048),
        (Some(2047), 1024),
        (Some(600), 512),
        (Some(1), 512),
    ] {
        let fits = |n_batch: u32| rows.is_none_or(|rows| u64::from(n_batch) <= rows);
        assert_eq!(fitting_batch(fits), n_batch, "{rows:?}");
    }
}

fn model(architecture: &str, n_params: u64, size_bytes: u64) -> ModelIdentity {
    let mut model = ModelIdentity::named("a.gguf");
    model.architecture = Some(architecture.to_owned());
    model.n_params = Some(n_params);
    model.size_bytes = Some(size_bytes);
    model
}

fn kind(reference: &ModelIdentity, evaluated: &ModelIdentity) -> Option<&'static str> {
    let watch = Watch::new(&());
    check_models(Some(reference), evaluated, &watch);
    watch.warnings().first().map(Warning::kind)
}

#[test]
fn other_models_and_swapped_ones_are_noticed() {
    let original = model("llama", 1000, 2000);
    let quant = model("llama", 1000, 600);
    assert_eq!(kind(&original, &quant), None);
    assert_eq!(kind(&original, &original), None);
    assert_eq!(kind(&quant, &original), Some("smaller_reference"));
    assert_eq!(kind(&original, &model("llama", 1000, 4000)), None);
    assert_eq!(kind(&original, &model("llama", 980, 600)), None);
    assert_eq!(kind(&original, &model("llama", 1270, 760)), None);
    let other = Some("other_model");
    assert_eq!(kind(&original, &model("llama", 600, 400)), other);
    assert_eq!(kind(&original, &model("qwen2", 1000, 600)), other);
    assert_eq!(kind(&ModelIdentity::named("b"), &quant), None);
    check_models(None, &quant, &Watch::new(&()));
}
