//! Conversations: the variables of chat templates, and the parts of answers.

use kl_formats::Variables;
use serde_json::{Value, json};

use crate::numbers::top;
use crate::session::{Session, has};

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
    let tools = r#"tools=[{"name": "purr", "loud": 1.50}] mode="dog""#;
    assert_eq!(first, tools);
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
        let text = |bin: &Value| bin[name].as_str().unwrap().to_owned();
        let bins = bins.map(|bin| (text(bin), bin["n_tokens"].as_u64().unwrap()));
        bins.collect()
    };
    let result = session.result("-m @q2 -r ref.gz");
    let of_evaluation = listed(&result["breakdown"]["by_span"], "label");
    assert_eq!(of_evaluation, named(1));
    let of_info = session.info("ref.gz")["prompts"].take();
    assert_eq!(listed(&of_info["spans"], "name"), named(1));
    assert_eq!(of_info["n_conversations"], of_info["n_prompts"]);
    session.ok("info ref.gz").prints(&["; rest: "]);
    let cases = "
        --prompts @prompts --span a=b..c => --span | use it with
        -t a.txt --span a=b..c => --span | --prompts
        --prompts @prompts --generate 2 --span a=b => --span | NAME=OPEN..CLOSE";
    session.fails_each(2, "-m @f16 -w other.gz", cases);
}

/// Ends answers with the EOS.
const TURNS: &str = "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content | trim }}\
     {{ eos_token if message.role == 'assistant' }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";

/// The prompt's and all tokens of a text, special tokens read as such.
fn tokens_of(session: &Session, prompt: &str, whole: &str) -> [Vec<u32>; 2] {
    let lines = [prompt, whole].map(|text| json!({"prompt": text}).to_string());
    session.write("rendered.jsonl", lines.join("\n"));
    let rendered = "--prompts rendered.jsonl --no-chat-template --parse-special";
    session.ok(&format!("-m @f16 -q {rendered} -w rendered.gz --force"));
    session.tokens("rendered.gz").try_into().unwrap()
}

#[test]
fn what_the_assistant_says_is_scored() {
    let session = Session::new();
    session.write("chat.jinja", TURNS);
    let line = json!({"messages": [
        {"role": "user", "content": "Who are you?"},
        {"role": "assistant", "content": "A small cat."},
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "I do not know."},
        {"role": "user", "content": "Thanks."},
    ], "id": 1});
    session.write("chat.jsonl", line.to_string());
    let write = "-m @f16 -q --prompts chat.jsonl --chat-template-file chat.jinja -w ref.gz";
    session.ok(&format!("{write} --score answers --span ends=know.."));
    let (specs, header) = (session.specs("ref.gz"), session.header("ref.gz"));
    let prompts = header.prompts.unwrap();
    assert_eq!((specs.len(), prompts.len()), (2, 2));
    let first = "<s>user: Who are you?\nassistant:";
    let second = format!("{first} A small cat.</s>\nuser: Why?\nassistant:");
    let turns = [(first, " A small cat."), (&*second, " I do not know.")];
    for (i, (prompt, answer)) in turns.into_iter().enumerate() {
        let whole = format!("{prompt}{answer}</s>");
        let [of_prompt, of_all] = tokens_of(&session, prompt, &whole);
        let n_prompt = of_prompt.len() as u32;
        assert_eq!(specs[i].tokens, of_all);
        assert_eq!(prompts[i].n_tokens, n_prompt);
        assert_eq!(specs[i].first_scored, n_prompt - 1);
        assert_eq!(specs[i].n_rows, of_all.len() as u32 - n_prompt);
        assert_eq!(prompts[i].continues, i == 1);
        assert_eq!(prompts[i].spans[0], (0, n_prompt));
    }
    assert_eq!(prompts[0].content.label(), "Who are you?");
    assert_eq!(prompts[1].content.label(), "Why?");
    assert_eq!(header.generated, None);
    assert_eq!(header.spans, ["prompt", "answer", "code", "ends"]);
    let of_info = session.info("ref.gz")["prompts"].take();
    assert_eq!(of_info["n_conversations"], 1);
    let shown = session.ok("info ref.gz");
    shown.prints(&["2 in 1 conversation, in a chat template"]);
    let itself = session.result("-m @f16 -r ref.gz --no-sidecar");
    // The rows are stored in 16 bits.
    assert!(itself["kld"]["max"].as_f64().unwrap() < 1e-6);
    assert_eq!(itself["n_tokens"], specs[0].n_rows + specs[1].n_rows);

    let said = |role: &str| json!({"role": role, "content": "a"});
    let none = json!({"messages": [said("user")]});
    let all = json!({"messages": [said("user"), said("assistant")]});
    session.write("none.jsonl", none.to_string());
    session.write("all.jsonl", all.to_string());
    let cases = "
        none.jsonl --chat-template-file chat.jinja --score answers => none.jsonl: line 1 | no answer | --generate
        all.jsonl --chat-template-file chat.jinja --generate 3 => all.jsonl: line 1 | --score answers
        @prompts --no-chat-template --score answers => line 1 | no answer
        all.jsonl --generate 3 --score answers => exit 2 | --score answers | --generate";
    session.fails_each(1, "-m @f16 -q -w other.gz --prompts", cases);
    let text = "-m @f16 -q -w other.gz -t a.txt --score answers";
    session.fails(text, 2, &["--score answers", "--prompts"]);
}

