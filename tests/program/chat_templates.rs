//! Prompts in a chat template: the model's own, one from a file, or none.

use kl_formats::PromptContent;
use serde_json::json;

use crate::gguf::{Pair, with_pairs};
use crate::session::Session;

/// Messages as lines, the BOS first, as a model's template would have it.
pub const TEMPLATE: &str = "{{ bos_token }}{% for message in messages %}{{ message.role }}: \
     {{ message.content if message.content is string else message.content | map(attribute='text') | join }}\n\
     {% endfor %}assistant:";

/// What [`TEMPLATE`] makes of `fixtures/prompts.jsonl`.
const RENDERED: [&str; 4] = [
    "<s>user: Once upon a time, there was a small dog. Where did it live?\nassistant:",
    "<s>system: The cat was happy.\nuser: Why did she go home?\nassistant:",
    "<s>user: Do you want to dance?\nassistant: I do not know.\nuser: Maya found a book. Can I have it?\nassistant:",
    "<s>user: She had a green ring.\nShe loved her ring because\nassistant:",
];

/// Writes `chat.gguf`: the q2 model with a chat template before its other keys.
fn model_with_template(session: &Session, template: &str) {
    let template = Pair::text("tokenizer.chat_template", template);
    session.write("chat.gguf", with_pairs(&session.read("@q2"), &[template]));
}

#[test]
fn the_models_template_is_applied_and_its_bos_is_the_only_one() {
    let session = Session::new();
    model_with_template(&session, TEMPLATE);
    session.ok("-m chat.gguf -q --prompts @chats -w chat.gz");
    let (header, tokens) = (session.header("chat.gz"), session.tokens("chat.gz"));
    assert_eq!(header.add_bos, Some(false), "the template writes it");
    let specs = session.specs("chat.gz");
    assert!(specs.iter().all(|spec| spec.first_scored == 1));
    let n_tokens: usize = tokens.iter().map(Vec::len).sum();
    let text = header.provenance.text.unwrap();
    assert_eq!(text.n_tokens, Some(n_tokens as u64));
    assert!(header.chat_template.is_some());

    // The same texts, rendered by hand and used unchanged.
    let lines = RENDERED.map(|text| json!({"prompt": text}).to_string());
    session.write("rendered.jsonl", lines.join("\n"));
    let rendered = "-m chat.gguf -q --prompts rendered.jsonl --no-chat-template";
    session.ok(&format!("{rendered} -w raw.gz --parse-special"));
    assert_eq!(tokens, session.tokens("raw.gz"));
    assert!(tokens.iter().all(|window| window[0] == 1 && window[1] != 1));
    assert_eq!(session.header("raw.gz").chat_template, None);
    // Without --parse-special the text of the BOS is text, and a BOS comes before it.
    session.ok(&format!("{rendered} -w text.gz"));
    assert_eq!(session.header("text.gz").add_bos, Some(true));
    assert!(session.tokens("text.gz")[0].len() > tokens[0].len());

    // The messages are kept to the byte.
    let given = session.read_text("@chats");
    let second = given.lines().nth(1).unwrap();
    let PromptContent::Messages(messages) = &header.prompts.as_ref().unwrap()[1].content else {
        panic!("messages")
    };
    assert_eq!(format!("{{\"messages\": {}}}", messages.json()), second);
    let prompts = session.result("-m chat.gguf -r chat.gz --no-sidecar")["prompts"].take();
    assert_eq!(prompts[1]["prompt"], "Why did she go home?");
    assert_eq!(prompts[2]["prompt"], "Maya found a book. Can I have it?");
}

const DEFAULT: &str = "tokenizer.chat_template";
const TOOL_USE: &str = "tokenizer.chat_template.tool_use";

