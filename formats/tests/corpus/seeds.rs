//! Small valid files of every kind, made by this crate's own writers where it has one.

#[path = "hidden.rs"]
mod hidden;

use std::io::{Read, Write};
use std::path::Path;

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::DeflateEncoder;
use hidden::hidden;
use kl_formats::*;
use rawzip::{CompressionMethod, ZipArchiveWriter};

use super::on_disk::OnDisk;
use super::{common, framing};

/// Entries of a row: in small files, where every change matters, and in files of some kilobytes,
/// which keep the reader busier.
const N_VOCAB: [u32; 2] = [3, 121];

/// Writes the files, and the first three quarters of each, into the folders of their targets.
pub fn write(corpus: &Path) {
    for n_vocab in N_VOCAB {
        let u16 = native(Encoding::U16, n_vocab, None);
        let f32 = native(Encoding::F32, n_vocab, None);
        let chats = native(Encoding::U16, n_vocab, Some(prompts()));
        for (target, name, bytes) in [
            ("native", "u16-parts", parts(&u16)),
            ("native", "f32-parts", parts(&f32)),
            ("native", "prompts-parts", parts(&chats)),
            ("native", "prompts", chats),
            ("native", "u16", u16.clone()),
            ("native", "f32", f32),
            ("native", "forms-parts", parts(&forms(n_vocab))),
            ("native", "forms", forms(n_vocab)),
            ("native", "hidden-parts", parts(&hidden(n_vocab))),
            ("native", "hidden", hidden(n_vocab)),
            ("native", "hidden-large-parts", hidden::large(n_vocab)),
            ("kl_py", "plain", gunzip(&kl_py(n_vocab))),
            ("kl_py", "gzip", kl_py(n_vocab)),
            ("llama_cpp", "base", llama_cpp(n_vocab)),
            ("llama_cpp", "logits2", logits2(n_vocab)),
            ("safetensors", "parts", safetensors(n_vocab)),
            ("safetensors", "file", bare_safetensors(n_vocab)),
            ("npz", "arrays-parts", arrays(n_vocab)),
            ("npz", "arrays", npz(&arrays(n_vocab))),
            ("npz", "prompts-parts", prompted_arrays(n_vocab)),
            ("npz", "prompts", npz(&prompted_arrays(n_vocab))),
            ("sidecar", "sidecar", sidecar(n_vocab)),
            ("map", "map", map(n_vocab)),
            ("reference", "native", u16),
            ("reference", "hidden", hidden(n_vocab)),
            ("reference", "kl_py", kl_py(n_vocab)),
            ("reference", "llama_cpp", llama_cpp(n_vocab)),
            ("reference", "npz", npz(&arrays(n_vocab))),
        ] {
            let folder = corpus.join(target);
            std::fs::create_dir_all(&folder).unwrap();
            let put = |name: &str, bytes: &[u8]| {
                std::fs::write(folder.join(format!("{name}-{n_vocab}")), bytes).unwrap();
            };
            put(name, &bytes);
            put(&format!("{name}-cut"), &bytes[..bytes.len() * 3 / 4]);
        }
    }
}

fn windows() -> [WindowSpec; 3] {
    [
        (1, vec![1, 2, 0], 0, 3),
        (0, vec![2], 1, 0),
        (2, vec![0, 1], 1, 1),
    ]
    .map(|(window, tokens, first_scored, n_rows)| WindowSpec {
        window,
        tokens,
        first_scored,
        n_rows,
    })
}

/// A row's logits.
fn row(i: usize, n_vocab: u32) -> Vec<f32> {
    let logits = (0..n_vocab as usize).map(|token| ((token * 37 + i * 11) % 101) as f32 / 8.0);
    logits.collect()
}

/// Writes windows and their rows.
fn written(mut writer: Writer<Vec<u8>>, windows: &[WindowSpec], n_vocab: u32) -> Vec<u8> {
    for window in windows {
        let rows = (0..window.n_rows).map(|i| row((window.n_rows - i) as usize, n_vocab));
        writer.write_window(window, rows).unwrap();
    }
    writer.finish().unwrap()
}

