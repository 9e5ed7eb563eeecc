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
const NOTABLE: f64 = 0.1;

/// The bits per weight of a file, and the mean KLD in nats, of which most may be rounding. Of the quants of four
/// models that were measured (docs/READING.md), `q8_0` and `q6_K` lie there, at 50 to 77 % of rounding, and below
/// these bits rounding is 14 % at most.
const MOSTLY_ROUNDED_BPW: RangeInclusive<f64> = 6.4..=15.0;
const MOSTLY_ROUNDED_KLD: f64 = 0.012;

/// A model as its file is, and with its weights dequantized.
pub(super) struct Rounding<'c> {
    file: &'c ComparedModel,
    weights: &'c ComparedModel,
    /// The share of the file's KLD that is rounding: below 0 where rounding brings it nearer to the original.
    share: Estimate,
}

/// The share that the first of two models has more than the second, by the ratio of their mean KLDs.
fn share(of: Ratio) -> Estimate {
    let share = |ratio: f64| 1.0 - 1.0 / ratio;
    Estimate {
        value: share(of.value),
        lo: of.lo.map(share),
        hi: of.hi.map(share),
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
        let pairs = self.pairs_of(PairKind::Weights).into_iter();
        let both = pairs.filter_map(|pair| {
            Some(Rounding {
                file: model(&pair.a)?,
                weights: model(&pair.b)?,
                share: pair.paired.ratio.filter(|of| of.value > 0.0).map(share)?,
            })
        });
        both.collect()
    }

    /// Says of the models that are mostly rounding's, the nearest ones first, what is not their files'.
    pub(super) fn rounding_sentence(
        &self,
        name: &dyn Fn(&ComparedModel) -> String,
    ) -> Option<String> {
        let mut notable = self.roundings();
        notable.retain(|of| of.share.lo.is_some_and(|lo| lo >= NOTABLE));
        let [first, others @ ..] = &*notable else {
            return None;
        };
        let kld = first.weights.mean_kld()?;
        let share = with_ends(percent_1(first.share.value), &first.share, points);
        let alone = with_ends(short_kld(kld.value), &kld, short_kld);
        let mut said = format!(
            "{}: {share} of its KLD is rounding in this machine's kernels; its weights alone are at {alone}",
            name(first.file),
        );
        if !others.is_empty() {
            let of_each = others.iter().map(|of| {
                let (model, share) = (name(of.file), percent_1(of.share.value));
                format!("{share} of {model}'s")
            });
            said += &format!(". So is {}", list(of_each.collect()));
        }
        Some(said + ".")
    }

    /// A row for each model that ran in both ways.
    pub(super) fn rounding_table(&self, name: ShownName<'_>) -> Table<Rounding<'_>> {
        let interval = &self.interval_title();
        let title = "What is rounding in kernels, by runs with dequantized weights";
        Table::new(title, self.roundings())
            .left("  \n  model", |of| format!("  {}", name(&of.file.label)))
            .estimate(
                ["weights\nalone", interval],
                |of| of.weights.mean_kld(),
                short_kld,
            )
            .estimate(["rounding\n%", interval], |of| Some(of.share), points)
    }

    /// True if most of a model's KLD may be rounding, and no run with dequantized weights shows how much.
    pub(super) fn may_be_rounding(&self, model: &ComparedModel) -> bool {
        let is_fine = model
            .model
            .bpw
            .is_some_and(|bpw| MOSTLY_ROUNDED_BPW.contains(&bpw));
        let mut pairs = self.pairs.iter();
        is_fine
            && model.set_up.weights.is_none()
            && model.is_candidate()
            && model
                .mean_kld()
                .is_some_and(|of| of.value < MOSTLY_ROUNDED_KLD)
            && !pairs.any(|pair| pair.kind == PairKind::Weights && pair.a == model.label)
    }
}
