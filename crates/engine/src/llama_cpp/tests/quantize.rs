//! Files of llama.cpp's quantizer: their types, their sizes, and what is refused.

use std::collections::BTreeMap;
use std::fs;

use kl_formats::Mixture;

use super::super::quantize::tensor_pattern;
use super::quantizer_rules::{MODELS, keys, kind, made};
use super::*;
use crate::gguf::tests::made::{I32, Model, U16, U32};
use crate::{file_kind, needs_imatrix};

/// All tensors that the quantizer changes, at one of these types after the other, where they can have it.
fn mixture(blueprint: &Blueprint, kinds: &[&str], imatrix: Option<&Imatrix>) -> Mixture {
    let tensors = blueprint.tensors.iter().filter(|t| t.is_quantizable);
    let kinds = kinds.iter().cycle().map(|name| kind(name));
    let is_known = |name: &str| imatrix.is_some_and(|imatrix| imatrix.values(name).is_some());
    tensors
        .zip(kinds)
        .filter(|(tensor, kind)| tensor.shape[0].is_multiple_of(kind.block))
        .filter(|(tensor, kind)| is_known(&tensor.name) || !needs_imatrix(&tensor.name, *kind))
        .map(|(tensor, kind)| (tensor.name.clone(), kind))
        .collect()
}

/// Writes a file with llama.cpp's quantizer.
pub(super) fn write(
    input: &Path,
    output: &Path,
    mixture: &Mixture,
    imatrix: Option<&Imatrix>,
) -> Result<(), EngineError> {
    ENGINE.quantize(&Quantization {
        input,
        output,
        mixture,
        imatrix,
        threads: THREADS,
    })
}

/// Writes a mixture of these types, and checks that each tensor has its type, and that the file has the size
/// that the blueprint states.
#[track_caller]
fn check_file(
    input: &Path,
    output: &Path,
    kinds: &[&str],
    imatrix: Option<&Imatrix>,
) -> gguf::Gguf {
    let blueprint = ENGINE.blueprint(input, imatrix).unwrap();
    let mixture = mixture(&blueprint, kinds, imatrix);
    assert!(!mixture.is_empty());
    write(input, output, &mixture, imatrix).unwrap();
    let written = gguf::read(output).unwrap();
    let mut bytes = blueprint.metadata_bytes;
    for tensor in &blueprint.tensors {
        let kind = *mixture.get(&tensor.name).unwrap_or(&tensor.kind);
        let found = written.tensor(&tensor.name).unwrap();
        assert_eq!(found.kind, kind, "{}", tensor.name);
        let data = kind.bytes(tensor.shape.iter().product()).unwrap();
        bytes += data.next_multiple_of(blueprint.alignment);
    }
    assert_eq!(written.tensors.len(), blueprint.tensors.len());
    assert_eq!(written.file_bytes, bytes, "{}: {kinds:?}", input.display());
    let name = file_kind(&blueprint.tensors, &mixture).name;
    assert_eq!(written.file_type().as_deref(), Some(name));
    written
}

fn output(folder: &TempDir) -> PathBuf {
    folder.path().join("output.gguf")
}

#[test]
fn written_files_have_the_types_and_the_size_that_were_stated() {
    let folder = tempfile::tempdir().unwrap();
    let output = output(&folder);
    for model in MODELS {
        for kinds in [&["q4_K", "q4_0"][..], &["q8_0", "iq4_nl", "f16", "q5_1"]] {
            check_file(&fixture(model), &output, kinds, None);
            load(&output);
        }
    }
    // Quantized already, but larger than the types of the mixture.
    let written = check_file(&fixture("tiny-q8_0.gguf"), &output, &["q6_K"], None);
    assert_eq!(written.file_type().as_deref(), Some("Q6_K"));
    load(&output);
}

