//! References of prompts: what is decoded, what is kept of them, and the numbers of each.

use std::fs;

use kl_formats::PromptContent;
use serde_json::{Value, json};

use crate::chat_templates::TEMPLATE;
use crate::numbers::{Window, accurate, max, mean, number, top};
use crate::session::{Session, fixture, has};

/// Writes the reference `name` of some prompts with the f16 model, its rows exact.
fn write(session: &Session, name: &str, flags: &str) {
    let line = format!("-m @f16 -w {name} --encoding f32 -q --prompts {flags}");
    session.ok(&line);
}

/// The first model's result, of a run that keeps no sidecar.
fn result(session: &Session, line: &str) -> Value {
    session.result(&format!("{line} --no-sidecar"))
}

/// The prompts of `fixtures/prompts.txt`.
fn lines() -> Vec<String> {
    let text = fs::read_to_string(fixture("prompts")).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}

/// Where windows are prompts, no output calls them windows.
#[test]
fn a_report_calls_prompts_prompts() {
    let session = Session::new();
    session.ok("-m @f16 --prompts @prompts -w chat.gz -q --no-chat-template");
    let evaluated = session.ok("-m @q4 -m @q2 -r chat.gz --full --top-k 2 --breakdown");
    evaluated.prints_not("window");
    for line in [
        "report .",
        "report . --breakdown",
        "report . --markdown",
        "report tiny-q2_K@chat.kls --breakdown",
        "report tiny-q4_K_M@chat.kls tiny-q2_K@chat.kls --pair",
    ] {
        let run = session.ok(line);
        run.prints(&["prompt"]);
        run.prints_not("window").warns_not("window");
    }
    let json = session.json("report .");
    assert_eq!(json["reference"]["prompts"], true);
    let warning = json["warnings"][0]["message"].as_str().unwrap();
    assert!(warning.contains("prompts"), "{warning}");
}

#[test]
fn each_line_is_a_window_and_the_file_is_all_that_an_evaluation_needs() {
    let session = Session::new();
    write(&session, "ref.gz", "@prompts");
    let (header, specs) = (session.header("ref.gz"), session.specs("ref.gz"));
    let prompts = header.prompts.clone().unwrap();
    let lines = lines();
    assert_eq!((specs.len(), lines.len()), (5, 5));
    for (i, (spec, prompt)) in specs.iter().zip(&prompts).enumerate() {
        assert_eq!(spec.window as usize, i);
        assert_eq!(prompt.content, PromptContent::Text(lines[i].clone()));
        assert_eq!(prompt.n_tokens as usize, spec.tokens.len());
        assert_eq!((spec.first_scored, spec.n_rows), (1, prompt.n_tokens - 1));
        assert_eq!(spec.tokens[0], 1, "the model's BOS");
    }
    let lengths = || specs.iter().map(|spec| spec.tokens.len());
    let own: usize = lengths().map(|length| length - 1).sum();
    let in_prompts = json!({"n_prompts": 5, "chat_template": null, "generated": null});
    let expected = json!({"n_ctx": lengths().max(), "add_bos": true, "prompts": in_prompts,
        "text": {"name": "prompts.txt", "n_tokens": own}});
    has(&session.info("ref.gz"), &expected);

    let result = result(&session, "-m @f16 -r ref.gz");
    let exact = json!({"n_tokens": header.n_rows, "kld": {"max": 0}});
    has(&result, &exact);
    for (i, prompt) in result["prompts"].as_array().unwrap().iter().enumerate() {
        let exact = json!({"window": i, "prompt": lines[i], "kld": {"max": 0}, "ref_top1": 1});
        has(prompt, &exact);
    }
}

