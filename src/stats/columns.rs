//! The tokens of an evaluation in columns: what its statistics need of each, from its records in
//! one pass.

use kl_formats::sidecar::TokenRecord;

use super::breakdown::confidence_bin;
use super::cluster::Clusters;
use super::cluster::WindowMeans;
use super::delta_p::delta_p;
use super::distribution::TokenLocation;
use super::exclusion::{ExcludedToken, ExclusionReason};
use super::strata::Cluster;
use super::summary::UnknownWeights;

/// A broken model may give no finite row at all: list enough of them to look into, not all.
pub(super) const MAX_EXCLUDED_LISTED: usize = 100;

/// The counted tokens of an evaluation, in the order of its records. They need half the memory that
/// records do.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    /// The adjacent records of each window.
    pub(super) runs: Vec<Run>,
    /// KL(reference ‖ model) of each counted token, in nats.
    pub(super) kld: Vec<f64>,
    /// KL(model ‖ reference).
    pub(super) reverse_kld: Vec<f64>,
    pub(super) position: Vec<u32>,
    /// The actual next token; `u32::MAX`: none.
    token: Vec<u32>,
    /// The bits of [`Columns::SAME_TOP`] and those after it.
    traits: Vec<u8>,
    /// The bin of the reference's top probability.
    pub(super) confidence_bin: Vec<u8>,
    /// The NLLs of each next token whose probability is known and not 0, and its change.
    pub(super) ref_nll: Vec<f64>,
    pub(super) eval_nll: Vec<f64>,
    pub(super) delta_p: Vec<f64>,
    pub(super) n_nll_infinite: u64,
    pub(super) n_nll_unknown: u64,
    pub(super) unknown_p: UnknownWeights,
    /// The first tokens that are not counted.
    pub(super) excluded: Vec<ExcludedToken>,
    /// The indices of all records that are not counted.
    not_counted: Vec<usize>,
}

/// Adjacent records of one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub window: u32,
    /// The window's group; 0 without groups.
    pub group: u32,
    /// The number of records.
    pub n_records: usize,
    /// The counted ones that come before them, and those among them.
    start: usize,
    pub(super) n_counted: usize,
}

impl Run {
    /// `n` records of a window, all of which are counted.
    pub fn of(window: u32, n: usize) -> Self {
        Self {
            window,
            group: 0,
            n_records: n,
            start: 0,
            n_counted: n,
        }
    }
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
        let which = ExclusionReason::of(record);
        let n_counted = usize::from(which.is_none());
        match self.runs.last_mut() {
            Some(run) if (run.window, run.group) == (record.window, record.group) => {
                run.n_records += 1;
                run.n_counted += n_counted;
            }
            _ => self.runs.push(Run {
                window: record.window,
                group: record.group,
                n_records: 1,
                start: self.kld.len(),
                n_counted,
            }),
        }
        let Some(which) = which else {
            self.push_counted(record);
            return;
        };
        self.not_counted.push(self.n_records());
        if self.excluded.len() < MAX_EXCLUDED_LISTED {
            self.excluded.push(ExcludedToken {
                window: record.window,
                position: record.position,
                which,
            });
        }
    }

    fn push_counted(&mut self, record: &TokenRecord) {
        self.kld.push(record.kld);
        self.reverse_kld.push(record.reverse_kld);
        self.position.push(record.position);
        self.token.push(record.token);
        self.confidence_bin.push(confidence_bin(record.ref_top_p));
        self.unknown_p.push(record.ref_unknown_p);
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

    /// The number of records.
    pub fn n_records(&self) -> usize {
        self.kld.len() + self.not_counted.len()
    }

    /// The records' windows, in order.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    pub(super) fn n_counted(&self) -> usize {
        self.kld.len()
    }

    pub(super) fn n_excluded(&self) -> usize {
        self.not_counted.len()
    }

    /// Marks the counted tokens that have a trait.
    pub(super) fn with(&self, bit: u8) -> Vec<bool> {
        self.traits.iter().map(|traits| traits & bit != 0).collect()
    }

    /// Where the `index`-th counted token is.
    pub(super) fn location(&self, index: usize) -> TokenLocation {
        let next = self.runs.partition_point(|run| run.start <= index);
        TokenLocation {
            window: self.runs[next - 1].window,
            position: self.position[index],
            token: Some(self.token[index]).filter(|token| *token != u32::MAX),
        }
    }

    /// The means of the windows' KLDs.
    pub(super) fn window_means(&self) -> WindowMeans {
        let windows = self.runs.iter().filter(|run| run.n_counted > 0);
        let windows = windows.flat_map(|run| std::iter::repeat_n(run, run.n_counted));
        let tokens = windows.zip(&self.kld);
        WindowMeans::of(tokens.map(|(run, kld)| (run.window, run.group, *kld)))
    }

    /// Each counted token's cluster.
    pub(super) fn clusters(&self, clusters: &Clusters) -> Vec<Cluster> {
        let mut of_each = Vec::with_capacity(self.n_counted());
        for run in &self.runs {
            let end = of_each.len() + run.n_counted;
            of_each.resize(end, clusters.of_window(run.window));
        }
        of_each
    }

    /// The KLD of each record, counted or not: NaN where no statistic counts it, or where it is
    /// infinite.
    pub fn into_klds(mut self) -> Vec<f64> {
        for kld in self.kld.iter_mut().filter(|kld| !kld.is_finite()) {
            *kld = f64::NAN;
        }
        if self.not_counted.is_empty() {
            return self.kld;
        }
        let mut klds = vec![0.0; self.n_records()];
        for index in self.not_counted {
            klds[index] = f64::NAN;
        }
        let counted = klds.iter_mut().filter(|kld| !kld.is_nan());
        counted.zip(self.kld).for_each(|(to, kld)| *to = kld);
        klds
    }
}
