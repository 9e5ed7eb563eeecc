//! Models made byte by byte: whole, cut off, and hostile.

mod large;
pub(crate) mod made;
mod purpose;

use proptest::prelude::*;
use tempfile::TempDir;

use super::change::any_change;
use super::pieces::MAGIC;
use super::*;
use made::*;

fn sample() -> Model {
    let mut model = Model {
        data_bytes: 64 + 34 * 2,
        ..Model::default()
    };
    let tokens = [
        &STRING.to_le_bytes()[..],
        &words(&[2]),
        &string("<s>"),
        &string(""),
    ]
    .concat();
    let bytes = [&U8.to_le_bytes()[..], &words(&[3]), &[1, 2, 3]];
    model
        .pair("general.architecture", STRING, &string("llama"))
        .pair("general.name", STRING, &string("Tiny"))
        .pair("llama.context_length", U32, &128u32.to_le_bytes())
        .pair("llama.attention.causal", BOOL, &[0])
        .pair("llama.pooling_type", U32, &2u32.to_le_bytes())
        .pair("llama.scale", I32, &(-3i32).to_le_bytes())
        .pair("llama.rope.freq_base", F32, &[0; 4])
        .pair("tokenizer.ggml.model", STRING, &string("llama"))
        .pair("tokenizer.ggml.tokens", ARRAY, &tokens)
        .pair("tokenizer.ggml.add_bos_token", BOOL, &[1])
        .pair("tokenizer.chat_template", STRING, &string("{{ x }}"))
        .pair("split.no", U16, &[0, 0])
        .pair("split.count", U16, &[1, 0])
        .pair("other", ARRAY, &bytes.concat())
        .tensor("norm", &[16], 0, 0)
        .tensor("out", &[32, 2], 8, 64);
    model
}

/// Reads a file that holds `bytes`.
fn read_bytes(bytes: &[u8]) -> Result<Gguf> {
    read_in(&tempfile::tempdir().unwrap(), bytes)
}

/// The same, in a folder that holds such a file already.
fn read_in(folder: &TempDir, bytes: &[u8]) -> Result<Gguf> {
    let path = folder.path().join("file");
    std::fs::write(&path, bytes).unwrap();
    read(&path)
}

#[test]
fn a_header_is_summarised() {
    let bytes = sample().bytes();
    let summary = read_bytes(&bytes).unwrap();
    assert_eq!(summary.file_bytes, bytes.len() as u64);
    assert_eq!(summary.architecture(), Some("llama"));
    assert_eq!(summary.identity().name.as_deref(), Some("Tiny"));
    assert_eq!(summary.architecture_number("attention.causal"), Some(0));
    assert_eq!(summary.architecture_number("pooling_type"), Some(2));
    assert_eq!(summary.architecture_number("scale"), Some(-3));
    assert_eq!(summary.number("general.name"), None);
    assert_eq!(summary.text("tokenizer.chat_template"), Some("{{ x }}"));
    let tokenizer = summary.tokenizer.unwrap();
    assert_eq!((tokenizer.model.as_str(), tokenizer.n_tokens), ("llama", 2));
    let of = |bytes: &[u8]| hex(&Sha256::digest(bytes));
    let listed = b"\x03\0\0\0\0\0\0\0<s>\0\0\0\0\0\0\0\0";
    assert_eq!(tokenizer.sha256, of(listed));
    // The header ends before the padding and the 132 bytes of data.
    let infos_end = sample().pairs.concat().len() + sample().infos.concat().len() + 24;
    assert_eq!(summary.metadata_sha256, of(&bytes[..infos_end]));
}

