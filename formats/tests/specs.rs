//! The readers printed in the specs read what this crate writes. Needs python3 with numpy, and is
//! passed over where there is none.

use std::path::Path;
use std::process::Command;

use kl_formats::*;

/// The Python in a spec.
fn reader_of(spec: &str) -> &str {
    spec.split("```python\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap()
}

/// What `script` prints when given `path`; `None` where there is no Python to run it.
fn python(script: &str, path: &Path) -> Option<String> {
    let has_numpy = Command::new("python3")
        .args(["-c", "import numpy"])
        .output();
    if !has_numpy.is_ok_and(|out| out.status.success()) {
        eprintln!("no python3 with numpy here: not checked");
        return None;
    }
    let out = Command::new("python3")
        .arg("-c")
        .arg(script)
        .arg(path)
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    Some(String::from_utf8(out.stdout).unwrap())
}

fn model() -> ModelIdentity {
    ModelIdentity {
        file_name: "caf\u{e9} \"q4\".gguf".into(),
        name: None,
        architecture: None,
        size_bytes: 1,
        n_params: 1,
        file_bytes: 1,
        metadata_sha256: String::new(),
        sample_sha256: None,
    }
}

fn heads() -> [WindowHead; 3] {
    [
        WindowHead {
            window: 1,
            tokens: vec![1, 2, 0],
            first_scored: 1,
            n_rows: 2,
        },
        WindowHead {
            window: 0,
            tokens: vec![4],
            first_scored: 1,
            n_rows: 0,
        },
        WindowHead {
            window: 2,
            tokens: vec![3, 3, 3],
            first_scored: 0,
            n_rows: 3,
        },
    ]
}

/// Five logits. Members of rows are stored, that of the header is compressed: both are read.
fn row(window: u32, i: u32) -> [f32; 5] {
    [-1.5, 0.25 * i as f32, window as f32, 7.125, 65.0]
}

fn pieces((mut encoder, head): (WindowEncoder, Piece), encoding: Encoding) -> Vec<Member> {
    let window = head.window();
    let mut members = vec![head.compress()];
    let mut i = 0;
    while encoder.rows_left() > 0 {
        let (bytes, n) = encoder.reserve_rows(1, || None);
        encoding.encode(&row(window, i), bytes);
        i += n as u32;
        members.extend(encoder.commit().map(|piece| piece.compress()));
    }
    encoder.finish().unwrap();
    members
}

/// What both readers print of the windows.
fn expected(encoding: Encoding) -> String {
    let mut lines = String::new();
    for head in heads() {
        let mut sum = 0.0;
        for i in 0..head.n_rows {
            let mut words = [0u32; 5];
            let bytes = bytemuck::cast_slice_mut(&mut words);
            let bytes = &mut bytes[..encoding.row_bytes(5).unwrap()];
            encoding.encode(&row(head.window, i), bytes);
            let view = encoding.view(bytes, 5).unwrap();
            sum += (0..5).map(|t| f64::from(view.get(t))).sum::<f64>();
        }
        let mean = match head.n_rows {
            0 => "None".into(),
            n => format!("{:.9}", sum / f64::from(n * 5)),
        };
        lines += &format!(
            "{} {:?} ({}, 5) {mean}\n",
            head.window, head.tokens, head.n_rows
        );
    }
    lines
}

#[test]
fn logits_md() {
    let script = reader_of(include_str!("../LOGITS.md")).replace(
        "logits.mean(dtype=\"f8\")",
        "f'{logits.mean(dtype=\"f8\"):.9f}'",
    );
    for encoding in [Encoding::U16, Encoding::F32] {
        let header = Header {
            format_version: native::FORMAT_VERSION,
            writer: "kl test".into(),
            model: model(),
            tokenizer: None,
            n_ctx: 3,
            n_vocab: 5,
            add_bos: false,
            first_scored: 0,
            n_windows: 3,
            n_rows: 5,
            encoding,
            rows_per_piece: 2,
            text: TextIdentity {
                name: "-".into(),
                bytes: 0,
                sha256: "".into(),
                n_tokens: 7,
            },
            backend: BackendIdentity {
                llama_cpp: String::new(),
                devices: Vec::new(),
                n_gpu_layers: 0,
                n_batch: 1,
                n_ubatch: 1,
                threads: 1,
                flash_attn: "off".into(),
                type_k: "f16".into(),
                type_v: "f16".into(),
            },
            seed: None,
            stride: None,
            log_probabilities: false,
            prompts: None,
            chat_template: None,
            generated: None,
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut writer = NativeWriter::create(&file, file.path(), &header).unwrap();
        for head in heads() {
            for member in pieces(WindowEncoder::new(&header, &head).unwrap(), encoding) {
                writer.append(member).unwrap();
            }
        }
        writer.finish().unwrap();
        if let Some(printed) = python(&script, file.path()) {
            assert_eq!(printed, expected(encoding));
        }
        let gunzip = Command::new("gzip").arg("-dc").arg(file.path()).output();
        if let Ok(out) = gunzip {
            assert!(out.status.success());
            assert!(out.stdout.starts_with(native::MAGIC_LINE.as_bytes()));
        }
    }
}

#[test]
fn kl_py() {
    let script = r#"
import ast, gzip, struct, sys
import numpy as np
with gzip.open(sys.argv[1], "rb") as f:
    assert f.readline() == b"llama_kl_divergence_v1\n"
    header = ast.literal_eval(f.readline().decode("utf-8"))
    assert header["n_ctx"] == 3 and header["n_batch"] == 512 and "caf\u00e9" in header["model"]
    windows = 0
    while counts := f.read(12):
        n_tokens, n_logits, n_vocab = struct.unpack("<3I", counts)
        tokens = np.frombuffer(f.read(4 * n_tokens), "<u4")
        rows = np.frombuffer(f.read(4 * n_logits * n_vocab), "<f4").reshape(n_logits, n_vocab)
        mean = f"{rows.mean(dtype='f8'):.9f}" if n_logits else None
        print([1, 0, 2][windows], tokens.tolist(), rows.shape, mean)
        windows += 1
"#;
    let header = KlPyHeader {
        n_ctx: 3,
        n_vocab: 5,
        n_windows: Some(3),
        model: Some(model().file_name),
        text_path: None,
        others: vec![("n_batch".into(), "512".into())],
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = KlPyWriter::create(&file, file.path(), &header).unwrap();
    for head in heads() {
        // The only rows the file can hold are those from the first position on.
        let head = WindowHead {
            first_scored: 0,
            ..head
        };
        for member in pieces(WindowEncoder::kl_py(&header, &head).unwrap(), Encoding::F32) {
            writer.append(member).unwrap();
        }
    }
    writer.finish().unwrap();
    if let Some(printed) = python(script, file.path()) {
        assert_eq!(printed, expected(Encoding::F32));
    }
}

/// llama-perplexity's own file, and one of an odd vocabulary written here.
#[test]
fn llamacpp_md() {
    let tokens = [0, 4, 2, 3, 1, 1, 0, 2, 3, 4, 0, 1];
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = LlamaCppWriter::create(&file, file.path(), 6, 5, &tokens).unwrap();
    for i in 0..4 {
        let mut bytes = vec![0; llamacpp::row_bytes(5).unwrap()];
        llamacpp::encode_row(&row(i / 2, i % 2), &mut bytes);
        writer.append(&bytes).unwrap();
    }
    writer.finish().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/peers");
    for path in [file.path(), &root.join("llama-perplexity-f16-c128.kld")] {
        let reader = LlamaCppReader::open(path).unwrap();
        let mut expected = String::new();
        for i in 0..reader.n_windows() {
            let head = reader.head(i, None).unwrap();
            let next = &head.tokens[head.first_scored as usize + 1..];
            let block = reader.block(i, 0, head.n_rows, None).unwrap();
            let nll = next
                .iter()
                .zip(block.rows())
                .map(|(&token, row)| -f64::from(row.get(token as usize)));
            let mean = nll.sum::<f64>() / f64::from(head.n_rows);
            let shape = (head.n_rows, block.n_vocab());
            expected += &format!("{i} {shape:?} {mean:.9}\n");
        }
        if let Some(printed) = python(reader_of(include_str!("../LLAMACPP.md")), path) {
            assert_eq!(printed, expected);
        }
    }
}

#[test]
fn sidecar_md() {
    let header = SidecarHeader {
        version: sidecar::SIDECAR_VERSION,
        writer: "kl test".into(),
        model: model(),
        model_path: String::new(),
        reference: ReferenceSummary::default(),
        n_ctx: 3,
        n_vocab: 5,
        first_scored: 0,
        n_records: 3,
        n_vocab_compared: None,
        backend: None,
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = SidecarWriter::create(&file, file.path(), &header).unwrap();
    for (kld, flags) in [(0.5, 0), (100.0, TokenRecord::REF_NOT_FINITE), (0.25, 0)] {
        let record = TokenRecord {
            window: 1,
            position: 2,
            token: u32::MAX,
            flags,
            ref_top: 3,
            eval_top: 4,
            ref_top_rank: 1,
            eval_top_rank: 1,
            kld,
            reverse_kld: 0.5,
            ref_nll: f64::NAN,
            eval_nll: f64::NAN,
            ref_entropy: 1.0,
        };
        writer.push(&record).unwrap();
    }
    writer.finish().unwrap();
    if let Some(printed) = python(reader_of(include_str!("../SIDECAR.md")), file.path()) {
        assert_eq!(printed, "2 0.375\n");
    }
}
