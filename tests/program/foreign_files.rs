//! Files that people meet: those that are not models by themselves, of other programs, cut up, or joined. Each is
//! named in one line that says what to do.

use std::fs;

use crate::gguf::{Gguf, Pair, gguf};
use crate::session::{Session, fixture, labels};

/// The fixture whose last layer predicts further tokens (MTP), without these layers.
fn without_layers(layers: &[u32]) -> Vec<u8> {
    let mut file = Gguf::read(fs::read(fixture("architectures/qwen35.gguf")).unwrap());
    layers.iter().for_each(|layer| file.remove_layer(*layer));
    file.whole()
}

/// llama.cpp loads such a file, and crashes when it decodes.
#[test]
fn a_file_with_only_the_mtp_layer_is_refused_and_skipped_in_a_folder() {
    let session = Session::with_text();
    session.write("only.gguf", without_layers(&[0, 1]));
    session.write("some.gguf", without_layers(&[0]));
    let only = [
        "only.gguf: only the layer that predicts further tokens (MTP), not a model: give the model",
    ];
    session.fails("-m only.gguf -t short.txt -w new.gz", 1, &only);
    let some = ["some.gguf: has no tensors of layer 0, of 2: download or convert it again"];
    session.fails("-m some.gguf -t short.txt -w new.gz", 1, &some);
    let run = session.ends("info some.gguf --verify -q", 1);
    run.prints(&["has no tensors of layer 0"]);
    let run = session.ok("info only.gguf --verify -q");
    run.warns(&["not a language model by itself, but only the layer that predicts"]);

    session.reference_of("@architectures/qwen35.gguf", "ref.gz", "-c 64");
    fs::create_dir(session.path("quants")).unwrap();
    session.write("quants/a.gguf", without_layers(&[0, 1]));
    session.write("quants/b.gguf", without_layers(&[]));
    // An encoder and a draft.
    fs::copy(fixture("hostile/bert.gguf"), session.path("quants/c.gguf")).unwrap();
    let draft = gguf(&[Pair::text("general.architecture", "eagle3")]);
    session.write("quants/d.gguf", draft);
    session.write("quants/e.gguf.part1of2", "GGUF");
    session.write("quants/e.gguf.part2of2", "");
    let run = session.ok("-m quants -r ref.gz --no-sidecar --json o.json");
    run.warns(&["quants/a.gguf: skipped: not a language model by itself, but only the layer"]);
    run.warns(&[
        "quants/c.gguf: skipped",
        "a model without causal attention (bert)",
    ]);
    run.warns(&[
        "quants/d.gguf: skipped",
        "a draft for speculative decoding (eagle3)",
    ]);
    run.warns(&[
        "quants/e.gguf.part1of2: skipped: a piece of e.gguf",
        "part1of2 e.gguf.part2of2 >e.gguf",
    ]);
    assert_eq!(labels(&session.read_json("o.json")), ["b"]);
}

#[test]
fn a_folder_without_models_says_where_they_are() {
    let session = Session::with_reference("");
    let snapshot = "models--a--b/snapshots/0a1b";
    fs::create_dir_all(session.path(&format!("{snapshot}/Q8_0"))).unwrap();
    fs::copy(
        fixture("q8"),
        session.path(&format!("{snapshot}/Q8_0/x.gguf")),
    )
    .unwrap();
    for folder in [snapshot, "models--a--b"] {
        let expected = ["only folders that do: give ", "0a1b/Q8_0"];
        session.fails(&format!("-m {folder} -r ref.gz"), 2, &expected);
    }
    fs::create_dir(session.path("parts")).unwrap();
    fs::copy(fixture("hostile/t5.gguf"), session.path("parts/t5.gguf")).unwrap();
    let expected = ["parts: holds no model: t5.gguf is not a language model by itself"];
    session.fails("-m parts -r ref.gz", 2, &expected);
}

#[test]
fn types_of_other_programs_name_the_program() {
    let session = Session::with_text();
    for (kind, words) in [
        (
            31,
            "has type 31 (q4_0_4_4), which llama.cpp removed: use the Q4_0 file",
        ),
        (
            37,
            "(iq4_nl_4_8), which llama.cpp removed: use the IQ4_NL file",
        ),
        (
            140,
            "(iq5_k), which only ik_llama.cpp has: evaluate with ik_llama.cpp's llama-perplexity",
        ),
        (45, "it is of a fork"),
    ] {
        let mut file = Gguf::read(session.read("@q4"));
        file.set_type("blk.1.ffn_up.weight", kind);
        session.write("m.gguf", file.whole());
        for line in ["info m.gguf", "-m m.gguf -t short.txt -w new.gz"] {
            let run = session.fails(line, 1, &["m.gguf: tensor \"blk.1.ffn_up.weight\"", words]);
            run.warns_not("newer kl");
        }
    }
}

