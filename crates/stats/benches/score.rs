//! One pair of rows, scored with the best instructions of this processor, and the other metrics: f32
//! against f32, and u16 against f32; rows with a masked column, of a base file, and so alike that they
//! are summed twice.
//!
//! `RUSTFLAGS="--cfg disable_dispatch_avx512"` times AVX2, and with `--cfg disable_dispatch_avx2` and
//! `--cfg disable_dispatch_sse4_2` as well SSE2.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kl_formats::Row;
use kl_stats::score::{self, RowPair, floor, logit_metrics};

/// Normal logits with the spread of a language model's rows, and the same with noise: a pair with a
/// KL of about 0.01 if `noise` is 0.15. Both have the same top token, as most pairs do: where they
/// differ, counting ranks takes a tenth longer.
fn rows(n: usize, noise: f32) -> (Vec<f32>, Vec<f32>) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut uniform = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32
    };
    let mut normal = move || (0..12).map(|_| uniform()).sum::<f32>() - 6.0;
    let mut reference: Vec<f32> = (0..n).map(|_| 2.5 * normal()).collect();
    reference[n / 3] = 14.0;
    let eval = reference.iter().map(|x| x + noise * normal()).collect();
    (reference, eval)
}

fn codes(row: &[f32]) -> (f32, f32, Vec<u16>) {
    let min = row.iter().copied().fold(f32::INFINITY, f32::min);
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let step = (max - min) / 65535.0;
    let codes = row.iter().map(|x| ((x - min) / step).round() as u16);
    (min, step, codes.collect())
}

/// The row as llama.cpp's base file holds it: ln p, raised to 16 below the largest.
fn floored(row: &[f32]) -> Vec<f32> {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|x| f64::from(x - max).exp()).sum();
    let ln_sum = sum.ln() as f32;
    let raised = row.iter().map(|x| x.max(max - 16.0) - max - ln_sum);
    raised.collect()
}

fn rows_of_each_kind(criterion: &mut Criterion) {
    for n in [32_000, 128_256] {
        let (reference, eval) = rows(n, 0.15);
        let (min, step, coded) = codes(&reference);
        let encoded = Row::U16 {
            masked: None,
            min,
            step,
            codes: &coded,
        };
        let (floor_min, floor_step, floor_codes) = codes(&floored(&reference));
        let base = Row::U16 {
            masked: None,
            min: floor_min,
            step: floor_step,
            codes: &floor_codes,
        };
        let of_base = RowPair {
            ref_floor: floor(base),
            ..RowPair::new(base, &eval, Some(7))
        };
        assert!(of_base.ref_floor.is_some());
        // A masked column in every row, as in files of models with reserved entries.
        let mask = |row: &[f32]| {
            let mut row = row.to_vec();
            row[n / 2] = f32::NEG_INFINITY;
            row
        };
        let (masked, eval_masked) = (mask(&reference), mask(&eval));
        let close = rows(n, 1e-5).1;
        let pairs = [
            ("f32", RowPair::new(Row::F32(&reference), &eval, Some(7))),
            ("u16", RowPair::new(encoded, &eval, Some(7))),
            ("base file", of_base),
            (
                "masked column",
                RowPair::new(Row::F32(&masked), &eval_masked, Some(7)),
            ),
            (
                "KLD of 1e-10",
                RowPair::new(Row::F32(&reference), &close, Some(7)),
            ),
        ];
        let mut group = criterion.benchmark_group(format!("score/{n}"));
        group.throughput(Throughput::Elements(n as u64));
        for (name, pair) in pairs {
            group.bench_function(BenchmarkId::new("score", name), |bencher| {
                bencher.iter(|| score::score(black_box(&pair)));
            });
        }
        for (name, pair) in pairs {
            group.bench_function(BenchmarkId::new("logit_metrics", name), |bencher| {
                bencher.iter(|| logit_metrics(black_box(&pair)));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, rows_of_each_kind);
criterion_main!(benches);
