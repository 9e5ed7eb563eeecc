//! Files of the wrong kind, and files of which something is missing.

use std::fs;

use super::{Pair, gguf, told, with_pairs};
use crate::session::{Session, fixture};

#[test]
fn what_a_run_that_was_cut_off_has_left_is_named() {
    let session = Session::new();
    session.reference("");
    session.ok("-m @q8 -r ref.gz -q --sidecar q8.kls");
    for (whole, name) in [("ref.gz", "big.gz"), ("q8.kls", "big.kls")] {
        let bytes = session.read(whole);
        session.write(&format!("{name}.partial"), &bytes[..bytes.len() / 2]);
        for line in [format!("info {name}"), format!("info {name}.partial")] {
            let run = session.fails(
                &line,
                1,
                &[&format!("{name}.partial"), "finishes it with --resume"],
            );
            run.warns_not("copy or write it again");
        }
    }
    for line in [
        "-m @q8 -r big.gz",
        "compare ref.gz big.gz",
        "report big.kls",
        "report big.kls.partial",
    ] {
        session.fails(line, 1, &["--resume"]);
    }
}

#[test]
fn what_is_not_a_model_is_named() {
    let session = Session::new();
    session.reference("");
    session.ok("-m @q8 -r ref.gz -q --sidecar q8.kls");
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4000\n";
    session.write("pointer.gguf", pointer);
    session.write(
        "page.gguf",
        "<!doctype html>\n<html><title>404</title></html>",
    );
    session.write(
        "error.gguf",
        "{\"error\":\"Invalid username or password.\"}",
    );
    session.write("error.txt", "Entry not found");
    session.write("model.gguf.gz", b"\x1f\x8b\x08\0\0\0\0\0");
    let safetensors = b"\x40\0\0\0\0\0\0\0{\"__metadata__\":{\"format\":\"pt\"}}";
    session.write("model.safetensors", safetensors);
    session.write("pytorch_model.bin", b"PK\x03\x04\0\0\x08\x08");
    session.write("imatrix.dat", b"\x03\0\0\0\x13\0\0\0blk.0.attn_q.weight\0");
    session.write("old.bin", b"tjgg\x03\0\0\0");
    session.write("model.gguf.zst", b"\x28\xb5\x2f\xfd\x04");
    session.write("noise.gguf", [7, 200, 0, 1]);
    session.write("empty.gguf", "");
    fs::create_dir(session.path("hf")).unwrap();
    session.write("hf/model.safetensors", safetensors);
    session.write(
        "hf/config.json",
        "{\"architectures\":[\"LlamaForCausalLM\"]}",
    );
    insta::assert_snapshot!(told(
        &session,
        &[
            "-m pointer.gguf -r ref.gz",
            "-m page.gguf -r ref.gz",
            "-m error.gguf -r ref.gz",
            "-m error.txt -r ref.gz",
            "-m model.gguf.gz -r ref.gz",
            "-m model.safetensors -r ref.gz",
            "-m pytorch_model.bin -r ref.gz",
            "-m imatrix.dat -r ref.gz",
            "-m old.bin -r ref.gz",
            "-m model.gguf.zst -r ref.gz",
            "-m noise.gguf -r ref.gz",
            "-m empty.gguf -r ref.gz",
            "-m @base -r ref.gz",
            "-m ref.gz -r ref.gz",
            "-m @npz -r ref.gz",
            "-m q8.kls -r ref.gz",
            "-m @f16 --ref-model q8.kls -t short.txt",
            "-m hf -r ref.gz",
            "-m hf -t short.txt -w new.gz",
        ]
    ));
}

#[test]
fn folders_where_files_are_needed_are_named() {
    let session = Session::new();
    session.reference("");
    session.ok("-m @q4 -r ref.gz -q --sidecar q4.kls");
    fs::create_dir(session.path("empty")).unwrap();
    fs::create_dir(session.path("full")).unwrap();
    session.write("full/ref.gz", session.read("ref.gz"));
    insta::assert_snapshot!(told(
        &session,
        &[
            "-m @q4 -r full",
            "-m @q4 -r empty",
            "-m empty -r ref.gz",
            "-m @f16 -t short.txt -w full",
            "-m @f16 -t full -w new.gz",
            "-m @f16 --prompts full -w new.gz",
            "-m @q4 -r ref.gz --json full",
            "-m @q4 -r ref.gz --sidecar full",
            "convert full new.gz --format kl.py",
            "convert ref.gz full --format kl.py",
            "merge new.gz full",
            "merge full ref.gz",
            "compare ref.gz empty",
            "info empty",
            "report empty",
            "report q4.kls --csv full",
        ]
    ));
}

