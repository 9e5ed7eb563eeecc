//! One pair of rows, every kernel, and the other metrics: f32 against f32, and u16 against f32.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kl::score::{Kernel, logit_metrics};
use kl_formats::Row;

/// Normal logits with the spread of a language model's rows, and the same with noise: a pair with a
/// KL of about 0.01. Both have the same top token, as most pairs do: where they differ, counting
/// ranks takes a tenth longer.
fn rows(n: usize) -> (Vec<f32>, Vec<f32>) {
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
    let eval = reference.iter().map(|x| x + 0.15 * normal()).collect();
    (reference, eval)
}

fn codes(row: &[f32]) -> (f32, f32, Vec<u16>) {
    let min = row.iter().copied().fold(f32::INFINITY, f32::min);
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let step = (max - min) / 65535.0;
    let codes = row.iter().map(|x| ((x - min) / step).round() as u16);
    (min, step, codes.collect())
}

fn score(criterion: &mut Criterion) {
    for n in [32_000, 128_256] {
        let (reference, eval) = rows(n);
        let (min, step, codes) = codes(&reference);
        let encoded = Row::U16 {
            min,
            step,
            codes: &codes,
        };
        let mut group = criterion.benchmark_group(format!("score/{n}"));
        group.throughput(Throughput::Elements(n as u64));
        for kernel in Kernel::available() {
            for (encoding, row) in [("f32", Row::F32(&reference)), ("u16", encoded)] {
                group.bench_function(BenchmarkId::new(kernel.name(), encoding), |bencher| {
                    bencher.iter(|| kernel.score(black_box(row), black_box(&eval), Some(7)));
                });
            }
        }
        for (encoding, row) in [("f32", Row::F32(&reference)), ("u16", encoded)] {
            group.bench_function(BenchmarkId::new("logit_metrics", encoding), |bencher| {
                bencher.iter(|| logit_metrics(black_box(row), black_box(&eval)));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, score);
criterion_main!(benches);
