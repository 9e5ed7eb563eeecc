//! Texts that are none, texts for chat models, and windows that do not fit.

use std::fs;

use crate::gguf::{Pair, with_pairs};
use crate::session::{Session, fixture, short_text};

#[test]
fn what_is_not_a_text_is_named() {
    let session = Session::new();
    let utf16: Vec<u16> = short_text().encode_utf16().collect();
    let utf16: Vec<u8> = utf16.into_iter().flat_map(u16::to_le_bytes).collect();
    session.write("utf16.txt", utf16);
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
    for (reference, line) in [
        ("prompts", "-m @q4 -r prompts.gz -q"),
        ("prompts", "report tiny-q4_K_M@prompts.kls"),
        ("text", "-m @q4 -r text.gz -q --sidecar text.kls"),
        ("text", "report text.kls"),
    ] {
        let run = session.ok(line);
        if reference == "text" {
            run.warns(&["own perplexity", "--prompts runs it on chats"]);
        } else {
            run.warns(&["own perplexity", "these prompts", "chat template"]);
            run.warns_not("--prompts");
        }
    }
}

#[test]
fn a_model_with_a_chat_template_is_pointed_out() {
    let session = Session::new();
    session.write("short.txt", short_text());
    let template = Pair::text("tokenizer.chat_template", "{{ messages[0].content }}");
    let model = with_pairs(&fs::read(fixture("q2")).unwrap(), &[template]);
    session.write("chat.gguf", model);
    let run = session.ok("-m chat.gguf -t short.txt -w ref.gz -c 64");
    run.warns(&["chat ", "--prompts"]);
    let quiet = session.ok("-m chat.gguf -t short.txt -w quiet.gz -c 64 -q");
    quiet.warns_not("--prompts");
    let prompts = session.ok("-m chat.gguf --prompts short.txt -w prompts.gz");
    prompts.warns_not("--prompts");
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
    let is_long = |line: &str, n: &str, to_do: &str| {
        let run = session.ok(&format!("-m {line} -q"));
        run.warns(&[
            n,
            "longer than the 512 that the model was trained on",
            to_do,
        ]);
    };
    let prompts = "@f16 --prompts long.txt --no-chat-template -w prompts.gz";
    is_long(
        "@f16 -t @eval -w long.gz -c 600 -n 650",
        "600",
        "lower --n-ctx",
    );
    is_long(prompts, "879", "leave out the longest prompts");
    let read = "@q8 -r prompts.gz --no-sidecar";
    is_long(read, "879", "without the longest prompts");
}
