//! Spans against what a reader of the text would say.

use kl_formats::Variables;

use super::*;

/// The text of the token that ends an answer.
const END: &[u8] = b"<|im_end|>";

/// Tokens whose ids are indices into these texts.
struct Texts(Vec<Vec<u8>>);

impl Texts {
    /// A token for each character, and one for [`END`] at the end.
    fn of(text: &str) -> Self {
        let end = str::from_utf8(END).unwrap();
        let (text, end) = text
            .strip_suffix(end)
            .map_or((text, None), |text| (text, Some(END)));
        let characters = text.chars().map(|c| c.to_string().into_bytes());
        Self(characters.chain(end.map(<[u8]>::to_vec)).collect())
    }

    fn runs(&self, spans: &Spans, n_prompt: usize) -> Vec<(u32, u32)> {
        self.runs_with(spans, n_prompt, &OfferedTools::default())
    }

    fn runs_with(&self, spans: &Spans, n_prompt: usize, tools: &OfferedTools) -> Vec<(u32, u32)> {
        let tokens: Vec<u32> = (0..self.0.len() as u32).collect();
        let bytes_of = |token| self.0[token as usize].clone();
        let ends = |token| bytes_of(token) == END;
        spans.of_window(&tokens, n_prompt as u32, tools, &bytes_of, &ends)
    }
}

