//! A row of 128,256 logits to its encoding and back, on one core, in cache.

mod rows;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kl_formats::Encoding;
use rows::{N_VOCAB, logits, words_of};

fn encodings(criterion: &mut Criterion) {
    let row = logits(1);
    let mut group = criterion.benchmark_group("encodings");
    group.throughput(Throughput::Elements(N_VOCAB as u64));
    for encoding in [Encoding::U16, Encoding::F32] {
        let mut words = words_of(encoding, &row);
        let n_bytes = encoding.layout().unwrap().row_bytes(N_VOCAB);
        let bytes: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut words)[..n_bytes];
        group.bench_function(BenchmarkId::new("encode", encoding), |bencher| {
            bencher.iter(|| encoding.layout().unwrap().encode(black_box(&row), bytes));
        });
        let view = encoding.layout().unwrap().view(bytes, N_VOCAB).unwrap();
        let mut decoded = vec![0.0; N_VOCAB];
        group.bench_function(BenchmarkId::new("decode", encoding), |bencher| {
            bencher.iter(|| view.decode_into(black_box(&mut decoded)));
        });
    }
    group.finish();
}

criterion_group!(benches, encodings);
criterion_main!(benches);