/// The texts of the prompts of `file`, as a model whose templates are these reads them.
fn texts_with(session: &Session, templates: &[(&'static str, &str)], file: &str) -> Vec<String> {
    let pairs = templates
        .iter()
        .map(|(key, template)| Pair::text(key, template));
    let pairs: Vec<Pair> = pairs.collect();
    session.write("chat.gguf", with_pairs(&session.read("@q2"), &pairs));
    session.ok(&format!(
        "-m chat.gguf -q --prompts {file} -w chat.gz --force"
    ));
    let texts = session.info("chat.gz --prompts --model chat.gguf")["prompt_texts"].take();
    let texts = texts
        .as_array()
        .unwrap()
        .iter()
        .map(|text| text["prompt"].as_str().unwrap());
    texts
        .map(|text| text.trim_start_matches("<s>").trim().to_owned())
        .collect()
}

#[test]
fn prompts_with_tools_get_the_template_that_is_named_for_them() {
    let session = Session::new();
    let tool = json!({"type": "function", "function": {"name": "look"}});
    let lines = [
        json!({"prompt": "a cat"}),
        json!({"prompt": "a dog", "tools": [tool]}),
        json!({"prompt": "a fox", "tools": []}),
    ];
    session.write("tools.jsonl", lines.map(|line| line.to_string()).join("\n"));
    let plain = "say {{ messages[0].content }}";
    let with_tools = "{% for tool in tools %}use {{ tool.function.name }}, {% endfor %}{{ messages[0].content }}";
    let named = [(DEFAULT, plain), (TOOL_USE, with_tools)];
    let texts = texts_with(&session, &named, "tools.jsonl");
    assert_eq!(texts, ["say a cat", "use look, a dog", "say a fox"]);
    let variables = |i: usize| {
        session.header("chat.gz").prompts.unwrap()[i]
            .variables
            .is_empty()
    };
    assert!(!variables(1) && variables(2));
    // It is the only one, or beside a name.
    for named in [&named[1..], &[(DEFAULT, "chatml"), (TOOL_USE, with_tools)]] {
        let texts = texts_with(&session, named, "tools.jsonl");
        assert_eq!(texts, ["a cat", "use look, a dog", "a fox"]);
    }
    let texts = texts_with(&session, &[(DEFAULT, "chatml")], "tools.jsonl");
    assert!(
        texts[0].contains("im_start") && texts[0].contains("a cat"),
        "{texts:?}"
    );
    // A template that prints no tools.
    texts_with(&session, &[(DEFAULT, plain)], "@chats");
    let run = session.ok("-m chat.gguf --prompts tools.jsonl -w chat.gz --force");
    run.warns(&["1 prompt with tools that the chat template does not print"]);
}

#[test]
fn tools_without_a_call_are_said() {
    let session = Session::new();
    let look = json!([{"type": "function", "function": {"name": "look"}}]);
    let call = json!({"role": "assistant", "content": r#"{"name": "look", "arguments": {}}"#});
    let conversation =
        |answer| json!({"messages": [{"role": "user", "content": "a cat"}, answer], "tools": look});
    let template = "{% for tool in tools %}use {{ tool.function.name }}, {% endfor %}{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";
    session.write("template.jinja", template);
    let line = "-m @f16 --chat-template-file template.jinja --prompts chats.jsonl -w chat.gz --force --score answers";
    let said = json!({"role": "assistant", "content": "it sat"});
    session.write("chats.jsonl", conversation(said).to_string());
    let run = session.ok(line);
    run.warns(&[
        "1 answer to prompts that offer tools, and none calls one",
        "--span",
    ]);
    session.write("chats.jsonl", conversation(call).to_string());
    let run = session.ok(line);
    run.warns_not("offer tools");
    let spans = session.header("chat.gz").spans;
    assert!(spans.iter().any(|name| name == "tool call"), "{spans:?}");
}

#[test]
fn a_template_from_a_file_replaces_the_models() {
    let session = Session::new();
    model_with_template(&session, "{{ raise_exception('not this one') }}");
    session.write("chat.jinja", TEMPLATE);
    let line = "-m chat.gguf --prompts @chats -q";
    session.ok(&format!("{line} -w a.gz --chat-template-file chat.jinja"));
    let prompts = session.header("a.gz").prompts.unwrap();
    for (tokens, prompt) in session.tokens("a.gz").iter().zip(prompts) {
        assert_eq!(tokens.len(), prompt.n_tokens as usize);
    }
    let what = [
        "prompts.jsonl: 4 of 4 prompts",
        "line 1, line 2",
        "not this one",
        "chat template:1",
    ];
    session.fails(&format!("{line} -w b.gz"), 1, &what);

    // A model without one is one warning.
    let run = session.ok("-m @f16 --prompts @prompts -q -w c.gz");
    let n_warnings = run.stderr.matches("no chat template").count();
    assert_eq!(n_warnings, 1, "{}", run.stderr);
    let without = session.ok("-m @f16 --prompts @prompts -q -w d.gz --no-chat-template");
    without.warns_not("template");
    assert_eq!(session.specs("c.gz"), session.specs("d.gz"));
}
