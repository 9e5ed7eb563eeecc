//! Pieces of 8 rows through the native file, on one core: checked, stored or deflated, and back.

#[allow(dead_code)] // shared with `encodings`
mod rows;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kl_formats::{
    About, Encoding, Header, Kind, NativeReader, Piece, ReadBlocks, WindowFormat, WindowSpec,
    Writer,
};
use rows::{N_VOCAB, logits};
use tempfile::NamedTempFile;

const N_ROWS: u32 = 8;

/// Logits that deflate does not shrink, and the same rounded to quarters, which it does.
fn kinds() -> [(&'static str, Vec<f32>); 2] {
    let plain = logits(N_ROWS as usize);
    let coarse = plain.iter().map(|x| (x * 4.0).round() / 4.0).collect();
    [("stored", plain), ("deflated", coarse)]
}

fn members(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("members");
    group.sample_size(20);
    for encoding in [Encoding::U16, Encoding::F32] {
        for (kind, logits) in kinds() {
            let file = NamedTempFile::new().unwrap();
            let mut writer = writer(encoding, &file);
            let format = writer.window_format();
            group.throughput(Throughput::Bytes(format.piece_bytes() as u64));
            let (first, rows) = pieces(format, &logits);
            group.bench_function(BenchmarkId::new(format!("write/{kind}"), encoding), |b| {
                b.iter_batched(|| rows.clone(), Piece::compress, BatchSize::LargeInput);
            });
            writer.append(first.compress()).unwrap();
            writer.append(rows.clone().compress()).unwrap();
            writer.finish().unwrap();
            let reader = NativeReader::open(file.path()).unwrap();
            let mut block = None;
            group.bench_function(BenchmarkId::new(format!("read/{kind}"), encoding), |b| {
                b.iter(|| block = Some(reader.block(0, 0, block.take()).unwrap()));
            });
        }
    }
    group.finish();
}

fn window() -> WindowSpec {
    WindowSpec {
        window: 0,
        tokens: vec![0; N_ROWS as usize],
        first_scored: 0,
        n_rows: N_ROWS,
    }
}

/// A native file of this window, its rows in one piece.
fn writer(encoding: Encoding, file: &NamedTempFile) -> Writer<&NamedTempFile> {
    let about = About::new(Kind::Kl, file.path(), N_ROWS, N_VOCAB as u32);
    let mut header = Header::new(&about, encoding, &[window()]);
    header.rows_per_piece = N_ROWS;
    Writer::native(file, file.path(), &header).unwrap()
}

fn pieces(format: WindowFormat, logits: &[f32]) -> (Piece, Piece) {
    let (mut encoder, first) = format.begin(&window()).unwrap();
    let (bytes, n) = encoder.reserve_rows(N_ROWS as usize, || None);
    let rows = bytes.chunks_mut(bytes.len() / n);
    for (out, row) in rows.zip(logits.chunks(N_VOCAB)) {
        format.row_layout().encode(row, out);
    }
    (
        first,
        encoder
            .commit(|i| &logits[i * N_VOCAB..][..N_VOCAB])
            .unwrap(),
    )
}

criterion_group!(benches, members);
criterion_main!(benches);
