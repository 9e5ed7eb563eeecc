//! Texts that llama.cpp's tokenizer cannot take as they come: long runs without a break, and bytes that a vocabulary
//! lacks.

use crate::gguf::{Pair, with_pairs};
use crate::session::Session;

/// A session with `NAME.gguf` for each pre-tokenizer.
fn session(names: &[&str]) -> Session {
    let session = Session::new();
    for name in names {
        let pre = Pair::text("tokenizer.ggml.pre", name);
        let model = with_pairs(&session.read("@architectures/gpt2.gguf"), &[pre]);
        session.write(&format!("{name}.gguf"), model);
    }
    session
}

fn with_run(of: &str, n: usize) -> String {
    format!("The log follows.\n{}\nThe end.\n", of.repeat(n))
}

#[test]
fn a_run_of_equal_characters_has_the_stack_that_it_takes() {
    let names = ["tekken", "gpt-4o", "deepseek-v3", "default", "qwen2"];
    let session = session(&names);
    session.write("letters.txt", with_run("A", 60_000));
    session.write("lines.txt", with_run("\n", 60_000));
    session.write("marks.txt", with_run("!", 60_000));
    for name in names {
        for text in ["letters", "lines", "marks"] {
            session.ok(&format!(
                "-m {name}.gguf -t {text}.txt -c 32 --max-windows 1 -w {name}-{text}.gz -q"
            ));
        }
    }
    // A prompt, and special tokens in a text, are tokenized by the same function.
    let prompt = format!(
        "{{\"prompt\": \"It is\"}}\n{{\"prompt\": \"{}\"}}\n",
        "A".repeat(60_000)
    );
    session.write("prompts.jsonl", prompt);
    let flags = "-m tekken.gguf --prompts prompts.jsonl -w prompts.gz";
    session.fails(flags, 1, &["48 learned positions", "60000 tokens"]);
    session
        .ok("-m tekken.gguf -t letters.txt --parse-special -c 32 --max-windows 1 -w special.gz -q");
}

#[test]
fn a_run_that_is_too_long_is_named() {
    let session = session(&["tekken", "qwen2", "deepseek-llm", "superbpe"]);
    session.write("letters.txt", with_run("A", 1_100_000));
    session.write("blanks.txt", with_run(" ", 10_001) + "1");
    session.write("digits.txt", with_run("7", 3_001));
    let cases = "
        -m tekken.gguf -t letters.txt => letters.txt: line 2 (from byte 17) has 11 | most 1048576 | break or shorten
        -m deepseek-llm.gguf -t blanks.txt => blanks.txt: line 2 (from byte 17) has 10001 characters of white space
        -m superbpe.gguf -t digits.txt => digits.txt: line 2 (from byte 17) has 3001 characters that are digits";
    session.fails_each(1, "-c 32 -w ref.gz", cases);
    // Where a loop finds the words, any length will do.
    session.ok("-m qwen2.gguf -t letters.txt -c 32 --max-windows 1 -w ref.gz -q");
}

#[test]
fn a_byte_that_the_vocabulary_lacks_is_one_line() {
    let session = Session::new();
    // Byte 0xF0, which starts an emoji.
    session.change("@q2", "lacking.gguf", |bytes| {
        let mut places = bytes.windows(6);
        let place = places.position(|at| at == b"<0xF0>").unwrap();
        bytes[place..place + 6].copy_from_slice(b"<0xfx>");
    });
    session.write("emoji.txt", "It is \u{1f600} here, and so on and on.\n");
    session.write("prompts.txt", "It is here\nIt is \u{1f600} here\n");
    let cases = "
        -t emoji.txt => emoji.txt: llama.cpp cannot tokenize the text: its vocabulary has no token for a byte
        --prompts prompts.txt => prompts.txt | line 2 | has no token for a byte";
    session.fails_each(1, "-m lacking.gguf -c 16 -w ref.gz", cases);
}
