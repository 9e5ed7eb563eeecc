//! Writers whose disk is full after any number of bytes say so, and never that all is well.

use std::io::{self, Write};
use std::path::Path;

use kl_formats::sidecar::SIDECAR_VERSION;
use kl_formats::{
    BackendIdentity, Encoding, Header, KlPyHeader, KlPyWriter, LlamaCppHeader, LlamaCppWriter,
    ModelIdentity, NativeWriter, Piece, Result, SidecarHeader, SidecarWriter, TextIdentity,
    TokenRecord, WindowEncoder, WindowHead, native,
};

const N_VOCAB: u32 = 3;

/// A disk with room for so many bytes; the last write takes what fits.
struct Disk {
    room: usize,
    bytes: Vec<u8>,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(self.room);
        if n == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.room -= n;
        self.bytes.extend_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn model() -> ModelIdentity {
    ModelIdentity {
        file_name: "m.gguf".into(),
        name: None,
        architecture: None,
        size_bytes: 1,
        n_params: 1,
        file_bytes: 1,
        metadata_sha256: String::new(),
        sample_sha256: None,
    }
}

/// Two windows, with the rows that `encode` puts into an encoder's memory.
fn pieces(
    n_rows: u32,
    first_scored: u32,
    encoder: impl Fn(&WindowHead) -> Result<(WindowEncoder, Piece)>,
) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for window in 0..2 {
        let head = WindowHead {
            window,
            tokens: vec![0, 1, 2, 1],
            first_scored,
            n_rows,
        };
        let (mut encoder, piece) = encoder(&head).unwrap();
        pieces.push(piece);
        while encoder.rows_left() > 0 {
            encoder.reserve_rows(1, || None).0.fill(7);
            pieces.extend(encoder.commit());
        }
        encoder.finish().unwrap();
    }
    pieces
}

fn native(disk: Disk) -> Result<Disk> {
    let header = Header {
        format_version: native::FORMAT_VERSION,
        writer: "kl test".into(),
        model: model(),
        tokenizer: None,
        n_ctx: 4,
        n_vocab: N_VOCAB,
        add_bos: false,
        first_scored: 0,
        n_windows: 2,
        n_rows: 8,
        encoding: Encoding::U16,
        rows_per_piece: 2,
        text: TextIdentity {
            name: "-".into(),
            bytes: 1,
            sha256: String::new(),
            n_tokens: 8,
        },
        backend: BackendIdentity {
            llama_cpp: String::new(),
            devices: Vec::new(),
            n_gpu_layers: 0,
            n_batch: 4,
            n_ubatch: 4,
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
    let mut writer = NativeWriter::create(disk, Path::new("out"), &header)?;
    for piece in pieces(4, 0, |head| WindowEncoder::new(&header, head)) {
        writer.append(piece.compress())?;
    }
    writer.finish()
}

fn kl_py(disk: Disk) -> Result<Disk> {
    let header = KlPyHeader {
        n_ctx: 4,
        n_vocab: N_VOCAB,
        ..Default::default()
    };
    let mut writer = KlPyWriter::create(disk, Path::new("out"), &header)?;
    for piece in pieces(4, 0, |head| WindowEncoder::kl_py(&header, head)) {
        writer.append(piece.compress())?;
    }
    writer.finish()
}

fn llama_cpp(disk: Disk) -> Result<Disk> {
    let header = LlamaCppHeader {
        n_ctx: 4,
        n_vocab: N_VOCAB,
        n_windows: 2,
    };
    let tokens = [0, 1, 2, 1, 0, 1, 2, 1];
    let mut writer = LlamaCppWriter::create(disk, Path::new("out"), 4, N_VOCAB, &tokens)?;
    for piece in pieces(1, 2, |head| WindowEncoder::llama_cpp(&header, head)) {
        writer.append_member(piece.compress())?;
    }
    writer.finish()
}

fn sidecar(disk: Disk) -> Result<Disk> {
    let header = SidecarHeader {
        version: SIDECAR_VERSION,
        writer: "kl test".into(),
        model: model(),
        model_path: "m.gguf".into(),
        reference: Default::default(),
        n_ctx: 4,
        n_vocab: N_VOCAB,
        first_scored: 0,
        n_records: 3,
        n_vocab_compared: None,
        backend: None,
    };
    let mut writer = SidecarWriter::create(disk, Path::new("out"), &header)?;
    for position in 0..3 {
        writer.push(&TokenRecord {
            window: 0,
            position,
            token: 1,
            flags: 0,
            ref_top: 1,
            eval_top: 1,
            ref_top_rank: 1,
            eval_top_rank: 1,
            kld: 0.5,
            reverse_kld: 0.5,
            ref_nll: 1.0,
            eval_nll: 1.0,
            ref_entropy: 1.0,
        })?;
    }
    writer.finish()
}

#[test]
fn a_disk_that_is_full_at_any_byte_is_an_error() {
    for (name, write) in [
        ("native", native as fn(Disk) -> Result<Disk>),
        ("kl.py", kl_py),
        ("llama.cpp", llama_cpp),
        ("sidecar", sidecar),
    ] {
        let disk = |room| Disk {
            room,
            bytes: Vec::new(),
        };
        let whole = write(disk(usize::MAX)).unwrap().bytes;
        for room in 0..whole.len() {
            let error = write(disk(room)).map(|_| ()).unwrap_err().to_string();
            assert!(
                error.starts_with("out: cannot write: "),
                "{name}, {room}: {error}"
            );
            assert!(!error.contains('\n'));
        }
        assert_eq!(write(disk(whole.len())).unwrap().bytes, whole, "{name}");
    }
}
