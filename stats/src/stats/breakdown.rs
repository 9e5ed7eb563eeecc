//! Where a model's KLD comes from: by the reference's confidence, position, group, span,
//! special tokens.

use serde::Serialize;

use super::cluster::Cluster;
use super::clustered::ClusteredMean;
use super::columns::{CONFIDENCE_EDGES, Columns, PartNames};
use super::estimate::{Confidence, Estimate, finite};
use super::mean::Sum;

/// The mean of fewer tokens than this is a hint, no more: their KLDs differ by orders of magnitude,
/// and reports mark such a bin.
pub const FEW_TOKENS: u64 = 1000;

/// The mean KLD of parts of the counted tokens.
#[derive(Serialize, Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Breakdown {
    /// By the probability of the reference's top token. Empty where no token counts.
    pub by_confidence: Vec<Bin>,
    /// By position in the window, in powers of two: 0, 1, 2–3, 4–7 and so on.
    pub by_position: Vec<Bin>,
    /// By group; empty without groups.
    pub by_group: Vec<Bin>,
    /// By span, a part of the prompt or of the answer; a span without tokens is left out. Empty without
    /// spans.
    pub by_span: Vec<Bin>,
    /// Positions whose next token is a special one, and the others; empty if none is.
    pub special: Vec<Bin>,
}

/// Some of the counted tokens.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Bin {
    /// The trait that the tokens share, in words.
    pub label: String,
    /// The smallest value of a token in the bin; `None` where that has no number or no end.
    pub from: Option<f64>,
    /// The value that all tokens stay below; `None` where that has no number or no end.
    pub to: Option<f64>,
    /// The number of tokens in the bin.
    pub n_tokens: u64,
    /// Tokens of the bin whose KLD is infinite, which are left out of the mean.
    pub n_infinite: u64,
    /// The mean KLD of the bin's tokens, with its clustered interval; `None` without tokens.
    pub kld: Option<Estimate>,
    /// The bin's sum of KLDs over that of all tokens; `None` where that is 0.
    pub share_of_kld: Option<f64>,
    /// The share of the bin's tokens on which both models have the same top token; `None` without
    /// tokens.
    pub agreement: Option<f64>,
}

impl Breakdown {
    /// Sorts the counted tokens into bins, the `i`-th of which is in cluster `clusters[i]`, and among
    /// the tokens of its depth in `by_depth[i]`.
    pub(super) fn of(
        columns: &Columns,
        clusters: &[Cluster],
        by_depth: &[Cluster],
        names: PartNames<'_>,
        confidence: Confidence,
    ) -> Self {
        let same_top = columns.with(Columns::SAME_TOP);
        let klds = columns.kld.iter().copied();
        let sum_of_all = klds.filter(|kld| kld.is_finite()).collect::<Sum>().value();
        // The tokens of each named bin; a token of a bin beyond these is in none.
        let bins_by = |clusters: &[Cluster], names: Vec<Name>, bin_of: &dyn Fn(usize) -> usize| {
            let mut bins = vec![Inside::default(); names.len()];
            for (token, &kld) in columns.kld.iter().enumerate() {
                if let Some(inside) = bins.get_mut(bin_of(token)) {
                    inside.push(kld, clusters[token], same_top[token]);
                }
            }
            let bins = names.into_iter().zip(bins);
            bins.map(|(name, inside)| inside.bin(name, sum_of_all, confidence))
                .collect::<Vec<Bin>>()
        };
        let bins = |names, bin_of: &dyn Fn(usize) -> usize| bins_by(clusters, names, bin_of);
        let without_ends = |label: &str| (label.to_owned(), None, None);
        let power = |token| (u32::BITS - u32::leading_zeros(columns.position[token])) as usize;
        let mut by_position = bins_by(by_depth, position_names(), &power);
        by_position.retain(|bin| bin.n_tokens > 0);
        let of_parts = |names: &[String]| names.iter().map(|name| without_ends(name)).collect();
        let spans = Vec::from_iter(columns.counted_spans.iter());
        let mut by_span = bins(of_parts(names.spans), &|token| spans[token] as usize);
        by_span.retain(|bin| bin.n_tokens > 0);
        let is_special = columns.with(Columns::SPECIAL);
        let special_names = match is_special.contains(&true) {
            true => ["special tokens", "other tokens"].map(without_ends).into(),
            false => Vec::new(),
        };
        Self {
            by_confidence: match columns.kld.is_empty() {
                true => Vec::new(),
                false => bins(confidence_names(), &|token| {
                    columns.confidence_bin[token].into()
                }),
            },
            by_position,
            by_group: bins(of_parts(names.groups), &|token| {
                clusters[token].stratum as usize
            }),
            by_span,
            special: bins(special_names, &|token| usize::from(!is_special[token])),
        }
    }
}