/// Those of its tokens, and MAX's four columns, each from both models' logits in float64.
#[test]
fn the_numbers_of_a_prompt_are_those_of_its_tokens_and_maxs() {
    let session = Session::new();
    write(&session, "ref.gz", "@prompts");
    session.ok("-m @q2 --prompts @prompts -q -w eval.gz --encoding f32");
    let result = result(&session, "-m @q2 -r ref.gz --json-tokens --stats logits");
    let tokens = &result["tokens"];
    let windows = tokens["window"].as_array().unwrap();
    let prompts = result["prompts"].as_array().unwrap();
    assert_eq!(prompts.len(), 5);
    let (reference, evaluated) = (session.windows("ref.gz"), session.windows("eval.gz"));
    for (i, prompt) in prompts.iter().enumerate() {
        let column = |name: &str| -> Vec<f64> {
            let own = (0..windows.len()).filter(|&token| windows[token] == i);
            own.map(|token| number(&tokens[name][token])).collect()
        };
        let klds = column("kld");
        assert_eq!(prompt["n_tokens"], klds.len());
        assert_eq!(prompt["kld"]["max"], max(&klds).max(0.0));
        let (ours, theirs) = (column("ref_top"), column("eval_top"));
        let same = ours.iter().zip(&theirs).filter(|(a, b)| a == b).count();
        let steps = reference[i].rows.iter().zip(&evaluated[i].rows);
        let steps: Vec<[f64; 3]> = steps.map(|(l, m)| max_of_a_step(l, m)).collect();
        let [differences, distances, smoothed] =
            [0, 1, 2].map(|of| steps.iter().map(|step| step[of]).collect::<Vec<f64>>());
        for (key, exact) in [
            ("/kld/mean", mean(&klds)),
            ("/reverse_kld_mean", mean(&column("reverse_kld"))),
            ("/ref_top1", same as f64 / klds.len() as f64),
            ("/mean_abs_diff", mean(&differences)),
            ("/cosine_distance", mean(&distances)),
            ("/smoothed_kld/mean", mean(&smoothed)),
            ("/smoothed_kld/max", max(&smoothed)),
        ] {
            accurate(number(prompt.pointer(key).unwrap()), exact, key);
        }
    }
    let max = |prompt: &Value| number(&prompt["kld"]["max"]);
    let largest = prompts.iter().max_by(|a, b| max(a).total_cmp(&max(b)));
    let max_at = &result["kld"]["max_at"];
    assert_eq!(largest.unwrap()["window"], max_at["window"]);
}

