use super::*;
use crate::common::about;
use crate::testing::{
    SampleWindow, Scratch, assert_fault, bits, decoded_bits, read_rows, specs, window,
};
use crate::{
    BackendIdentity, Encoding, Fault, Found, Groups, Kind, ModelIdentity, ReferenceSummary, Target,
    Writer, sniff,
};

const N_VOCAB: u32 = 5;

/// A file of a kind, of these windows.
fn file(kind: Kind, windows: &[SampleWindow]) -> Vec<u8> {
    let target = Target::new(kind, None).unwrap();
    let about = about(kind, 8, N_VOCAB);
    let mut writer =
        Writer::create(Vec::new(), Path::new(""), target, &about, &specs(windows)).unwrap();
    for window in windows {
        let rows = window.rows.chunks(N_VOCAB as usize);
        writer.write_window(&window.spec, rows).unwrap();
    }
    writer.finish().unwrap()
}

/// Two windows that a file of a kind can hold, longer ones last.
fn windows(kind: Kind) -> Vec<SampleWindow> {
    let first_scored = match kind {
        Kind::KlPy => 0,
        _ => 4,
    };
    let mut windows = vec![
        window(0, 8, first_scored, N_VOCAB),
        window(1, 8, first_scored, N_VOCAB),
    ];
    if kind == Kind::LlamaCpp {
        for window in &mut windows {
            window.spec.n_rows = 3;
            window.rows.truncate(3 * N_VOCAB as usize);
        }
    }
    windows
}

#[cfg(unix)]
#[test]
fn what_is_not_a_regular_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let save_first = "a reference must be a regular file: save it first";
    for (path, what) in [
        (pipe.as_path(), save_first), // and opening it would wait for ever
        (Path::new("/dev/null"), save_first),
        (folder.path(), "is a folder without safetensors files"),
    ] {
        let errors = [sniff(path).err(), Reference::open(path).err()];
        for error in errors.into_iter().flatten() {
            assert_fault(&error, "Unsupported");
            let start = format!("{}: {what}", path.display());
            assert!(error.to_string().starts_with(&start), "{error}");
        }
        assert!(Reference::open(path).is_err());
        assert_ne!(Found::look(path), Found::Sidecar);
    }
}

#[test]
fn a_reference_gives_what_its_file_records() {
    let scratch = Scratch::new();
    for (kind, encoding, n_rows, longest) in [
        (Kind::Kl, Some(Encoding::U16), Some(8), Some(8)),
        (Kind::KlPy, Some(Encoding::F32), None, Some(8)),
        (Kind::LlamaCpp, None, Some(6), Some(8)),
    ] {
        let path = scratch.file(&file(kind, &windows(kind)));
        let reference = Reference::open(path).unwrap();
        let about = reference.about();
        assert_eq!((sniff(path).unwrap(), about.kind), (kind, kind));
        assert_eq!((about.n_ctx, about.n_vocab), (8, N_VOCAB));
        assert_eq!((about.n_windows, about.n_rows), (Some(2), n_rows));
        assert_eq!(about.file_bytes, std::fs::metadata(path).unwrap().len());
        assert_eq!(reference.longest_window(), longest);
        let is_kl_py = kind == Kind::KlPy;
        assert_eq!(
            (reference.windows().is_none(), reference.is_shuffled()),
            (is_kl_py, is_kl_py)
        );
        assert_eq!(about.hides_bos, kind == Kind::LlamaCpp);
        assert!(reference.fingerprint().unwrap().is_some());
        let windows = windows(kind);
        let listed: Result<Vec<_>> = reference.read_windows().unwrap().collect();
        assert_eq!(listed.unwrap(), specs(&windows));
        for ((spec, blocks), window) in read_rows(reference).unwrap().iter().zip(&windows) {
            assert_eq!(*spec, window.spec);
            if let Some(encoding) = encoding {
                let rows: Vec<u32> = blocks.iter().flat_map(bits).collect();
                assert_eq!(rows, decoded_bits(encoding, N_VOCAB, &window.rows));
            }
        }
    }
    let none = Reference::open(scratch.file(&file(Kind::Kl, &[]))).unwrap();
    assert_eq!(none.longest_window(), Some(1), "of none");
    for (bytes, is_truncated) in [(&b"_logits_"[..], true), (b"GGUF\x03\0\0\0", false)] {
        let error = Reference::open(scratch.file(bytes)).unwrap_err();
        assert_eq!(
            matches!(error.fault, Fault::Truncated { .. }),
            is_truncated,
            "{error}"
        );
    }
}