#[test]
fn parts_of_models_are_named() {
    let session = Session::new();
    session.reference("");
    for (name, architecture, kind) in [
        ("lora.gguf", "llama", "adapter"),
        ("mmproj.gguf", "clip", "mmproj"),
        ("clip.gguf", "clip", "model"),
        ("imatrix.gguf", "", "imatrix"),
        ("vocab.gguf", "llama", "vocab"),
        ("no-tensors.gguf", "llama", "model"),
    ] {
        let architecture = Pair::text("general.architecture", architecture);
        let kind = Pair::text("general.type", kind);
        session.write(name, gguf(&[architecture, kind]));
    }
    insta::assert_snapshot!(told(
        &session,
        &[
            "-m lora.gguf -r ref.gz",
            "-m mmproj.gguf -r ref.gz",
            "-m clip.gguf -r ref.gz",
            "-m imatrix.gguf -r ref.gz",
            "-m vocab.gguf -r ref.gz",
            "-m no-tensors.gguf -r ref.gz",
        ]
    ));
}

#[test]
fn what_is_missing_of_a_model_is_named() {
    let session = Session::new();
    session.reference("");
    let model = fs::read(fixture("q2")).unwrap();
    session.write("model.gguf.part", &model[..400_000]);
    let part = |number| {
        [
            Pair::number("split.no", number),
            Pair::number("split.count", 2),
        ]
    };
    session.write("a-00001-of-00002.gguf", with_pairs(&model, &part(0)));
    session.write("b-00002-of-00002.gguf", with_pairs(&model, &part(1)));
    session.write("renamed.gguf", with_pairs(&model, &part(0)));
    insta::assert_snapshot!(told(
        &session,
        &[
            "-m none.gguf -r ref.gz",
            "-m model.gguf.part -r ref.gz",
            "-m a-00001-of-00002.gguf -r ref.gz",
            "-m b-00002-of-00002.gguf -r ref.gz",
            "-m renamed.gguf -r ref.gz",
        ]
    ));
}

#[test]
fn what_is_not_a_reference_is_named() {
    let session = Session::new();
    session.reference("--format llama.cpp --force");
    let base = session.read("ref.gz");
    session.write("cut.kld", &base[..base.len() / 2]);
    session.ok("-m @q8 -r ref.gz -q --sidecar q8.kls --json result.json");
    session.write(
        "page.gz",
        "<!doctype html>\n<html><title>404</title></html>",
    );
    session.write("empty.gz", "");
    insta::assert_snapshot!(told(
        &session,
        &[
            "-m @q8 -r none.gz",
            "-m @q8 -r empty.gz",
            "-m @q8 -r page.gz",
            "-m @q8 -r short.txt",
            "-m @q8 -r result.json",
            "-m @q2 -r q8.kls",
            "-m @q2 -r @npz",
            "-m @q8 -r cut.kld",
            "report ref.gz",
            "report result.json",
            "report page.gz",
            "report @q8",
            "report @klpy",
            "report empty.gz",
        ]
    ));
}

#[test]
fn what_is_not_a_file_of_this_machine_is_named() {
    let session = Session::new();
    session.reference("");
    insta::assert_snapshot!(told(
        &session,
        &[
            "-m unsloth/Qwen3-8B-GGUF -r ref.gz",
            "-m unsloth/Qwen3-8B-GGUF:Q4_K_M -r ref.gz",
            "-m hf://unsloth/Qwen3-8B-GGUF/q4.gguf -r ref.gz",
            "-m https://example.org/q4.gguf -r ref.gz",
            "-m q*.gguf -r ref.gz",
            "-hf unsloth/Qwen3-8B-GGUF -r ref.gz",
            "-m @q8 -r org/reference",
            "-m @f16 -t Salesforce/wikitext -w new.gz",
            "-m @f16 -t https://example.org/wiki.txt -w new.gz",
            "-m @q8 --ref-model org/model -t short.txt",
            "report *.kls",
            "info https://example.org/ref.gz",
        ]
    ));
}