/// The description of a small file.
fn about(kind: Kind, n_ctx: u32, n_vocab: u32) -> About {
    let mut about = common::about(kind, n_ctx, n_vocab);
    about.add_bos = Some(false);
    about
}

fn prompts() -> Vec<Prompt> {
    let chat = r#"{"messages":[{"role":"user","content":[{"text":"a"}]}],"n_tokens":2}"#;
    let texts = [
        r#"{"prompt":"a","n_tokens":3}"#,
        r#"{"prompt":"","n_tokens":1}"#,
    ];
    let prompts = texts.into_iter().chain([chat]);
    prompts
        .map(|prompt| serde_json::from_str(prompt).unwrap())
        .collect()
}

fn native(encoding: Encoding, n_vocab: u32, prompts: Option<Vec<Prompt>>) -> Vec<u8> {
    let mut about = about(Kind::Kl, 3, n_vocab);
    about.groups = (prompts.is_some()).then(|| Groups::of_each(["a", "b", "a"]));
    about.prompts = prompts.map(|list| Prompts {
        list,
        ..Prompts::default()
    });
    let mut header = Header::new(&about, encoding, &windows());
    header.rows_per_piece = 2;
    let writer = Writer::native(Vec::new(), Path::new(""), &header).unwrap();
    written(writer, &windows(), n_vocab)
}

/// A native file whose rows are linear, masked and exact in turn.
fn forms(n_vocab: u32) -> Vec<u8> {
    let mut header = Header::new(&about(Kind::Kl, 3, n_vocab), Encoding::U16, &windows());
    header.rows_per_piece = 2;
    let mut writer = Writer::native(Vec::new(), Path::new(""), &header).unwrap();
    for window in windows() {
        let rows = (0..window.n_rows).map(|i| {
            let mut row = row(i as usize, n_vocab);
            row[1] = [1.0, f32::NEG_INFINITY, f32::NAN][i as usize % 3];
            row
        });
        writer.write_window(&window, rows).unwrap();
    }
    writer.finish().unwrap()
}

/// The members of a native file but for index and end, as `framing::members` expects them.
fn parts(mut file: &[u8]) -> Vec<u8> {
    let word = |file: &[u8], at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let mut parts = Vec::new();
    while word(file, 24) != 3 {
        let member;
        (member, file) = file.split_at(word(file, 16) as usize);
        parts.extend([24, 28, 32].map(|at| word(member, at) as u8));
        let plain = gunzip(member);
        parts.extend((plain.len() as u16).to_le_bytes());
        parts.extend(plain);
    }
    parts
}

fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    MultiGzDecoder::new(bytes).read_to_end(&mut plain).unwrap();
    plain
}

fn kl_py(n_vocab: u32) -> Vec<u8> {
    let mut about = about(Kind::KlPy, 3, n_vocab);
    about.others = vec![("read_path".into(), "None".into())];
    let windows = windows().map(|window| WindowSpec {
        first_scored: 0,
        ..window
    });
    created(&about, &windows)
}

/// A file of the kind of `about`, of these windows.
fn created(about: &About, windows: &[WindowSpec]) -> Vec<u8> {
    let target = Target::new(about.kind, None).unwrap();
    let writer = Writer::create(Vec::new(), Path::new(""), target, about, windows).unwrap();
    written(writer, windows, about.n_vocab)
}

fn llama_cpp(n_vocab: u32) -> Vec<u8> {
    let windows = [(0, [0, 1, 2, 1, 0]), (1, [2, 2, 2, 1, 0])].map(|(window, tokens)| WindowSpec {
        window,
        tokens: tokens.to_vec(),
        first_scored: 2,
        n_rows: 2,
    });
    created(&about(Kind::LlamaCpp, 5, n_vocab), &windows)
}

/// The same bytes with the other meaning of their codes.
fn logits2(n_vocab: u32) -> Vec<u8> {
    let mut bytes = llama_cpp(n_vocab);
    bytes[7] = b'2';
    bytes
}

/// `n` rows of f32.
fn rows(n: usize, n_vocab: u32) -> Vec<u8> {
    let entries = (0..n).flat_map(|i| row(i, n_vocab));
    entries.flat_map(f32::to_le_bytes).collect()
}

