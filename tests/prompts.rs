//! References of prompts: what is decoded, what is kept of them, and the numbers of each.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Q2_K, Session, all_rows, fixture};
use kl_formats::{Header, NativeReader, PromptContent, WindowHead};
use serde_json::Value;

/// Messages as lines, the BOS first, as a model's template would have it.
const TEMPLATE: &str = "{{ bos_token }}{% for message in messages %}{{ message.role }}: \
     {{ message.content if message.content is string else message.content | map(attribute='text') | join }}\n\
     {% endfor %}assistant:";

/// What [`TEMPLATE`] makes of `fixtures/prompts.jsonl`.
const RENDERED: [&str; 4] = [
    "<s>user: Once upon a time, there was a small dog. Where did it live?\nassistant:",
    "<s>system: The cat was happy.\nuser: Why did she go home?\nassistant:",
    "<s>user: Do you want to dance?\nassistant: I do not know.\nuser: Maya found a book. Can I have it?\nassistant:",
    "<s>user: She had a green ring.\nShe loved her ring because\nassistant:",
];

/// The fixture `name` with a chat template put before its other keys.
fn with_template(session: &Session, name: &str, template: &str) -> PathBuf {
    /// Magic, version, number of tensors.
    const COUNT_AT: usize = 16;
    const PAIRS_AT: usize = COUNT_AT + 8;
    const STRING: u32 = 8;
    let key = b"tokenizer.chat_template";
    let others = 8 + key.len() + 4 + 8 + template.len() + "{##}".len();
    // The tensors move by a multiple of their alignment: a comment of spaces fills it up.
    let template = format!(
        "{{#{}#}}{template}",
        " ".repeat(others.next_multiple_of(32) - others)
    );
    let mut pair = (key.len() as u64).to_le_bytes().to_vec();
    pair.extend_from_slice(key);
    pair.extend(STRING.to_le_bytes());
    pair.extend((template.len() as u64).to_le_bytes());
    pair.extend_from_slice(template.as_bytes());
    assert_eq!(pair.len() % 32, 0);

    let mut model = fs::read(fixture(name)).unwrap();
    let count = model[COUNT_AT..PAIRS_AT].try_into().unwrap();
    let count = u64::from_le_bytes(count) + 1;
    model[COUNT_AT..PAIRS_AT].copy_from_slice(&count.to_le_bytes());
    model.splice(PAIRS_AT..PAIRS_AT, pair);
    session.write(&format!("chat-{name}"), model)
}

/// Header and windows of a reference.
fn read(path: &Path) -> (Header, Vec<WindowHead>) {
    let reader = NativeReader::open(path).unwrap();
    let heads = (0..reader.windows().len()).map(|place| reader.head(place).unwrap());
    (reader.header().clone(), heads.collect())
}

/// Writes `name` with the f16 model, rows as they are.
fn write(session: &Session, name: &str, flags: &[&str]) -> (Header, Vec<WindowHead>) {
    let args = [
        "-m",
        "@tiny-f16.gguf",
        "-w",
        name,
        "--encoding",
        "f32",
        "-q",
    ];
    session.ok(&[&args, flags].concat());
    read(&session.path(name))
}

fn tokens(heads: &[WindowHead]) -> Vec<Vec<u32>> {
    heads.iter().map(|head| head.tokens.clone()).collect()
}

fn first_model(session: &Session, model: &str, reference: &str, flags: &[&str]) -> Value {
    let args = ["-m", model, "-r", reference, "--no-sidecar"];
    session.json(&[&args, flags].concat())["models"][0].take()
}

fn top(row: &[f32]) -> usize {
    (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best })
}

fn close(ours: &Value, exact: f64, what: &str) {
    let ours = ours.as_f64().unwrap_or(f64::NAN);
    let bound = (1e-6 * exact.abs()).max(1e-9);
    assert!((ours - exact).abs() <= bound, "{what}: {ours}, not {exact}");
}