#[test]
fn an_answer_ends_with_the_end_of_its_turn_though_the_template_writes_that_later() {
    let session = Session::new();
    let turn = "{{ message.role }}: {{ message.content }}";
    // Written before the next message, and only where the model is asked.
    for end in ["not loop.last", "not loop.last or add_generation_prompt"] {
        let template = format!(
            "{{% for message in messages %}}{turn}{{% if {end} %}}{{{{ '\n' + eos_token }}}}\n{{% endif %}}{{% endfor %}}\
             {{% if add_generation_prompt %}}assistant:{{% endif %}}"
        );
        session.write("chat.jinja", template);
        let said = |role: &str, text: &str| json!({"role": role, "content": text});
        let messages = [
            said("user", "Who are you?"),
            said("assistant", "A small cat."),
            said("user", "Why?"),
            said("assistant", "I do not know."),
        ];
        session.write("chat.jsonl", json!({"messages": messages}).to_string());
        session.ok("-m @f16 -q --prompts chat.jsonl --chat-template-file chat.jinja --score answers -w ref.gz --force");
        let (specs, texts) = (
            session.specs("ref.gz"),
            session.info("ref.gz --prompts --model @f16"),
        );
        for (i, answer) in [" A small cat.\n</s>", " I do not know.\n</s>"]
            .iter()
            .enumerate()
        {
            assert_eq!(specs[i].tokens.last(), Some(&2), "{end}");
            assert_eq!(texts["prompt_texts"][i]["answer"], **answer, "{end}");
        }
    }
}

#[test]
fn the_model_answers_each_message_of_the_user_in_turn() {
    let session = Session::new();
    session.write("chat.jinja", TURNS);
    let user = |text: &str| json!({"role": "user", "content": text});
    let given = json!({"role": "assistant", "content": "It ran."});
    let lines = [
        json!({"messages": [user("A dog ran."), user("Where did it go?")], "group": "a"}),
        json!({"messages": [user("A dog ran."), given, user("Why?")], "group": "b"}),
        json!({"messages": [user("One."), user("Two."), user("Three.")], "group": "a"}),
    ];
    session.write("chat.jsonl", lines.map(|line| line.to_string()).join("\n"));
    let input = "--prompts chat.jsonl --chat-template-file chat.jinja --generate 6";
    let write = |name: &str, more: &str| {
        session.ok(&format!(
            "-m @f16 -q --encoding f32 {input} -w {name} {more}"
        ))
    };
    write("ref.gz", "");
    let (windows, header) = (session.windows("ref.gz"), session.header("ref.gz"));
    let prompts = header.prompts.clone().unwrap();
    let continues: Vec<bool> = prompts.iter().map(|prompt| prompt.continues).collect();
    assert_eq!(continues, [false, true, false, false, true, true]);
    let labels: Vec<String> = prompts.iter().map(|of| of.content.label()).collect();
    let expected = "A dog ran. | Where did it go? | Why? | One. | Two. | Three.";
    assert_eq!(labels.join(" | "), expected);
    assert_eq!(header.window_groups, [(0, 2), (1, 1), (0, 3)]);
    for (i, (window, prompt)) in windows.iter().zip(&prompts).enumerate() {
        let tokens = &window.spec.tokens;
        let n_prompt = prompt.n_tokens as usize;
        assert_eq!(window.spec.first_scored as usize, n_prompt - 1);
        assert_eq!(window.rows.len(), tokens.len() - n_prompt);
        let tops = window.rows.iter().map(|row| top(row) as u32);
        assert!(tops.eq(tokens[n_prompt..].iter().copied()), "window {i}");
        if prompt.continues {
            // The prompt begins as the window before it does, and holds its answer.
            let before = &windows[i - 1].spec.tokens;
            let n_before = prompts[i - 1].n_tokens as usize;
            assert_eq!(tokens[..n_before], before[..n_before], "window {i}");
            let answer = &before[n_before..];
            let said = answer.strip_suffix(&[2]).unwrap_or(answer);
            // The template trims a line feed.
            let said = said.strip_suffix(&[13]).unwrap_or(said);
            // The tokenizer may put a space before it.
            let mut there = tokens[n_before..].windows(said.len().max(1));
            let holds_it = said.is_empty() || there.any(|tokens| tokens == said);
            assert!(holds_it, "window {i}: {said:?} in {tokens:?}");
        }
    }
    let first = ..prompts[0].n_tokens as usize;
    assert_eq!(windows[0].spec.tokens[first], windows[2].spec.tokens[first]);
    write("again.gz", "-np 3");
    assert_eq!(session.tokens("again.gz"), session.tokens("ref.gz"));
}