/// Two files as `framing::safetensors` expects them, of f32 and of bf16, with ids.
fn safetensors(n_vocab: u32) -> Vec<u8> {
    let mut parts = Vec::new();
    for (n, dtype, entry) in [(3usize, "F32", 4), (2, "BF16", 2)] {
        let mut data = rows(n * entry / 4, n_vocab);
        let end = data.len();
        data.extend([1i64, 2, 0].iter().flat_map(|id| id.to_le_bytes()));
        let json = serde_json::json!({
            "__metadata__": {"format": "pt"},
            "log_probs": {"dtype": dtype, "shape": [1, n, n_vocab], "data_offsets": [0, end]},
            "input_ids": {"dtype": "I64", "shape": [3], "data_offsets": [end, end + 24]},
        });
        let json = json.to_string();
        parts.extend((json.len() as u16).to_le_bytes());
        parts.extend((data.len() as u16).to_le_bytes());
        parts.extend([json.as_bytes(), &data].concat());
    }
    parts
}

/// The first file of [`safetensors`].
fn bare_safetensors(n_vocab: u32) -> Vec<u8> {
    match framing::safetensors(&safetensors(n_vocab)) {
        OnDisk::Folder(mut files) => files.swap_remove(0),
        OnDisk::File(_) => unreachable!("a folder"),
    }
}

/// A member as `framing::npz` expects it: stored, or deflated with copies.
fn array(name: &str, descr: &str, shape: &str, data: &[u8], repeats: u8) -> Vec<u8> {
    let how = if repeats > 0 { 2 | 3 << 2 } else { 0 };
    let dict = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    let mut part = vec![how, repeats, name.len() as u8];
    part.extend((dict.len() as u16).to_le_bytes());
    part.extend((data.len() as u16).to_le_bytes());
    part.extend([name.as_bytes(), dict.as_bytes(), data].concat());
    part
}

/// A member of rows of f16 that are mostly copies.
fn copies(name: &str, n_vocab: u32) -> Vec<u8> {
    let (row_bytes, copied) = (2 * n_vocab as usize, 258 * 15);
    let data = &rows(1, n_vocab)[..row_bytes - copied % row_bytes];
    let n_rows = (data.len() + copied) / row_bytes;
    array(name, "<f2", &format!("({n_rows}, {n_vocab})"), data, 15)
}

fn arrays(n_vocab: u32) -> Vec<u8> {
    let ids = [1i64, 2, 0].map(i64::to_le_bytes).concat();
    let shape = |n| format!("({n}, {n_vocab})");
    [
        array("logits_1.npy", "<f4", &shape(3), &rows(3, n_vocab), 0),
        array("logits_0.npy", "<f8", &shape(2), &rows(4, n_vocab), 0),
        array("tokens_0.npy", "<i8", "(3,)", &ids, 0),
        array("tokens_1.npy", "<i8", "(1, 3)", &ids, 0),
    ]
    .concat()
}

fn prompted_arrays(n_vocab: u32) -> Vec<u8> {
    let meta = br#"{"reference_model":"m","format":"dense","prompts":[{"token_ids":[]},{}]}"#;
    let (length, shape) = (format!("({},)", meta.len()), format!("(3, {n_vocab})"));
    [
        array("meta_json.npy", "|u1", &length, meta, 0),
        copies("logprobs_0.npy", n_vocab),
        array("logprobs_1.npy", "<f4", &shape, &rows(3, n_vocab), 0),
    ]
    .concat()
}

