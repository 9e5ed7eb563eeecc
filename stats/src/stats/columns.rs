//! The tokens of an evaluation in columns: what its statistics need of each, from its records in
//! one pass.

use std::iter::repeat_n;

use kl_formats::TokenRecord;

use super::identical_output::Answers;
use super::mean::MeanMaxSoFar;
use super::token::{ExcludedToken, ExclusionReason, TokenLocation, delta_p};
use super::windows::Run;

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

/// The counted tokens of an evaluation, in the order of its records. They need half the memory that
/// records do.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    /// All records, counted or not.
    pub runs: Vec<Run>,
    /// The counted tokens.
    pub(super) counted: Vec<Run>,
    /// KL(reference ‖ model) of each counted token, in nats.
    pub(super) kld: Vec<f64>,
    /// KL(model ‖ reference).
    pub(super) reverse_kld: Vec<f64>,
    /// The sum of min(p, q) over the vocabulary; NaN where it is not known.
    pub(super) acceptance: Vec<f64>,
    pub(super) position: Vec<u32>,
    /// The actual next token; `u32::MAX`: none.
    token: Vec<u32>,
    /// The bits of [`Columns::SAME_TOP`] and those after it.
    traits: Vec<u8>,
    /// The number of [`CONFIDENCE_EDGES`] up to the reference's top probability.
    pub(super) confidence_bin: Vec<u8>,
    /// The NLLs of each next token whose probability is known and not 0, and its change.
    pub(super) ref_nll: Vec<f64>,
    pub(super) eval_nll: Vec<f64>,
    pub(super) delta_p: Vec<f64>,
    pub(super) n_nll_infinite: u64,
    pub(super) n_nll_unknown: u64,
    pub(super) unknown_p: MeanMaxSoFar,
    /// The answers that the reference's model gave greedily.
    pub(super) answers: Answers,
    /// The first tokens that are not counted.
    pub(super) excluded: Vec<ExcludedToken>,
    /// The number of all records that are not counted.
    pub(super) n_excluded: u64,
}

impl Columns {
    /// Both models have the same top token.
    pub(super) const SAME_TOP: u8 = 1;
    /// The reference's top token is among the model's top 5, and its top 10.
    pub(super) const REF_TOP_5: u8 = 2;
    pub(super) const REF_TOP_10: u8 = 4;
    /// The model's top token is among the reference's top 5, and its top 10.
    pub(super) const EVAL_TOP_5: u8 = 8;
    pub(super) const EVAL_TOP_10: u8 = 16;
    /// The next token is a special one.
    pub(super) const SPECIAL: u8 = 32;
    /// The next token's probability is known and not 0.
    pub(super) const KNOWN: u8 = 64;

    /// The columns of records in any order.
    pub fn of(records: &[TokenRecord]) -> Self {
        let mut columns = Self::with_capacity(records.len());
        records.iter().for_each(|record| columns.push(record));
        columns
    }

    /// No tokens, with room for `n`.
    pub fn with_capacity(n: usize) -> Self {
        let mut columns = Self::default();
        for of_floats in [
            &mut columns.kld,
            &mut columns.reverse_kld,
            &mut columns.acceptance,
            &mut columns.ref_nll,
            &mut columns.eval_nll,
            &mut columns.delta_p,
        ] {
            of_floats.reserve_exact(n);
        }
        columns.position.reserve_exact(n);
        columns.token.reserve_exact(n);
        columns.traits.reserve_exact(n);
        columns.confidence_bin.reserve_exact(n);
        columns
    }

    /// Adds a record.
    pub fn push(&mut self, record: &TokenRecord) {
        let add_to = |runs| {
            Run::add(
                runs,
                record.window,
                record.group,
                record.position,
                record.span,
            )
        };
        add_to(&mut self.runs);
        self.answers.push(record);
        let Some(which) = ExclusionReason::of(record) else {
            add_to(&mut self.counted);
            self.push_counted(record);
            return;
        };
        self.n_excluded += 1;
        if self.excluded.len() < MAX_EXCLUDED_LISTED {
            self.excluded.push(ExcludedToken {
                window: record.window,
                position: record.position,
                which,
            });
        }
    }

    fn push_counted(&mut self, record: &TokenRecord) {
        let edges = CONFIDENCE_EDGES.iter();
        let confidence_bin = edges.filter(|edge| **edge <= record.ref_top_p).count() as u8;
        self.kld.push(record.kld);
        self.reverse_kld.push(record.reverse_kld);
        self.acceptance.push(record.acceptance);
        self.position.push(record.position);
        self.token.push(record.token);
        self.confidence_bin.push(confidence_bin);
        if record.ref_unknown_p.is_finite() {
            self.unknown_p.push(record.ref_unknown_p);
        }
        let has_next = record.next_token().is_some();
        let is_known = has_next && record.ref_nll.is_finite() && record.eval_nll.is_finite();
        if is_known {
            self.ref_nll.push(record.ref_nll);
            self.eval_nll.push(record.eval_nll);
            self.delta_p.push(delta_p(record));
        } else if has_next && (record.ref_nll.is_nan() || record.eval_nll.is_nan()) {
            self.n_nll_unknown += 1;
        } else if has_next {
            self.n_nll_infinite += 1;
        }
        let traits = [
            (record.ref_top == record.eval_top, Self::SAME_TOP),
            (record.ref_top_rank <= 5, Self::REF_TOP_5),
            (record.ref_top_rank <= 10, Self::REF_TOP_10),
            (record.eval_top_rank <= 5, Self::EVAL_TOP_5),
            (record.eval_top_rank <= 10, Self::EVAL_TOP_10),
            (record.is_special(), Self::SPECIAL),
            (is_known, Self::KNOWN),
        ];
        let bits = traits.map(|(has, bit)| u8::from(has) * bit);
        self.traits.push(bits.into_iter().sum());
    }

    /// Marks the counted tokens that have a trait.
    pub(super) fn with(&self, bit: u8) -> Vec<bool> {
        self.traits.iter().map(|traits| traits & bit != 0).collect()
    }

    /// Locates each counted token.
    pub(super) fn locations(&self) -> impl Iterator<Item = TokenLocation> {
        let runs = self.counted.iter();
        let windows = runs.flat_map(|run| repeat_n(run.piece.window, run.n));
        let tokens = windows.zip(&self.position).zip(&self.token);
        tokens.map(|((window, position), token)| TokenLocation {
            window,
            position: *position,
            token: Some(*token).filter(|token| *token != u32::MAX),
        })
    }
}
