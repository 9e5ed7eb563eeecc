//! Measures what LOGITS.md says of speed: `cargo run --release -p kl-formats --example throughput`.
//!
//! Rows look like logits: a normal distribution, mean -1 and deviation 3, the best few far above.

use std::hint::black_box;
use std::io::Read;
use std::time::{Duration, Instant};

use flate2::read::MultiGzDecoder;
use flate2::{Compression, GzBuilder};
use kl_formats::{Encoding, Header, NativeReader, NativeWriter, WindowEncoder, WindowHead};

const N_VOCAB: usize = 128_256;

/// The shortest of many runs.
fn best(mut run: impl FnMut()) -> Duration {
    run();
    let time = |run: &mut dyn FnMut()| {
        let start = Instant::now();
        run();
        start.elapsed()
    };
    let until = Instant::now() + Duration::from_secs(2);
    let mut best = Duration::MAX;
    while Instant::now() < until {
        best = best.min(time(&mut run));
    }
    best
}

/// Sums of twelve uniform numbers: nearly normal.
fn rows(n: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut uniform = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..n * N_VOCAB)
        .map(|i| {
            let normal = (0..12).map(|_| uniform()).sum::<f32>() - 6.0;
            normal * 3.0 - 1.0 + if i % 10_000 == 7 { 15.0 } else { 0.0 }
        })
        .collect()
}

fn main() {
    let rows = rows(8);
    let mut decoded = vec![0.0; N_VOCAB];
    for encoding in [Encoding::U16, Encoding::F32] {
        let row_bytes = encoding.row_bytes(N_VOCAB).unwrap();
        // Words, so that the rows can be viewed in place.
        let mut words = vec![0u32; row_bytes * 8 / 4];
        let plain: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        for (out, row) in plain.chunks_mut(row_bytes).zip(rows.chunks(N_VOCAB)) {
            encoding.encode(row, out);
        }
        let (row, out) = (&rows[..N_VOCAB], &mut plain[..row_bytes]);
        println!(
            "{encoding} encode: {:?}",
            best(|| encoding.encode(black_box(row), out))
        );
        let view = encoding.view(&plain[..row_bytes], N_VOCAB).unwrap();
        println!(
            "{encoding} decode: {:?}",
            best(|| view.decode_into(black_box(&mut decoded)))
        );
        for level in [1, 2, 6] {
            let mut packed = Vec::new();
            let pack = |packed: &mut Vec<u8>| {
                packed.clear();
                GzBuilder::new()
                    .read(&*plain, Compression::new(level))
                    .read_to_end(packed)
                    .unwrap();
            };
            let mb_s = |time: Duration| plain.len() as f64 / 1e6 / time.as_secs_f64();
            let write = mb_s(best(|| pack(&mut packed)));
            let mut back = Vec::new();
            let read = mb_s(best(|| {
                back.clear();
                MultiGzDecoder::new(&*packed)
                    .read_to_end(&mut back)
                    .unwrap();
            }));
            let share = packed.len() as f64 / plain.len() as f64;
            println!("{encoding} level {level}: {share:.3}, {write:.0} MB/s, back {read:.0} MB/s");
        }
    }
    for encoding in [Encoding::U16, Encoding::F32] {
        through_a_file(encoding, &rows);
    }
}

/// The crate's own way, one thread: sample, choose, checksum; then read back.
fn through_a_file(encoding: Encoding, rows: &[f32]) {
    let head = WindowHead {
        window: 0,
        tokens: vec![0; 8],
        first_scored: 0,
        n_rows: 8,
    };
    let header = header(encoding);
    let (mut encoder, tokens) = WindowEncoder::new(&header, &head).unwrap();
    let (bytes, n) = encoder.reserve_rows(8);
    for (out, row) in bytes.chunks_mut(bytes.len() / n).zip(rows.chunks(N_VOCAB)) {
        encoding.encode(row, out);
    }
    let piece = encoder.commit().unwrap();
    let mb_s = |time: Duration| piece.plain_bytes() as f64 / 1e6 / time.as_secs_f64();
    let write = mb_s(best(|| drop(black_box(piece.compress()))));
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = NativeWriter::create(&file, file.path(), &header).unwrap();
    writer.append(tokens.compress()).unwrap();
    writer.append(piece.compress()).unwrap();
    writer.finish().unwrap();
    let reader = NativeReader::open(file.path()).unwrap();
    let mut block = None;
    let read = mb_s(best(|| {
        block = Some(reader.piece(0, 0, block.take()).unwrap())
    }));
    println!("{encoding} piece: written {write:.0} MB/s, read {read:.0} MB/s");
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