#[test]
fn each_line_is_a_window_and_nothing_else_is_needed_to_evaluate() {
    let session = Session::new();
    let (header, heads) = write(&session, "ref.gz", &["--prompts-file", "@prompts.txt"]);
    let prompts = header.prompts.clone().unwrap();
    let text = fs::read_to_string(fixture("prompts.txt")).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!((heads.len(), lines.len()), (5, 5));
    for (place, head) in heads.iter().enumerate() {
        assert_eq!(head.window as usize, place);
        assert_eq!(
            prompts[place].content,
            PromptContent::Text(lines[place].into())
        );
        assert_eq!(prompts[place].n_tokens as usize, head.tokens.len());
        assert_eq!(
            (head.first_scored, head.n_rows),
            (0, prompts[place].n_tokens)
        );
        assert_eq!(head.tokens[0], 1, "the model's BOS");
    }
    let longest = heads.iter().map(|head| head.tokens.len()).max().unwrap();
    assert_eq!(header.n_ctx as usize, longest);
    assert_eq!(
        (header.add_bos, header.chat_template, header.generated),
        (true, None, None)
    );
    assert_eq!(header.text.name, "prompts.txt");
    let own: usize = heads.iter().map(|head| head.tokens.len() - 1).sum();
    assert_eq!(header.text.n_tokens as usize, own);

    let model = first_model(&session, "@tiny-f16.gguf", "ref.gz", &[]);
    assert_eq!(model["kld"]["max"].as_f64(), Some(0.0));
    assert_eq!(model["n_tokens"], header.n_rows);
    let each = model["prompts"].as_array().unwrap();
    for (place, prompt) in each.iter().enumerate() {
        assert_eq!(prompt["window"], place);
        assert_eq!(prompt["prompt"], lines[place]);
        assert_eq!(prompt["kld"]["max"].as_f64(), Some(0.0));
        assert_eq!(prompt["ref_top1"].as_f64(), Some(1.0));
    }
}

#[test]
fn a_model_without_a_template_says_so_once() {
    let session = Session::new();
    let args = [
        "-m",
        "@tiny-f16.gguf",
        "--prompts-file",
        "@prompts.txt",
        "-q",
    ];
    let run = session.ok(&[&args[..], &["-w", "a.gz"]].concat());
    assert_eq!(
        run.stderr.matches("no chat template").count(),
        1,
        "{}",
        run.stderr
    );
    let run = session.ok(&[&args[..], &["-w", "b.gz", "--no-chat-template"]].concat());
    assert_eq!(run.stderr, "");
    let same = [read(&session.path("a.gz")).1, read(&session.path("b.gz")).1];
    assert_eq!(same[0], same[1]);
}