/// Small files of large arrays: so many token ids of prompts, or prompts without ids, that they
/// need more memory than the constant that every file may use.
pub fn bombs() -> [Vec<u8>; 2] {
    let ids = bomb(r#"{"token_ids":[1"#, ",1", "]}");
    [ids, bomb("{}", ",{}", "")]
}

/// An npz with one row and these prompts.
fn bomb(first: &str, others: &str, last: &str) -> Vec<u8> {
    const JSON_BYTES: usize = 16 << 20;
    let others = others.repeat(JSON_BYTES / others.len());
    let json = format!(r#"{{"prompts":[{first}{others}{last}]}}"#);
    let header = |descr: &str, shape: &str| array("", descr, shape, &[], 0)[7..].to_vec();
    let arrays = [
        ("logits_0.npy", header("<f4", "(1, 3)"), rows(1, 3)),
        (
            "meta_json.npy",
            header("|u1", &format!("({},)", json.len())),
            json.into_bytes(),
        ),
    ];
    let mut zip = ZipArchiveWriter::new(Vec::new());
    for (name, dict, data) in arrays {
        let file = zip
            .new_file(name)
            .compression_method(CompressionMethod::DEFLATE);
        let (mut entry, config) = file.start().unwrap();
        let mut plain = config.wrap(DeflateEncoder::new(&mut entry, Compression::best()));
        plain.write_all(b"\x93NUMPY\x01\0").unwrap();
        plain.write_all(&(dict.len() as u16).to_le_bytes()).unwrap();
        plain.write_all(&[dict, data].concat()).unwrap();
        let (packed, sums) = plain.finish().unwrap();
        packed.finish().unwrap();
        entry.finish(sums).unwrap();
    }
    zip.finish().unwrap()
}

fn npz(parts: &[u8]) -> Vec<u8> {
    match framing::npz(parts) {
        OnDisk::File(bytes) => bytes,
        OnDisk::Folder(_) => unreachable!("a file"),
    }
}

fn sidecar(n_vocab: u32) -> Vec<u8> {
    let mut reference = ReferenceSummary::default();
    reference.file_name = Some("r".into());
    reference.kind = Some(kl_formats::Kind::Kl);
    reference.text = Some(common::text());
    let mut header = SidecarHeader::new(reference, 3, n_vocab, Some(n_vocab.min(30).into()));
    header.model = Some(common::model());
    let mut writer = SidecarWriter::create(Vec::new(), Path::new(""), &header).unwrap();
    for position in 0..n_vocab.min(30) {
        let token = [2, u32::MAX][position as usize % 2];
        let record = TokenRecord {
            position,
            token,
            flags: position % 4,
            eval_nll: f64::NAN,
            ..common::record()
        };
        writer.push(&record).unwrap();
    }
    let texts = [(1, &b"a"[..]), (2, b" \xc3")].into_iter().collect();
    writer.finish(&texts).unwrap()
}

fn map(n_vocab: u32) -> Vec<u8> {
    let kind = |name: &str| name.parse::<GgmlType>().unwrap();
    let tensor = |name: String| MapTensor {
        name,
        shape: vec![256, 2],
        kind: kind("f16"),
        is_quantizable: true,
        unmeasured: None,
    };
    let provenance = Provenance {
        n_ctx: 4,
        n_vocab,
        ..Provenance::default()
    };
    let windows = (0..n_vocab).map(|window| MapWindow { window, n_rows: 3 });
    let header = MapHeader {
        kl_map: MAP_VERSION,
        provenance,
        reference: None,
        windows: windows.collect(),
        measured_type: kind("q3_K"),
        types: vec![kind("q8_0"), kind("q4_K")],
        imatrix: None,
        metadata_bytes: 64,
        alignment: 32,
        tensors: (0..n_vocab)
            .map(|i| tensor(format!("blk.{i}.ffn_up")))
            .collect(),
    };
    let names: Vec<String> = header.tensors.iter().map(|of| of.name.clone()).collect();
    let mut writer = MapWriter::create(Vec::new(), Path::new(""), header).unwrap();
    for name in &names {
        let errors = [(kind("q8_0"), 1e-5), (kind("q3_K"), 0.01)].into();
        writer.write_errors(name, &errors).unwrap();
    }
    for exchanged in [&[][..], &names[..1], &names[..2], &names] {
        for from in 0..2 {
            let cell = Cell {
                exchanged: exchanged
                    .iter()
                    .map(|name| (name.clone(), kind("q3_K")))
                    .collect(),
                from,
                klds: vec![0.25],
                n_tokens: vec![3],
            };
            writer.write_cell(&cell).unwrap();
        }
    }
    writer.finish().unwrap().0
}