#[test]
fn files_cut_up_or_joined_say_how_to_make_them_whole() {
    let session = Session::new();
    let whole = Gguf::read(session.read("@q4"));
    let joined = [whole.part(0), whole.part(1)].concat();
    for name in ["merged.gguf", "merged-00001-of-00002.gguf"] {
        session.write(name, &joined);
        let expected = ["were joined with cat", "llama-gguf-split --merge"];
        session.fails(&format!("info {name}"), 1, &expected);
    }
    session.cut("@q4", "m.gguf.part1of2", 0.5);
    session.write("m.gguf-split-b", "rest");
    for (name, command) in [
        (
            "m.gguf.part1of2",
            "(cat m.gguf.part1of2 m.gguf.part2of2 >m.gguf)",
        ),
        ("m.gguf-split-b", "(cat m.gguf-split-* >m.gguf)"),
    ] {
        session.fails(
            &format!("info {name}"),
            1,
            &[name, "a piece of m.gguf", command],
        );
    }
    session.write("page.gguf", "<!DOCTYPE html>");
    session.fails(
        "info page.gguf",
        1,
        &["a web page", "download the model again"],
    );
    session.write("zeros.gguf", vec![0; 4096]);
    session.fails(
        "info zeros.gguf",
        1,
        &["begins with zeros", "download the model again"],
    );
}

/// What llama.cpp refuses is refused with what to do, and `--verify` finds it too.
#[test]
fn reasons_of_llama_cpp_come_with_advice() {
    let session = Session::with_text();
    let finds = |bytes: Vec<u8>, words: &[&str]| {
        session.write("m.gguf", bytes);
        session.fails("-m m.gguf -t short.txt -w new.gz", 1, words);
        session.ends("info m.gguf --verify -q", 1).prints(words);
    };
    let file = || Gguf::read(session.read("@q4"));
    let own = "this kl has the llama.cpp of llama-cpp-sys-2";
    let mut more = file();
    more.add_copy("blk.1.ffn_up.weight", "blk.1.ffn_uq.weight");
    finds(more.whole(), &["wrong number of tensors", own, "kl doctor"]);
    let mut vision = file();
    vision.add_copy("blk.1.ffn_up.weight", "v.blk.0.attn.weight");
    finds(
        vision.whole(),
        &["(v.blk.0.attn.weight), as Ollama's files do", "mmproj"],
    );
    let mut less = file();
    less.remove("blk.1.ffn_up.weight");
    finds(
        less.whole(),
        &["blk.1.ffn_up.weight", "download or convert it again", own],
    );
    let replaced = |name: &str, from: &[u8], to: &[u8]| {
        let mut bytes = session.read(name);
        let at = bytes
            .windows(from.len())
            .position(|part| part == from)
            .unwrap();
        bytes[at..at + to.len()].copy_from_slice(to);
        bytes
    };
    let value = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    // The key that fills the space before the tensors gets 16 bytes less, and another alignment says so.
    let aligned = file().with_alignment_of_16();
    finds(
        aligned,
        &["not aligned as llama.cpp needs them", "--no-mmap"],
    );
    session.ok("-m m.gguf -t short.txt -w read.gz -q --no-mmap");
    session.remove("read.gz");
    finds(
        replaced("@q4", &value("llama"), &value("zlama")),
        &["unknown model architecture: 'zlama'", own],
    );
    finds(
        replaced(
            "@architectures/qwen2.gguf",
            &value("gpt-2"),
            &value("gpt-9"),
        ),
        &["unknown pre-tokenizer type: 'gpt-9'", own],
    );
}

/// So is a cache, which depends on the model's heads.
#[test]
fn a_cache_that_llama_cpp_refuses_comes_with_advice() {
    let session = Session::with_text();
    let line = "-t short.txt -w new.gz -q -c 32 -m";
    let cases = "
        @f16 -fa off -ctv q8_0 => use --flash-attn on or auto, or --cache-type-v f16
        @architectures/gpt2.gguf -fa on -ctk q8_0 => --cache-type-v: f16 always works
        @architectures/gpt2.gguf -fa on -ctv q8_0 => --cache-type-v: f16 always works
        @f16 -ot ((=CPU => --override-tensor ((: is not a regular expression of C++";
    session.fails_each(1, line, cases);
}

/// A model may have more files than a process may open by default.
#[test]
#[cfg(target_os = "linux")]
fn many_parts_are_opened_at_once() {
    let session = Session::with_text();
    let whole = Gguf::read(session.read("@q4"));
    let count = whole.n_tensors();
    for part in 0..count {
        let name = format!("m-{:05}-of-{count:05}.gguf", part + 1);
        session.write(&name, whole.part_of(part, count));
    }
    let line = format!("-m m-00001-of-{count:05}.gguf -t short.txt -w new.gz -q --force");
    let run = session.in_shell("ulimit -Sn 20; exec \"$@\"", &line);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let run = session.in_shell("ulimit -n 20; exec \"$@\"", &line);
    assert_eq!(run.code, 1, "{}", run.stderr);
    run.warns(&[
        &format!("has {count} files, more than this process may open"),
        "ulimit -n 1024",
    ]);
}