/// The label of a bin, and its ends.
type Name = (String, Option<f64>, Option<f64>);

fn confidence_names() -> Vec<Name> {
    let edges = [None].into_iter().chain(CONFIDENCE_EDGES.map(Some));
    let ends = CONFIDENCE_EDGES.map(Some).into_iter().chain([None]);
    let name = |(from, to): (Option<f64>, Option<f64>)| {
        let [low, high] = [from, to].map(|p| 100.0 * p.unwrap_or_default());
        let label = match (from, to) {
            (Some(_), Some(_)) => format!("{low:.0} to {high:.0} %"),
            (Some(_), None) => format!("{low:.0} % and above"),
            (None, _) => format!("below {high:.0} %"),
        };
        (label, from, to)
    };
    edges.zip(ends).map(name).collect()
}

fn position_names() -> Vec<Name> {
    let name = |power: u32| {
        let (from, to) = ((1_u64 << power) >> 1, 1_u64 << power);
        let label = match to - 1 {
            last if last == from => from.to_string(),
            last => format!("{from}–{last}"),
        };
        (label, Some(from as f64), Some(to as f64))
    };
    (0..=u32::BITS).map(name).collect()
}

/// The tokens of a bin.
#[derive(Clone, Default)]
struct Inside {
    n: usize,
    n_same_top: usize,
    /// The finite KLDs, and their clusters.
    klds: Vec<f64>,
    clusters: Vec<Cluster>,
}

impl Inside {
    fn push(&mut self, kld: f64, cluster: Cluster, same_top: bool) {
        self.n += 1;
        self.n_same_top += usize::from(same_top);
        if kld.is_finite() {
            self.klds.push(kld);
            self.clusters.push(cluster);
        }
    }

