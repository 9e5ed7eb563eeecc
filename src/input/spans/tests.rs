//! Spans against what a reader of the text would say.

use super::*;

/// Tokens whose ids are indices into these texts.
struct Texts(Vec<Vec<u8>>);

impl Texts {
    /// A token for each character.
    fn of(text: &str) -> Self {
        let characters = text.chars().map(|c| c.to_string().into_bytes());
        Self(characters.collect())
    }

    fn runs(&self, spans: &Spans, n_prompt: usize) -> Vec<(u32, u32)> {
        let tokens: Vec<u32> = (0..self.0.len() as u32).collect();
        spans.of_window(&tokens, n_prompt as u32, self)
    }
}

impl Vocabulary for Texts {
    fn token_bytes(&self, token: u32) -> Option<Vec<u8>> {
        self.0.get(token as usize).cloned()
    }

    fn is_special(&self, _: u32) -> bool {
        false
    }

    fn is_end_of_generation(&self, _: u32) -> bool {
        false
    }
}

/// The pieces of an answer after `prompt`, each with its span.
fn found(spans: &Spans, prompt: &str, answer: &str) -> Vec<(String, String)> {
    let all = Texts::of(&format!("{prompt}{answer}"));
    let n_prompt = prompt.chars().count();
    let runs = all.runs(spans, n_prompt);
    assert_eq!(runs[0], (0, n_prompt as u32));
    let mut at = 0;
    let pieces = runs.iter().map(|&(span, n)| {
        let bytes = all.0[at..at + n as usize].concat();
        at += n as usize;
        let name = spans.names[span as usize].clone();
        (name, String::from_utf8(bytes).unwrap())
    });
    let pieces = pieces.skip(1).collect();
    assert_eq!(at, all.0.len(), "every token has a span");
    pieces
}

/// Checks the spans of an answer after a prompt, given as `NAME=TEXT` each; `rules` are the user's.
fn check(rules: &[&str], template: &str, prompt: &str, pieces: &[&str]) {
    let rules: Vec<SpanRule> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    let template = Some(template).filter(|template| !template.is_empty());
    let spans = Spans::new(template, &rules);
    let pieces = pieces.iter().map(|piece| piece.split_once('=').unwrap());
    let answer: String = pieces.clone().map(|(_, text)| text).collect();
    let wanted = pieces.map(|(name, text)| (name.to_owned(), text.to_owned()));
    assert_eq!(
        found(&spans, prompt, &answer),
        wanted.collect::<Vec<_>>(),
        "{template:?}"
    );
}

/// Families: the template, or a part of it, the end of a prompt, and the spans of an answer to it, each as
/// `NAME=TEXT`. ⏎ is a line feed.
const FAMILIES: &str = r#"
        # DeepSeek V4.
        {%- set dsml_token = '｜DSML｜' -%}
        <｜Assistant｜></think>
        answer=⏎⏎
        tool call=<｜DSML｜tool_calls>⏎<｜DSML｜invoke name="look">⏎</｜DSML｜invoke>⏎</｜DSML｜tool_calls>
        answer=<｜end▁of▁sentence｜>

        # Kimi K3, whose prompt opens the thought.
        {%- macro close_tag(tag) -%}{{- '<|close|>' + tag + '<|sep|>' -}}{%- endmacro -%}
        <|open|>message role="assistant"<|sep|><|open|>think<|sep|>
        reasoning=Hm.<|close|>think<|sep|>
        answer=<|open|>response<|sep|>Yes.<|close|>response<|sep|>
        tool call=<|open|>tools<|sep|><|open|>call tool="look"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>
        answer=<|close|>message<|sep|>

        # Hunyuan 3.
        {%- set HYTK = ':opensource' %}{%- set think = '<think{}>'.format(HYTK) %}
        <|assistant|>
        reasoning=<think:opensource>Hm.</think:opensource>
        answer=Yes.
        tool call=<tool_calls:opensource>⏎look⏎</tool_calls:opensource>

        # Qwen and Hermes.
        {{ '<think>' }} {{ '</think>' }} <tool_call>
        <|im_start|>assistant⏎
        reasoning=<think>⏎Where?⏎```⏎x⏎```⏎</think>
        answer=⏎⏎I will look.⏎
        tool call=<tool_call>⏎{"name": "look"}⏎</tool_call>
        answer=⏎
        tool call=<tool_call>⏎{}⏎</tool_call>
        answer=<|im_end|>

        # DeepSeek R1: the generation prompt opens the thought.
        {% if add_generation_prompt %}{{ '<｜Assistant｜><think>\n' }}{% endif %}<｜tool▁calls▁begin｜>
        <｜User｜>Hi<｜Assistant｜><think>⏎
        reasoning=Hm.⏎</think>
        answer=⏎⏎Hello.
        tool call=<｜tool▁calls▁begin｜>a<｜tool▁calls▁end｜>
        answer=<｜end▁of▁sentence｜>

        # Mistral: the call runs to the end.
        [TOOL_CALLS]
        [INST] Hi[/INST]
        answer=Now.
        tool call=[TOOL_CALLS][{}]</s>

        # Magistral.
        [THINK] [TOOL_CALLS]
        [/INST]
        reasoning=[THINK]a[/THINK]
        answer=b</s>

        # Llama 3.1.
        <|python_tag|>
        assistant<|end_header_id|>⏎⏎
        tool call=<|python_tag|>print(1)<|eom_id|>

        # gpt-oss.
        <|start|>assistant<|channel|>analysis<|message|>
        <|start|>assistant
        reasoning=<|channel|>analysis<|message|>Think.<|end|>
        answer=<|start|>assistant<|channel|>final<|message|>Done.<|return|>

        # gpt-oss.
        <|start|>assistant<|channel|>analysis<|message|>
        <|start|>assistant
        reasoning=<|channel|>analysis<|message|>Think.<|end|>
        answer=<|start|>assistant
        tool call=<|channel|>commentary to=functions.look <|constrain|>json<|message|>{}<|call|>

        # gpt-oss.
        <|start|>assistant<|channel|>analysis<|message|>
        <|start|>assistant
        tool call= to=functions.look<|channel|>commentary json<|message|>{}<|call|>

        # Gemma 4.
        <|channel>thought⏎<channel|> <|tool_call>call:
        <|turn>model⏎
        reasoning=<|channel>thought⏎So.<channel|>
        answer=Yes.
        tool call=<|tool_call>call:a{}<tool_call|>

        # Command A.
        <|START_THINKING|><|END_THINKING|><|START_ACTION|>
        <|CHATBOT_TOKEN|>
        reasoning=<|START_THINKING|>a<|END_THINKING|>
        tool call=<|START_ACTION|>[]<|END_ACTION|>
        answer=<|END_OF_TURN_TOKEN|>"#;