#[test]
fn a_file_names_its_importance_matrix() {
    let folder = tempfile::tempdir().unwrap();
    let output = output(&folder);
    // The types that need one take long, so only a small model has them here.
    let (quick, slow) = (["q4_K", "iq4_nl"], ["iq2_xxs", "iq3_xxs"]);
    for (model, name, kinds, n_entries, n_chunks) in [
        ("tiny-f16.gguf", "tiny.gguf", quick, 21, 8),
        ("tiny-f16.gguf", "tiny.dat", quick, 21, 8),
        ("architectures/mixtral.gguf", "mixtral.gguf", slow, 8, 2),
    ] {
        let path = fixture("imatrix").join(name);
        let imatrix = Imatrix::read(&path).unwrap();
        let written = check_file(&fixture(model), &output, &kinds, Some(&imatrix));
        load(&output);
        let name = path.to_str().map(|path| &path[..path.len().min(127)]);
        assert_eq!(written.text("quantize.imatrix.file"), name);
        let dataset = written.text("quantize.imatrix.dataset");
        assert_eq!(dataset, Some("calibration.txt"));
        let number = |key| written.number(key);
        assert_eq!(number("quantize.imatrix.entries_count"), Some(n_entries));
        assert_eq!(number("quantize.imatrix.chunks_count"), Some(n_chunks));
        // Once more, of a file that names it already.
        if model == "tiny-f16.gguf" {
            let again = folder.path().join("again.gguf");
            let kept = check_file(&fixture(model), &output, &["q8_0"], Some(&imatrix));
            let twice = check_file(&output, &again, &["q4_0"], Some(&imatrix));
            assert_eq!(
                kept.pair_bytes().collect::<BTreeMap<_, _>>(),
                twice.pair_bytes().collect()
            );
        }
    }
}

#[test]
fn every_type_of_weights_can_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("architectures/mixtral.gguf");
    let imatrix = Imatrix::read(&fixture("imatrix/mixtral.gguf")).unwrap();
    let mut n_types = 0;
    // ggml needs 16 s for the tables of these two.
    let is_slow = |kind: GgmlType| kind.name.starts_with("iq1_");
    for kind in GgmlType::all().filter(|kind| kind.is_for_weights && !is_slow(*kind)) {
        for (name, imatrix) in [
            ("token_embd.weight", None),
            ("blk.0.attn_k.weight", None),
            ("blk.0.attn_k.weight", Some(&imatrix)),
        ] {
            if imatrix.is_none() && needs_imatrix(name, kind) {
                continue;
            }
            let mixture = Mixture::from([(name.to_owned(), kind)]);
            write(&model, &output(&folder), &mixture, imatrix).unwrap();
            let written = gguf::read(&output(&folder)).unwrap();
            assert_eq!(written.tensor(name).unwrap().kind.id, kind.id);
        }
        n_types += 1;
    }
    assert!(n_types > 25);
}

#[test]
fn a_split_model_becomes_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let part = |number: u16| folder.path().join(format!("m-0000{number}-of-00002.gguf"));
    let mut first = made(
        "llama",
        &keys(),
        &[("token_embd.weight", &[256, 3]), ("a.weight", &[256])],
    );
    let mut second = Model {
        data_bytes: 2 << 11,
        ..Model::default()
    };
    second.tensor("b.weight", &[256, 8], kind("f16").id, 0);
    for (model, number) in [(&mut first, 0u16), (&mut second, 1)] {
        model
            .pair("split.no", U16, &number.to_le_bytes())
            .pair("split.count", U16, &2u16.to_le_bytes())
            .pair("split.tensors.count", I32, &3i32.to_le_bytes());
        fs::write(part(number + 1), model.bytes()).unwrap();
    }
    let written = check_file(&part(1), &output(&folder), &["q4_0", "q3_K"], None);
    let types = ["token_embd.weight", "a.weight", "b.weight"].map(|name| {
        let tensor = written.tensor(name).unwrap();
        tensor.kind.name
    });
    assert_eq!(types, ["q4_0", "f16", "q3_K"]);
    assert!(
        written
            .pair_bytes()
            .all(|(key, _)| !key.starts_with("split."))
    );
}