#[test]
fn the_models_template_is_applied_and_its_bos_is_the_only_one() {
    let session = Session::new();
    with_template(&session, Q2_K, TEMPLATE);
    let model = ["-m", "chat-tiny-q2_K.gguf", "-q"];
    let chat = ["--prompts-file", "@prompts.jsonl", "-w", "chat.gz"];
    session.ok(&[&model[..], &chat].concat());
    let (header, heads) = read(&session.path("chat.gz"));
    assert!(!header.add_bos, "the template writes it");
    assert_eq!(
        header.text.n_tokens,
        heads
            .iter()
            .map(|head| head.tokens.len() as u64)
            .sum::<u64>()
    );
    assert!(header.chat_template.is_some());

    // The same texts, made by hand and taken as they are.
    let lines: Vec<String> = RENDERED
        .iter()
        .map(|text| serde_json::json!({"prompt": text}).to_string())
        .collect();
    session.write("rendered.jsonl", lines.join("\n"));
    let raw = [
        "--prompts-file",
        "rendered.jsonl",
        "-w",
        "raw.gz",
        "--no-chat-template",
    ];
    session.ok(&[&model[..], &raw, &["--parse-special"]].concat());
    let (raw_header, raw) = read(&session.path("raw.gz"));
    assert_eq!(tokens(&heads), tokens(&raw));
    assert!(
        heads
            .iter()
            .all(|head| head.tokens[0] == 1 && head.tokens[1] != 1)
    );
    assert_eq!(raw_header.chat_template, None);
    // Without --parse-special the text of the BOS is text, and a BOS comes before it.
    let literal = [
        "--prompts-file",
        "rendered.jsonl",
        "-w",
        "text.gz",
        "--no-chat-template",
    ];
    session.ok(&[&model[..], &literal].concat());
    let (literal_header, literal) = read(&session.path("text.gz"));
    assert!(literal_header.add_bos && literal[0].tokens.len() > raw[0].tokens.len());

    // As given, to the byte.
    let given = fs::read_to_string(fixture("prompts.jsonl")).unwrap();
    let second = given.lines().nth(1).unwrap();
    let PromptContent::Messages(messages) = &header.prompts.as_ref().unwrap()[1].content else {
        panic!("messages")
    };
    assert_eq!(format!("{{\"messages\": {}}}", messages.json()), second);
    let labels = first_model(&session, "chat-tiny-q2_K.gguf", "chat.gz", &[]);
    assert_eq!(labels["prompts"][1]["prompt"], "Why did she go home?");
    assert_eq!(
        labels["prompts"][2]["prompt"],
        "Maya found a book. Can I have it?"
    );
}

#[test]
fn a_template_from_a_file_takes_the_place_of_the_models() {
    let session = Session::new();
    with_template(&session, Q2_K, "{{ raise_exception('not this one') }}");
    session.write("chat.jinja", TEMPLATE);
    let args = [
        "-m",
        "chat-tiny-q2_K.gguf",
        "--prompts-file",
        "@prompts.jsonl",
        "-q",
    ];
    session.ok(&[
        &args[..],
        &["-w", "a.gz", "--chat-template-file", "chat.jinja"],
    ]
    .concat());
    let (header, heads) = read(&session.path("a.gz"));
    let lengths = heads.iter().map(|head| head.tokens.len() as u32);
    let noted = header
        .prompts
        .iter()
        .flatten()
        .map(|prompt| prompt.n_tokens);
    assert!(lengths.eq(noted));
    session.fails(
        &[&args[..], &["-w", "b.gz"]].concat(),
        1,
        &["prompts.jsonl: line 1", "not this one", "chat template:1"],
    );
}

#[test]
fn the_numbers_of_a_prompt_are_those_of_its_tokens() {
    let session = Session::new();
    write(&session, "ref.gz", &["--prompts-file", "@prompts.txt"]);
    let model = first_model(&session, "@tiny-q2_K.gguf", "ref.gz", &["--json-tokens"]);
    let tokens = &model["tokens"];
    let windows = tokens["window"].as_array().unwrap();
    for (number, prompt) in model["prompts"].as_array().unwrap().iter().enumerate() {
        let places = (0..windows.len()).filter(|&i| windows[i] == number);
        let column = |name: &str| -> Vec<f64> {
            let values = places.clone().map(|i| tokens[name][i].as_f64().unwrap());
            values.collect()
        };
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let kld = column("kld");
        assert_eq!(prompt["n_tokens"], kld.len());
        close(&prompt["kld"]["mean"], mean(&kld), "mean");
        let max = kld.iter().copied().fold(0.0, f64::max);
        assert_eq!(prompt["kld"]["max"].as_f64(), Some(max));
        close(
            &prompt["reverse_kld_mean"],
            mean(&column("reverse_kld")),
            "reverse",
        );
        let (ours, theirs) = (column("ref_top"), column("eval_top"));
        let same = ours.iter().zip(&theirs).filter(|(a, b)| a == b).count();
        close(
            &prompt["ref_top1"],
            same as f64 / kld.len() as f64,
            "same top",
        );
    }
    assert_eq!(model["prompts"].as_array().unwrap().len(), 5);
    let all = model["prompts"].as_array().unwrap().iter();
    let largest = all.max_by(|a, b| {
        let max = |prompt: &Value| prompt["kld"]["max"].as_f64().unwrap();
        max(a).total_cmp(&max(b))
    });
    assert_eq!(largest.unwrap()["window"], model["kld"]["max_at"]["window"]);
}

