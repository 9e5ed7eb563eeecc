//! The floor under `kl`'s run time: llama.cpp decodes the windows of a text, with logits at the
//! scored positions, and the logits are dropped.
//!
//!     bare_decode MODEL TEXT N_CTX all|half|N ROWS [N_BATCH [states|states+logits]]
//!
//! `ROWS`: scored positions to stop after, as `kl -n`; -1: all. `N_BATCH`: as `kl` chooses if it is
//! not given. `states`: hidden states in place of logits; `states+logits`: both.

use std::path::Path;
use std::process::ExitCode;

use kl::engine::{ContextOptions, Engine as _, LlamaCpp, ModelOptions, default_calls, follow_log};
use kl::input::{Plan, ScoreFrom, Source};
use kl_formats::Calls;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(rows) => {
            println!("{rows} rows");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bare_decode: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<u64, Box<dyn std::error::Error>> {
    let [model, text, n_ctx, score, rows, batch @ ..] = args else {
        return Err(
            "usage: bare_decode MODEL TEXT N_CTX all|half|N ROWS [N_BATCH [states|states+logits]]"
                .into(),
        );
    };
    let (n_ctx, score): (u32, ScoreFrom) = (n_ctx.parse()?, score.parse()?);
    let max_rows = u64::try_from(rows.parse::<i64>()?).ok();
    let text = std::fs::read_to_string(text)?;
    follow_log(false);
    let engine = LlamaCpp::default();
    let model = engine.load(Path::new(model), &ModelOptions::default())?;
    let (calls, how) = match batch {
        [n_batch, how @ ..] => {
            let n_batch = n_batch.parse()?;
            let calls = Calls {
                n_batch,
                n_ubatch: n_batch,
                is_equal: false,
            };
            (calls, how.first())
        }
        [] => (default_calls(model.facts().n_vocab, n_ctx), None),
    };
    let mut decoder = model.decoder(&ContextOptions {
        n_ctx,
        calls,
        threads: num_cpus::get_physical() as u32,
        shows_states: how.is_some(),
        ..ContextOptions::default()
    })?;
    let tokens = model.tokenize(&text, false)?;
    let source = Source {
        n_ctx: Some(n_ctx),
        score: Some(score),
        ..Source::default()
    };
    let plan = Plan::cut(&tokens, &source, model.facts().bos()).limited(max_rows);
    let mut rows = 0;
    for window in &plan.windows {
        let wants_rows = how.is_none_or(|how| how == "states+logits");
        let mut start = Some(0);
        while let Some(at) = start {
            let outputs = decoder.decode_call(window, at, wants_rows)?;
            rows += outputs.groups.iter().sum::<usize>() as u64;
            start = outputs.next;
        }
    }
    Ok(rows)
}