/// Writes `chat.jsonl`: three conversations, in the first and the last of which the user says "Stop."; and
/// two templates, `free.jinja`, and `chat.jinja`, which refuses an answer to that.
pub fn stopping_conversations(session: &Session) {
    session.write("free.jinja", TURNS);
    // An empty answer, with which turns are planned, is not refused.
    let refusal = "{% if message.role == 'assistant' and message.content and \
         messages[loop.index0 - 1].content == 'Stop.' %}{{ raise_exception('it was told to stop') }}{% endif %}";
    let refusing = TURNS.replacen(" %}", &format!(" %}}{refusal}"), 1);
    session.write("chat.jinja", refusing);
    let lines = [
        ["A dog ran.", "Stop.", "Why?"].as_slice(),
        &["One.", "Two."],
        &["Stop.", "Two.", "Three."],
    ];
    let user = |text: &&str| json!({"role": "user", "content": text});
    let lines = lines.map(|texts| {
        let messages: Vec<Value> = texts.iter().map(user).collect();
        json!({"messages": messages}).to_string()
    });
    session.write("chat.jsonl", lines.join("\n"));
}

#[test]
fn a_conversation_ends_before_a_turn_that_cannot_follow_an_answer() {
    let session = Session::new();
    stopping_conversations(&session);
    let write = |template: &str, more: &str| {
        let input = format!("--prompts chat.jsonl --chat-template-file {template} --generate 6");
        session.ok(&format!("-m @f16 -q --encoding f32 {input} {more}"))
    };
    write("free.jinja", "-w free.gz");
    let run = write("chat.jinja", "-w ref.gz");
    run.warns(&["left out: 3 answers", "chat.jsonl: line 1"]);
    run.warns(&["refuses", "it was told to stop"]);
    let (free, specs) = (session.specs("free.gz"), session.specs("ref.gz"));
    assert_eq!(specs.len(), 8);
    session.ok("info ref.gz").prints(&["5 in 3 conversations"]);
    let prompts = session.header("ref.gz").prompts.unwrap();
    for ((spec, free), prompt) in specs.iter().zip(free).zip(prompts) {
        if [2, 6, 7].contains(&spec.window) {
            assert!(spec.tokens.is_empty() && (spec.n_rows, prompt.n_tokens) == (0, 0));
        } else {
            assert_eq!(*spec, free);
        }
    }

    let n_rows = session.header("ref.gz").n_rows;
    let result = session.result("compare ref.gz free.gz --no-sidecar");
    has(&result, &json!({"n_tokens": n_rows, "kld": {"max": 0}}));
}

#[test]
fn a_turn_that_outgrows_its_plan_is_left_out_unless_n_ctx_has_room() {
    let session = Session::new();
    stopping_conversations(&session);
    // Answers are planned with the tokens that they were generated with, and not 12 times as many.
    let twelve = TURNS.replace(
        "message.content | trim",
        "(message.content | trim) * (12 if message.role == 'assistant' else 1)",
    );
    session.write("chat.jinja", twelve);
    let input = "--prompts chat.jsonl --chat-template-file chat.jinja --generate 12";
    let n_answers = |name: &str, more: &str| {
        let run = session.ok(&format!("-m @f16 {input} -w {name} {more}"));
        let specs = session.specs(name);
        (specs.iter().filter(|spec| spec.n_rows > 0).count(), run)
    };
    let (n, run) = n_answers("short.gz", "");
    assert!((3..8).contains(&n), "{n}");
    run.warns(&[&format!("prompts  {n}")]);
    let prompt = "chat.jsonl: line 1: a prompt of ";
    run.warns(&["left out: ", prompt, "use a larger --n-ctx"]);
    let (n, run) = n_answers("long.gz", "-c 600");
    assert_eq!(n, 8, "{}", run.stderr);
}
