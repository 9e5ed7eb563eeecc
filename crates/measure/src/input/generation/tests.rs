//! Answers of the fake model, to prompts that hold the answers before them.

use std::rc::Rc;
use std::time::Duration;

use kl_engine::{Engine as _, FakeEngine, ModelOptions};
use kl_formats::{Calls, Messages, Variables};

use super::*;
use crate::input::chat_template::ChatTemplate;

const END: u32 = 7;

/// A token that the model's file forbids to generate.
const SUPPRESSED: u32 = 3;

/// A model whose rows have so few entries that answers end soon.
fn model() -> Box<dyn Model> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, "model").unwrap();
    let engine = Box::leak(Box::new(FakeEngine {
        n_vocab: 10,
        end_of_generation: Some(END),
        suppressed_tokens: vec![SUPPRESSED, 99],
        ..FakeEngine::default()
    }));
    engine.load(&path, &ModelOptions::default()).unwrap()
}

/// A context for windows of `n_ctx` tokens, `n_seq` at a time in calls of `n_batch` tokens.
fn context(n_ctx: u32, n_seq: u32, n_batch: u32) -> ContextOptions {
    ContextOptions {
        n_ctx,
        n_seq,
        calls: Calls::new(n_batch, n_batch),
        ..ContextOptions::default()
    }
}

