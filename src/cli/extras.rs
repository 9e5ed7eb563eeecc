//! What an evaluation measures besides a token's record, where it is asked for.

use kl_formats::{Reference, Row, TokenRecord};

use super::args::Stats;
use super::reference::holds_log_probabilities;
use super::settings::ResultSettings;
use super::{Warning, warn};
use crate::score::llama_perplexity::{self, PeerToken};
use crate::score::{LogitMetrics, logit_metrics};
use crate::stats::{LlamaPerplexity, LogitSummary, NotAvailable, TokenLocation};

/// Which passes over a pair of rows there are besides the kernel's.
#[derive(Clone, Copy)]
pub struct Extras {
    /// llama-perplexity's own arithmetic on its own rows, which records do not tell.
    peers: bool,
    /// Distances in logit space.
    logits: bool,
    /// Whether rows are log-probabilities, from which logits cannot be had.
    no_logits: bool,
}

/// What they give.
#[derive(Clone, Copy)]
pub struct Extra {
    peer: Option<PeerToken>,
    logits: Option<LogitMetrics>,
}

impl Extras {
    /// Of the files that rows come from, the reference first.
    pub fn wanted(settings: &ResultSettings, files: &[&Reference]) -> Self {
        Self {
            peers: matches!(files.first(), Some(Reference::LlamaCpp(_)))
                && settings.stats.contains(&Stats::LlamaPerplexity),
            logits: settings.stats.contains(&Stats::Logits),
            no_logits: files.iter().any(|file| holds_log_probabilities(file)),
        }
    }

    /// Whether there is anything to keep.
    pub fn any(self) -> bool {
        self.peers || self.logits
    }

    pub fn of(self, row: Row<'_>, evaluated: &[f32], next: Option<u32>) -> Extra {
        Extra {
            peer: match self.peers {
                true => llama_perplexity::score(row, evaluated, next),
                false => None,
            },
            logits: self.logits.then(|| logit_metrics(row, evaluated)),
        }
    }

    /// llama-perplexity's statistics, if they are asked for and there are tokens enough.
    pub fn llama_perplexity(
        self,
        settings: &ResultSettings,
        records: &[TokenRecord],
        extras: &[Extra],
    ) -> Option<LlamaPerplexity> {
        if !settings.stats.contains(&Stats::LlamaPerplexity) {
            return None;
        }
        let statistics = if self.peers {
            let scored = records.iter().zip(extras);
            let kept = scored.filter(|(record, _)| !record.is_excluded());
            LlamaPerplexity::of(kept.filter_map(|(_, extra)| extra.peer))
        } else {
            LlamaPerplexity::of_records(records)
        };
        if statistics.is_none() {
            warn(&Warning::NoLlamaPerplexity);
        }
        statistics
    }

    /// What was measured in logit space, one a record, if it is asked for.
    pub fn logit_metrics(self, extras: &[Extra]) -> Option<Vec<LogitMetrics>> {
        let metrics = extras.iter().map(|extra| extra.logits);
        self.logits.then(|| {
            metrics
                .map(|of| of.unwrap_or(LogitMetrics::EXCLUDED))
                .collect()
        })
    }

    /// The distances in logit space, if they are asked for.
    pub fn logits(
        self,
        settings: &ResultSettings,
        records: &[TokenRecord],
        extras: &[Extra],
    ) -> Option<LogitSummary> {
        let measured = records.iter().zip(extras).filter_map(|(record, extra)| {
            let metrics = extra.logits.filter(|_| !record.is_excluded())?;
            Some((metrics, TokenLocation::of(record)))
        });
        let (metrics, places): (Vec<_>, Vec<_>) = measured.unzip();
        let summary = self
            .logits
            .then(|| LogitSummary::from_metrics(&metrics, &places, settings.confidence))?;
        Some(match self.no_logits {
            true => summary.without_logits(NotAvailable::LogProbabilitiesOnly),
            false => summary,
        })
    }
}