#[test]
fn unused_tokens_at_the_end_are_padding() {
    let with_types = |types: &[u32]| {
        let values: Vec<u8> = types.iter().flat_map(|v| v.to_le_bytes()).collect();
        let count = (types.len() as u64).to_le_bytes();
        let array = [&5u32.to_le_bytes()[..], &count, &values].concat();
        let mut model = sample();
        model.pair("tokenizer.ggml.token_type", 9, &array);
        read_bytes(&model.bytes()).unwrap().n_padding
    };
    assert_eq!(with_types(&[1, 5, 1, 5, 5]), 2);
    assert_eq!(with_types(&[1, 5, 1]), 0);
    assert_eq!(with_types(&[]), 0);
}

#[test]
fn learned_positions_are_counted() {
    let n_positions = |name: &str, shape: &[u64]| {
        let mut model = sample();
        model.data_bytes = 1024;
        model.tensor(name, shape, 0, 160);
        read_bytes(&model.bytes()).unwrap().n_positions()
    };
    assert_eq!(n_positions("position_embd.weight", &[2, 48]), Some(48));
    assert_eq!(n_positions("token_embd.weight", &[2, 48]), None);
}

#[test]
fn a_bpe_tokenizer_needs_its_pre_tokenizer() {
    let lacks = |model: &str, pre: Option<&str>| {
        let mut file = Model::default();
        file.pair("tokenizer.ggml.model", STRING, &string(model));
        if let Some(pre) = pre {
            file.pair("tokenizer.ggml.pre", STRING, &string(pre));
        }
        read_bytes(&file.bytes()).unwrap().lacks_pre_tokenizer()
    };
    assert!(lacks("gpt2", None) && lacks("gpt2", Some("")));
    assert!(!lacks("gpt2", Some("llama-bpe")));
    assert!(!lacks("llama", None), "SentencePiece has none");
}

#[test]
fn a_model_may_lack_every_key() {
    let summary = read_bytes(&Model::default().bytes()).unwrap();
    assert_eq!((summary.architecture(), &summary.tokenizer), (None, &None));
}

#[test]
fn a_string_too_long_to_keep_is_skipped() {
    let mut model = sample();
    let (template, list) = ("x".repeat(70_000), "y".repeat(2_000_000));
    model
        .pair("tokenizer.chat_template.tool", STRING, &string(&template))
        .pair("tokenizer.huggingface.json", STRING, &string(&list));
    let header = read_bytes(&model.bytes()).unwrap();
    assert_eq!(header.text("tokenizer.huggingface.json"), None);
    let kept = header.text("tokenizer.chat_template.tool");
    assert_eq!(kept, Some(&*template));
}

/// With the keys that llama-gguf-split writes to a part after the first.
#[test]
fn a_later_part_of_a_split_model_is_refused() {
    let mut model = Model {
        data_bytes: 64,
        ..Model::default()
    };
    model
        .pair("split.no", U16, &[1, 0])
        .pair("split.count", U16, &[3, 0])
        .pair("split.tensors.count", I32, &9i32.to_le_bytes())
        .tensor("norm", &[16], 0, 0);
    let error = read_bytes(&model.bytes()).unwrap_err().to_string();
    assert!(error.contains("part 2 of 3"), "{error}");
}

#[test]
fn tensors_are_found_in_the_part_that_holds_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = |part: u32| folder.path().join(format!("m-0000{part}-of-00002.gguf"));
    let mut first = sample();
    first.pair("split.count", U16, &[2, 0]);
    let mut first = first.bytes();
    std::fs::write(path(1), &first).unwrap();
    let missing = read(&path(1)).unwrap_err().to_string();
    assert!(missing.contains("is missing"), "{missing}");
    let mut second = Model {
        data_bytes: 96,
        ..Model::default()
    };
    second
        .tensor("norm2", &[16], 0, 0)
        .tensor("head", &[4, 2], 1, 64);
    let mut bytes = second.bytes();
    let start = bytes.len() - 96;
    bytes[start + 64..start + 80].copy_from_slice(b"0123456789abcdef");
    std::fs::write(path(2), &bytes).unwrap();

    let header = read(&path(1)).unwrap();
    assert_eq!(header.files, [path(1), path(2)]);
    let read = |name: &str| {
        let tensor = header.tensor(name)?;
        Some((tensor, header.read_tensor(tensor).unwrap()))
    };
    let (tensor, found) = read("head").unwrap();
    assert_eq!((&tensor.shape[..], tensor.kind.id), (&[4, 2][..], 1));
    assert_eq!(tensor.n_params(), 8);
    assert_eq!(found, b"0123456789abcdef");
    let (tensor, found) = read("out").unwrap();
    assert_eq!((&tensor.shape[..], tensor.kind.id), (&[32, 2][..], 8));
    assert_eq!(found, first.split_off(first.len() - 68));
    assert_eq!(read("none"), None);
}

