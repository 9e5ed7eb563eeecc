//! A model against a reference: every row of the reference beside the row that the model gives.

use std::time::{Duration, Instant};

use kl_formats::sidecar::TokenRecord;
use kl_formats::{Row, WindowHead};
use rayon::prelude::*;

use super::read_ahead::Blocks;
use super::row_reader::RowReader;
use super::{Error, Step, Timing};
use crate::engine::LogitSource;
use crate::score::{Kernel, TokenScore};

/// Rows are handed to threads in groups of about this many logits, since a row of a small
/// vocabulary is scored faster than a thread is woken.
const LOGITS_PER_TASK: usize = 1 << 16;

/// Runs `source` over the windows of a reference and scores every row.
///
/// `on_step` is told of every decode call, and gets each window's records, in order of position.
///
/// # Errors
/// What the model, the file or `on_step` says.
pub fn evaluate<S: LogitSource>(
    source: &mut S,
    blocks: Blocks,
    kernel: Kernel,
    mut on_step: impl FnMut(Step<&[TokenRecord]>) -> Result<(), Error>,
) -> Result<Timing, Error> {
    let mut timing = Timing::default();
    let mut rows_left = blocks.max_rows;
    let mut reader = RowReader::new(blocks.events);
    let mut records = Vec::new();
    while let Some(head) = reader.next_window()? {
        check_tokens(&head, source.n_vocab())?;
        records.clear();
        let started = Instant::now();
        let mut in_sink = Duration::ZERO;
        let waited_before = reader.waited();
        source.decode(&head, |evaluated| {
            let sink_started = Instant::now();
            let first = head.first_scored as usize + records.len();
            let reference = reader.take(evaluated.len())?;
            score_rows(kernel, &head, first, &reference, evaluated, &mut records);
            drop(reference);
            reader.release();
            in_sink += sink_started.elapsed();
            on_step(Step::Rows(evaluated.len()))
        })?;
        let waited = reader.waited() - waited_before;
        timing.decode += started.elapsed().saturating_sub(in_sink);
        timing.score += in_sink.saturating_sub(waited);

        records.truncate(usize::try_from(rows_left).unwrap_or(usize::MAX));
        rows_left -= records.len() as u64;
        on_step(Step::Window(&records))?;
    }
    timing.read = reader.waited();
    Ok(timing)
}

fn check_tokens(head: &WindowHead, n_vocab: usize) -> Result<(), Error> {
    match head
        .tokens
        .iter()
        .position(|&token| token as usize >= n_vocab)
    {
        None => Ok(()),
        Some(position) => Err(Error::TokenOutOfRange {
            window: head.window,
            position,
            token: head.tokens[position],
            n_vocab,
        }),
    }
}

fn score_rows(
    kernel: Kernel,
    head: &WindowHead,
    first_position: usize,
    reference: &[Row<'_>],
    evaluated: &[&[f32]],
    records: &mut Vec<TokenRecord>,
) {
    let n_vocab = evaluated.first().map_or(1, |row| row.len().max(1));
    records.par_extend(
        reference
            .par_iter()
            .zip(evaluated)
            .enumerate()
            .with_min_len(LOGITS_PER_TASK.div_ceil(n_vocab))
            .map(|(place, (&reference, evaluated))| {
                let position = first_position + place;
                let next = head.tokens.get(position + 1).copied();
                record(
                    head.window,
                    position as u32,
                    next,
                    &kernel.score(reference, evaluated, next),
                )
            }),
    );
}

pub(super) fn record(
    window: u32,
    position: u32,
    next: Option<u32>,
    score: &TokenScore,
) -> TokenRecord {
    let flag = |finite: bool, flag: u32| if finite { 0 } else { flag };
    TokenRecord {
        window,
        position,
        token: next.unwrap_or(u32::MAX),
        flags: flag(score.ref_finite, TokenRecord::REF_NOT_FINITE)
            | flag(score.eval_finite, TokenRecord::EVAL_NOT_FINITE),
        ref_top: score.ref_top,
        eval_top: score.eval_top,
        ref_top_rank: score.ref_top_rank,
        eval_top_rank: score.eval_top_rank,
        kld: score.kld,
        reverse_kld: score.reverse_kld,
        ref_nll: score.ref_nll,
        eval_nll: score.eval_nll,
        ref_entropy: score.ref_entropy,
    }
}