/// Mean absolute difference, cosine distance, smoothed KLD.
fn max_of_a_step(l: &[f32], m: &[f32]) -> [f64; 3] {
    let pairs = l.iter().zip(m).map(|(&l, &m)| (l.into(), m.into()));
    let pairs: Vec<(f64, f64)> = pairs.collect();
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
fn generation_is_greedy() {
    let session = Session::new();
    write(&session, "ref.gz", "@prompts --generate 5");
    let (header, windows) = (session.header("ref.gz"), session.windows("ref.gz"));
    assert_eq!(header.generated, Some(5));
    let prompts = header.prompts.clone().unwrap();
    for (Window { spec, rows }, prompt) in windows.iter().zip(&prompts) {
        assert_eq!(spec.tokens.len() as u32, prompt.n_tokens + 5);
        assert_eq!((spec.first_scored, spec.n_rows), (prompt.n_tokens - 1, 5));
        let generated = &spec.tokens[prompt.n_tokens as usize..];
        assert!(
            rows.iter()
                .map(|row| top(row) as u32)
                .eq(generated.iter().copied())
        );
    }
    let firsts = windows.iter().map(|window| window.spec.first_scored);
    assert_eq!(header.first_scored, firsts.min());
    let itself = result(&session, "-m @f16 -r ref.gz");
    has(&itself, &json!({"n_tokens": 25, "kld": {"max": 0}}));
    assert_eq!(itself["prompts"][4]["ref_top1"], 1.0);

    // A batch of three tokens: the prompt is decoded in parts, and the words stay the same.
    let tokens = session.tokens("ref.gz");
    write(&session, "parts.gz", "@prompts --generate 5 -b 3");
    assert_eq!(session.tokens("parts.gz"), tokens);
    // The prompt's own positions too, with --score all.
    write(&session, "all.gz", "@prompts --generate 5 --score all");
    assert_eq!(session.tokens("all.gz"), tokens);
    for (spec, prompt) in session.specs("all.gz").iter().zip(&prompts) {
        assert_eq!((spec.first_scored, spec.n_rows), (0, prompt.n_tokens + 4));
    }
    // A conversion keeps the prompts, or warns that they are lost.
    session.ok("convert all.gz u16.gz --format kl -q");
    assert_eq!(
        session.header("u16.gz").prompts,
        session.header("all.gz").prompts
    );
    let run = session.ok("convert all.gz klpy.gz --format kl.py -q");
    run.warns(&["loses", "prompts"]);
}

#[test]
fn a_part_of_the_prompts_can_be_used() {
    let session = Session::new();
    write(&session, "two.gz", "@prompts --max-windows 2");
    let prompts = session.header("two.gz").prompts.unwrap();
    assert_eq!((session.specs("two.gz").len(), prompts.len()), (2, 2));

    write(&session, "n.gz", "@prompts -n 30 -c 99");
    let header = session.header("n.gz");
    assert_eq!((header.n_rows, header.n_ctx), (30, 99));
    assert_eq!(header.prompts.as_ref().unwrap().len(), 5);
    assert!(header.seed.is_some());
    let result = result(&session, "-m @q8 -r n.gz");
    let each = result["prompts"].as_array().unwrap();
    assert_eq!(each.len(), session.specs("n.gz").len());
    assert!(each.is_sorted_by_key(|prompt| prompt["window"].as_u64()));
    let lines = lines();
    for prompt in each {
        let window = prompt["window"].as_u64().unwrap() as usize;
        assert_eq!(prompt["prompt"], lines[window]);
    }

    let late = "-m @f16 -w late.gz -q --no-chat-template --score 10 --prompts @prompts";
    session.ok(late).warns(&["1 prompt,", "too short"]);
    let firsts = session.specs("late.gz").into_iter();
    let firsts = Vec::from_iter(firsts.map(|spec| spec.first_scored));
    assert_eq!(firsts, [10; 4]);
}

#[test]
fn info_and_the_report_describe_the_prompts() {
    let session = Session::new();
    session.write("chat.jinja", TEMPLATE);
    let chats = "@chats --chat-template-file chat.jinja --generate 2";
    write(&session, "ref.gz", chats);
    let run = session.ok("info ref.gz");
    run.prints(&[
        "4, in a chat template, sha256",
        "at most 2 tokens to each, generated greedily",
    ]);
    let chat_template = session.header("ref.gz").chat_template.unwrap();
    let expected = json!({"n_prompts": 4, "generated": 2, "chat_template": chat_template});
    has(&session.info("ref.gz")["prompts"], &expected);

    let run = session.ok("-m @q2 -r ref.gz -q");
    let quoted = r#"3   "She had a green ring.\nShe loved her ring…" "#;
    run.prints(&["8 in 4 prompts of", quoted]);
    session.reference("--force");
    assert!(session.info("ref.gz")["prompts"].is_null(), "of a text");
    let result = result(&session, "-m @q8 -r ref.gz");
    assert_eq!(result.get("prompts"), None);
}

#[test]
fn every_error_is_one_line_with_the_prompts_line() {
    let session = Session::new();
    let first = "{\"prompt\": \"a dog\"}\n";
    session.write("blank.txt", "\n  \n\r\n");
    session.write("nothing.jsonl", format!("{first}{{\"prompt\": \"\"}}\n"));
    let long = "A dog\nOnce upon a time, there was a careful girl named Maya\n";
    session.write("long.txt", long);
    let image = r#"{"type": "image_url", "image_url": {"url": "a.png"}}"#;
    let image = format!(r#"{{"messages": [{{"role": "user", "content": [{image}]}}]}}"#);
    session.write("image.jsonl", format!("{first}{image}\n"));
    session.write("broken.jinja", "{% for message in messages %}");
    session.write("wrong.jinja", "\n\n{{ messages.content.x }}");
    let cases = r#"
        missing => missing
        blank.txt => blank.txt | prompt
        image.jsonl => image.jsonl: line 2: message 1 | "image_url" | only texts
        nothing.jsonl => line 2 | fewer than two tokens
        @chats => line 1 | messages need a chat template | --chat-template-file
        @chats --no-chat-template => line 1 | --no-chat-template
        long.txt -c 8 => long.txt: line 2 | window of 8 | --n-ctx
        long.txt -c 8 --generate 7 => line 1 | with its answer
        long.txt --score 99 => prompt | long enough
        long.txt --chat-template-file broken.jinja => broken.jinja | syntax error
        long.txt --chat-template-file wrong.jinja => line 1 | chat template:3"#;
    session.fails_each(1, "-m @f16 -w ref.gz -q --prompts", cases);
    // All that are refused are named at once, and so are all mistakes of a file.
    let refusal = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ messages[0].content }}";
    session.write("refuses.jinja", refusal);
    let said =
        |role: &str| format!(r#"{{"messages": [{{"role": "{role}", "content": "a dog"}}]}}"#);
    let lines = ["user", "system", "user", "system"].map(said);
    session.write("refused.jsonl", lines.join("\n"));
    let broken = [&*lines[0], "{\"prompt\": 7}", "{}", &*lines[0]];
    session.write("broken.jsonl", broken.join("\n"));
    let cases = "
        refused.jsonl => refused.jsonl: 2 of 4 prompts | leave them out | line 2, line 4: the chat template refuses it: | no system
        broken.jsonl => broken.jsonl: 2 of 4 prompts | line 2: prompt is not a string | line 3: neither prompt nor messages";
    session.fails_each(
        1,
        "-m @f16 -w ref.gz -q --chat-template-file refuses.jinja --prompts",
        cases,
    );
    // A prompt of one token is enough if tokens are generated after it.
    write(&session, "one.gz", "nothing.jsonl --generate 1");
}
