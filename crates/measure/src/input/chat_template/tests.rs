//! Templates with the features of published ones, against jinja2's own output.

use std::collections::BTreeMap;

use kl_formats::Variables;
use serde_json::value::RawValue;

use super::*;

/// The output by template and conversation, `None` if the template refuses: written by
/// `fixtures/scripts/templates.py`.
type Expected = BTreeMap<String, BTreeMap<String, Option<String>>>;

fn template(source: &str) -> Result<ChatTemplate, TemplateError> {
    ChatTemplate::new(source, "<s>".to_owned(), "</s>".to_owned())
}

/// Applies a template to a prompt: `messages`, and other keys, which are variables.
fn render(template: &ChatTemplate, prompt: &str) -> Result<String, TemplateError> {
    let line: BTreeMap<&str, &RawValue> = serde_json::from_str(prompt).unwrap();
    let values = template.values(&Variables::from_json(prompt).unwrap())?;
    let messages = template.messages(line["messages"].get())?;
    template.render(&messages, &values, true)
}

fn apply(source: &str) -> Result<String, String> {
    let prompt = r#"{"messages":[{"role":"user","content":"Hi"}]}"#;
    let applied = template(source).and_then(|template| render(&template, prompt));
    applied.map_err(|error| error.to_string())
}

#[test]
fn templates_render_as_in_jinja2() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/templates");
    let read = |name: &str| std::fs::read_to_string(format!("{folder}/{name}")).unwrap();
    let expected: Expected = serde_json::from_str(&read("expected.json")).unwrap();
    let conversations: BTreeMap<String, Box<RawValue>> =
        serde_json::from_str(&read("conversations.json")).unwrap();
    let mut compared = 0;
    for (name, outcomes) in &expected {
        let template = template(&read(&format!("{name}.jinja"))).unwrap();
        for (conversation, wanted) in outcomes {
            let prompt = conversations[conversation].get();
            let got = render(&template, prompt);
            assert_eq!(
                got.as_ref().ok(),
                wanted.as_ref(),
                "{name}, {conversation}: {got:?}"
            );
            compared += 1;
        }
    }
    assert_eq!(compared, 15 * 12);
}

#[test]
fn a_template_gets_a_prompts_variables_and_those_that_it_names_are_known() {
    let source = "{% set tools = tools or [] %}{% macro m() %}{{ day }}{% endmacro %}\
         {{ tools | length }}{{ m() }}{{ bos_token }}{{ missing }}{% if false %}{{ never.id }}{% endif %}\
         {{ add_generation_prompt }}{{ messages | length }}";
    let prompt = r#"{"tools":[1,2],"id":7,"day":"Monday","never":1,"bos_token":"B",
        "add_generation_prompt":5,"messages":[{"role":"user","content":"Hi"}]}"#;
    let template = template(source).unwrap();
    let text = render(&template, prompt).unwrap();
    assert_eq!(text, "2MondayBTrue1");
    let names = [
        "tools",
        "id",
        "day",
        "never",
        "bos_token",
        "add_generation_prompt",
    ];
    let used = names.map(|name| template.names(name));
    assert_eq!(used, [true, false, true, true, true, false]);
    // A turn that has ended has no generation prompt.
    let ended = template.render(&[], &template.defaults, false).unwrap();
    assert_eq!(ended, "0<s>False0");
}