#[test]
fn what_comes_through_a_pipe_is_what_the_file_holds() {
    let scratch = Scratch::new();
    for kind in [Kind::LlamaCpp, Kind::KlPy] {
        let bytes = file(kind, &windows(kind));
        let path = scratch.file(&bytes);
        let read = || Reference::read_once(path, std::io::Cursor::new(bytes.clone())).unwrap();
        let [piped, opened] = [read(), Reference::open(path).unwrap()];
        let shape = |of: &Reference| (of.about().n_ctx, of.about().n_windows, of.about().n_rows);
        assert_eq!(shape(&piped), shape(&opened), "{kind}");
        assert_eq!(piped.windows(), opened.windows());
        assert!(piped.is_shuffled(), "in an order that cannot be changed");
        let piped_rows = read_rows(read()).unwrap();
        for (piped, opened) in piped_rows.iter().zip(read_rows(opened).unwrap()) {
            assert_eq!(piped.0, opened.0);
            let [piped, opened] = [&piped.1, &opened.1]
                .map(|blocks| blocks.iter().flat_map(bits).collect::<Vec<_>>());
            assert_eq!(piped, opened);
        }
        assert_eq!(piped_rows.len(), 2);
    }
}

#[test]
fn a_base_file_in_a_pipe_shows_its_windows_before_its_rows_are_there() {
    let windows = windows(Kind::LlamaCpp);
    let bytes = file(Kind::LlamaCpp, &windows);
    let path = Path::new("pipe");
    // The header, all tokens, and the first row.
    let begun = bytes[..20 + 2 * 4 * 8 + 20].to_vec();
    let mut reference = Reference::read_once(path, std::io::Cursor::new(begun)).unwrap();
    let listed: Result<Vec<_>> = reference.read_windows().unwrap().collect();
    assert_eq!(listed.unwrap(), specs(&windows));
    reference.set_bos(Some(3));
    let listed: Result<Vec<_>> = reference.read_windows().unwrap().collect();
    assert_eq!(listed.unwrap()[1].tokens[0], 3);
    let Rows::Stream(mut stream) = reference.into_rows() else {
        panic!("no stream");
    };
    assert_eq!(stream.next_window().unwrap().unwrap().tokens[0], 3);
    assert!(stream.next_rows(1).unwrap().is_some());
    let error = stream.next_window().unwrap_err();
    let expected = "pipe: its writer ended too early: the file ends with 0 of 2 windows whole, \
         100 bytes are missing, at window 0, byte 104; find out why it ended, and start both again";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_pipe_is_told_from_others_by_its_first_row() {
    let mut windows = windows(Kind::LlamaCpp);
    let path = Path::new("pipe");
    let fingerprint = |windows: &[SampleWindow]| {
        let bytes = std::io::Cursor::new(file(Kind::LlamaCpp, windows));
        let reference = Reference::read_once(path, bytes).unwrap();
        reference.fingerprint().unwrap().unwrap()
    };
    let first = fingerprint(&windows);
    assert_eq!(fingerprint(&windows), first);
    windows[0].rows[0] += 1.0;
    assert_ne!(fingerprint(&windows), first);
}

#[test]
fn what_cannot_be_read_once_says_what_can() {
    let open = |bytes: Vec<u8>| {
        let read = Reference::read_once(Path::new("pipe"), std::io::Cursor::new(bytes));
        read.unwrap_err().to_string()
    };
    let error = open(file(Kind::Kl, &windows(Kind::Kl)));
    let expected = "pipe: is a pipe with a file of kind kl, which is not read from its start to its \
         end: save it first; base files of llama-perplexity and references of kl.py can be read from a pipe";
    assert_eq!(error, expected);
    let error = open(crate::npz::tests::sample(false));
    assert!(error.contains("of kind npz, which"), "{error}");
    let error = open(Vec::new());
    assert!(
        error.contains("it has written nothing, at byte 0"),
        "{error}"
    );
    let error = open(b"GGUF\x03\0\0\0".to_vec());
    assert!(error.starts_with("pipe: not a reference: "), "{error}");
    let mut endless = b"_logits_".to_vec();
    endless.extend(bytemuck::cast_slice(&[1u32 << 26, 5, 1 << 30]));
    let error = open(endless);
    assert!(
        error.contains("134217728 are read at most: save it first"),
        "{error}"
    );
    // Without its windows, kl.py's file cannot be paired with another.
    let bytes = std::io::Cursor::new(file(Kind::KlPy, &windows(Kind::KlPy)));
    let reference = Reference::read_once(Path::new("pipe"), bytes).unwrap();
    let error = reference.read_windows().err().unwrap().to_string();
    assert!(
        error.contains("of kind kl.py, which has to be read twice: save it"),
        "{error}"
    );
}

#[test]
fn a_bos_replaces_the_first_token_of_a_base_file_alone() {
    let scratch = Scratch::new();
    for (kind, replaces) in [(Kind::Kl, false), (Kind::LlamaCpp, true)] {
        let mut reference = Reference::open(scratch.file(&file(kind, &windows(kind)))).unwrap();
        let first = |reference: &Reference| {
            let mut windows = reference.read_windows().unwrap();
            windows.next().unwrap().unwrap().tokens[0]
        };
        let before = first(&reference);
        reference.set_bos(Some(before + 1));
        assert_eq!(first(&reference) != before, replaces, "{kind}");
    }
}

#[test]
fn a_copy_of_the_same_kind_keeps_all_that_a_file_records() {
    let scratch = Scratch::new();
    let bytes = file(Kind::Kl, &[]);
    let reference = Reference::open(scratch.file(&bytes)).unwrap();
    let target = Target::new(Kind::Kl, Some(Encoding::U16)).unwrap();
    let again = Writer::create(Vec::new(), Path::new(""), target, reference.about(), &[]);
    assert_eq!(again.unwrap().finish().unwrap(), bytes);
    assert_eq!(reference.about().model, Some(crate::common::model()));
    assert_eq!(reference.about().backend, Some(crate::common::backend()));
}

/// The hash was computed with Python's hashlib, from the bytes that SIDECAR.md states.
#[test]
fn the_fingerprint_of_a_model_is_of_what_determines_its_rows() {
    let mut about = about(Kind::Model, 8, N_VOCAB);
    about.model = Some(ModelIdentity {
        file_bytes: Some(1000),
        metadata_sha256: Some("ab".into()),
        sample_sha256: Some("cd".into()),
        ..ModelIdentity::named("a.gguf")
    });
    about.backend = Some(BackendIdentity {
        devices: Some(vec!["CPU".into()]),
        n_gpu_layers: Some(0),
        n_batch: Some(8),
        n_ubatch: Some(8),
        threads: Some(1),
        flash_attn: Some("off".into()),
        type_k: Some("f16".into()),
        type_v: Some("f16".into()),
        llama_cpp: Some("b1".into()),
        ..BackendIdentity::default()
    });
    about.groups = Some(Groups::of_each(["wiki", "code"]));
    let window = |window, first_scored, tokens: &[u32]| WindowSpec {
        window,
        first_scored,
        n_rows: 2,
        tokens: tokens.to_vec(),
    };
    let windows = [window(0, 1, &[9, 8, 7]), window(1, 0, &[4, 5])];
    let expected = "6d8d7e9537e5a10d0cb37dbb171e367c0b31d11510197aef194b964f66df0e5b";
    let fingerprint = |about: &About, windows: &[WindowSpec]| {
        let summary = ReferenceSummary::of_model(about, windows);
        assert_eq!(summary.kind, Some(Kind::Model));
        summary.fingerprint.unwrap()
    };
    assert_eq!(fingerprint(&about, &windows), expected);
    let mut renamed = about.clone();
    renamed.model.as_mut().unwrap().file_name = Some("b.gguf".into());
    renamed.text = None;
    assert_eq!(fingerprint(&renamed, &windows), expected);
    assert_ne!(fingerprint(&about, &windows[..1]), expected);
    about.backend.as_mut().unwrap().threads = Some(2);
    assert_ne!(fingerprint(&about, &windows), expected);
}

#[test]
fn files_are_known_by_their_first_bytes() {
    let scratch = Scratch::new();
    let npz = |name: &str| {
        let length = [name.len() as u8, 0];
        [
            b"PK\x03\x04".as_slice(),
            &[0; 22],
            &length,
            &[0; 2],
            name.as_bytes(),
        ]
        .concat()
    };
    for (bytes, what) in [
        (b"".to_vec(), Found::Other("it is empty")),
        (b"GGUF\x03\0\0\0".to_vec(), Found::Model),
        (b"kl_sidecar_v1\n{}".to_vec(), Found::Sidecar),
        (b"{\"kl_map\":1,\"model\":{}}".to_vec(), Found::Map),
        (b"_logits_\0\x02".to_vec(), Found::Reference(Kind::LlamaCpp)),
        (npz("logits_0.npy"), Found::Reference(Kind::Npz)),
        (npz("archive/data.pkl"), Found::Zip),
        (npz(""), Found::Zip),
        (b"llama_kl_divergence_v2\n{".to_vec(), Found::Unpacked),
        (b"\x1f\x8b\x08".to_vec(), Found::Gzip),
        (b"\x28\xb5\x2f\xfd\x04".to_vec(), Found::Packed("zstd")),
        (b"tjgg\x03\0\0\0".to_vec(), Found::OldModel),
        (b"PAR1\x15\x04".to_vec(), Found::Parquet),
        (b"%PDF-1.7".to_vec(), Found::Pdf),
        (
            b"\x40\0\0\0\0\0\0\0{\"a\":".to_vec(),
            Found::SafetensorsFile,
        ),
        (b"\x03\0\0\0\x13\0\0\0blk.0.attn_q".to_vec(), Found::Imatrix),
        (
            b"version https://git-lfs.github.com/".to_vec(),
            Found::LfsPointer,
        ),
        (b"\n  <html lang=\"en\">".to_vec(), Found::WebPage),
        (b"<!DOCTYPE html>\n\xe9".to_vec(), Found::WebPage),
        (
            b"{\"error\":\"Invalid\"}".to_vec(),
            Found::Other("it is JSON"),
        ),
        (b"Entry {not found".to_vec(), Found::Text),
        ("\u{e9}".repeat(400).into_bytes(), Found::Text),
        (
            ("a".to_owned() + &"\u{e9}".repeat(400)).into_bytes(),
            Found::Text,
        ),
        (b"caf\xe9 au lait".to_vec(), Found::UNKNOWN),
        (b"\x07\x07\x07\0\xff\xff".to_vec(), Found::UNKNOWN),
    ] {
        assert_eq!(Found::look(scratch.file(&bytes)), what, "{bytes:?}");
    }
    assert_eq!(Found::look(Path::new("/no/such/file")), Found::UNKNOWN);
}