#[test]
fn parts_that_cat_has_joined_are_named() {
    let (whole, joined) = (sample().bytes(), "were joined with cat");
    // With the padding after the last tensor, as llama-gguf-split writes it, and without.
    for padding in [0, 28] {
        let first = [&whole[..], &vec![0; padding]].concat();
        assert!(read_bytes(&first).is_ok());
        let message = read_bytes(&[&first[..], &whole].concat()).unwrap_err();
        assert!(message.what.contains(joined), "{message}");
    }
    // The first part may hold no tensor.
    let empty = Model::default().bytes();
    let message = read_bytes(&[empty, whole].concat()).unwrap_err();
    assert!(message.what.contains(joined), "{message}");
}

/// A weight of a type that ggml has no product for would end the process by a signal.
#[test]
fn weights_that_cannot_be_multiplied_are_refused() {
    const Q8_1: u32 = 9;
    const I32_TENSOR: u32 = 26;
    let with = |name: &str, kind: u32| {
        let mut model = sample();
        model.tensor(name, &[32], kind, 0);
        read_bytes(&model.bytes())
    };
    for kind in [Q8_1, I32_TENSOR] {
        let message = with("a.weight", kind).unwrap_err().to_string();
        assert!(message.contains("cannot multiply"), "{message}");
    }
    for (name, kind) in [
        ("blk.0.ffn_gate_tid2eid.weight", I32_TENSOR),
        ("a.scale", I32_TENSOR),
        ("a.weight", 0),
    ] {
        assert!(with(name, kind).is_ok(), "{name}");
    }
}

#[test]
fn truncation_is_found_at_every_byte() {
    let bytes = sample().bytes();
    let folder = tempfile::tempdir().unwrap();
    for n in 0..bytes.len() {
        let error = read_in(&folder, &bytes[..n]).expect_err(&format!("{n} bytes"));
        let what = [": incomplete at byte ", ": not a GGUF model: "][usize::from(n < 4)];
        assert!(error.to_string().contains(what), "{n}: {error}");
    }
    let last = bytes.len() - 1;
    let error = read_in(&folder, &bytes[..last]).unwrap_err().to_string();
    let what = format!(
        "incomplete at byte {last}: tensor \"out\" ends at byte {}; download",
        bytes.len()
    );
    assert!(error.contains(&what), "{error}");
}

#[test]
fn other_files_and_versions_are_refused() {
    let message = |bytes: &[u8]| read_bytes(bytes).unwrap_err().to_string();
    let start = |version: u32| [&MAGIC[..], &version.to_le_bytes(), &[0; 16]].concat();
    assert!(message(b"").contains("0 bytes"));
    assert!(message(b"PK\x03\x04").contains("not a GGUF"));
    for (version, words) in [
        (1, "version 1, of August 2023"),
        (4, "version 4: kl reads 2 and 3"),
        (3 << 24, "a big-endian GGUF"),
        (0, "not a GGUF model: it begins like one"),
        (1000, "states version 1000: download"),
    ] {
        let message = message(&start(version));
        assert!(message.contains(words), "{message}");
    }
    let error = read(Path::new("/no/such/file")).unwrap_err().to_string();
    assert!(error.starts_with("/no/such/file: cannot open: "), "{error}");
    let error = read(Path::new("/")).unwrap_err().to_string();
    assert_eq!(error, "/: is a folder: give a file");
}

