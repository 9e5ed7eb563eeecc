//! Files of the wrong kind, and files of which something is missing.

use std::fs;

use crate::gguf::{Pair, gguf, with_pairs};
use crate::session::{Session, fixture};

const WEB_PAGE: &str = "<!doctype html>\n<html><title>404</title></html>";

/// A session with `ref.gz` and a sidecar, `q8.kls`.
fn session() -> Session {
    let session = Session::with_reference("");
    session.ok("-m @q8 -r ref.gz -q --sidecar q8.kls");
    session
}

#[test]
fn what_a_run_that_was_cut_off_has_left_is_named() {
    let session = session();
    for (whole, name) in [("ref.gz", "big.gz"), ("q8.kls", "big.kls")] {
        let bytes = session.read(whole);
        let partial = format!("{name}.partial");
        session.write(&partial, &bytes[..bytes.len() / 2]);
        for line in [format!("info {name}"), format!("info {name}.partial")] {
            let run = session.fails(&line, 1, &[&partial, "finishes it with --resume"]);
            run.warns_not("copy or write it again");
        }
    }
    let cases = "
        -m @q8 -r big.gz => --resume
        compare ref.gz big.gz => --resume
        report big.kls => --resume
        report big.kls.partial => --resume";
    session.fails_each(1, "", cases);
}

#[test]
fn what_is_not_a_model_is_named() {
    let session = session();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4000\n";
    session.write("pointer.gguf", pointer);
    session.write("page.gguf", WEB_PAGE);
    session.write("error.gguf", r#"{"error":"Invalid username or password."}"#);
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
        r#"{"architectures":["LlamaForCausalLM"]}"#,
    );
    let cases = "
        pointer.gguf => pointer.gguf: not a GGUF model: it is a pointer of Git LFS | git lfs pull
        page.gguf => page.gguf: not a GGUF model: it is a web page | download the model again
        error.gguf => error.gguf: not a GGUF model: it is JSON
        error.txt => error.txt: not a GGUF model: it is a text | -t
        model.gguf.gz => model.gguf.gz: not a GGUF model: it is gzip; unpack it
        model.safetensors => it is a safetensors file | convert_hf_to_gguf.py
        pytorch_model.bin => it is a zip file | convert_hf_to_gguf.py
        imatrix.dat => imatrix.dat: not a GGUF model: it is an importance matrix
        old.bin => old.bin: not a GGUF model | a format from before GGUF
        model.gguf.zst => it is packed by zstd
        noise.gguf => noise.gguf: not a GGUF model: its first bytes are of no kind
        empty.gguf => empty.gguf: not a GGUF model: it has 0 bytes
        @base => not a GGUF model: it is a base file of llama-perplexity; give it to -r
        ref.gz => ref.gz: not a GGUF model: it is a reference (kl); give it to -r
        @npz => it is a reference (npz); kl compare
        q8.kls => q8.kls: not a GGUF model: it is a sidecar | kl report q8.kls
        hf => exit 2 | hf: holds no GGUF: it holds safetensors | convert_hf_to_gguf.py";
    session.fails_each(1, "-r ref.gz -m", cases);
    let original = "-m @f16 --ref-model q8.kls -t short.txt";
    session.fails(original, 1, &["q8.kls: not a GGUF model: it is a sidecar"]);
    session.fails("-m hf -t short.txt -w new.gz", 2, &["hf: is a folder"]);
}

#[test]
fn folders_where_files_are_needed_are_named() {
    let session = session();
    fs::create_dir(session.path("empty")).unwrap();
    fs::create_dir(session.path("full")).unwrap();
    session.write("full/ref.gz", session.read("ref.gz"));
    let cases = "
        -m @q4 -r full => full: is a folder: name one reference
        -m @q4 -r empty => empty: is a folder: name one reference
        -m empty -r ref.gz => exit 2 | empty: holds no GGUF
        -m @f16 -t short.txt -w full => full: is a folder: name a file
        -m @f16 -t full -w new.gz => full: is a folder: name a file in it
        -m @f16 --prompts full -w new.gz => full: is a folder: name a file in it
        -m @q4 -r ref.gz --json full => full: is a folder: name a file
        -m @q4 -r ref.gz --sidecar full => full: is a folder: name a file
        convert full new.gz --format kl.py => full: is a folder: name one reference
        convert ref.gz full --format kl.py => full: is a folder: name a file
        merge new.gz full => full: is a folder: name the parts in it
        merge full ref.gz => full: is a folder: name a file
        compare ref.gz empty => empty: is a folder without safetensors files
        info empty => empty: is a folder without safetensors files
        report empty => no sidecars (.kls)
        report q8.kls --csv full => full: is a folder: name a file";
    session.fails_each(1, "", cases);
}