#[test]
fn what_the_quantizer_would_abort_on_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let tiny = fixture("tiny-f16.gguf");
    let gpt2 = fixture("architectures/gpt2.gguf");
    let imatrix = |name: &str| Imatrix::read(&fixture("imatrix").join(name)).unwrap();
    let (of_tiny, of_mixtral) = (imatrix("tiny.gguf"), imatrix("mixtral.gguf"));
    let quantized = fixture("tiny-q4_K_M.gguf");
    // A tensor and its type; then the message.
    for (model, case, imatrix, what) in [
        (&tiny, "blk.9.x q4_0", None, "no tensor \"blk.9.x.weight\""),
        (&tiny, "output_norm q4_0", None, "another type than f32"),
        (&tiny, "token_embd q8_1", None, "no type of weights"),
        (&gpt2, "token_embd q4_K", None, "rows of 32 elements"),
        (&tiny, "blk.0.attn_q iq3_xxs", None, "with --imatrix"),
        (&tiny, "token_embd iq2_xs", Some(&of_tiny), "values for it"),
        (&tiny, "token_embd q4_0", Some(&of_mixtral), "another model"),
        (&quantized, "blk.0.attn_q q2_K", None, "type than q4_K"),
    ] {
        let (tensor, name) = case.split_once(' ').unwrap();
        let mixture = Mixture::from([(format!("{tensor}.weight"), kind(name))]);
        let output = folder.path().join("never.gguf");
        let message = write(model, &output, &mixture, imatrix).unwrap_err();
        let message = message.to_string();
        assert!(!output.exists(), "{message}");
        assert!(
            message.contains(what) && !message.contains('\n'),
            "{message}"
        );
    }
    let missing = folder.path().join("no/such/folder.gguf");
    let error = write(&tiny, &missing, &Mixture::new(), None).unwrap_err();
    assert!(error.to_string().contains("cannot create"), "{error}");

    let mut aligned = made("llama", &keys(), &[("token_embd.weight", &[256, 3])]);
    aligned.pair("general.alignment", U32, &64u32.to_le_bytes());
    let path = folder.path().join("aligned.gguf");
    aligned.data_bytes += 64;
    fs::write(&path, aligned.bytes()).unwrap();
    let error = ENGINE.blueprint(&path, None).unwrap_err().to_string();
    assert!(error.contains("are aligned to 64 bytes"), "{error}");
}

/// llama.cpp's own reason, of a model that only it knows to be wrong.
#[test]
fn a_refusal_of_the_quantizer_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("no-layers.gguf");
    let model = made("llama", &keys()[..2], &[("token_embd.weight", &[256, 3])]);
    fs::write(&path, model.bytes()).unwrap();
    crate::follow_log(false);
    let output = output(&folder);
    let refused = write(&path, &output, &Mixture::new(), None);
    let message = refused.unwrap_err().to_string();
    let what =
        "llama.cpp's quantizer refuses it: failed to quantize: key not found in model: llama.";
    assert!(message.contains(what), "{message}");
    assert!(!message.contains('\n'), "{message}");
}

#[test]
fn a_pattern_means_one_name() {
    assert_eq!(tensor_pattern("a.b+c"), r"^a\.b\+c$");
    // All of them in one file, of which each name would match the others without its escapes.
    let names = [
        "a.b.weight",
        "a+b.weight",
        "aab.weight",
        "a(b).weight",
        "xa.b.weight",
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("names.gguf");
    let tensors = names.map(|name| (name, &[256, 2][..]));
    fs::write(&path, made("llama", &keys(), &tensors).bytes()).unwrap();
    check_file(
        &path,
        &output(&folder),
        &["q4_0", "q5_0", "q8_0", "q4_1"],
        None,
    );
}
