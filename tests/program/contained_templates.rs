//! Chat templates that would crash the program, hold it or eat its memory: each ends in one line that names
//! the template.

use crate::session::{Session, copy_program};

/// Values nested as deep as a loop can nest them.
const NESTED: &str = "{% set ns = namespace(a=[], b=[]) %}{% for i in range(30000) %}\
     {% set ns.a = [ns.a] %}{% set ns.b = [ns.b] %}{% endfor %}";

/// Lists that hold themselves twice, 60 times: 2^60 items.
const DOUBLED: &str = "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}\
     {% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}";

/// Writes a template and a prompt, and says how to use them.
fn with_template(session: &Session, template: &str) -> &'static str {
    session.write("chat.jinja", template);
    session.write(
        "one.jsonl",
        r#"{"messages":[{"role":"user","content":"Hi"}]}"#,
    );
    "-m @f16 --prompts one.jsonl --chat-template-file chat.jinja -w ref.gz -q --force"
}

#[test]
fn a_template_that_takes_too_much_is_stopped() {
    let session = Session::new();
    let memory = "it needs more than 512 MiB of memory";
    let time = "it was still running after 8 s";
    for (template, what) in [
        (
            "{{ '%999999999s' | format('x') | length }}".to_owned(),
            memory,
        ),
        (
            "{{ ('a,' * 10000000).split(',') | length }}".to_owned(),
            memory,
        ),
        (format!("{DOUBLED}{{{{ ns.a == ns.b }}}}"), time),
    ] {
        let line = with_template(&session, &template);
        session.fails(line, 1, &["chat.jinja", what, "--no-chat-template"]);
        assert!(!session.exists("ref.gz"));
    }
}

#[test]
fn a_template_that_overflows_the_stack_ends_in_one_line_or_in_a_prompt() {
    let session = Session::new();
    let sum = format!("a{{{{ 1{} }}}} b c", "+1".repeat(30_000));
    let minus = format!("a{{{{ {}1 }}}} b c", "-".repeat(30_000));
    let deep = format!("{NESTED}{{{{ ns.a == ns.b }}}} a b c");
    for template in [sum, minus, deep] {
        let line = with_template(&session, &template);
        let run = session.kl(line);
        let is_refused = run.code == 1 && run.stderr.contains("chat.jinja");
        assert!(run.code == 0 || is_refused, "{}: {}", run.code, run.stderr);
    }
}

#[test]
fn a_template_is_stopped_by_what_only_one_prompt_meets() {
    let session = Session::new();
    let template = "{% for m in messages %}{{ m.content }}{% if m.content == 'many' %}\
         {{ ('a,' * 10000000).split(',') | length }}{% endif %} and so on{% endfor %}";
    let line = with_template(&session, template);
    session.write(
        "one.jsonl",
        "{\"prompt\":\"few\"}\n{\"prompt\":\"many\"}\n{\"prompt\":\"few\"}\n",
    );
    session.fails(line, 1, &["one.jsonl: line 2", "memory"]);
    session.write("one.jsonl", "{\"prompt\":\"few\"}\n");
    session.ok(line);
}

#[test]
fn the_process_that_renders_is_in_no_help_and_ends_with_its_input() {
    let session = Session::new();
    let word = "__render-chat-template";
    for line in ["--help", "-h", "--generate man", "--generate complete-bash"] {
        assert!(!session.ok(line).stdout.contains(word), "{line}");
    }
    // Its input is empty here.
    let run = session.ok(word);
    assert_eq!((&*run.stdout, &*run.stderr), ("", ""));
}

#[cfg(target_os = "linux")]
#[test]
fn a_template_is_rendered_by_a_program_that_was_replaced_or_is_found_by_another_path() {
    let session = Session::new();
    let line = with_template(&session, "{{ messages[0].content }} and so on");
    let copy = session.path("another-name");
    copy_program(&copy);
    // The shell removes the file that runs.
    let script = "shift; ./another-name \"$@\" & sleep 0.05; rm -f another-name; wait $!";
    let run = session.in_shell(script, line);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(!copy.exists());
}
