//! How fast a model reads a prompt and goes on from it, as llama.cpp's programs run it.

use std::time::Instant;

use kl_engine::{Appended, ContextOptions, Decoder, Model};
use kl_formats::{Calls, Pace, Random, Speed};

use super::observer::{Phase, Watch};
use super::settings::RunSettings;
use crate::pipeline::{Error, core_wait};

/// Tokens of the prompt.
const N_PROMPT: u32 = 512;

/// Tokens after it, decoded one at a time.
const N_GENERATED: u32 = 64;

/// Runs that count, after one that does not: the first finds cold caches, and clocks that are still low.
const N_RUNS: usize = 3;

/// llama.cpp's own batches, where the user sets none.
const BATCHES: (u32, u32) = (2048, 512);

/// The seed of the tokens. What they are hardly matters, but a mixture of experts loads others for each.
const SEED: u64 = 1;

/// Measures the speed of a model in contexts like those of `options`: its threads, flash attention and types of the
/// cache. `None` for a model with too few positions for a token after a prompt.
///
/// # Errors
/// Why the model cannot decode, or that the observer asks to stop.
pub fn measure_speed(
    model: &dyn Model,
    options: &ContextOptions,
    run: &RunSettings,
    watch: &Watch<'_>,
) -> Result<Option<Speed>, Error> {
    let facts = model.facts();
    let n_most = N_PROMPT + N_GENERATED;
    let n_positions = facts.n_positions.unwrap_or(u64::MAX);
    let n_all = n_positions.min(n_most.into()) as u32;
    let n_generated = N_GENERATED.min(n_all / 2);
    let n_prompt = n_all - n_generated;
    if n_generated == 0 {
        return Ok(None);
    }
    let n_batch = run.n_batch.unwrap_or(BATCHES.0).max(1);
    let n_ubatch = run.n_ubatch.unwrap_or(BATCHES.1).clamp(1, n_batch);
    let options = ContextOptions {
        n_ctx: n_all,
        calls: Calls::new(n_batch, n_ubatch),
        n_seq: 1,
        has_own_caches: false,
        shows_states: false,
        is_as_deployed: true,
        ..options.clone()
    };
    let mut random = Random(SEED);
    let n_vocab = u64::from(facts.n_used_vocab.max(1));
    let tokens: Vec<u32> = (0..n_all)
        .map(|_| (random.bits() % n_vocab) as u32)
        .collect();
    let n_in_all = u64::from(n_all) * (N_RUNS as u64 + 1);
    let phase = &watch.begin("speed", None, Some(n_in_all));
    let mut context = model.decoder(&options)?;
    let (mut of_prompt, mut of_generation) = (Vec::new(), Vec::new());
    let (mut started, mut waited_before) = (Instant::now(), None);
    for i in 0..=N_RUNS {
        if i == 1 {
            (started, waited_before) = (Instant::now(), core_wait());
        }
        context.forget(0)?;
        let mut run = |tokens: &[u32], n_known, n_at_once| {
            append(&mut *context, tokens, n_known, n_at_once, phase, watch)
        };
        let (prompt, _) = tokens.split_at(n_prompt as usize);
        let prompt_s = run(prompt, 0, n_batch)?;
        let generation_s = run(&tokens, n_prompt, 1)?;
        if i > 0 {
            of_prompt.push(prompt_s);
            of_generation.push(generation_s);
        }
    }
    let wall_s = started.elapsed().as_secs_f64();
    let waited = waited_before
        .zip(core_wait())
        .map(|(before, after)| after.saturating_sub(before).as_secs_f64() / wall_s);
    let prompt = Pace::of_runs(n_prompt, &of_prompt);
    let generation = Pace::of_runs(n_generated, &of_generation);
    let paces = prompt.zip(generation);
    Ok(paces.map(|(prompt, generation)| Speed {
        prompt,
        generation,
        waited: waited.filter(|share| share.is_finite()),
    }))
}

/// Appends `tokens` from the `n_known`th on, at most `n_at_once` in a call, and returns the seconds that it took.
fn append(
    context: &mut dyn Decoder,
    tokens: &[u32],
    n_known: u32,
    n_at_once: u32,
    phase: &Phase<'_>,
    watch: &Watch<'_>,
) -> Result<f64, Error> {
    let started = Instant::now();
    for start in (n_known as usize..tokens.len()).step_by(n_at_once as usize) {
        let end = tokens.len().min(start + n_at_once as usize);
        let appended = Appended {
            sequence: 0,
            window: 0,
            tokens: tokens.get(..end).unwrap_or_default(),
            start,
        };
        context.append(&[appended])?;
        phase.rows(end - start);
        watch.check()?;
    }
    Ok(started.elapsed().as_secs_f64())
}
