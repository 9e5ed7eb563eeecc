//! The bytes of a context's cache.

use std::fs;

use super::*;
use crate::{Appended, CacheType};

/// The bytes of 32 elements.
const F16: u64 = 64;
const Q8_0: u64 = 34;
const Q4_0: u64 = 18;

fn cache_bytes(name: &str, (k, v): (&str, &str), n_ctx: u32, n_seq: u32) -> u64 {
    let model = load(&fixture(name));
    let of = |name: &str| name.parse().unwrap();
    let options = ContextOptions {
        n_ctx,
        calls: Calls::new(64, 64),
        n_seq,
        threads: THREADS,
        type_k: of(k),
        type_v: of(v),
        ..ContextOptions::default()
    };
    model.decoder(&options).unwrap().cache_bytes()
}

/// By hand, from the shapes in the files: llama.cpp pads a context to 256 cells.
#[test]
fn they_are_those_of_its_tensors() {
    let of = |types, n_ctx| cache_bytes("tiny-f16.gguf", types, n_ctx, 1);
    // 3 layers, each with 4 heads of 32 elements.
    let blocks = 3 * 4;
    assert_eq!(of(("f16", "f16"), 64), 256 * blocks * (F16 + F16));
    assert_eq!(of(("f16", "f16"), 512), 512 * blocks * (F16 + F16));
    assert_eq!(of(("q8_0", "f16"), 512), 512 * blocks * (Q8_0 + F16));
    assert_eq!(of(("q4_0", "q8_0"), 512), 512 * blocks * (Q4_0 + Q8_0));
    assert_eq!(of(("f32", "q4_0"), 512), 512 * blocks * (2 * F16 + Q4_0));
    // A context of several windows holds all of them.
    assert_eq!(
        cache_bytes("tiny-f16.gguf", ("f16", "f16"), 512, 3),
        3 * 512 * blocks * (F16 + F16)
    );
}

/// A layer with a sliding window keeps all tokens, as llama.cpp's library does unless it is told otherwise,
/// and a recurrent one a state.
#[test]
fn layers_of_other_kinds_are_counted_as_they_are() {
    // Two layers, one of which sees 16 tokens. Each has a head of 32 elements.
    let of_gemma2 = |types| cache_bytes("architectures/gemma2.gguf", types, 512, 1);
    assert_eq!(of_gemma2(("f16", "f16")), 512 * 2 * (F16 + F16));
    assert_eq!(of_gemma2(("q8_0", "f16")), 512 * 2 * (Q8_0 + F16));
    // 512 inner elements of f32, each with 3 that the convolution needs, and with a state of 8.
    for n_ctx in [64, 512] {
        for types in [("f16", "f16"), ("q8_0", "f16")] {
            let bytes = cache_bytes("architectures/mamba.gguf", types, n_ctx, 1);
            assert_eq!(bytes, 512 * 4 * (3 + 8), "{n_ctx} {types:?}");
        }
    }
}

fn first_token() -> Appended<'static> {
    Appended {
        sequence: 0,
        window: 0,
        tokens: &[1],
        start: 0,
    }
}

/// The sizes that a model without its weights shows are those of contexts that are allocated, for every
/// architecture of the fixtures: layers that keep all tokens, those with a sliding window, and states.
#[test]
fn sizes_of_contexts_are_known_without_allocating_them() {
    let mut n_windows = 0;
    let folder = fs::read_dir(fixture("architectures")).unwrap();
    let files = folder.map(|entry| entry.unwrap().path());
    for path in files.filter(|path| path.extension() == Some("gguf".as_ref())) {
        let model = load(&path);
        for type_k in [CacheType::F16, CacheType::Q8_0] {
            // Only the types of a run matter.
            let options = ContextOptions {
                n_ctx: 32,
                calls: Calls::new(64, 16),
                n_seq: 3,
                threads: THREADS,
                type_k,
                ..ContextOptions::default()
            };
            let sizes = model.context_sizes(&options);
            if model.decoder(&options).is_err() {
                // Its heads are not whole blocks of q8_0.
                assert!(sizes.is_err(), "{}: {type_k}", path.display());
                continue;
            }
            let sizes = sizes.unwrap();
            n_windows += usize::from(sizes.cache.0.len() == 3);
            for n_ctx in [1, 300, 600, 2048, 3000] {
                let deployed = ContextOptions {
                    n_ctx,
                    calls: Calls::new(2048, 512),
                    n_seq: 1,
                    is_as_deployed: true,
                    ..options.clone()
                };
                let mut context = model.decoder(&deployed).unwrap();
                let found = sizes.cache.of_context(n_ctx.into()).unwrap();
                let name = path.display();
                assert_eq!(found, context.cache_bytes(), "{name}: {type_k} {n_ctx}");
                // llama.cpp allocates the buffers when the first graph is computed.
                if n_ctx < 512 {
                    continue;
                }
                context.append(&[first_token()]).unwrap();
                let compute = context.context_bytes() - context.cache_bytes();
                let found = sizes.compute.of_context(n_ctx.into()).unwrap();
                let off = found.abs_diff(compute) as f64 / compute as f64;
                // Between the points, a mask of attention bends the line.
                let most = if n_ctx == 2048 { 0.0 } else { 0.1 };
                assert!(off <= most, "{name}: {type_k} {n_ctx}: {found}, {compute}");
            }
        }
    }
    // Of gemma2, with both types.
    assert_eq!(n_windows, 2);
}