/// The answers of at most `most` tokens, by chance where there is a seed, to as many dialogues as there are
/// `n_turns`. Each message has one token, which differs between dialogues; `on_step` gets each step.
fn answered(
    n_turns: &[u32],
    context: ContextOptions,
    (most, seed): (usize, Option<u32>),
    on_step: OnGenerated<'_>,
) -> Result<(Answered, Generated)> {
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let template = ChatTemplate::new(template, String::new(), String::new()).unwrap();
    let template = Rc::new(template);
    let mut next_window = 0;
    let dialogues = n_turns.iter().zip(1..).map(|(&n_left, start)| {
        let letter = char::from(b'a' + start as u8);
        let message = format!(r#"{{"role":"user","content":"{letter}"}}"#);
        let messages = vec![message; n_left as usize].join(",");
        let messages: Messages = serde_json::from_str(&format!("[{messages}]")).unwrap();
        let mut chat = Chat::new(&template, &messages, &Variables::default()).unwrap();
        chat.ends = (1..=n_left as usize).collect();
        let first = chat.next("").map(Result::unwrap);
        next_window += n_left;
        Dialogue {
            line: format!("line {start}"),
            window: next_window - n_left,
            n_left,
            conversation: Some(chat),
            tokens: model().tokenize(&first.unwrap_or_default(), true).unwrap(),
            n_prompt: 0,
            sampler: None,
        }
    });
    let sampling = seed.map(|seed| Sampling {
        temp: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed,
    });
    let (dialogues, model) = (dialogues.collect(), model());
    let answering = Answering::new(&*model, context, (most, sampling), None, on_step)?;
    answering.answer(dialogues)
}

#[test]
fn answers_depend_on_their_prompts_and_seeds_alone() {
    let n_turns = [1, 3, 0, 2, 1, 1, 1, 4];
    let run = |n_turns: &[u32], seed, (n_seq, n_batch)| {
        let context = context(500, n_seq, n_batch);
        answered(n_turns, context, (20, seed), &mut |_| Ok(()))
            .unwrap()
            .0
    };
    for seed in [None, Some(1), Some(2)] {
        let alone = run(&n_turns, seed, (1, 512));
        assert_eq!(alone.len(), 13);
        for calls in [(2, 512), (3, 2), (8, 4), (20, 1)] {
            assert_eq!(run(&n_turns, seed, calls), alone, "{calls:?}");
        }
    }
    let sampled = |seed| run(&[1; 5], seed, (1, 512));
    assert_ne!(sampled(Some(1)), sampled(Some(2)));
    assert_ne!(sampled(Some(1)), sampled(None));
}

#[test]
fn tokens_that_the_file_forbids_are_never_chosen() {
    for seed in [None, Some(1)] {
        let context = context(500, 4, 512);
        let (all, _) = answered(&[1; 40], context, (20, seed), &mut |_| Ok(())).unwrap();
        let answers = all.values().map(|turn| {
            let (tokens, n_prompt) = turn.as_ref().unwrap();
            tokens[*n_prompt..].to_vec()
        });
        let tokens: Vec<u32> = answers.flatten().collect();
        assert!(tokens.contains(&(SUPPRESSED + 1)) && !tokens.contains(&SUPPRESSED));
    }
}

#[test]
fn an_answer_ends_where_the_model_ends_it_or_where_there_is_no_room() {
    let mut seen: Vec<Generated> = Vec::new();
    let all = answered(&[1; 20], context(500, 4, 512), (6, None), &mut |so_far| {
        seen.push(so_far);
        Ok(())
    });
    let (all, generated) = all.unwrap();
    let mut n_ended = 0;
    let mut n_tokens = 0;
    for turn in all.values() {
        let (tokens, n_prompt) = turn.as_ref().unwrap();
        let answer = &tokens[*n_prompt..];
        let ends = answer.iter().position(|&token| token == END);
        assert_eq!(answer.len(), ends.map_or(6, |end| end + 1));
        n_ended += usize::from(ends.is_some());
        n_tokens += answer.len();
    }
    assert!((1..20).contains(&n_ended), "{n_ended}");
    let last = seen.last().unwrap();
    for done in [&generated, last] {
        assert_eq!((done.n_tokens, done.n_answers), (n_tokens as u64, 20));
    }
    let counts = |of: &Generated| (of.n_tokens, of.n_answers, of.time);
    assert!(seen.is_sorted_by_key(counts));
    // Known from the first tokens of all on, and nothing at the end.
    let first = seen.iter().position(|of| of.most_left.is_some());
    assert!(
        seen[first.unwrap()..]
            .iter()
            .all(|of| of.most_left.is_some())
    );
    assert_eq!(last.most_left, Some(Duration::ZERO));
}

#[test]
fn a_conversation_ends_before_a_prompt_that_leaves_no_room() {
    let n_turns = [3, 1, 3, 2, 3, 3];
    let n_cut = [10, 15, 500].map(|n_ctx| {
        let context = context(n_ctx, 2, 512);
        let (all, _) = answered(&n_turns, context, (12, Some(5)), &mut |_| Ok(())).unwrap();
        let whole = all.values().flatten();
        assert!(
            whole
                .clone()
                .all(|(tokens, _)| tokens.len() <= n_ctx as usize)
        );
        let n_cut = all.values().filter(|of| of.is_err()).count();
        let n_all: u32 = n_turns.iter().sum();
        assert_eq!(n_cut == 0, whole.count() == n_all as usize);
        for (window, why) in &all {
            let Err(why) = why else { continue };
            let (_, n_before) = all[&(window - 1)].as_ref().unwrap();
            // The next prompt holds this one and its answer.
            let (_, n_next) = why.split_once(": a prompt of ").unwrap();
            let (n_next, rest) = n_next.split_once(' ').unwrap();
            let n_next: usize = n_next.parse().unwrap();
            assert!(n_next >= n_ctx as usize && n_next > *n_before, "{why}");
            assert!(rest.contains("and an answer do not fit"), "{why}");
        }
        n_cut
    });
    assert!(
        n_cut[0] > 0 && n_cut[0] >= n_cut[1] && n_cut[2] == 0,
        "{n_cut:?}"
    );
}

#[test]
fn an_error_of_a_step_ends_the_work() {
    let mut n_left = 5;
    let stopped = answered(&[3; 3], context(50, 1, 512), (5, None), &mut |_| {
        n_left -= 1;
        anyhow::ensure!(n_left > 0, "stop");
        Ok(())
    });
    assert_eq!(stopped.unwrap_err().to_string(), "stop");
}
