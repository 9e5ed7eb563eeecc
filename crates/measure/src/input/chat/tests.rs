//! Turns and answers against transformers' own masks.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::*;
use crate::input::chat_template::ChatTemplate;

/// An answer that transformers finds: `fixtures/scripts/answers.py` writes it.
#[derive(Deserialize)]
struct Expected {
    index: usize,
    prompt: String,
    answer: String,
    rest: String,
}

fn read(name: &str) -> String {
    let folder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../fixtures/templates/answers"
    );
    std::fs::read_to_string(format!("{folder}/{name}")).unwrap()
}

fn template(source: &str) -> Rc<ChatTemplate> {
    let template = ChatTemplate::new(source, "<s>".to_owned(), "</s>".to_owned());
    template.unwrap().into()
}

fn chat(template: &Rc<ChatTemplate>, messages: &str) -> (Chat, Vec<Role>) {
    let messages: Messages = serde_json::from_str(messages).unwrap();
    let roles = messages.roles();
    let chat = Chat::new(template, &messages, &Variables::default()).unwrap();
    (chat, roles)
}

#[test]
fn the_answers_are_those_that_transformers_finds() {
    type Outcomes = BTreeMap<String, Option<Vec<Expected>>>;
    let expected: BTreeMap<String, Outcomes> =
        serde_json::from_str(&read("expected.json")).unwrap();
    let conversations: BTreeMap<String, Box<RawValue>> =
        serde_json::from_str(&read("conversations.json")).unwrap();
    assert_eq!(expected.len(), 7);
    let mut compared = 0;
    for (name, outcomes) in &expected {
        let template = template(&read(&format!("{name}.jinja")));
        for (conversation, wanted) in outcomes {
            let (chat, roles) = chat(&template, conversations[conversation].get());
            let indices = answered(&roles);
            let Some(wanted) = wanted else {
                let mut answers = indices.iter().map(|&index| chat.answer(index));
                assert!(answers.any(|of| of.is_err()), "{name}: {conversation}");
                continue;
            };
            assert!(indices.iter().eq(wanted.iter().map(|of| &of.index)));
            for of in wanted {
                let what = format!("{name}: {conversation}: {}", of.index);
                let given = chat.answer(of.index).unwrap();
                assert_eq!(
                    (given.text, given.rest),
                    (of.answer.clone(), of.rest.clone()),
                    "{what}"
                );
                // An answer without a thought does not follow the mark that opens one.
                let left = of.prompt.strip_prefix(&given.prompt).expect(&what);
                let is_without = name == "thoughts" && left == "<think>\n";
                assert!(left.is_empty() || is_without, "{what}: {left:?}");
                let whole = chat.prompt(of.index).unwrap();
                assert_eq!(whole, of.prompt, "{what}");
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 7 * 4 + 4 * 2);
}

/// The columns of a table's rows, but for comments. ⏎ is a line feed, and between ASK and ¶ is what only a prompt
/// ends with.
fn rows<const N: usize>(table: &str) -> Vec<[String; N]> {
    let rows = table.lines().map(str::trim).filter(|row| !row.is_empty());
    let rows = rows.filter(|row| !row.starts_with("# ")).map(|row| {
        let ask = "{% if add_generation_prompt %}[assistant]";
        let row = row
            .replace('⏎', "\n")
            .replace("ASK", ask)
            .replace('¶', "{% endif %}");
        let columns: Vec<String> = row
            .split(" ¦")
            .map(|of| of.strip_prefix(' ').unwrap_or(of).to_owned())
            .collect();
        columns.try_into().unwrap()
    });
    rows.collect()
}

/// A template that writes the user's messages after `user`, the assistant's as `of_assistant`, and `asks`.
fn template_of(user: &str, of_assistant: &str, asks: &str) -> Rc<ChatTemplate> {
    template(&format!(
        "{{% for m in messages %}}{{% if m.role == 'user' %}}{user}{{{{ m.content }}}}\
         {{% else %}}{of_assistant}{{% endif %}}{{% endfor %}}{asks}"
    ))
}

#[test]
fn an_answer_follows_what_the_model_sees() {
    let table = r#"
        # A mark that an answer shares by chance with what the prompt ends with.
        ASK<think>⏎¶ ¦ "content":"<b>" ¦ [assistant]{{ m.content }} ¦ [assistant] ¦ <b>
        # An empty thought that the model sees, as Solar's and Command R7B's; the latter always asks.
        ASK<|think|><|end|>¶ ¦ "content":"b" ¦ [assistant]<|content|>{{ m.content }} ¦ [assistant]<|think|><|end|> ¦ <|content|>b
        [assistant]<|START_THINKING|><|END_THINKING|> ¦ "content":"b" ¦ [assistant]<|START_RESPONSE|>{{ m.content }} ¦ [assistant]<|START_THINKING|><|END_THINKING|> ¦ <|START_RESPONSE|>b[assistant]<|START_THINKING|><|END_THINKING|>
        # Words before a thought, known ones and others; the answer begins with one of them by chance.
        ASK⏎Here are my reasoning steps:⏎¶ ¦ "content":"b","thinking":"Why." ¦ [assistant]⏎{% if m.thinking %}{{ m.thinking }}[FINAL]{% endif %}{{ m.content }} ¦ [assistant]⏎Here are my reasoning steps:⏎ ¦ Why.[FINAL]b
        ASK⏎Here are my steps:⏎¶ ¦ "content":"b","thinking":"Here we go." ¦ [assistant]⏎{% if m.thinking %}{{ m.thinking }}[FINAL]{% endif %}{{ m.content }} ¦ [assistant]⏎Here are my steps:⏎ ¦ Here we go.[FINAL]b
        # The same without a thought.
        ASK⏎Here are my reasoning steps:⏎¶ ¦ "content":"b" ¦ [assistant]⏎{{ m.content }} ¦ [assistant]⏎ ¦ b
        # Blanks that only the prompt has, around the header and in it.
        {% if add_generation_prompt %}{{ '⏎' }}[assistant]⏎⏎¶ ¦ "content":"b" ¦ [assistant]⏎⏎{{ m.content }}⏎[end] ¦ ⏎[assistant]⏎⏎ ¦ b⏎[end]
        ASK⏎¶ ¦ "content":" b" ¦ [assistant]{{ m.content }} ¦ [assistant]⏎ ¦  b
        ASK<think>⏎¶ ¦ "content":"b","thinking":"why" ¦ [assistant]<think>{{ m.thinking }}</think>{{ m.content }} ¦ [assistant]<think>⏎ ¦ why</think>b
        # The model itself ends the thought that the prompt opens.
        ASK<think>¶ ¦ "content":"b" ¦ [assistant]</think>{{ m.content }} ¦ [assistant]<think> ¦ </think>b
        ASK<think>⏎¶ ¦ "content":"why</think>b" ¦ [assistant]{{ m.content }} ¦ [assistant]<think>⏎ ¦ why</think>b
        # A thought cannot follow an empty one.
        ASK<think>⏎⏎</think>⏎⏎¶ ¦ "content":"b","thinking":"why" ¦ [assistant]<think>⏎{{ m.thinking }}⏎</think>⏎⏎{{ m.content }} ¦ [assistant]<think>⏎ ¦ why⏎</think>⏎⏎b
        ASK<think></think>¶ ¦ "content":"b","thinking":"why" ¦ [assistant]{% if m.thinking %}<think>{{ m.thinking }}</think>{% endif %}{{ m.content }} ¦ [assistant] ¦ <think>why</think>b
        # Tags before the header, after it, and around less than the turn.
        ASK<think>⏎¶ ¦ "content":"b" ¦ {% generation %}[assistant]{{ m.content }}[end]{% endgeneration %} ¦ [assistant] ¦ b[end]
        {# #} ¦ "content":"b" ¦ [assistant]{% generation %}{{ m.content }}{% endgeneration %}[end] ¦ [assistant] ¦ b"#;
    for [asks, message, of_assistant, prompt, answer] in rows(table) {
        let template = template_of("", &of_assistant, &asks);
        let user = r#"{"role":"user","content":"1 <2"}"#;
        let messages = format!(r#"[{user},{{"role":"assistant",{message}}}]"#);
        let (chat, _) = chat(&template, &messages);
        let got = chat.answer(1).unwrap();
        let wanted = (format!("1 <2{prompt}"), answer);
        assert_eq!((got.prompt, got.text), wanted, "{asks}: {of_assistant}");
    }
}

#[test]
fn the_messages_before_may_change_once_they_are_answered() {
    // As Mistral's: what the system says is in the user's last message.
    let system = "{% if loop.last %}Be brief. {% endif %}";
    let user = format!("[INST]{system}");
    let template = template_of(&user, "[/INST] {{ m.content }}</s>", "[/INST]");
    let messages = r#"[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]"#;
    let (of_system, _) = chat(&template, messages);
    let got = of_system.answer(1).unwrap();
    assert_eq!(
        (&*got.prompt, &*got.text),
        ("[INST]Be brief. a[/INST]", " b</s>[/INST]")
    );
    // And a thought that only the prompt opens.
    let asks = "{% if add_generation_prompt %}<bot><think>\n{% endif %}";
    let template = template_of(&user, "<bot>{{ m.content }}</s>", asks);
    let (of_thought, _) = chat(&template, messages);
    let got = of_thought.answer(1).unwrap();
    assert_eq!(
        (&*got.prompt, &*got.text),
        ("[INST]Be brief. a<bot>", "b</s>")
    );
}

#[test]
fn an_answer_in_parts_is_that_of_its_text() {
    let text = "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}";
    let source = format!(
        "{{% for m in messages %}}{{% if m.role == 'user' %}}[user]{text}{{% else %}}[bot]<|START_RESPONSE|>{text}</s>{{% endif %}}{{% endfor %}}[bot]<|START_THINKING|><|END_THINKING|>"
    );
    let template = template(&source);
    let as_text = r#"[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]"#;
    let as_parts = r#"[{"role":"user","content":[{"type":"text","text":"a"}]},
        {"role":"assistant","content":[{"type":"text","text":"b"}]}]"#;
    for messages in [as_text, as_parts] {
        let got = chat(&template, messages).0.answer(1).unwrap();
        assert_eq!(got.prompt, "[user]a[bot]<|START_THINKING|><|END_THINKING|>");
        assert!(
            got.text.starts_with("<|START_RESPONSE|>b</s>"),
            "{}",
            got.text
        );
    }
}

#[test]
fn an_answer_that_cannot_be_told_apart_is_refused() {
    for (asks, of_assistant) in [
        // Other headers where the model is asked.
        ("[assistant]", ": {{ m.content }}"),
        ("[assistant]", "[assistant, last]{{ m.content }}"),
        ("[BOT]", "[assistant]{{ m.content }}"),
    ] {
        let asks = format!("{{% if add_generation_prompt %}}{asks}{{% endif %}}");
        let template = template_of("", of_assistant, &asks);
        let messages = r#"[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]"#;
        let error = chat(&template, messages)
            .0
            .answer(1)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("cannot tell where the answer in message 2 begins"),
            "{error}"
        );
    }
}

#[test]
fn the_model_answers_what_has_no_answer() {
    let ends = |letters: &str| {
        let roles = letters.chars().map(|letter| match letter {
            's' => Role::System,
            'u' => Role::User,
            't' => Role::Tool,
            'o' => Role::Other,
            _ => Role::Assistant,
        });
        unanswered(&roles.collect::<Vec<_>>())
    };
    for (letters, wanted) in [
        ("u", &[1][..]),
        ("su", &[2]),
        ("uu", &[1, 2]),
        ("uauu", &[3, 4]),
        ("ua", &[]),
        ("uau", &[3]),
        ("utt", &[1, 3]),
        ("uattu", &[4, 5]),
        ("usu", &[2, 3]),
        ("usa", &[]),
        ("us", &[2]),
        ("s", &[1]),
        ("sa", &[]),
        ("uo", &[2]),
        ("ouou", &[3, 4]),
        ("uoa", &[]),
        ("uao", &[]),
        ("o", &[]),
    ] {
        assert_eq!(ends(letters), wanted, "{letters}");
    }
    let roles = [
        Role::Assistant,
        Role::User,
        Role::Assistant,
        Role::Assistant,
    ];
    assert_eq!(answered(&roles), [2, 3]);
}

#[test]
fn an_answer_becomes_a_message_of_the_conversation() {
    let messages = r#"[{"role":"user","content":"a"},{"role":"user","content":"b"}]"#;
    let source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    let plain = template(source);
    let (mut chat_of_plain, _) = chat(&plain, messages);
    chat_of_plain.insert(1, "<think>\n", "c</think>d");
    let text = chat_of_plain.prompt(3).unwrap();
    assert_eq!(text, "[user]a[assistant]<think>\nc</think>d[user]b");
    // The channels of an answer are taken apart.
    let channels = template(&read("channels.jinja"));
    let (mut of_channels, _) = chat(&channels, messages);
    let answer =
        "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>final<|message|>c";
    of_channels.insert(1, "", answer);
    let last = of_channels.answer(1).unwrap().text;
    assert_eq!(last, format!("{answer}<|return|>"));
    let text = of_channels.prompt(3).unwrap();
    assert!(
        text.contains("<|start|>assistant<|channel|>final<|message|>c<|end|><|start|>user"),
        "{text}"
    );
}

#[test]
fn an_answer_becomes_the_message_that_the_template_makes_it_of() {
    let table = r#"
        # As Mistral's first: the content begins with a blank.
        SPACE{{ m.content }}</s> ¦ ASK¶ ¦ ¦  b ¦  b</s>
        # As Command R7B's: marks around the content, and a prompt that may open a thought.
        <|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|></s> ¦ ASK<|START_THINKING|><|END_THINKING|>¶ ¦ ¦ <|START_RESPONSE|>b<|END_RESPONSE|> ¦ <|START_RESPONSE|>b<|END_RESPONSE|></s>
        # An answer that was cut off has no closing mark.
        <|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|></s> ¦ ASK¶ ¦ ¦ <|START_RESPONSE|>b ¦ <|START_RESPONSE|>b<|END_RESPONSE|></s>
        # Reasoning is dropped from the history, but not a thought that has no end.
        THOUGHT{{ m.content }}</s> ¦ ASK<think>⏎¶ ¦ <think>⏎ ¦ why⏎</think>⏎⏎b ¦ b</s>
        THOUGHT{{ m.content }}</s> ¦ ASK¶ ¦ ¦ <think>⏎why ¦ <think>⏎why</s>
        # A template that always drops it gets it with the content.
        {{ m.content.split('</think>')[-1] }}</s> ¦ ASK<think>⏎¶ ¦ <think>⏎ ¦ why</think>b ¦ b</s>"#;
    let thought = "{% if loop.last and m.reasoning_content %}<think>\n{{ m.reasoning_content | trim }}\n</think>\n\n{% endif %}";
    for [of_assistant, asks, opened, answer, kept] in rows(table) {
        let of_assistant = of_assistant
            .replace("THOUGHT", thought)
            .replace("SPACE", " ");
        let template = template_of(
            "[user]",
            &format!("[{{{{ m.role }}}}]{of_assistant}"),
            &asks,
        );
        let messages = r#"[{"role":"user","content":"a"},{"role":"user","content":"c"}]"#;
        let (mut chat, _) = chat(&template, messages);
        chat.insert(1, &opened, &answer);
        let text = chat.prompt(3).unwrap();
        let wanted = format!("[user]a[assistant]{kept}[user]c[assistant]");
        assert!(text.starts_with(&wanted), "{of_assistant}: {text}");
    }
}
