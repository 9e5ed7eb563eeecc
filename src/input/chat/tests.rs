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
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/templates/answers");
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
                let (prompt, answer) = chat.answer(of.index).unwrap();
                assert_eq!(answer, format!("{}{}", of.answer, of.rest), "{what}");
                // An answer without a thought does not follow the mark that opens one.
                let left = of.prompt.strip_prefix(&prompt).expect(&what);
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
fn a_mark_or_a_word_that_is_shared_by_chance_is_not_shared() {
    let table = r#"
        ASK<think>⏎¶ ¦ "content":"<b>" ¦ [assistant]{{ m.content }} ¦ [assistant] ¦ <b>
        # As Solar's, whose prompt may have an empty thought.
        ASK<|think|><|end|>¶ ¦ "content":"b" ¦ [assistant]<|content|>{{ m.content }} ¦ [assistant] ¦ <|content|>b
        # As Apriel's, whose prompt begins with words.
        ASK⏎Here are my steps:⏎¶ ¦ "content":"b","thinking":"Here we go." ¦ [assistant]⏎{% if m.thinking %}{{ m.thinking }}[FINAL]{% endif %}{{ m.content }} ¦ [assistant]⏎ ¦ Here we go.[FINAL]b
        # As Command R7B's, which always asks, and opens and ends a thought.
        [assistant]<|START_THINKING|><|END_THINKING|> ¦ "content":"b" ¦ [assistant]<|START_RESPONSE|>{{ m.content }} ¦ [assistant] ¦ <|START_RESPONSE|>b[assistant]<|START_THINKING|><|END_THINKING|>
        # The user's text ends with what could be a mark.
        ASK¶ ¦ "content":"b" ¦ : {{ m.content }} ¦ ¦ : b"#;
    for [asks, message, of_assistant, prompt, answer] in rows(table) {
        let template = template_of("", &of_assistant, &asks);
        let user = r#"{"role":"user","content":"1 <2"}"#;
        let messages = format!(r#"[{user},{{"role":"assistant",{message}}}]"#);
        let (chat, _) = chat(&template, &messages);
        let got = chat.answer(1).unwrap();
        assert_eq!(got, (format!("1 <2{prompt}"), answer), "{asks}");
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
    let last = of_channels.answer(1).unwrap().1;
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
