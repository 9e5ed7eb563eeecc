//! The tokens of an evaluation: what its statistics need of each, from its records in one pass.

use std::iter::repeat_n;
use std::mem::take;

use kl_formats::TokenRecord;

use super::identical_output::Answers;
use super::mean::MeanMaxSoFar;
use super::token::{ExcludedToken, ExcludedTokens, ExclusionReason, TokenLocation};
use super::windows::{Run, WindowSums};

/// The names of parts of the tokens, by the numbers that records have for them.
#[derive(Clone, Copy, Debug, Default)]
pub struct PartNames<'n> {
    /// The names of groups; empty without groups.
    pub groups: &'n [String],
    /// The names of spans; empty without spans.
    pub spans: &'n [String],
}

/// A broken model may give no finite row at all: list enough of them to look into, not all.
pub(super) const MAX_EXCLUDED_LISTED: usize = 100;

/// The edges of the bins by the reference's top-1 probability.
pub(super) const CONFIDENCE_EDGES: [f64; 4] = [0.25, 0.5, 0.75, 0.95];

/// A counted token, but for its numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    pub position: u32,
    /// The actual next token; `u32::MAX`: none.
    token: u32,
    /// The rank of the reference's top token in the model's row, and the other way round; at most 255.
    pub ref_top_rank: u8,
    pub eval_top_rank: u8,
    /// The number of [`CONFIDENCE_EDGES`] up to the reference's top probability.
    pub confidence_bin: u8,
    /// Both models have the same top token.
    pub has_same_top: bool,
    /// The next token is a special one.
    pub is_special: bool,
}

/// The counted tokens of an evaluation, in the order of its records. They need half the memory that
/// records do.
#[derive(Clone, Debug, Default)]
pub struct TokenTable {
    /// All records, counted or not.
    pub runs: Vec<Run>,
    /// The counted tokens.
    pub(super) counted: Vec<Run>,
    pub(super) tokens: Vec<Token>,
    /// A number of each counted token: KL(reference ‖ model) and KL(model ‖ reference), in nats; the sum of
    /// min(p, q) over the vocabulary, NaN where it is not known; and the next token's NLL under the
    /// reference and under the model, NaN unless its probability is known and not 0.
    pub(super) columns: [Vec<f64>; 5],
    /// Tokens with an NLL that is infinite, and with one that is not known.
    pub(super) n_left_out: [u64; 2],
    pub(super) unknown_p: MeanMaxSoFar,
    /// The answers that the reference's model gave greedily.
    pub(super) answers: Answers,
    /// The first tokens that are not counted.
    pub(super) excluded: Vec<ExcludedToken>,
    /// All records that are not counted.
    pub(super) all_excluded: ExcludedTokens,
}

impl TokenTable {
    /// The tokens of records in any order, which decides the last bits of sums.
    pub fn from_records(records: &[TokenRecord]) -> Self {
        let mut table = Self::default();
        table.clear_for(records.len());
        records.iter().for_each(|record| table.push(record));
        table
    }

    /// Removes all tokens, and makes room for `n`, in the memory that it has already.
    pub fn clear_for(&mut self, n: usize) {
        let (mut tokens, mut columns) = (take(&mut self.tokens), take(&mut self.columns));
        tokens.clear();
        tokens.reserve_exact(n);
        for column in &mut columns {
            column.clear();
            column.reserve_exact(n);
        }
        *self = Self {
            tokens,
            columns,
            ..Self::default()
        };
    }

    /// Adds a record.
    pub fn push(&mut self, record: &TokenRecord) {
        Run::add(&mut self.runs, record);
        self.answers.push(record);
        if let Some(which) = ExclusionReason::why(record) {
            self.all_excluded.add(which);
            if self.excluded.len() < MAX_EXCLUDED_LISTED {
                self.excluded.push(ExcludedToken {
                    window: record.window,
                    position: record.position,
                    which,
                });
            }
            return;
        }
        Run::add(&mut self.counted, record);
        self.unknown_p.push(record.ref_unknown_p);
        let nlls = [record.ref_nll, record.eval_nll];
        let has_next = record.next_token().is_some();
        let is_known = has_next && nlls.iter().all(|nll| nll.is_finite());
        let is_unknown = nlls.iter().any(|nll| nll.is_nan());
        if has_next && !is_known {
            self.n_left_out[usize::from(is_unknown)] += 1;
        }
        let [ref_nll, eval_nll] = nlls.map(|nll| if is_known { nll } else { f64::NAN });
        let TokenRecord {
            kld,
            reverse_kld,
            acceptance,
            ..
        } = *record;
        let numbers = [kld, reverse_kld, acceptance, ref_nll, eval_nll];
        let columns = self.columns.iter_mut().zip(numbers);
        columns.for_each(|(column, number)| column.push(number));
        let edges = CONFIDENCE_EDGES.iter();
        self.tokens.push(Token {
            position: record.position,
            token: record.token,
            ref_top_rank: record.ref_top_rank.try_into().unwrap_or(u8::MAX),
            eval_top_rank: record.eval_top_rank.try_into().unwrap_or(u8::MAX),
            confidence_bin: edges.filter(|edge| **edge <= record.ref_top_p).count() as u8,
            has_same_top: record.ref_top == record.eval_top,
            is_special: record.is_special(),
        });
    }

    /// The KLD of each counted token.
    pub(super) fn klds(&self) -> &[f64] {
        &self.columns[0]
    }

    /// The windows of all tokens, with the sums of their KLDs.
    pub fn windows(&self) -> WindowSums {
        let mut windows = WindowSums::from_tokens(&self.counted, self.klds());
        // Windows without counted tokens have no sums.
        windows.add(&self.runs, &[]);
        windows
    }

    /// Locates each counted token.
    pub(super) fn locations(&self) -> impl Iterator<Item = TokenLocation> {
        let runs = self.counted.iter();
        let windows = runs.flat_map(|run| repeat_n(run.piece.window, run.n));
        let tokens = windows.zip(&self.tokens);
        tokens.map(|(window, token)| TokenLocation {
            window,
            position: token.position,
            token: Some(token.token).filter(|token| *token != u32::MAX),
        })
    }
}
