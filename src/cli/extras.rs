//! What an evaluation measures besides a token's record, where it is asked for.

use kl_formats::{Reference, Row, TokenRecord};

use super::args::Stats;
use super::settings::ReadSettings;
use super::{Warning, warn};
use crate::score::llama_perplexity::{self, PeerToken};
use crate::stats::LlamaPerplexity;

/// Which passes over a pair of rows there are besides the kernel's.
#[derive(Clone, Copy)]
pub struct Extras {
    /// llama-perplexity's own arithmetic on its own rows, which records do not tell.
    peers: bool,
}

/// What they give.
#[derive(Clone, Copy)]
pub struct Extra {
    peer: Option<PeerToken>,
}

impl Extras {
    pub fn wanted(settings: &ReadSettings, reference: &Reference) -> Self {
        Self {
            peers: settings.stats == Stats::LlamaPerplexity
                && matches!(reference, Reference::LlamaCpp(_)),
        }
    }

    /// Whether there is anything to keep.
    pub fn any(self) -> bool {
        self.peers
    }

    pub fn of(self, row: Row<'_>, evaluated: &[f32], next: Option<u32>) -> Extra {
        Extra {
            peer: match self.peers {
                true => llama_perplexity::score(row, evaluated, next),
                false => None,
            },
        }
    }

    /// llama-perplexity's statistics, if they are asked for and there are tokens enough.
    pub fn llama_perplexity(
        self,
        settings: &ReadSettings,
        records: &[TokenRecord],
        extras: &[Extra],
    ) -> Option<LlamaPerplexity> {
        if settings.stats != Stats::LlamaPerplexity {
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
}
