//! What is read of files of prompts, and the prompts that come with `kl`.

use super::*;

/// The prompts of a file, each as `place: text`.
fn read_of(text: &str, max: Option<u32>) -> Vec<String> {
    let lines = parse(text, max).unwrap().into_iter();
    let shown = lines.map(|line| format!("{}: {}", line.place, line.content.label()));
    shown.collect()
}

const LIST: &str = "\u{feff}\n[\r\n  \"a\\nb\",\n  {\n    \"prompt\": \"c\"\n  },\n  \
                {\"messages\": [{\"role\": \"user\", \"content\": \"d\"}], \"id\": 7}\n]\n";

#[test]
fn prompts_are_lines_or_json() {
    let plain = "\u{feff}one\r\n\n \t\n two \n{\"a\": \"x\"}";
    let jsonl = "\u{feff}\n{\"prompt\": \"a\\nb\"}\r\n\n{\"messages\": [{\"role\": \"user\", \"content\": \"c\"}]}";
    for (text, expected) in [
        (
            plain,
            &["line 1: one", "line 4:  two ", "line 5: {\"a\": \"x\"}"][..],
        ),
        ("[a] b", &["line 1: [a] b"]),
        ("[\"a\"] b", &["line 1: [\"a\"] b"]),
        ("[1, 2", &["line 1: [1, 2"]),
        (" \n\n", &[]),
        (jsonl, &["line 2: a\nb", "line 4: c"]),
        (LIST, &["prompt 1: a\nb", "prompt 2: c", "prompt 3: d"]),
        (r#"["a"]"#, &["prompt 1: a"]),
        ("{\n  \"prompt\": \"a\"\n}\n", &["prompt 1: a"]),
    ] {
        assert_eq!(read_of(text, None), expected);
        let some = expected.len().min(1);
        assert_eq!(read_of(text, Some(1)), expected[..some]);
    }
    // Lines past the limit are not parsed.
    assert_eq!(read_of("{\"prompt\": \"a\"}\nplain\n", Some(1)).len(), 1);
}

#[test]
fn a_mistake_is_one_line_with_its_place() {
    // ⏎ is a line feed, and GROUPED a prompt with a group.
    let cases = r#"
        # a comment⏎{"prompt": "a"} => line 2: | but the first line is plain text
        ["a", 7] => prompt 2: | not a JSON object; expected {
        [{"role": "user"}] => prompt 1: | neither prompt nor
        ["a", {"prompt": "b", "group": "c"}] => prompt 1: | but prompt 2 has
        [⏎  "a",⏎]⏎ => line 3: | JSON at column 1; expected {
        [⏎{"prompt": "a"}⏎ => line 3: | it ends too early; expected
        {⏎"prompt": "a"⏎}⏎{⏎ => line 4: | JSON at column 1
        ["a"]⏎["b"]⏎ => line 1: | is a list, not an object
        ⏎[{}]⏎plain⏎ => line 2: | expected {
        ⏎{not json⏎plain⏎ => line 2: | expected {
        ⏎{"prompt": "a",}⏎plain⏎ => line 2: | expected {
        ⏎{"prompt": "a"} b⏎plain⏎ => line 2: | expected {
        GROUPED⏎plain => line 2: | expected {"prompt": "..."} or {"messages": [
        GROUPED⏎{"prompt": "a"} => line 2: | line 1 has one
        GROUPED⏎{"prompt": "a", "group": 5} => line 2: | must be a string
        GROUPED⏎{"prompt": "a", "group": ""} => line 2: | group
        GROUPED⏎{"prompt": "a", "group": "a\nb"} => line 2: | group"#;
    let grouped = r#"{"prompt": "a", "group": "chat"}"#;
    for case in cases.lines().skip(1) {
        let (text, expected) = case.trim_start().split_once(" => ").unwrap();
        let (place, said) = expected.split_once(" | ").unwrap();
        let text = text.replace('⏎', "\n").replace("GROUPED", grouped);
        let what = parse(&text, None).unwrap_err();
        let is_said = what.starts_with(place) && what.contains(said);
        assert!(is_said && !what.contains('\n'), "{text}: {what}");
    }
}

#[test]
fn groups_and_other_keys_are_kept() {
    let line = r#"{"tools": [{"name": "a"}], "prompt": "a", "group": "b", "id": 7}"#;
    let prompt = &parse(line, None).unwrap()[0];
    assert_eq!(prompt.group.as_deref(), Some("b"));
    let variables: Vec<_> = prompt.variables.iter().collect();
    assert_eq!(variables, [("tools", r#"[{"name": "a"}]"#), ("id", "7")]);
    let of_list = &parse(LIST, None).unwrap()[2].variables;
    assert_eq!(of_list.iter().collect::<Vec<_>>(), [("id", "7")]);
    let null = r#"{"prompt": "a", "group": null}"#;
    assert_eq!(parse(null, None).unwrap()[0].group, None);
}

/// References of one version are comparable only if its prompts never change.
#[test]
fn the_prompts_of_a_version_stay_the_same() {
    let super::super::text::Text { text, identity } = starter::prompts();
    assert_eq!(parse(&text, None).unwrap().len(), 200);
    let sha256 = identity.sha256.unwrap();
    assert_eq!(
        (identity.name.as_deref(), &*sha256),
        (
            Some("starter-1"),
            "70ed9edde0cae66f2215cf137f9d0b5126f5c26b25bcddbdcf39e1feb0b8db51"
        )
    );
}