/// MAX's four columns, each from both models' logits in float64.
#[test]
fn a_prompts_columns_are_maxs() {
    let session = Session::new();
    write(&session, "ref.gz", &["--prompts-file", "@prompts.txt"]);
    let args = [
        "-m",
        "@tiny-q2_K.gguf",
        "--prompts-file",
        "@prompts.txt",
        "-q",
    ];
    session.ok(&[&args[..], &["-w", "eval.gz", "--encoding", "f32"]].concat());
    let windows = |name: &str| all_rows(&NativeReader::open(&session.path(name)).unwrap());
    let (reference, evaluated) = (windows("ref.gz"), windows("eval.gz"));
    let model = first_model(
        &session,
        "@tiny-q2_K.gguf",
        "ref.gz",
        &["--stats", "logits"],
    );
    for (number, prompt) in model["prompts"].as_array().unwrap().iter().enumerate() {
        let steps = reference[number].iter().zip(&evaluated[number]);
        let each: Vec<[f64; 3]> = steps.map(|(l, m)| max_of_a_step(l, m)).collect();
        let mean = |i: usize| each.iter().map(|step| step[i]).sum::<f64>() / each.len() as f64;
        close(
            &prompt["mean_abs_diff"],
            mean(0),
            "mean absolute difference",
        );
        close(&prompt["cosine_distance"], mean(1), "cosine distance");
        close(&prompt["smoothed_kld"]["mean"], mean(2), "smoothed KLD");
        let max = each.iter().map(|step| step[2]).fold(0.0, f64::max);
        close(&prompt["smoothed_kld"]["max"], max, "largest smoothed KLD");
    }
}

/// Mean absolute difference, cosine distance, smoothed KLD.
fn max_of_a_step(l: &[f32], m: &[f32]) -> [f64; 3] {
    let pairs: Vec<(f64, f64)> = l
        .iter()
        .zip(m)
        .map(|(&l, &m)| (l.into(), m.into()))
        .collect();
    let n = pairs.len() as f64;
    let sum = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>();
    let dot = sum(|(l, m)| l * m);
    let smoothed = |row: &[f32]| -> Vec<f64> {
        let top = f64::from(row[top(row)]);
        let weights: Vec<f64> = row.iter().map(|&x| (f64::from(x) - top).exp()).collect();
        let total: f64 = weights.iter().sum();
        let share = |weight: &f64| (1.0 - n * 1e-10) * (weight / total) + 1e-10;
        weights.iter().map(share).collect()
    };
    let (p, q) = (smoothed(l), smoothed(m));
    [
        sum(|(l, m)| (l - m).abs()) / n,
        1.0 - dot / (sum(|(l, _)| l * l).sqrt() * sum(|(_, m)| m * m).sqrt()),
        p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum(),
    ]
}

