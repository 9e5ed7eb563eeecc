//! Conversations: the variables of chat templates, and the parts of answers.

use kl_formats::Variables;
use serde_json::{Value, json};

use crate::session::Session;

/// Prints the tools, and a mode unless it is off, before the messages.
const TEMPLATE: &str = "{{ bos_token }}{% for tool in tools or [] %}tool {{ tool | tojson }}\n{% endfor %}\
     {% if mode is defined and mode is not false %}mode {{ mode }}\n{% endif %}\
     {% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
     {% if add_generation_prompt %}assistant: {% endif %}";

/// What [`TEMPLATE`] makes of two lines.
const LINES: [(&str, &str); 2] = [
    (
        r#"{"prompt": "A cat sat.", "tools": [{"name": "purr", "loud": 1.50}], "id": 7, "mode": "dog"}"#,
        "<s>tool {\"name\": \"purr\", \"loud\": 1.5}\nmode dog\nuser: A cat sat.\nassistant: ",
    ),
    (
        r#"{"messages": [{"role": "user", "content": "A dog ran."}], "tools": null, "mode": false, "id": 8}"#,
        "<s>user: A dog ran.\nassistant: ",
    ),
];

#[test]
fn the_variables_that_a_template_uses_are_passed_and_kept() {
    let session = Session::new();
    session.write("chat.jinja", TEMPLATE);
    session.write("chat.jsonl", LINES.map(|(line, _)| line).join("\n"));
    session.ok("-m @f16 -q --prompts chat.jsonl --chat-template-file chat.jinja -w chat.gz");
    let rendered = LINES.map(|(_, text)| json!({"prompt": text}).to_string());
    session.write("rendered.jsonl", rendered.join("\n"));
    let rendered = "--prompts rendered.jsonl --no-chat-template --parse-special";
    session.ok(&format!("-m @f16 -q {rendered} -w rendered.gz"));
    assert_eq!(session.tokens("chat.gz"), session.tokens("rendered.gz"));
    let prompts = session.header("chat.gz").prompts.unwrap();
    let [first, second] = [0, 1].map(|i| {
        let variables: &Variables = &prompts[i].variables;
        let pairs = variables.iter();
        let pairs = pairs.map(|(name, value)| format!("{name}={value}"));
        pairs.collect::<Vec<_>>().join(" ")
    });
    assert_eq!(
        first,
        r#"tools=[{"name": "purr", "loud": 1.50}] mode="dog""#
    );
    assert_eq!(second, "tools=null mode=false");
    let raw = session.header("rendered.gz").prompts.unwrap();
    assert!(raw.iter().all(|prompt| prompt.variables.is_empty()));
    session.write("bad.jsonl", r#"{"prompt": "a", "mode": 1e999}"#);
    let line = "-m @f16 -q --prompts bad.jsonl --chat-template-file chat.jinja -w bad.gz";
    session.fails(line, 1, &["bad.jsonl: line 1", "mode"]);
}

#[test]
fn an_answers_spans_are_found_once_and_reported_by_every_evaluation() {
    let session = Session::new();
    // From the first comma on, an answer is "rest".
    let spans = "--span she=She..! --span rest=,..";
    let write = "-m @f16 -q --prompts @prompts --no-chat-template --generate 24 -w ref.gz";
    session.ok(&format!("{write} {spans}"));
    let header = session.header("ref.gz");
    assert_eq!(header.spans, ["prompt", "answer", "code", "she", "rest"]);
    let mut n_tokens = vec![0; header.spans.len()];
    for (prompt, tokens) in header.prompts.unwrap().iter().zip(session.tokens("ref.gz")) {
        let spans: u32 = prompt.spans.iter().map(|(_, n)| n).sum();
        assert_eq!(spans as usize, tokens.len());
        assert_eq!(prompt.spans[0], (0, prompt.n_tokens));
        for &(span, n) in &prompt.spans {
            n_tokens[span as usize] += u64::from(n);
        }
    }
    assert!(n_tokens[1] > 0 && n_tokens[4] > 0, "{n_tokens:?}");
    let named = |from: usize| -> Vec<(String, u64)> {
        let spans = header.spans.iter().cloned().zip(n_tokens.iter().copied());
        spans.skip(from).filter(|(_, n)| *n > 0).collect()
    };
    let listed = |bins: &Value, name: &str| -> Vec<(String, u64)> {
        let bins = bins.as_array().unwrap().iter();
        bins.map(|bin| {
            let name = bin[name].as_str().unwrap().to_owned();
            (name, bin["n_tokens"].as_u64().unwrap())
        })
        .collect()
    };
    let result = session.result("-m @q2 -r ref.gz");
    let of_evaluation = listed(&result["breakdown"]["by_span"], "label");
    assert_eq!(of_evaluation, named(1));
    let of_info = session.info("ref.gz")["prompts"].take();
    assert_eq!(listed(&of_info["spans"], "name"), named(1));
    assert_eq!(of_info["n_conversations"], of_info["n_prompts"]);
    session.ok("info ref.gz").prints(&["; rest: "]);

    for (flags, what) in [
        ("--prompts @prompts --span a=b..c", "use it with"),
        ("-t a.txt --span a=b..c", "--prompts"),
        (
            "--prompts @prompts --generate 2 --span a=b",
            "NAME=OPEN..CLOSE",
        ),
    ] {
        let line = format!("-m @f16 -w other.gz {flags}");
        session.fails(&line, 2, &["--span", what]);
    }
}
