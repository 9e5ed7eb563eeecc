//! Where weights lie, on a machine that may have no device but the CPU.

use super::*;
use crate::GpuLayers;
use crate::llama_cpp::params::Extra;
use crate::llama_cpp::params::{END_OF_OVERRIDES, ModelParams};

fn refused(options: &ModelOptions) -> String {
    hush();
    match ENGINE.load(&fixture("tiny-f16.gguf"), options) {
        Ok(_) => panic!("loaded"),
        Err(error) => error.to_string(),
    }
}

fn with_override(text: &str) -> ModelOptions {
    ModelOptions {
        tensor_overrides: vec![text.parse().unwrap()],
        ..ModelOptions::default()
    }
}

#[test]
fn rows_do_not_depend_on_how_the_file_is_read() {
    let path = fixture("tiny-f16.gguf");
    let mapped = load(&path);
    let window = window(&mapped, 40, 0);
    let expected = plain_rows(&mapped, &options(64, 64), &window);
    let on_cpu = with_override(r"blk\.0\..*=CPU");
    let read = ModelOptions {
        use_mmap: Some(false),
        ..ModelOptions::default()
    };
    let cpu_only = ModelOptions {
        n_gpu_layers: GpuLayers::All,
        ..ModelOptions::on_cpu()
    };
    let without_experts = ModelOptions {
        cpu_moe: true,
        no_kv_offload: true,
        no_op_offload: true,
        ..ModelOptions::default()
    };
    for other in [on_cpu, read, cpu_only, without_experts] {
        let model = ENGINE.load(&path, &other).unwrap();
        assert!(!model.facts().is_offloaded);
        assert_eq!(model.facts().options.n_gpu_layers, GpuLayers::Count(0));
        let rows = plain_rows(&*model, &options(64, 64), &window);
        for (row, expected) in rows.iter().zip(&expected) {
            assert_eq!(bits(row), bits(expected), "{other:?}");
        }
    }
}

/// Where ggml is compiled without AMX, this always holds.
#[test]
fn amx_is_kept_out() {
    hush();
    ENGINE.devices().unwrap();
    for device in device::GgmlDevice::all() {
        let mut memories = device.extra_buffer_types().into_iter();
        assert!(memories.all(|memory| memory.name() != "AMX"));
    }
}

#[test]
fn memory_that_is_not_there_is_refused() {
    let message = refused(&with_override("blk=Nonesuch7"));
    assert!(message.contains("no device 'Nonesuch7': available are"));
    assert!(message.contains("CPU"), "{message}");
}

#[test]
fn a_pattern_that_is_no_regular_expression_is_refused() {
    for pattern in ["((", "[z-a]", "[[:no:]]"] {
        let message = refused(&with_override(&format!("{pattern}=CPU")));
        assert!(!message.contains('\n'));
        let start = format!("--override-tensor {pattern}: is not a regular expression of C++: ");
        assert!(message.starts_with(&start), "{message}");
    }
}

#[test]
fn automatic_layers_are_a_number_once_a_model_is_loaded() {
    hush();
    let options = ModelOptions {
        n_gpu_layers: GpuLayers::Auto,
        ..ModelOptions::on_cpu()
    };
    let model = ENGINE.load(&fixture("tiny-f16.gguf"), &options).unwrap();
    assert_eq!(model.facts().options.n_gpu_layers, GpuLayers::Count(0));
    // Three layers, and the output layer.
    assert_eq!(model.facts().n_layers, 4);
}

/// llama.cpp gives the extra model's context the size of the first one's, before it looks for
/// the file.
#[test]
fn the_mirrored_struct_has_its_pointers_where_llama_cpp_reads_them() {
    hush();
    ENGINE.devices().unwrap();
    let file = fixture("tiny-q4_K_M.gguf");
    let options = ModelOptions {
        n_gpu_layers: GpuLayers::Auto,
        ..ModelOptions::on_cpu()
    };
    let context = |n_ctx| {
        let options = ContextOptions {
            n_ctx,
            calls: kl_formats::Calls::new(32, 32),
            threads: 1,
            ..ContextOptions::default()
        };
        params::context_params(&options, &ModelOptions::default())
    };
    let mut params = ModelParams::new(&file, &options, &[]).unwrap();
    let (mut own, mut second_context) = (context(512), context(64));
    let mut second_model = params.raw;
    let mut extra = Extra {
        path_model: c"/no/such/model.gguf".as_ptr(),
        mparams: &raw mut second_model,
        cparams: &raw mut second_context,
        shares_model: false,
    };
    let mut overrides = vec![END_OF_OVERRIDES; 4096];
    let mut margins = vec![0; params.tensor_split.len()];
    // SAFETY: as in `fit`.
    let status = unsafe {
        assert!(sys::llama_max_tensor_buft_overrides() <= overrides.len());
        sys::llama_rs_fit_params(
            params.file.as_ptr(),
            &raw mut params.raw,
            &raw mut own,
            params.tensor_split.as_mut_ptr(),
            overrides.as_mut_ptr(),
            margins.as_mut_ptr(),
            0,
            (&raw mut extra).cast_const().cast(),
            sys::GGML_LOG_LEVEL_ERROR,
        )
    };
    assert_eq!((status, second_context.n_ctx), (0, 512));
}

#[test]
fn a_header_tells_which_layers_a_model_has() {
    for name in ["mamba", "falcon-h1", "lfm2", "qwen2"] {
        let path = fixture(&format!("architectures/{name}.gguf"));
        let loaded = load(&path).facts().layers;
        assert_eq!(ENGINE.inspect(&path).unwrap().layers, loaded, "{name}");
    }
}
