//! A model against a reference: every row of the reference beside the row that the model gives.

use std::time::{Duration, Instant};

use kl_formats::WindowHead;
use kl_formats::sidecar::TokenRecord;

use super::reference_rows::ReferenceRows;
use super::{Error, Step, Timing};
use crate::engine::LogitSource;
use crate::score::{Kernel, TokenScore};

/// Runs `source` over the windows of a reference and scores every row.
///
/// `on_step` is told of every decode call, and gets each window's records, in order of position.
///
/// # Errors
/// What the model, the file or `on_step` says.
pub fn evaluate<S: LogitSource>(
    source: &mut S,
    mut reference: ReferenceRows,
    kernel: Kernel,
    mut on_step: impl FnMut(Step<&[TokenRecord]>) -> Result<(), Error>,
) -> Result<Timing, Error> {
    let mut timing = Timing::default();
    let mut rows_left = reference.max_rows;
    let mut records = Vec::new();
    while let Some(head) = reference.next_window()? {
        check_tokens(&head, source.n_vocab())?;
        records.clear();
        let started = Instant::now();
        let mut in_sink = Duration::ZERO;
        let read_before = reference.read_time();
        source.decode(&head, |evaluated| {
            let sink_started = Instant::now();
            let first = head.first_scored as usize + records.len();
            let scored = reference.map(evaluated.len(), |place, row| {
                let position = first + place;
                let next = head.tokens.get(position + 1).copied();
                let score = kernel.score(row, evaluated[place], next);
                record(head.window, position as u32, next, &score)
            })?;
            records.extend(scored);
            in_sink += sink_started.elapsed();
            on_step(Step::Rows(evaluated.len()))
        })?;
        let in_reading = reference.read_time() - read_before;
        timing.decode += started.elapsed().saturating_sub(in_sink);
        timing.score += in_sink.saturating_sub(in_reading);

        records.truncate(usize::try_from(rows_left).unwrap_or(usize::MAX));
        rows_left -= records.len() as u64;
        on_step(Step::Window(&records))?;
    }
    timing.read = reference.read_time();
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