#[test]
fn what_is_generated_is_what_the_model_finds_likeliest() {
    let session = Session::new();
    let file = ["--prompts-file", "@prompts.txt", "--generate", "5"];
    let (header, heads) = write(&session, "ref.gz", &file);
    assert_eq!(header.generated, Some(5));
    let reader = NativeReader::open(&session.path("ref.gz")).unwrap();
    let prompts = header.prompts.unwrap();
    for ((head, rows), prompt) in heads.iter().zip(all_rows(&reader)).zip(&prompts) {
        assert_eq!(head.tokens.len() as u32, prompt.n_tokens + 5);
        assert_eq!((head.first_scored, head.n_rows), (prompt.n_tokens - 1, 5));
        for (step, row) in rows.iter().enumerate() {
            let next = head.tokens[head.first_scored as usize + step + 1];
            assert_eq!(top(row), next as usize, "step {step}");
        }
    }
    let least = heads.iter().map(|head| head.first_scored).min();
    assert_eq!(Some(header.first_scored), least);
    let itself = first_model(&session, "@tiny-f16.gguf", "ref.gz", &[]);
    assert_eq!(
        (itself["kld"]["max"].as_f64(), itself["n_tokens"].as_u64()),
        (Some(0.0), Some(25))
    );
    assert!(itself["prompts"][4]["ref_top1"] == 1.0);

    // A batch of three tokens: the prompt in several calls, and the same words.
    let (_, in_parts) = write(&session, "parts.gz", &[&file[..], &["-b", "3"]].concat());
    assert_eq!(tokens(&in_parts), tokens(&heads));
    // The prompt's own positions too, if they are asked for.
    let (_, all) = write(
        &session,
        "all.gz",
        &[&file[..], &["--score", "all"]].concat(),
    );
    assert_eq!(tokens(&all), tokens(&heads));
    for (head, prompt) in all.iter().zip(&prompts) {
        assert_eq!((head.first_scored, head.n_rows), (0, prompt.n_tokens + 4));
    }
}

#[test]
fn some_of_the_prompts() {
    let session = Session::new();
    let file = ["--prompts-file", "@prompts.txt"];
    let (header, heads) = write(
        &session,
        "two.gz",
        &[&file[..], &["--max-windows", "2"]].concat(),
    );
    assert_eq!((heads.len(), header.prompts.unwrap().len()), (2, 2));

    let (header, heads) = write(
        &session,
        "n.gz",
        &[&file[..], &["-n", "30", "-c", "99"]].concat(),
    );
    assert_eq!((header.n_rows, header.n_ctx), (30, 99));
    assert_eq!(header.prompts.unwrap().len(), 5);
    assert!(header.seed.is_some());
    let model = first_model(&session, "@tiny-q8_0.gguf", "n.gz", &[]);
    let each = model["prompts"].as_array().unwrap();
    assert_eq!(each.len(), heads.len());
    assert!(each.is_sorted_by_key(|prompt| prompt["window"].as_u64()));
    let text = fs::read_to_string(fixture("prompts.txt")).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    for prompt in each {
        let number = prompt["window"].as_u64().unwrap() as usize;
        assert_eq!(prompt["prompt"], lines[number]);
    }

    let args = [
        "-m",
        "@tiny-f16.gguf",
        "-w",
        "late.gz",
        "-q",
        "--no-chat-template",
        "--score",
        "10",
    ];
    let run = session.ok(&[&args[..], &file].concat());
    assert!(
        run.stderr.contains("1 prompt(s) end before"),
        "{}",
        run.stderr
    );
    let (header, heads) = read(&session.path("late.gz"));
    assert_eq!((header.n_windows, header.first_scored), (4, 10));
    assert!(heads.iter().all(|head| head.first_scored == 10));
}

#[test]
fn a_write_that_was_cut_off_goes_on() {
    let session = Session::new();
    let args = ["--prompts-file", "@prompts.txt", "--generate", "3"];
    write(&session, "ref.gz", &args);
    let whole = fs::read(session.path("ref.gz")).unwrap();
    fs::remove_file(session.path("ref.gz")).unwrap();
    let left = &whole[..whole.len() * 2 / 3];
    session.write("ref.gz.partial", left);
    let other = ["-m", "@tiny-f16.gguf", "-w", "ref.gz", "--encoding", "f32"];
    let other = [&other[..], &args, &["-q", "--resume", "--score", "all"]].concat();
    let run = session.fails(&other, 1, &["another run"]);
    assert!(
        run.stderr.len() < 1000,
        "no prompt is long there: {}",
        run.stderr
    );
    write(&session, "ref.gz", &[&args[..], &["--resume"]].concat());
    assert!(fs::read(session.path("ref.gz")).unwrap() == whole);
}

