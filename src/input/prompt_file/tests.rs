//! What is read of files of prompts, and the prompts that come with `kl`.

use super::*;

fn texts(text: &str, max: Option<u32>) -> Vec<(String, String)> {
    let label = |line: PromptLine| (line.place, line.content.label());
    parse(text, max).unwrap().into_iter().map(label).collect()
}

#[test]
fn each_line_is_a_prompt() {
    let lines = "\u{feff}one\r\n\n \t\n two \n{\"a\": \"x\"}";
    let expected = [
        ("line 1", "one"),
        ("line 4", " two "),
        ("line 5", "{\"a\": \"x\"}"),
    ];
    let expected = expected.map(|(place, text)| (place.to_owned(), text.to_owned()));
    assert_eq!(texts(lines, None), expected);
    assert_eq!(texts(lines, Some(2)), expected[..2]);
    for plain in ["[a] b", "[\"a\"] b", "[1, 2"] {
        assert_eq!(
            texts(plain, None),
            [("line 1".to_owned(), plain.to_owned())]
        );
    }
    assert_eq!(texts(" \n\n", None), []);
}

#[test]
fn a_prompt_in_json_after_a_plain_one_is_refused() {
    let prompt = r#"{"prompt": "a"}"#;
    let what = parse(&format!("# a comment\n{prompt}"), None).unwrap_err();
    assert_eq!(what, format!("line 2: {MIXED}"));
}

#[test]
fn a_list_in_json_is_a_list_of_prompts() {
    let list = "\u{feff}\n[\r\n  \"a\\nb\",\n  {\n    \"prompt\": \"c\"\n  },\n  \
                {\"messages\": [{\"role\": \"user\", \"content\": \"d\"}], \"id\": 7}\n]\n";
    let expected = [("prompt 1", "a\nb"), ("prompt 2", "c"), ("prompt 3", "d")];
    let expected = expected.map(|(place, text)| (place.to_owned(), text.to_owned()));
    assert_eq!(texts(list, None), expected);
    assert_eq!(texts(list, Some(1)), expected[..1]);
    let variables = &parse(list, None).unwrap()[2].variables;
    assert_eq!(variables.iter().collect::<Vec<_>>(), [("id", "7")]);
    assert_eq!(
        texts(r#"["a"]"#, None),
        [("prompt 1".to_owned(), "a".to_owned())]
    );
    let one = "{\n  \"prompt\": \"a\"\n}\n";
    assert_eq!(texts(one, None), [("prompt 1".to_owned(), "a".to_owned())]);
    for (text, place, said) in [
        (r#"["a", 7]"#, "prompt 2", "not a JSON object; expected {"),
        (r#"[{"role": "user"}]"#, "prompt 1", "neither prompt nor"),
        (
            r#"["a", {"prompt": "b", "group": "c"}]"#,
            "prompt 1",
            "but prompt 2 has",
        ),
        ("[\n  \"a\",\n]\n", "line 3", "JSON at column 1; expected {"),
        (
            "[\n{\"prompt\": \"a\"}\n",
            "line 3",
            "it ends too early; expected",
        ),
        ("{\n\"prompt\": \"a\"\n}\n{\n", "line 4", "JSON at column 1"),
        ("[\"a\"]\n[\"b\"]\n", "line 1", "is a list, not an object"),
    ] {
        let what = parse(text, None).unwrap_err();
        assert!(what.starts_with(&format!("{place}: ")), "{text}: {what}");
        assert!(
            what.contains(said) && !what.contains('\n'),
            "{text}: {what}"
        );
    }
}

#[test]
fn all_prompts_have_a_group_or_none_has() {
    let with = r#"{"prompt": "a", "group": "chat"}"#;
    let lines = parse(&format!("{with}\n{with}"), None).unwrap();
    assert_eq!(lines[1].group.as_deref(), Some("chat"));
    for (second, what) in [
        (r#"{"prompt": "a"}"#, "line 1 has one"),
        (r#"{"prompt": "a", "group": 5}"#, "must be a string"),
        (r#"{"prompt": "a", "group": ""}"#, "group"),
        (r#"{"prompt": "a", "group": "a\nb"}"#, "group"),
    ] {
        let found = parse(&format!("{with}\n{second}"), None).unwrap_err();
        assert!(found.contains(what) && !found.contains('\n'), "{found}");
        assert!(found.starts_with("line 2: "), "{found}");
    }
    let null = r#"{"prompt": "a", "group": null}"#;
    assert_eq!(parse(null, None).unwrap()[0].group, None);
}

#[test]
fn other_keys_are_kept_for_the_template() {
    let line = r#"{"tools": [{"name": "a"}], "prompt": "a", "group": "b", "id": 7}"#;
    let lines = parse(line, None).unwrap();
    let variables: Vec<_> = lines[0].variables.iter().collect();
    assert_eq!(variables, [("tools", r#"[{"name": "a"}]"#), ("id", "7")]);
}

#[test]
fn the_first_line_decides_that_all_are_json() {
    let lines = "\u{feff}\n{\"prompt\": \"a\\nb\"}\r\n\n{\"messages\": [{\"role\": \"user\", \"content\": \"c\"}]}";
    let expected = [("line 2", "a\nb"), ("line 4", "c")];
    let expected = expected.map(|(place, text)| (place.to_owned(), text.to_owned()));
    assert_eq!(texts(lines, None), expected);
    let what = parse("{\"prompt\": \"a\"}\nplain\n", None).unwrap_err();
    assert!(
        what.starts_with("line 2: ")
            && what.contains(r#"expected {"prompt": "..."} or {"messages": ["#),
        "{what}"
    );
    for mistake in [
        "{\"prompt\": \"a\",}",
        "{not json",
        "{\"prompt\": \"a\"} b",
        "[{}]",
    ] {
        let what = parse(&format!("\n{mistake}\nplain\n"), None).unwrap_err();
        let is_said = what.starts_with("line 2: ") && what.contains("expected {");
        assert!(is_said, "{mistake}: {what}");
    }
    // Lines past the limit are not parsed.
    assert_eq!(texts("{\"prompt\": \"a\"}\nplain\n", Some(1)).len(), 1);
}

/// References of one version are comparable only if its prompts never change.
#[test]
fn the_prompts_of_a_version_stay_the_same() {
    let identity = texts::identity_of(STARTER_NAME, STARTER_PROMPTS.as_bytes());
    assert_eq!(parse(STARTER_PROMPTS, None).unwrap().len(), 200);
    let sha256 = identity.sha256.unwrap();
    assert_eq!(
        (identity.name.as_deref(), &*sha256),
        (
            Some("starter-1"),
            "70ed9edde0cae66f2215cf137f9d0b5126f5c26b25bcddbdcf39e1feb0b8db51"
        )
    );
}
