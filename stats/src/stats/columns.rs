//! The tokens of an evaluation in columns: what its statistics need of each, from its records in
//! one pass.

use std::iter::repeat_n;

use kl_formats::TokenRecord;

use super::mean::MeanMaxSoFar;
use super::token::{ExcludedToken, ExclusionReason, TokenLocation, delta_p, is_counted};

/// Positions in a piece of a window. The parts that a long window may be divided into are of whole
/// pieces, so the sums of pieces are all that is kept of its tokens to choose them.
pub(super) const PIECE: u32 = 256;

/// Adjacent tokens of one piece of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub window: u32,
    /// The window's group; 0 without groups.
    pub group: u32,
    /// The piece: its tokens are at positions from `piece` times 256 on.
    pub piece: u32,
    /// The number of tokens.
    pub n: usize,
}

impl Run {
    /// Adds the next token to `runs`: its window, its group and its position.
    pub fn add(runs: &mut Vec<Self>, window: u32, group: u32, position: u32) {
        let piece = position / PIECE;
        match runs.last_mut() {
            Some(run) if (run.window, run.group, run.piece) == (window, group, piece) => run.n += 1,
            _ => runs.push(Self {
                window,
                group,
                piece,
                n: 1,
            }),
        }
    }

    /// The runs of records.
    pub fn of<'r>(records: impl IntoIterator<Item = &'r TokenRecord>) -> Vec<Self> {
        let mut runs = Vec::new();
        for record in records {
            Self::add(&mut runs, record.window, record.group, record.position);
        }
        runs
    }

    /// The runs of tokens of short windows, each with its window and its group.
    pub fn of_each(tokens: impl IntoIterator<Item = (u32, u32)>) -> Vec<Self> {
        let mut runs = Vec::new();
        for (window, group) in tokens {
            Self::add(&mut runs, window, group, 0);
        }
        runs
    }
}

/// The span of each of some tokens, in their order: its index among the spans' names. Adjacent tokens
/// mostly share one, and take no memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenSpans(Vec<(u32, usize)>);

impl TokenSpans {
    /// Adds the next token.
    pub fn push(&mut self, span: u32) {
        match self.0.last_mut() {
            Some((last, n)) if *last == span => *n += 1,
            _ => self.0.push((span, 1)),
        }
    }

    /// The span of each token.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().flat_map(|(span, n)| repeat_n(*span, *n))
    }
}

impl FromIterator<u32> for TokenSpans {
    fn from_iter<I: IntoIterator<Item = u32>>(spans: I) -> Self {
        let mut of_tokens = Self::default();
        spans.into_iter().for_each(|span| of_tokens.push(span));
        of_tokens
    }
}

/// The names of parts of the tokens, by the numbers that records have for them.
#[derive(Clone, Copy, Debug, Default)]
pub struct PartNames<'n> {
    /// The names of groups; empty without groups.
    pub groups: &'n [String],
    /// The names of spans; empty without spans.
    pub spans: &'n [String],
}

/// The greedy answers of an evaluation, one for each window that has one.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers(pub(super) Vec<Answer>);

/// A greedy answer of the reference's model, and the first token that the evaluated model would have
/// chosen otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Answer {
    /// Its window.
    pub(super) window: u32,
    /// The position of the next record, if it is the answer's.
    next_position: u32,
    pub(super) n_tokens: u32,
    /// The number of the first token that differs, from 1.
    pub(super) differs_at: Option<u32>,
    /// The reference's model ended it: it was not cut.
    pub(super) has_ended: bool,
    /// Two tokens are so nearly tied that the reference's own row, computed in another batch or stored in
    /// 16 bits, chooses another one than its answer.
    pub(super) has_near_tie: bool,
    /// Before any token differs, a row is missing or not finite.
    pub(super) is_unknown: bool,
}

impl Answers {
    /// Adds a record. Those of a window come in the order of its positions.
    pub fn push(&mut self, record: &TokenRecord) {
        let Some(token) = record.next_token().filter(|_| record.is_greedy()) else {
            return;
        };
        let is_new = |last: &Answer| last.window != record.window;
        if self.0.last().is_none_or(is_new) {
            self.0.push(Answer {
                window: record.window,
                next_position: record.position,
                ..Answer::default()
            });
        }
        let Some(answer) = self.0.last_mut().filter(|answer| !answer.has_ended) else {
            return;
        };
        answer.n_tokens += 1;
        answer.has_ended = record.ends_answer();
        let is_known = record.position == answer.next_position && is_counted(record);
        answer.has_near_tie |= is_known && record.ref_top != token;
        answer.next_position = record.position.saturating_add(1);
        if answer.differs_at.is_none() {
            answer.is_unknown |= !is_known;
            answer.differs_at = (record.eval_top != token).then_some(answer.n_tokens);
        }
    }
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
    /// The spans of all records.
    pub spans: TokenSpans,
    /// The counted tokens.
    pub(super) counted: Vec<Run>,
    /// The spans of the counted tokens.
    pub(super) counted_spans: TokenSpans,
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
    /// The indices of all records that are not counted.
    pub(super) not_counted: Vec<usize>,
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
        Self {
            kld: Vec::with_capacity(n),
            reverse_kld: Vec::with_capacity(n),
            acceptance: Vec::with_capacity(n),
            position: Vec::with_capacity(n),
            token: Vec::with_capacity(n),
            traits: Vec::with_capacity(n),
            confidence_bin: Vec::with_capacity(n),
            ref_nll: Vec::with_capacity(n),
            eval_nll: Vec::with_capacity(n),
            delta_p: Vec::with_capacity(n),
            ..Self::default()
        }
    }

    /// Adds a record.
    pub fn push(&mut self, record: &TokenRecord) {
        let (window, group, position) = (record.window, record.group, record.position);
        let index = self.kld.len() + self.not_counted.len();
        Run::add(&mut self.runs, window, group, position);
        self.spans.push(record.span);
        self.answers.push(record);
        let Some(which) = ExclusionReason::of(record) else {
            Run::add(&mut self.counted, window, group, position);
            self.counted_spans.push(record.span);
            self.push_counted(record);
            return;
        };
        self.not_counted.push(index);
        if self.excluded.len() < MAX_EXCLUDED_LISTED {
            self.excluded.push(ExcludedToken {
                window,
                position,
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
        let windows = runs.flat_map(|run| repeat_n(run.window, run.n));
        let tokens = windows.zip(&self.position).zip(&self.token);
        tokens.map(|((window, position), token)| TokenLocation {
            window,
            position: *position,
            token: Some(*token).filter(|token| *token != u32::MAX),
        })
    }

    /// The KLD of each record, counted or not: NaN where no statistic counts it, or where it is
    /// infinite.
    pub fn into_klds(self) -> Vec<f64> {
        let n_records = self.kld.len() + self.not_counted.len();
        let mut counted = self.kld.into_iter();
        let mut not_counted = self.not_counted.into_iter().peekable();
        let of_record = |index| match not_counted.next_if_eq(&index) {
            Some(_) => f64::NAN,
            None => counted.next().filter(|x| x.is_finite()).unwrap_or(f64::NAN),
        };
        (0..n_records).map(of_record).collect()
    }
}
