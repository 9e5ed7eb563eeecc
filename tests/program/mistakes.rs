//! The most common mistakes, and the line that each of them gets: what is wrong, where, and what to do.
//! Those with prompts are in `prompts.rs`, full disks and cut files also in `outside.rs` and `resume.rs`.

use std::fs;

use crate::gguf::{Pair, gguf, with_pairs};
use crate::session::{Session, fixture, short_text};

const WEB_PAGE: &str = "<!doctype html>\n<html><title>404</title></html>";

/// A session with `ref.gz` and a sidecar, `q8.kls`.
fn session() -> Session {
    let session = Session::with_reference("");
    session.ok("-m @q8 -r ref.gz -q --sidecar q8.kls --json result.json");
    fs::copy(session.path("q8.kls"), session.path("$HOME.kls")).unwrap();
    session
}

#[test]
fn what_a_run_that_was_cut_off_has_left_is_named() {
    let session = session();
    for (whole, name) in [("ref.gz", "big.gz"), ("q8.kls", "big.kls")] {
        let partial = format!("{name}.partial");
        session.cut(whole, &partial, 0.5);
        for line in [format!("info {name}"), format!("info {partial}")] {
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
    let config = r#"{"architectures":["LlamaForCausalLM"]}"#;
    session.write("hf/config.json", config);
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
        q8.kls => q8.kls: not a GGUF model: it is a sidecar | kl report q8.kls shows
        $HOME.kls => kl report '$HOME.kls' shows
        hf => exit 2 | hf: holds no GGUF: it holds safetensors | convert_hf_to_gguf.py";
    session.fails_each(1, "-r ref.gz -m", cases);
    let original = "-m @f16 --ref-model q8.kls -t short.txt";
    session.fails(original, 1, &["q8.kls: not a GGUF model: it is a sidecar"]);
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
    session.change("@q2", "model.gguf.part", |bytes| bytes.truncate(400_000));
    session.change("@q2", "stub.gguf", |bytes| bytes.truncate(100));
    for (name, part) in [
        ("a-00001-of-00002.gguf", 0),
        ("b-00002-of-00002.gguf", 1),
        ("renamed.gguf", 0),
    ] {
        let split = ["split.no", "split.count"].into_iter().zip([part, 2]);
        let split = Vec::from_iter(split.map(|(key, n)| Pair::number(key, n)));
        session.write(name, with_pairs(&session.read("@q2"), &split));
    }
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
fn what_is_not_a_reference_or_a_sidecar_is_named() {
    let session = session();
    session.reference_of("@f16", "base.kld", "--format llama.cpp");
    session.cut("base.kld", "cut.kld", 0.5);
    session.write("page.gz", WEB_PAGE);
    session.write("empty.gz", "");
    let cases = "
        none.gz => none.gz: cannot open
        empty.gz => empty.gz: not a reference: it is empty
        page.gz => page.gz: not a reference: it is a web page
        short.txt => short.txt: not a reference: it is a text
        result.json => result.json: not a reference: it is JSON
        q8.kls => -r q8.kls: it is a sidecar | kl report q8.kls shows
        $HOME.kls => kl report '$HOME.kls' shows
        @npz => mlx-kld-f16.npz: is a file of kind npz | kl compare
        @safetensors => kl compare
        cut.kld => cut.kld: incomplete | 3 of 7 windows";
    session.fails_each(1, "-m @q4 -r", cases);
    let cases = "
        base.kld => base.kld: not a sidecar: it is a base file of llama-perplexity; give a .kls file
        result.json => result.json: not a sidecar: it is JSON
        page.gz => page.gz: not a sidecar: it is a web page
        @q8 => tiny-q8_0.gguf: not a sidecar: it is a model
        @klpy => not a sidecar: it is a reference (kl.py)
        empty.gz => empty.gz: not a sidecar: it is empty";
    session.fails_each(1, "report", cases);
}

#[test]
fn folders_where_files_are_needed_are_named() {
    let session = session();
    fs::create_dir(session.path("empty")).unwrap();
    fs::create_dir(session.path("full")).unwrap();
    session.write("full/ref.gz", session.read("ref.gz"));
    fs::create_dir(session.path("quants")).unwrap();
    session.write("quants/q2.gguf", session.read("@q2"));
    let cases = "
        -m @q4 -r full => full: is a folder: name one reference
        -m @q4 -r empty => empty: is a folder: name one reference
        -m empty -r ref.gz => exit 2 | empty: holds no GGUF
        -m quants -t short.txt -w new.gz => exit 2 | quants: is a folder
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

#[test]
fn models_that_do_not_belong_to_the_reference_are_noticed() {
    let session = Session::with_reference("");
    session.reference_of("@q2", "of-q2.gz", "");
    session.reference_of("@gpt2", "gpt2.gz", "-c 32");
    let cases = "
        ref.gz -r @q4 => it is a model, and -m ref.gz a reference: swap them
        @q4 -r @f16 => it is a model, not a reference | -t TEXT -w REF | --ref-model
        @q4 --ref-model @gpt2 -t short.txt -c 40 => rows of 1024 | gpt2.gguf
        @hostile/other-vocab.gguf -r ref.gz => other-vocab.gguf: its tokenizer | that of ref.gz | mean different tokens
        @hostile/small-vocab.gguf -r ref.gz => small-vocab.gguf | of 512 | rows of 1024 | --vocab common";
    session.fails_each(1, "-q -m", cases);
    // Other weights: in the second half of the file, half of the numbers have the other sign.
    session.change("@f16", "fine-tune.gguf", |bytes| {
        let half = bytes.len() / 2;
        let signs = bytes[half..].iter_mut().skip(1).step_by(4);
        signs.for_each(|byte| *byte ^= 0x80);
    });
    let swapped = ["3.43 bits per weight", "16.01", "were the two swapped?"].as_slice();
    let original = [
        "fine-tune.gguf: the mean KLD is",
        "a quant of another model",
    ]
    .as_slice();
    let architecture = "the model's architecture is phi2, and gpt2 for the reference's";
    for (line, what) in [
        ("-m @f16 -r of-q2.gz", swapped),
        ("-m @f16 --ref-model @q2 -t short.txt -c 64", swapped),
        ("compare of-q2.gz ref.gz", swapped),
        ("-m fine-tune.gguf -r ref.gz", original),
        ("-m @architectures/phi2.gguf -r gpt2.gz", &[architecture]),
    ] {
        session.ok(&format!("{line} --no-sidecar -q")).warns(what);
    }
}

#[test]
fn what_is_not_a_text_is_named() {
    let session = Session::new();
    let utf16 = short_text();
    let utf16 = utf16.encode_utf16().flat_map(u16::to_le_bytes);
    session.write("utf16.txt", Vec::from_iter(utf16));
    session.write("empty.txt", "");
    session.write("short.txt", "a");
    session.write("wiki.parquet", b"PAR1\x15\0\x15");
    session.write("wiki.txt.gz", b"\x1f\x8b\x08\0\0\0\0\0");
    session.write("wiki.zip", b"PK\x03\x04\0\0");
    let cases = "
        -t utf16.txt => utf16.txt: not a text | iconv -f UTF-16
        -t @q2 => tiny-q2_K.gguf: not a text: it is a model; give it to -m
        -t @klpy => not a text: it is a reference | give it to -r
        -t wiki.parquet => wiki.parquet: not a text: it is Parquet
        -t wiki.txt.gz => wiki.txt.gz: not a text: it is gzip | gunzip
        -t wiki.zip => wiki.zip: not a text: it is a zip file; unpack it
        --prompts @q2 => tiny-q2_K.gguf: not a text: it is a model
        -t empty.txt => empty.txt: is empty
        -t short.txt => short.txt: has fewer than two tokens
        -t none.txt => none.txt: cannot be read
        -t 8 => exit 2 | '8' | --threads 8
        -t x=utf16.txt -t y=empty.txt => utf16.txt: not a text
        --prompts utf16.txt => utf16.txt: not a text";
    session.fails_each(1, "-m @f16 -w new.gz -q", cases);
}

#[test]
fn prompts_that_the_model_finds_improbable_are_not_told_to_be_prompts() {
    let session = Session::new();
    let noise = "Zq;}Xk<>~ Jv^%Wq Zx{}Qj ~~Kz|Vq\n".repeat(3);
    session.write("noise.txt", &noise);
    session.ok("-m @f16 --prompts noise.txt --no-chat-template -w prompts.gz -q");
    session.ok("-m @f16 -t noise.txt -w text.gz -c 32 -q");
    for line in ["-m @q4 -r prompts.gz -q", "report tiny-q4_K_M@prompts.kls"] {
        let run = session.ok(line);
        run.warns(&["own perplexity", "these prompts", "chat template"]);
        run.warns_not("--prompts");
    }
    for line in ["-m @q4 -r text.gz -q", "report tiny-q4_K_M@text.kls"] {
        let run = session.ok(line);
        run.warns(&["own perplexity", "--prompts runs it on chats"]);
    }
}

#[test]
fn a_model_with_a_chat_template_is_pointed_out() {
    let session = Session::with_text();
    let template = Pair::text("tokenizer.chat_template", "{{ messages[0].content }}");
    let model = with_pairs(&session.read("@q2"), &[template]);
    session.write("chat.gguf", model);
    let run = session.ok("-m chat.gguf -t short.txt -w ref.gz -c 64");
    run.warns(&["chat ", "--prompts"]);
    for line in [
        "-t short.txt -w quiet.gz -c 64 -q",
        "--prompts short.txt -w p.gz",
    ] {
        let run = session.ok(&format!("-m chat.gguf {line}"));
        run.warns_not("--prompts");
    }
}

#[test]
fn windows_of_the_wrong_size_are_noticed() {
    let session = Session::with_reference("");
    session.write("line.txt", "Once upon a time there was a cat.");
    let text = fs::read_to_string(fixture("eval")).unwrap();
    session.write("long.txt", &text.replace('\n', " ")[..3000]);
    let cases = "
        @q8 -r ref.gz -c 1024 => --n-ctx 1024: ref.gz has windows of 64 tokens | leave --n-ctx out
        @f16 -t line.txt -w half.gz -c 512 --score half -q => line.txt: has 9 tokens | lower --score";
    session.fails_each(1, "-m", cases);
    let one = session.ok("-m @f16 -t line.txt -w one.gz -c 512 -q");
    one.warns(&["no intervals: there is only 1 window", "at least 30"]);
    let prompts = "@f16 --prompts long.txt --no-chat-template -w prompts.gz";
    let read = "@q8 -r prompts.gz --no-sidecar";
    for (line, n, to_do) in [
        (
            "@f16 -t @eval -w long.gz -c 600 -n 650",
            "600",
            "lower --n-ctx",
        ),
        (prompts, "879", "leave out the longest prompts"),
        (read, "879", "leave out the longest prompts"),
    ] {
        let run = session.ok(&format!("-m {line} -q"));
        let trained = "longer than the 512 that the model was trained on";
        run.warns(&[n, trained, to_do]);
    }
}