#[test]
fn what_is_not_a_whole_causal_model_is_named() {
    let session = Session::with_reference("");
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
    let model = fs::read(fixture("q2")).unwrap();
    session.write("model.gguf.part", &model[..400_000]);
    session.write("stub.gguf", &model[..100]);
    let part = |number| {
        with_pairs(
            &model,
            &[
                Pair::number("split.no", number),
                Pair::number("split.count", 2),
            ],
        )
    };
    session.write("a-00001-of-00002.gguf", part(0));
    session.write("b-00002-of-00002.gguf", part(1));
    session.write("renamed.gguf", part(0));
    let cases = "
        lora.gguf => lora.gguf: a LoRA adapter | llama-export-lora
        mmproj.gguf => mmproj.gguf: the vision or audio part
        clip.gguf => clip.gguf: the vision or audio part
        imatrix.gguf => imatrix.gguf: an importance matrix
        vocab.gguf => vocab.gguf: a vocabulary without tensors
        no-tensors.gguf => no-tensors.gguf | predicts no next token | causal
        @hostile/bert.gguf => causal
        @hostile/dream.gguf => causal
        @hostile/gemma-embedding.gguf => causal
        @hostile/t5.gguf => encoder
        @hostile/t5encoder.gguf => encoder
        none.gguf => none.gguf: cannot open
        model.gguf.part => model.gguf.part: incomplete at byte 400000 | download
        stub.gguf => stub.gguf
        a-00001-of-00002.gguf => a-00002-of-00002.gguf: is missing
        b-00002-of-00002.gguf => b-00002-of-00002.gguf: part 2 of 2 | give the first part
        renamed.gguf => renamed.gguf | -00001-of-00002.gguf";
    session.fails_each(1, "-r ref.gz -q -m", cases);
    session.fails_each(1, "-t short.txt -w new.gz -q -m", cases);
}

#[test]
fn what_is_not_a_reference_is_named() {
    let session = Session::with_reference("--format llama.cpp");
    let base = session.read("ref.gz");
    session.write("cut.kld", &base[..base.len() / 2]);
    session.ok("-m @q8 -r ref.gz -q --sidecar q8.kls --json result.json");
    session.write("page.gz", WEB_PAGE);
    session.write("empty.gz", "");
    let cases = "
        none.gz => none.gz: cannot open
        empty.gz => empty.gz: not a reference: it is empty
        page.gz => page.gz: not a reference: it is a web page
        short.txt => short.txt: not a reference: it is a text
        result.json => result.json: not a reference: it is JSON
        q8.kls => -r q8.kls: it is a sidecar | kl report q8.kls
        @npz => mlx-kld-f16.npz: is a file of kind npz | kl compare
        @safetensors => kl compare
        cut.kld => cut.kld: incomplete | 3 of 7 windows";
    session.fails_each(1, "-m @q4 -r", cases);
    let cases = "
        ref.gz => ref.gz: not a sidecar: it is a base file of llama-perplexity; give a .kls file
        result.json => result.json: not a sidecar: it is JSON
        page.gz => page.gz: not a sidecar: it is a web page
        @q8 => tiny-q8_0.gguf: not a sidecar: it is a model
        @klpy => not a sidecar: it is a reference (kl.py)
        empty.gz => empty.gz: not a sidecar: it is empty";
    session.fails_each(1, "report", cases);
}

#[test]
fn what_is_not_a_file_of_this_machine_is_named() {
    let session = Session::with_reference("");
    let cases = "
        -m unsloth/Qwen3-8B-GGUF -r ref.gz => no such file | hf:unsloth/Qwen3-8B-GGUF
        -m unsloth/Qwen3-8B-GGUF:Q4_K_M -r ref.gz => no such file | hf:unsloth/Qwen3-8B-GGUF:Q4_K_M
        -m hf://unsloth/Qwen3-8B-GGUF/q4.gguf -r ref.gz => hf:USER/REPO/FILE
        -m https://example.org/q4.gguf -r ref.gz => curl -LO URL
        -m q*.gguf -r ref.gz => 'q*.gguf' | no such file | name the folder
        -hf Qwen3-8B-GGUF -r ref.gz => --model | hf:USER/REPO
        -m @q8 -r org/reference => 'org/reference' | hf:org/reference
        -m @f16 -t Salesforce/wikitext -w new.gz => 'Salesforce/wikitext' | hf:Salesforce/wikitext
        -m @f16 -t https://example.org/wiki.txt -w new.gz => --text-path | curl -LO URL
        -m @q8 --ref-model org/model -t short.txt => --ref-model | hf:org/model
        report *.kls => '*.kls' | no such file | pattern
        info https://example.org/ref.gz => curl -LO URL";
    session.fails_each(2, "", cases);
}
