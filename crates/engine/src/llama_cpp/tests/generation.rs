//! Texts that grow together, each in a sequence of its own.

use super::*;
use crate::{Appended, CacheType, Decoder, top_token};

fn appended(sequence: usize, tokens: &[u32], start: usize) -> Appended<'_> {
    Appended {
        sequence,
        window: sequence as u32,
        tokens,
        start,
    }
}

/// Appends `n` top tokens to each of these texts, all in one call, after each was decoded by itself in
/// calls of `n_batch` tokens. Returns the texts, and the last row of each.
pub fn grow(
    decoder: &mut dyn Decoder,
    texts: &[Vec<u32>],
    n: usize,
    n_batch: usize,
) -> (Vec<Vec<u32>>, Vec<Vec<f32>>) {
    let mut texts = texts.to_vec();
    let mut last = Vec::new();
    for (sequence, text) in texts.iter().enumerate() {
        decoder.forget(sequence).unwrap();
        let mut row = Vec::new();
        for start in (0..text.len()).step_by(n_batch) {
            let tokens = &text[..text.len().min(start + n_batch)];
            let rows = decoder
                .append(&[appended(sequence, tokens, start)])
                .unwrap();
            row = rows[0].to_vec();
        }
        last.push(row);
    }
    for i in 1..=n {
        for (text, row) in texts.iter_mut().zip(&last) {
            text.push(top_token(row).unwrap());
        }
        if i < n {
            let all = texts.iter().enumerate();
            let all = all.map(|(sequence, text)| appended(sequence, text, text.len() - 1));
            let rows = decoder.append(&all.collect::<Vec<_>>()).unwrap();
            last = rows.iter().map(|row| row.to_vec()).collect();
        }
    }
    (texts, last)
}

const MODELS: [&str; 3] = [
    "tiny-f16.gguf",
    "architectures/gemma2.gguf",
    "architectures/mixtral.gguf",
];

/// With a cache for each, a text grows beside others as it does by itself, to the bit.
#[test]
fn texts_grow_together_as_they_do_alone() {
    let plain = MODELS.map(|name| (name, CacheType::F16));
    let quantized = MODELS.map(|name| (name, CacheType::Q8_0));
    for (name, cache) in plain.into_iter().chain(quantized) {
        let model = load(&fixture(name));
        assert!(!model.facts().is_quantized);
        let text = |i: u32| window(&model, 20 + 9 * i, i).tokens;
        let texts: Vec<Vec<u32>> = (0..8).map(text).collect();
        let grown = |first: usize, n: usize| {
            let options = ContextOptions {
                n_ctx: 200,
                n_seq: n as u32,
                has_own_caches: true,
                shows_states: false,
                type_k: cache,
                type_v: cache,
                ..options(64, 64)
            };
            let mut decoder = model.decoder(&options).unwrap();
            // What a sequence held before leaves no trace.
            grow(&mut *decoder, &texts[8 - n..], 5, 64);
            grow(&mut *decoder, &texts[first..first + n], 40, 64)
        };
        let (all, rows) = grown(0, 8);
        for (first, n) in [(0, 1), (5, 1), (0, 2), (2, 4)] {
            let (some, some_rows) = grown(first, n);
            assert_eq!(some, all[first..first + n], "{name}");
            for (one, other) in some_rows.iter().zip(&rows[first..]) {
                assert_eq!(bits(one), bits(other), "{name}: {n} from {first}");
            }
        }
    }
}

/// Of a quantized model, two texts grow as each does by itself, to the bit: with more, ggml may use other kernels.
#[test]
fn two_texts_of_a_quantized_model_grow_together_as_they_do_alone() {
    for name in [
        "tiny-q8_0.gguf",
        "tiny-q4_K_M.gguf",
        "tiny-q2_K.gguf",
        "architectures/mixtral-q4_0.gguf",
    ] {
        let model = load(&fixture(name));
        assert!(model.facts().is_quantized);
        let texts = [0, 1].map(|i| window(&model, 20 + 9 * i, i).tokens);
        let grown = |texts: &[Vec<u32>]| {
            let options = ContextOptions {
                n_ctx: 200,
                n_seq: texts.len() as u32,
                has_own_caches: true,
                shows_states: false,
                ..options(64, 64)
            };
            grow(&mut *model.decoder(&options).unwrap(), texts, 40, 64)
        };
        let (both, rows) = grown(&texts);
        for i in [0, 1] {
            let (alone, row) = grown(&texts[i..=i]);
            assert_eq!(alone[0], both[i], "{name}");
            assert_eq!(bits(&row[0]), bits(&rows[i]), "{name}");
        }
    }
}

/// With a cache for each, windows of different lengths are computed in one physical batch, and get the rows that
/// they get alone, to the bit: from 64 tokens on, since ggml computes attention otherwise for fewer.
#[test]
fn windows_are_decoded_together_as_they_are_alone() {
    for name in MODELS {
        let model = load(&fixture(name));
        let windows: Vec<_> = [90, 65, 140, 64].map(|n| window(&model, n, n / 2)).into();
        let rows = |windows: &[&WindowSpec]| {
            let n_seq = windows.len() as u32;
            let options = ContextOptions {
                n_seq,
                has_own_caches: n_seq > 1,
                shows_states: false,
                ..options(N_TOKENS * n_seq, N_TOKENS * n_seq)
            };
            let mut decoder = model.decoder(&options).unwrap();
            assert_eq!(decoder.n_together(windows), windows.len());
            let rows = decoder.decode_together(windows).unwrap();
            rows.into_iter().map(bits).collect::<Vec<_>>()
        };
        let together = rows(&windows.iter().collect::<Vec<_>>());
        let alone = windows.iter().flat_map(|window| rows(&[window]));
        assert!(together == alone.collect::<Vec<_>>(), "{name}");
    }
}
