//! Texts that are none, texts for chat models, and windows that do not fit.

use std::fs;

use super::{Pair, told, with_pairs};
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
    insta::assert_snapshot!(told(
        &session,
        &[
            "-m @f16 -t utf16.txt -w new.gz -q",
            "-m @f16 -t @q2 -w new.gz -q",
            "-m @f16 -t @klpy -w new.gz -q",
            "-m @f16 -t wiki.parquet -w new.gz -q",
            "-m @f16 -t wiki.txt.gz -w new.gz -q",
            "-m @f16 -t wiki.zip -w new.gz -q",
            "-m @f16 --prompts @q2 -w new.gz -q",
            "-m @f16 -t empty.txt -w new.gz -q",
            "-m @f16 -t short.txt -w new.gz -q",
            "-m @f16 -t none.txt -w new.gz -q",
            "-m @f16 -t 8 -w new.gz -q",
            "-m @f16 -t x=utf16.txt -t y=empty.txt -w new.gz -q",
            "-m @f16 --prompts utf16.txt -w new.gz -q",
        ]
    ));
    assert!(!session.exists("new.gz"));
}

#[test]
fn what_is_not_a_prompt_is_named_with_its_line() {
    let session = Session::new();
    let good = r#"{"prompt": "Once"}"#;
    let image = r#"{"type": "image_url", "image_url": {"url": "a.png"}}"#;
    let image = format!(r#"{{"messages": [{{"role": "user", "content": [{image}]}}]}}"#);
    for (name, line) in [
        ("bare", "{prompt: Once}"),
        ("plain", "Once upon a time"),
        ("cut", r#"{"prompt": "Once"#),
        ("number", r#"{"prompt": 5}"#),
        ("key", r#"{"text": "Once"}"#),
        ("role", r#"{"messages": [{"content": "Once"}]}"#),
        ("image", &image),
    ] {
        session.write(&format!("{name}.jsonl"), format!("{good}\n\n{line}\n"));
    }
    session.write("first.jsonl", "{prompt: Once}\n");
    session.write("list.jsonl", r#"[{"prompt": "Once"}, {"text": "Once"}]"#);
    session.write("comma.json", "[\n  \"Once\",\n]\n");
    let names = [
        "bare.jsonl",
        "plain.jsonl",
        "cut.jsonl",
        "number.jsonl",
        "key.jsonl",
        "role.jsonl",
        "image.jsonl",
        "first.jsonl",
        "list.jsonl",
        "comma.json",
    ];
    let calls = names.map(|name| format!("-m @f16 --prompts {name} -w new.gz -q"));
    insta::assert_snapshot!(told(&session, &calls.each_ref().map(|call| &call[..])));
}

#[test]
fn prompts_that_the_model_finds_improbable_are_not_told_to_be_prompts() {
    let session = Session::new();
    let noise = "Zq;}Xk<>~ Jv^%Wq Zx{}Qj ~~Kz|Vq\n".repeat(3);
    session.write("noise.txt", &noise);
    session.ok("-m @f16 --prompts noise.txt --no-chat-template -w prompts.gz -q");
    let run = session.ok("-m @q4 -r prompts.gz -q");
    run.warns(&["own perplexity", "these prompts", "chat template"]);
    run.warns_not("--prompts");
    session.ok("-m @f16 -t noise.txt -w text.gz -c 32 -q");
    let run = session.ok("-m @q4 -r text.gz -q --sidecar text.kls");
    run.warns(&["own perplexity", "--prompts runs it on chats"]);
    session
        .ok("report text.kls")
        .warns(&["own perplexity", "--prompts runs it on chats"]);
    let run = session.ok("report tiny-q4_K_M@prompts.kls");
    run.warns(&["own perplexity", "these prompts", "chat template"]);
    run.warns_not("--prompts");
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
    let session = Session::new();
    session.reference("");
    session.write("line.txt", "Once upon a time there was a cat.");
    let long = std::fs::read_to_string(fixture("eval"))
        .unwrap()
        .replace('\n', " ");
    session.write("long.txt", &long[..3000]);
    insta::assert_snapshot!(told(
        &session,
        &[
            "-m @q8 -r ref.gz -c 1024",
            "-m @f16 -t @eval -w long.gz -c 600 -n 650 -q",
            "-m @f16 -t line.txt -w one.gz -c 512 -q",
            "-m @f16 -t line.txt -w half.gz -c 512 --score half -q",
            "-m @f16 --prompts long.txt --no-chat-template -w prompts.gz -q",
            "-m @q8 -r prompts.gz -q --no-sidecar",
        ]
    ));
}