#[test]
fn the_answers_of_families() {
    for family in FAMILIES.split("\n\n") {
        let lines = family
            .lines()
            .map(|line| line.trim_start().replace('⏎', "\n"));
        let lines: Vec<String> = lines.filter(|line| !line.is_empty()).collect();
        let [_, template, prompt, pieces @ ..] = &lines[..] else {
            panic!("{family}")
        };
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        check(&[], template, prompt, &pieces);
    }
}

#[test]
fn code_is_between_lines_of_backticks() {
    check(
        &[],
        "",
        "Write: ",
        &[
            "answer=Use `a` or ``` b ```:\n",
            "code=```python\nprint('``` é')\n```",
            "answer=\nand\n",
            "code=  ````\n```\n  ````",
            "answer=\n",
            "code=```\nleft open\n",
        ],
    );
    check(&[], "", "", &["code=```\na\n```"]);
    // Markers that the template does not have are text.
    check(&[], "", "<think>", &["answer=<think>a</think> <tool_call>"]);
    check(&[], "<think>", "", &["answer=[THINK]a"]);
}

#[test]
fn the_users_spans_come_first() {
    check(
        &["plan=<plan>..</plan>", "rest=END..", "reasoning=(..)"],
        "<think>",
        "",
        &[
            "plan=<plan><think>a</think></plan>",
            "answer= ",
            "reasoning=<think>(a)</think>(b)",
            "rest=END ```\n</plan>",
        ],
    );
}

#[test]
fn a_span_that_is_left_open_runs_to_the_end() {
    let spans = Spans::new(Some("<think>"), &[]);
    assert_eq!(
        spans.names,
        ["prompt", "answer", "reasoning", "code"].map(str::to_owned)
    );
    let pieces = found(&spans, "", "a<think>b");
    let pieces: Vec<&str> = pieces.iter().map(|(name, _)| &**name).collect();
    assert_eq!(pieces, ["answer", "reasoning"]);
    // A token belongs to the span of its first byte; one without bytes to that of the next byte.
    let texts = [
        &b"p"[..],
        b"x<",
        b"think>y</th",
        b"",
        b"ink>z",
        b"",
        b"w",
        b"",
    ];
    let mut texts = Texts(texts.map(<[u8]>::to_vec).to_vec());
    assert_eq!(texts.runs(&spans, 1), [(0, 1), (1, 1), (2, 3), (1, 3)]);
    texts.0.truncate(1);
    assert_eq!(texts.runs(&spans, 1), [(0, 1)]);
    assert_eq!(Texts(Vec::new()).runs(&spans, 3), [(0, 0)]);
}

#[test]
fn a_rule_is_a_name_and_two_markers() {
    for (text, said) in [
        ("a", "expected NAME=OPEN..CLOSE"),
        ("a=b", "expected NAME"),
        ("a=..b", "expected NAME"),
        ("=a..b", "for NAME"),
        ("answer=a..b", "is a span of every answer"),
        ("prompt=a..", "is a span of every answer"),
    ] {
        let what = text.parse::<SpanRule>().unwrap_err();
        assert!(what.contains(said), "{text}: {what}");
    }
    let rule: SpanRule = "a=b=..c..d".parse().unwrap();
    assert_eq!(
        (&*rule.name, &*rule.open, &*rule.close),
        ("a", "b=", "c..d")
    );
}
