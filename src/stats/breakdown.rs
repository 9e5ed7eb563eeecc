//! Where a model's KLD comes from: by the reference's confidence, position, group, special tokens.

use kl_formats::sidecar::TokenRecord;
use serde::Serialize;

use super::cluster::{ClusterRule, Clusters};
use super::clustered_mean::ClusteredMean;
use super::estimate::{Confidence, Estimate, finite};
use super::exclusion::is_counted;
use super::mean::Sum;

/// The edges of the bins by the reference's top-1 probability.
const CONFIDENCE_EDGES: [f64; 4] = [0.25, 0.5, 0.75, 0.95];

/// The mean KLD of parts of the counted tokens.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Breakdown {
    /// By the probability of the reference's top token. Empty where no token counts.
    pub by_confidence: Vec<Bin>,
    /// By position in the window, in powers of two: 0, 1, 2–3, 4–7 and so on.
    pub by_position: Vec<Bin>,
    /// By group; empty without groups.
    pub by_group: Vec<Bin>,
    /// Positions whose next token is a special one, and the others; empty if none is.
    pub special: Vec<Bin>,
}

/// Some of the counted tokens.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Bin {
    /// What the tokens have in common, in words.
    pub label: String,
    /// The smallest value of a token in the bin; `None` where that has no number or no end.
    pub from: Option<f64>,
    /// The value that all tokens stay below; `None` where that has no number or no end.
    pub to: Option<f64>,
    /// How many tokens the bin has.
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
    /// Sorts the counted ones among `records` into bins. `group_names[i]` is group `i`'s; empty
    /// without groups.
    pub fn of(
        records: &[TokenRecord],
        group_names: &[String],
        confidence: Confidence,
        rule: ClusterRule,
    ) -> Self {
        let counted: Vec<&TokenRecord> = records.iter().filter(|r| is_counted(r)).collect();
        let klds = counted.iter().map(|record| record.kld);
        let tokens = Tokens {
            sum: klds.filter(|kld| kld.is_finite()).collect::<Sum>().value(),
            counted,
            clusters: Clusters::of_records(records, rule),
            confidence,
        };
        Self {
            by_confidence: tokens.by_confidence(),
            by_position: tokens.by_position(),
            by_group: tokens.by_group(group_names),
            special: tokens.special(),
        }
    }
}

/// The tokens that are sorted into bins.
struct Tokens<'r> {
    counted: Vec<&'r TokenRecord>,
    /// The sum of all finite KLDs.
    sum: f64,
    clusters: Clusters,
    confidence: Confidence,
}

impl<'r> Tokens<'r> {
    fn by_confidence(&self) -> Vec<Bin> {
        if self.counted.is_empty() {
            return Vec::new();
        }
        let percent = |p: f64| format!("{:.0}", 100.0 * p);
        let starts = std::iter::once(None).chain(CONFIDENCE_EDGES.map(Some));
        let ends = CONFIDENCE_EDGES.map(Some).into_iter().chain([None]);
        let edges = starts.zip(ends);
        let bins = self.sorted(CONFIDENCE_EDGES.len() + 1, |record| {
            Some(CONFIDENCE_EDGES.partition_point(|edge| *edge <= record.ref_top_p))
        });
        let bins = edges.zip(bins).map(|((from, to), inside)| {
            let label = match (from, to) {
                (Some(from), Some(to)) => format!("{} to {} %", percent(from), percent(to)),
                (Some(from), None) => format!("{} % and above", percent(from)),
                (None, to) => format!("below {} %", percent(to.unwrap_or(1.0))),
            };
            self.bin(label, (from, to), inside)
        });
        bins.collect()
    }

    fn by_position(&self) -> Vec<Bin> {
        let powers = self.sorted(u32::BITS as usize + 1, |record| {
            Some((u32::BITS - record.position.leading_zeros()) as usize)
        });
        let powers = (0_u32..).zip(powers);
        let bins = powers.filter(|(_, inside)| !inside.is_empty());
        let bins = bins.map(|(power, inside)| {
            let (from, to) = match power {
                0 => (0, 1),
                power => (1_u64 << (power - 1), 1_u64 << power),
            };
            let label = match to - 1 {
                last if last == from => from.to_string(),
                last => format!("{from}–{last}"),
            };
            self.bin(label, (Some(from as f64), Some(to as f64)), inside)
        });
        bins.collect()
    }

    fn by_group(&self, names: &[String]) -> Vec<Bin> {
        let bins = self.sorted(names.len(), |record| Some(record.group as usize));
        let bins = names.iter().zip(bins);
        bins.map(|(name, inside)| self.bin(name.clone(), (None, None), inside))
            .collect()
    }

    fn special(&self) -> Vec<Bin> {
        if !self.counted.iter().any(|record| record.is_special()) {
            return Vec::new();
        }
        let bins = self.sorted(2, |record| Some(usize::from(!record.is_special())));
        let bins = ["special tokens", "other tokens"].into_iter().zip(bins);
        bins.map(|(label, inside)| self.bin(label.to_owned(), (None, None), inside))
            .collect()
    }

    /// The tokens of each of `n` bins; a token without a bin is in none.
    fn sorted(
        &self,
        n: usize,
        bin_of: impl Fn(&TokenRecord) -> Option<usize>,
    ) -> Vec<Vec<&'r TokenRecord>> {
        let mut bins = vec![Vec::new(); n];
        for &record in &self.counted {
            if let Some(bin) = bin_of(record).and_then(|bin| bins.get_mut(bin)) {
                bin.push(record);
            }
        }
        bins
    }

    fn bin(
        &self,
        label: String,
        (from, to): (Option<f64>, Option<f64>),
        mut inside: Vec<&TokenRecord>,
    ) -> Bin {
        let n_tokens = inside.len();
        let same_top = inside.iter().filter(|r| r.ref_top == r.eval_top).count();
        inside.retain(|record| record.kld.is_finite());
        let klds: Vec<f64> = inside.iter().map(|record| record.kld).collect();
        let sum = klds.iter().copied().collect::<Sum>().value();
        let numbers = self.clusters.of_each(&inside);
        let mean = ClusteredMean::of_non_negative(&numbers, &klds, self.confidence);
        Bin {
            label,
            from,
            to,
            n_tokens: n_tokens as u64,
            n_infinite: (n_tokens - klds.len()) as u64,
            kld: mean.map(|mean| Estimate {
                value: mean.estimate.value,
                lo: mean.clustered.lo,
                hi: mean.clustered.hi,
            }),
            share_of_kld: finite(sum / self.sum),
            agreement: finite(same_top as f64 / n_tokens as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Summary;
    use super::super::oracle::records;
    use super::*;

    fn breakdown(records: &[TokenRecord], groups: &[&str]) -> Breakdown {
        let names: Vec<String> = groups.iter().map(|name| (*name).to_owned()).collect();
        let (confidence, rule) = (Confidence::default(), ClusterRule::Auto);
        Breakdown::of(records, &names, confidence, rule)
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
        let summary = Summary::from_records(&records, Confidence::default(), ClusterRule::Auto);
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