#[test]
fn hostile_counts_and_shapes_are_refused() {
    let max = u64::MAX;
    let with = |change: &dyn Fn(&mut Model)| {
        let mut model = sample();
        change(&mut model);
        let error = read_bytes(&model.bytes()).unwrap_err().to_string();
        let is_fault = |fault: &str| error.contains(&format!(": {fault} at byte "));
        assert!(is_fault("corrupt") || is_fault("incomplete"), "{error}");
        assert!(!error.contains('\n'));
    };
    let list = |kind: u32, n: u64| [&kind.to_le_bytes()[..], &words(&[n])].concat();
    with(&|m| _ = m.pair("a", 13, &[1]));
    with(&|m| _ = m.pair("a", STRING, &words(&[max])));
    with(&|m| _ = m.pair("a", ARRAY, &list(U64, max)));
    with(&|m| _ = m.pair("a", ARRAY, &list(U64, max / 8)));
    with(&|m| _ = m.pair("a", ARRAY, &list(STRING, max / 8)));
    with(&|m| _ = m.pair("a", ARRAY, &list(99, 1)));
    with(&|m| _ = m.pair("a", ARRAY, &list(ARRAY, 1)));
    with(&|m| _ = m.pair("general.alignment", U32, &3u32.to_le_bytes()));
    with(&|m| _ = m.pair("general.alignment", U32, &0u32.to_le_bytes()));
    with(&|m| _ = m.pair("general.alignment", U64, &words(&[1 << 63])));
    with(&|m| _ = m.tensor("a", &[max, max], 0, 0));
    with(&|m| _ = m.tensor("a", &[max], 0, 0));
    with(&|m| _ = m.tensor("a", &[max], 24, 32));
    with(&|m| _ = m.tensor("a", &[1; 5], 0, 0));
    with(&|m| _ = m.tensor("a", &[33], 8, 0));
    with(&|m| _ = m.tensor("a", &[1], 0, max - 31));
    with(&|m| _ = m.tensor(&"a".repeat(2000), &[1], 0, 0));
    let mut model = sample();
    model.tensor("a", &[1], 9999, 0);
    let error = read_bytes(&model.bytes()).unwrap_err().to_string();
    assert!(
        error.contains("has type 9999, which is of no program"),
        "{error}"
    );
    for counts in [[max, 0], [0, max], [max / 24, 0], [1 << 40, 1 << 40]] {
        let bytes = [&MAGIC[..], &3u32.to_le_bytes(), &words(&counts), &[0; 100]].concat();
        assert!(read_bytes(&bytes).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn changed_files_never_panic(changes in prop::collection::vec(any_change(), 1..4)) {
        let mut bytes = sample().bytes();
        changes.iter().for_each(|change| change.apply(&mut bytes));
        let folder = tempfile::tempdir().unwrap();
        if let Err(error) = read_in(&folder, &bytes) {
            let message = error.to_string();
            assert!(!message.contains('\n'), "{message:?}");
            assert!(message.contains(folder.path().to_str().unwrap()), "{message}");
        }
    }
}

#[test]
fn changed_weights_change_the_hash() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    let hash = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        sample_sha256(&path, bytes.len() as u64).unwrap()
    };
    let mut bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    let before = hash(&bytes);
    for weight in bytes.iter_mut().skip(1_000_000).take(500_000) {
        *weight ^= 1;
    }
    assert_ne!(hash(&bytes), before);
    // The last byte counts too, and each of a short file.
    let last = bytes.len() - 1;
    let before = hash(&bytes);
    bytes[last] ^= 1;
    assert_ne!(hash(&bytes), before);
    let short = &mut bytes[..200_000];
    let before = hash(short);
    short[123_456] ^= 1;
    assert_ne!(hash(short), before);
    assert_eq!(hash(&[]), hex(&Sha256::digest([])));
}