/// The pieces of an answer after `prompt`, which offers these tools, each with its span.
fn found(spans: &Spans, prompt: &str, answer: &str, tools: &OfferedTools) -> Vec<(String, String)> {
    let all = Texts::of(&format!("{prompt}{answer}"));
    let n_prompt = prompt.chars().count();
    let runs = all.runs_with(spans, n_prompt, tools);
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

/// A prompt's tools: functions with these names.
fn offered(names: &[&str]) -> OfferedTools {
    let tools = names
        .iter()
        .map(|name| format!(r#"{{"type":"function","function":{{"name":"{name}"}}}}"#));
    let json = format!(r#"{{"tools":[{}]}}"#, tools.collect::<Vec<_>>().join(","));
    OfferedTools::of(&Variables::from_json(&json).unwrap())
}

/// Checks the spans of an answer after a prompt without tools, given as `NAME=TEXT` each; `rules` are the user's.
fn check(rules: &[&str], template: &str, prompt: &str, pieces: &[&str]) {
    check_with(&[], rules, template, prompt, pieces);
}

/// The same where the prompt offers tools of these names.
fn check_with(tools: &[&str], rules: &[&str], template: &str, prompt: &str, pieces: &[&str]) {
    let rules: Vec<SpanRule> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    let template = Some(template).filter(|template| !template.is_empty());
    let spans = Spans::new(template, |_| false, !tools.is_empty(), &rules);
    let pieces = pieces.iter().map(|piece| piece.split_once('=').unwrap());
    let answer: String = pieces.clone().map(|(_, text)| text).collect();
    let wanted = pieces.map(|(name, text)| (name.to_owned(), text.to_owned()));
    assert_eq!(
        found(&spans, prompt, &answer, &offered(tools)),
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
    check_families(FAMILIES, &[]);
}

#[track_caller]
fn check_families(families: &str, tools: &[&str]) {
    for family in families.split("\n\n") {
        let lines = family
            .lines()
            .map(|line| line.trim_start().replace('⏎', "\n"));
        let lines: Vec<String> = lines.filter(|line| !line.is_empty()).collect();
        let [_, template, prompt, pieces @ ..] = &lines[..] else {
            panic!("{family}")
        };
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        check_with(tools, &[], template, prompt, &pieces);
    }
}

/// The same where the prompt offers the tools `look` and `go to`.
const FAMILIES_WITH_TOOLS: &str = r#"
        # Qwen2.5-Coder, which forgets the marker: https://github.com/ollama/ollama/issues/12174.
        {{- "\n\n# Tools" }} <tool_call></tool_call>
        <|im_start|>assistant⏎
        tool call={"name": "look", "arguments": {"at": "{"}}
        answer=<|im_end|>

        # Qwen2.5-Coder, in a block of code: https://github.com/vllm-project/vllm/issues/32926.
        <tool_call></tool_call>
        <|im_start|>assistant⏎
        answer=I will look.⏎⏎
        tool call=```json⏎{⏎  "name": "look",⏎  "arguments": {}⏎}⏎```
        answer=⏎or⏎
        code=```json⏎{"name": "jump", "arguments": {}}⏎```
        answer=⏎
        code=```json⏎{"name": "look", "arguments": {}} # not JSON alone⏎```
        answer=⏎
        tool call=```⏎{"name": "look", "arguments": {}}⏎```
        answer=<|im_end|>

        # Llama 3: keys in another order, and several calls.
        <|start_header_id|>
        assistant<|end_header_id|>⏎⏎
        tool call={"parameters": {}, "name": "look"}; {"name": "go to", "parameters": {"x": 1}}
        answer=<|eot_id|>

        # A list, and OpenAI's form.
        <|start_header_id|>
        assistant
        tool call= [{"type": "function", "function": {"name": "look", "arguments": "{}"}}]
        answer=⏎{"name": "jump", "arguments": {}} {"name": "look"} a {"name": "look", "arguments": {}}

        # Cut off within its arguments.
        <|start_header_id|>
        assistant
        tool call={"name": "look", "arguments": {"at": "the

        # Cut off before its name is known.
        <|start_header_id|>
        assistant
        answer={"name": "loo

        # Granite 3.1, with another marker than its template shows.
        When a tool is required, respond only with <|tool_call|>
        <|start_of_role|>assistant<|end_of_role|>
        tool call=<tool_call>[{"name": "look", "arguments": {}}]
        answer=<|end_of_text|>

        # Granite 20B, whose template shows none.
        Question:
        Answer:⏎
        tool call=<function_call> {"name": "look", "arguments": {}} <function_call> {"name": "go to", "arguments": {}}
        answer=⏎

        # Functionary 3.2, whose prompt begins the message.
        >>>all
        <|start_header_id|>assistant<|end_header_id|>⏎⏎>>>
        answer=all⏎I will look.
        tool call=>>>look⏎{"at": "it"}>>>go to⏎{}<|eot_id|>

        # Functionary 3.2, at once.
        >>>all
        <|start_header_id|>assistant<|end_header_id|>⏎⏎>>>
        tool call=look⏎{"at": "it"}
        answer=>>>all⏎Done.

        # InternLM.
        <|action_start|><|plugin|>
        <|im_start|>assistant⏎
        answer=I will look.
        tool call=<|action_start|><|plugin|>⏎{"name": "look", "parameters": {}}<|action_end|>
        answer=⏎"#;

#[test]
fn calls_of_offered_tools_need_no_marker() {
    check_families(FAMILIES_WITH_TOOLS, &["look", "go to"]);
    // Without the tools it is JSON.
    let json = r#"answer={"name": "look", "arguments": {}}"#;
    check(&[], "", "", &[json]);
    check_with(&["other"], &[], "", "", &[json]);
    let spans = Spans::new(None, |_| false, true, &[]);
    assert_eq!(
        spans.names,
        ["prompt", "answer", "tool call", "code"].map(str::to_owned)
    );
    assert!(spans.has_tool_call(&[(0, 4), (1, 1), (2, 3)]));
    assert!(!spans.has_tool_call(&[(0, 4), (1, 1), (3, 1)]));
}

#[test]
fn markers_may_be_in_the_vocabulary_alone() {
    let spans = Spans::new(None, |text| text == "<|action_start|>", false, &[]);
    let call = "<|action_start|>x<|action_end|>";
    let found = found(&spans, "", call, &OfferedTools::default());
    assert_eq!(found, [("tool call".to_owned(), call.to_owned())]);
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
    let spans = Spans::new(Some("<think>"), |_| false, false, &[]);
    assert_eq!(
        spans.names,
        ["prompt", "answer", "reasoning", "code"].map(str::to_owned)
    );
    let pieces = found(&spans, "", "a<think>b", &OfferedTools::default());
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
    let Markers { open, close } = &rule.markers;
    assert_eq!(
        (&*rule.name, &**open, close.as_deref()),
        ("a", "b=", Some("c..d"))
    );
}