#[test]
fn info_and_the_report_tell_of_prompts() {
    let session = Session::new();
    session.write("chat.jinja", TEMPLATE);
    let chat = [
        "--prompts-file",
        "@prompts.jsonl",
        "--chat-template-file",
        "chat.jinja",
    ];
    let (header, _) = write(
        &session,
        "ref.gz",
        &[&chat[..], &["--generate", "2"]].concat(),
    );
    let said = session.ok(&["info", "ref.gz"]).stdout;
    assert!(said.contains("4, in a chat template, sha256"), "{said}");
    assert!(said.contains("2 tokens generated behind each"), "{said}");
    let json: Value =
        serde_json::from_str(&session.ok(&["info", "ref.gz", "--json"]).stdout).unwrap();
    assert_eq!(json["prompts"]["n_prompts"], 4);
    assert_eq!(json["prompts"]["generated"], 2);
    assert_eq!(
        json["prompts"]["chat_template"],
        header.chat_template.unwrap()
    );

    let report = session
        .ok(&["-m", "@tiny-q2_K.gguf", "-r", "ref.gz", "-q"])
        .stdout;
    assert!(report.contains("8 in 4 prompts of"), "{report}");
    assert!(
        report.contains("| \"She had a green ring.\\nShe loved her ring beca\"... "),
        "{report}"
    );
    let session = Session::new();
    session.reference(&[]);
    let json: Value =
        serde_json::from_str(&session.ok(&["info", "ref.gz", "--json"]).stdout).unwrap();
    assert_eq!(json["prompts"], Value::Null, "of a text");
    let model = first_model(&session, "@tiny-q8_0.gguf", "ref.gz", &[]);
    assert_eq!(model.get("prompts"), None);
}

#[test]
fn a_conversion_keeps_prompts_or_says_that_they_are_lost() {
    let session = Session::new();
    let (header, _) = write(&session, "ref.gz", &["--prompts-file", "@prompts.txt"]);
    session.ok(&["convert", "ref.gz", "u16.gz", "--format", "kl", "-q"]);
    assert_eq!(read(&session.path("u16.gz")).0.prompts, header.prompts);
    let run = session.ok(&["convert", "ref.gz", "klpy.gz", "--format", "kl.py", "-q"]);
    assert!(run.stderr.contains("loses the prompts"), "{}", run.stderr);
}

/// 2 MB of prompts that make short windows.
#[test]
fn a_header_may_be_longer_than_that_of_a_text() {
    let session = Session::new();
    session.write(
        "chat.jinja",
        "Once upon a time {{ messages[0].content[:7] }}",
    );
    let prompt = |i: usize| format!("no. {i:03} {}", "of many words ".repeat(3600));
    let prompts: Vec<String> = (0..40).map(prompt).collect();
    session.write("long.txt", prompts.join("\n"));
    assert!(fs::metadata(session.path("long.txt")).unwrap().len() > 2_000_000);
    let file = [
        "--prompts-file",
        "long.txt",
        "--chat-template-file",
        "chat.jinja",
    ];
    let (header, _) = write(&session, "ref.gz", &file);
    let kept = header
        .prompts
        .iter()
        .flatten()
        .map(|prompt| prompt.content.label());
    assert!(kept.eq(prompts.iter().cloned()));
    session.ok(&["info", "ref.gz", "--verify", "-q"]);
    let model = first_model(&session, "@tiny-f16.gguf", "ref.gz", &[]);
    assert_eq!(model["kld"]["max"].as_f64(), Some(0.0));
    assert_eq!(model["prompts"][39]["prompt"], prompts[39].as_str());
}