    fn bin(self, (label, from, to): Name, sum_of_all: f64, confidence: Confidence) -> Bin {
        let mean = ClusteredMean::of_positive(&self.clusters, &self.klds, confidence);
        let kld = mean.map(|mean| mean.by_cluster());
        let n_finite = self.klds.len();
        let sum: Sum = self.klds.iter().copied().collect();
        Bin {
            label,
            from,
            to,
            n_tokens: self.n as u64,
            n_infinite: (self.n - n_finite) as u64,
            kld,
            share_of_kld: finite(sum.value() / sum_of_all),
            agreement: finite(self.n_same_top as f64 / self.n as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use kl_formats::TokenRecord;

    use super::*;
    use crate::stats::oracle::{records, statistics, summary};
    use crate::stats::{ClusterRule, Tokens};

    fn breakdown(records: &[TokenRecord], groups: &[&str]) -> Breakdown {
        let names: Vec<String> = groups.iter().map(|name| (*name).to_owned()).collect();
        statistics(records, &names, ClusterRule::Auto).breakdown
    }

    /// Spans that no token is in are left out, and so are tokens of a span without a name.
    #[test]
    fn spans_with_tokens_are_bins() {
        let mut records = records();
        for (i, record) in records.iter_mut().enumerate() {
            (record.flags, record.span) = (0, [1, 3, 3, 4][i % 4]);
        }
        let names = ["prompt", "answer", "reasoning", "code"].map(str::to_owned);
        let spans = PartNames {
            spans: &names,
            ..PartNames::default()
        };
        let columns = Columns::of(&records);
        let rule = ClusterRule::Window;
        let tokens = Tokens::of(&columns);
        let (_, of) = tokens.summarise_by(rule, spans, Confidence::default());
        let mean = |of_span: usize| {
            let tokens = records.iter().skip(of_span).step_by(4);
            let klds: Vec<f64> = tokens.map(|record| record.kld).collect();
            klds.iter().sum::<f64>() / klds.len() as f64
        };
        let [answer, code] = of.by_span.as_slice() else {
            panic!("{:?}", of.by_span);
        };
        assert_eq!(
            (answer.label.as_str(), code.label.as_str()),
            ("answer", "code")
        );
        assert_eq!(answer.n_tokens * 2, code.n_tokens);
        let both = (mean(1) + mean(2)) / 2.0;
        for (bin, expected) in [(answer, mean(0)), (code, both)] {
            assert!((bin.kld.unwrap().value - expected).abs() < 1e-12);
        }
        assert!(breakdown(&records, &[]).by_span.is_empty());
    }

    /// `tests/check_report_with_numpy.py` checks the numbers of real sidecars.
    #[test]
    fn each_way_divides_all_tokens() {
        let mut records = records();
        for (i, record) in records.iter_mut().enumerate() {
            record.ref_top_p = i as f64 % 17.0 / 16.0;
            record.group = record.window / 20;
            record.flags |= match i % 50 {
                9 => TokenRecord::NEXT_IS_SPECIAL,
                _ => 0,
            };
        }
        records[3].kld = f64::INFINITY;
        let of = breakdown(&records, &["wiki", "code"]);
        let summary = summary(&records, ClusterRule::Auto);
        for bins in [
            &of.by_confidence,
            &of.by_position,
            &of.by_group,
            &of.special,
        ] {
            let n: u64 = bins.iter().map(|bin| bin.n_tokens).sum();
            let n_infinite: u64 = bins.iter().map(|bin| bin.n_infinite).sum();
            let share: f64 = bins.iter().filter_map(|bin| bin.share_of_kld).sum();
            assert_eq!((n, n_infinite), (summary.n_tokens, 1));
            assert!((share - 1.0).abs() < 1e-12);
        }
        let labels =
            |bins: &[Bin]| -> Vec<String> { bins.iter().map(|bin| bin.label.clone()).collect() };
        assert_eq!(
            labels(&of.by_confidence),
            [
                "below 25 %",
                "25 to 50 %",
                "50 to 75 %",
                "75 to 95 %",
                "95 % and above"
            ]
        );
        assert_eq!(
            labels(&of.by_position),
            ["0", "1", "2–3", "4–7", "8–15", "16–31", "32–63"]
        );
        assert_eq!(labels(&of.by_group), ["wiki", "code"]);
        let last = of.by_position.last().unwrap();
        assert_eq!((last.from, last.to), (Some(32.0), Some(64.0)));
    }

    /// An edge belongs to the bin above it.
    #[test]
    fn a_bin_holds_its_lower_edge() {
        let mut records = records();
        records.truncate(4);
        for (record, p) in records.iter_mut().zip([0.25, 0.5, 0.95, 1.0]) {
            (record.ref_top_p, record.flags) = (p, 0);
        }
        let n: Vec<u64> = breakdown(&records, &[])
            .by_confidence
            .iter()
            .map(|bin| bin.n_tokens)
            .collect();
        assert_eq!(n, [0, 1, 1, 0, 2]);
    }

    #[test]
    fn what_is_not_known_is_absent() {
        let mut records = records();
        let of = breakdown(&records, &[]);
        assert!(of.by_group.is_empty() && of.special.is_empty());
        let none = breakdown(&[], &["wiki"]);
        assert!(none.by_confidence.is_empty());
        assert_eq!((none.by_group[0].n_tokens, none.by_group[0].kld), (0, None));
        for record in &mut records {
            record.kld = 0.0;
        }
        let zeros = breakdown(&records, &[]);
        assert!(
            zeros
                .by_position
                .iter()
                .all(|bin| bin.share_of_kld.is_none())
        );
    }
}
