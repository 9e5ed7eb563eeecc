//! The part of a quant's KLD that is not its weights': what kernels for quantized weights round, where the same
//! model ran with its weights dequantized too.

use std::ops::RangeInclusive;

use kl_stats::stats::{Estimate, Ratio};

use super::tables::ShownName;
use super::{ComparedModel, Comparison, PairKind};
use crate::layout::list;
use crate::number::{percent_1, short_kld, with_ends};
use crate::table::Table;

/// The share of rounding from which a sentence tells of it.
const NOTABLE_SHARE: f64 = 0.1;

/// The bits per weight of a file, and the mean KLD in nats, of which most may be rounding. Of the quants of four
/// models that were measured (docs/READING.md), `q8_0` and `q6_K` lie there, at 50 to 77 % of rounding, and below
/// these bits rounding is 14 % at most.
const MOSTLY_ROUNDED_BPW: RangeInclusive<f64> = 6.4..=15.0;
const MOSTLY_ROUNDED_KLD: f64 = 0.012;

/// A model that ran as its file is, and with its weights dequantized.
pub(super) struct Rounding<'c> {
    file: &'c ComparedModel,
    weights: &'c ComparedModel,
    /// The share of the file's KLD that is rounding: below 0 where rounding brings it nearer to the original.
    share: Estimate,
}

/// The share of the first of two models' mean KLDs that the second does not have, by their ratio.
fn excess_share(ratio: Ratio) -> Estimate {
    let share = |ratio: f64| 1.0 - 1.0 / ratio;
    Estimate {
        value: share(ratio.value),
        lo: ratio.lo.map(share),
        hi: ratio.hi.map(share),
    }
}

/// A share in percent, without the sign.
fn points(share: f64) -> String {
    format!("{:.1}", 100.0 * share)
}

impl Comparison {
    /// The models that ran in both ways, by ascending mean KLD.
    pub(super) fn roundings(&self) -> Vec<Rounding<'_>> {
        let model = |label: &str| self.models.iter().find(|model| model.label == label);
        self.pairs_of(PairKind::Weights)
            .into_iter()
            .filter_map(|pair| {
                let ratio = pair.paired.ratio.filter(|ratio| ratio.value > 0.0)?;
                Some(Rounding {
                    file: model(&pair.a)?,
                    weights: model(&pair.b)?,
                    share: excess_share(ratio),
                })
            })
            .collect()
    }

    /// Says how much of a KLD is rounding, not the loss of the weights, for the models with a notable share of it, the
    /// nearest first.
    pub(super) fn rounding_sentence(
        &self,
        name: &dyn Fn(&ComparedModel) -> String,
    ) -> Option<String> {
        let mut notable = self.roundings();
        notable.retain(|rounding| rounding.share.lo.is_some_and(|lo| lo >= NOTABLE_SHARE));
        let [first, others @ ..] = &*notable else {
            return None;
        };
        let kld = first.weights.mean_kld()?;
        let share = with_ends(percent_1(first.share.value), &first.share, points);
        let weights_kld = with_ends(short_kld(kld.value), &kld, short_kld);
        let mut sentence = format!(
            "{}: {share} of its KLD is rounding in this machine's kernels; its weights alone are at {weights_kld}",
            name(first.file),
        );
        if !others.is_empty() {
            let shares = others.iter().map(|rounding| {
                let (model, share) = (name(rounding.file), percent_1(rounding.share.value));
                format!("{share} of {model}'s")
            });
            sentence += &format!(". So is {}", list(shares.collect()));
        }
        Some(sentence + ".")
    }

    /// A row for each model that ran in both ways.
    pub(super) fn rounding_table(&self, name: ShownName<'_>) -> Table<Rounding<'_>> {
        let interval = &self.interval_title();
        let title = "What is rounding in kernels, by runs with dequantized weights";
        Table::new(title, self.roundings())
            .left("  \n  model", |rounding| {
                format!("  {}", name(&rounding.file.label))
            })
            .estimate(
                ["weights\nalone", interval],
                |rounding| rounding.weights.mean_kld(),
                short_kld,
            )
            .estimate(
                ["rounding\n%", interval],
                |rounding| Some(rounding.share),
                points,
            )
    }

    /// True if most of a model's KLD may be rounding, and no run with dequantized weights shows how much.
    pub(super) fn may_be_rounding(&self, model: &ComparedModel) -> bool {
        let ran_dequantized = self
            .pairs
            .iter()
            .any(|pair| pair.kind == PairKind::Weights && pair.a == model.label);
        let is_of_many_bits = model
            .model
            .bpw
            .is_some_and(|bpw| MOSTLY_ROUNDED_BPW.contains(&bpw));
        is_of_many_bits
            && model.set_up.weights.is_none()
            && model.is_candidate()
            && model
                .mean_kld()
                .is_some_and(|mean| mean.value < MOSTLY_ROUNDED_KLD)
            && !ran_dequantized
    }
}