#[test]
fn every_error_is_one_line_with_the_prompts() {
    let session = Session::new();
    session.write("empty.txt", "");
    session.write("blank.txt", "\n  \n\r\n");
    session.write("slip.txt", "{\"prompt\": \"a dog\",}\n");
    session.write("mixed.jsonl", "{\"prompt\": \"a dog\"}\n\nplain text\n");
    session.write("neither.jsonl", "{\"text\": \"a dog\"}\n");
    session.write("role.jsonl", "{\"messages\": [{\"content\": \"a dog\"}]}\n");
    session.write(
        "nothing.jsonl",
        "{\"prompt\": \"a dog\"}\n{\"prompt\": \"\"}\n",
    );
    session.write(
        "long.txt",
        "A dog\nOnce upon a time, there was a careful girl named Maya\n",
    );
    session.write("broken.jinja", "{% for message in messages %}");
    session.write("wrong.jinja", "\n\n{{ messages.content.x }}");
    let cases: [(&str, &[&str], &[&str]); 15] = [
        ("missing", &[], &["missing: cannot be read"]),
        ("empty.txt", &[], &["empty.txt: is empty"]),
        ("slip.txt", &[], &["slip.txt: line 1", "begins as JSON"]),
        ("blank.txt", &[], &["blank.txt: holds no prompt"]),
        (
            "mixed.jsonl",
            &[],
            &["mixed.jsonl: line 3", "prompt or messages"],
        ),
        (
            "neither.jsonl",
            &[],
            &["line 1", "neither prompt nor messages"],
        ),
        ("role.jsonl", &[], &["line 1", "missing field `role`"]),
        (
            "nothing.jsonl",
            &[],
            &["line 2", "1 token(s)", "at least 2"],
        ),
        ("@prompts.jsonl", &[], &["line 1", "--chat-template-file"]),
        (
            "@prompts.jsonl",
            &["--no-chat-template"],
            &["line 1", "leave --no-chat-template out"],
        ),
        (
            "long.txt",
            &["-c", "8"],
            &["long.txt: line 2", "does not fit a window of 8", "--n-ctx"],
        ),
        (
            "long.txt",
            &["-c", "8", "--generate", "7"],
            &["line 1", "and 7 generated"],
        ),
        (
            "long.txt",
            &["--score", "99"],
            &["no prompt is long enough"],
        ),
        (
            "long.txt",
            &["--chat-template-file", "broken.jinja"],
            &["broken.jinja", "syntax error"],
        ),
        (
            "long.txt",
            &["--chat-template-file", "wrong.jinja"],
            &["line 1", "chat template:3"],
        ),
    ];
    for (file, flags, said) in cases {
        let args = [
            "-m",
            "@tiny-f16.gguf",
            "--prompts-file",
            file,
            "-w",
            "ref.gz",
            "-q",
        ];
        session.fails(&[&args[..], flags].concat(), 1, said);
        assert!(!session.path("ref.gz").exists(), "{file}");
    }
    let args = ["-m", "@tiny-f16.gguf", "--prompts-file", "long.txt", "-w"];
    session.fails(
        &[&args[..], &["long.txt", "--force"]].concat(),
        2,
        &["an input of this run"],
    );
    session.fails(
        &[
            &args[..],
            &[
                "broken.jinja",
                "--force",
                "--chat-template-file",
                "broken.jinja",
            ],
        ]
        .concat(),
        2,
        &["an input of this run"],
    );
    // A prompt of one token is enough where tokens are generated behind it.
    write(
        &session,
        "one.gz",
        &["--prompts-file", "nothing.jsonl", "--generate", "1"],
    );
}

#[test]
fn prompts_from_stdin() {
    let session = Session::new();
    let mut command = session.command(&[
        "-m",
        "@tiny-f16.gguf",
        "--prompts-file",
        "-",
        "-w",
        "ref.gz",
        "-q",
        "--no-chat-template",
    ]);
    let input = fs::File::open(fixture("prompts.txt")).unwrap();
    assert!(command.stdin(input).status().unwrap().success());
    let (header, heads) = read(&session.path("ref.gz"));
    assert_eq!((header.text.name.as_str(), heads.len()), ("-", 5));
}
