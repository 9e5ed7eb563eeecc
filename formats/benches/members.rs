//! Pieces of 8 rows through the native file, on one core: checked, stored or deflated, and back.

#[allow(dead_code)] // shared with `encodings`
mod rows;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kl_formats::{Encoding, Header, NativeReader, NativeWriter, Piece, WindowEncoder, WindowHead};
use rows::{N_VOCAB, logits};

const N_ROWS: u32 = 8;

/// What deflate makes nothing of, and what it makes much of: logits rounded to quarters.
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
            let (header, head, rows) = pieces(encoding, &logits);
            group.throughput(Throughput::Bytes(rows.plain_bytes() as u64));
            group.bench_function(BenchmarkId::new(format!("write/{kind}"), encoding), |b| {
                b.iter_batched(|| rows.clone(), Piece::compress, BatchSize::LargeInput);
            });
            let file = tempfile::NamedTempFile::new().unwrap();
            let mut writer = NativeWriter::create(&file, file.path(), &header).unwrap();
            writer.append(head.compress()).unwrap();
            writer.append(rows.clone().compress()).unwrap();
            writer.finish().unwrap();
            let reader = NativeReader::open(file.path()).unwrap();
            let mut block = None;
            group.bench_function(BenchmarkId::new(format!("read/{kind}"), encoding), |b| {
                b.iter(|| block = Some(reader.piece(0, 0, block.take()).unwrap()));
            });
        }
    }
    group.finish();
}

fn pieces(encoding: Encoding, logits: &[f32]) -> (Header, Piece, Piece) {
    let head = WindowHead {
        window: 0,
        tokens: vec![0; N_ROWS as usize],
        first_scored: 0,
        n_rows: N_ROWS,
    };
    let header = header(encoding);
    let (mut encoder, tokens) = WindowEncoder::new(&header, &head).unwrap();
    let (bytes, n) = encoder.reserve_rows(N_ROWS as usize, || None);
    for (out, row) in bytes
        .chunks_mut(bytes.len() / n)
        .zip(logits.chunks(N_VOCAB))
    {
        encoding.encode(row, out);
    }
    (header, tokens, encoder.commit().unwrap())
}

fn header(encoding: Encoding) -> Header {
    let json = r#"{
        "format_version": 2, "writer": "", "n_ctx": 8, "n_vocab": 128256, "add_bos": false,
        "first_scored": 0, "n_windows": 1, "n_rows": 8, "encoding": "f32", "rows_per_piece": 8,
        "model": {"file_name": "", "size_bytes": 0, "n_params": 0, "file_bytes": 0,
                  "metadata_sha256": ""},
        "text": {"name": "", "bytes": 0, "sha256": "", "n_tokens": 8},
        "backend": {"llama_cpp": "", "devices": [], "n_gpu_layers": 0, "n_batch": 0,
                    "n_ubatch": 0, "threads": 1, "flash_attn": "", "type_k": "", "type_v": ""}
    }"#;
    Header {
        encoding,
        ..serde_json::from_str(json).unwrap()
    }
}

criterion_group!(benches, members);
criterion_main!(benches);