#[test]
fn a_template_gets_arguments_as_an_object_if_it_reads_them_as_one() {
    let prompt = |arguments: &str| {
        format!(
            r#"{{"messages":[{{"role":"assistant","tool_calls":[{{"function":{{"arguments":{arguments}}}}}]}}]}}"#
        )
    };
    let (object, string) = (r#"{"b": 1,"a":["x"]}"#, r#""{\"b\": 1,\"a\":[\"x\"]}""#);
    for (of, as_object, as_string) in [
        (
            "a | tojson",
            r#"{"b": 1, "a": ["x"]}"#,
            r#"{"b": 1, "a": ["x"]}"#,
        ),
        ("a.b if a.b is defined else a.arg", "1", "1"),
        (
            "a if a is string else a | tojson",
            r#"{"b": 1, "a": ["x"]}"#,
            r#"{"b": 1, "a": ["x"]}"#,
        ),
        // A template that wants a string gets one, which is the given one to the byte.
        ("a", r#"{"b":1,"a":["x"]}"#, r#"{"b": 1,"a":["x"]}"#),
        (
            "'{}' if a is mapping else a",
            r#"{"b":1,"a":["x"]}"#,
            r#"{"b": 1,"a":["x"]}"#,
        ),
    ] {
        let source = format!(
            "{{% for m in messages %}}{{% for call in m.tool_calls or [] %}}\
             {{% set a = call.function.arguments %}}{{{{ {of} }}}}{{% endfor %}}{{% endfor %}}"
        );
        let template = template(&source).unwrap();
        for (arguments, wanted) in [(object, as_object), (string, as_string)] {
            let text = render(&template, &prompt(arguments)).unwrap();
            assert_eq!(text, wanted, "{of} of {arguments}");
        }
    }
    let of_json = template("{{ messages | tojson }}").unwrap();
    let error = render(&of_json, &prompt(r#""{city""#))
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("a string that is not JSON") && !error.contains('\n'),
        "{error}"
    );
}

#[test]
fn errors_are_one_line_with_the_cause_and_its_line() {
    for (source, said) in [
        (
            "a\n{{ raise_exception('no such role') }}",
            "no such role (in chat template:2)",
        ),
        ("{% for x in y %}", "syntax error"),
        ("{{ messages.x.y }}", "undefined value"),
        ("{{ 'a' + 1 }}", "string and number"),
        ("{{ missing | tojson }}", "undefined has no JSON form"),
        ("{{ 'abc'[::0] }}", "step cannot be zero"),
        ("{{ none[::2] }}", "cannot be sliced"),
        ("{{ 'a'.center(99999999999) }}", "width"),
        (
            "{% macro m() %}{{ varargs }}{% endmacro %}{{ m(1) }}",
            "it uses varargs",
        ),
        ("{{ 'a'.index('b') }}", "substring not found"),
        ("{{ '%s' % () }}", "chat template:1"),
        ("{{ 'a' | indent(1000000000) }}", "chat template:1"),
        ("{{ 1 | tojson(indent=1000000000) }}", "chat template:1"),
        ("{{ strftime_now('%Q') }}", "'%Q'"),
        ("{% include 'other' %}", "other"),
    ] {
        let message = apply(source).unwrap_err();
        assert!(message.contains(said), "{source}: {message}");
        assert!(!message.contains('\n'), "{source}: one line");
    }
}

#[test]
fn a_hostile_template_ends_in_an_error() {
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{{ c }}{% endfor %}{% endfor %}{% endfor %}";
    assert!(apply(endless).unwrap_err().contains("fuel"));
    let recursive = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
    assert!(apply(recursive).unwrap_err().contains("recursion"));
    let deep = "(".repeat(100_000);
    assert!(apply(&format!("{{{{ {deep}1 }}}}")).is_err());
    let nested = "{% set ns = namespace(a=[]) %}{% for i in range(2000) %}{% set ns.a = [ns.a] %}{% endfor %}";
    for printed in ["{{ ns.a }}", "{{ ns.a | tojson }}"] {
        let message = apply(&format!("{nested}{printed}")).unwrap_err();
        assert!(message.contains("128 levels"), "{message}");
    }
    let long = "{{ 'x' * 1000000000000 }}";
    assert!(apply(long).unwrap_err().contains("too large"));
    let longer = "{% set x = 'x' * 1000000 %}{% for i in range(1000) %}{{ x }}{% endfor %}";
    let message = apply(longer).unwrap_err();
    assert!(message.contains("longer than 64 MiB"), "{message}");
}

#[test]
fn line_ends_and_generation_blocks_are_those_of_transformers() {
    for (source, text) in [
        ("a\r\n{% if true %}\r\nb\r\n{% endif %}\r\n", "a\nb\n"),
        ("a \n{%- generation -%} b {%- endgeneration %} c", "ab c"),
        ("{% generation %}\nb\n{% endgeneration %}\nc", "b\nc"),
    ] {
        assert_eq!(apply(source).as_deref(), Ok(text));
    }
    // The hash is that of the source.
    assert_eq!(
        template("abc").unwrap().sha256,
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
}
