//! The quant to run: [`Pick`], from which every output of `kl pick` is made. Its fields are the keys of the JSON.

pub mod early;
pub mod rule;
mod sentences;
#[cfg(test)]
mod tests;
mod text;

use std::path::Path;

use kl_stats::stats::Ratio;
use serde::Serialize;

use self::rule::{Candidate, Choice, Limits, NoPick};
use super::comparison::{ComparedModel, ComparedReference, Comparison, without_path};
use super::names::Names;
use super::result::{Interrupted, ModelResult, Versions};
use super::warning::Warning;

/// Several quants of a model, measured, and the one to run.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct Pick {
    /// The program that wrote the document, and the version of its keys.
    #[serde(flatten)]
    pub versions: Versions,
    /// The pick; null if none can be.
    pub pick: Option<Picked>,
    /// The reason why nothing was picked; absent if something was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_pick: Option<String>,
    /// What was not decided, and what the numbers do not show, a sentence each.
    pub undecided: Vec<String>,
    /// The tokens of the context that the quants must have memory for.
    pub context: u64,
    /// The bytes that a quant may take; null without a limit.
    pub memory_limit: Option<u64>,
    /// The mean KLD below which the pick's interval must end; null without a limit.
    pub max_kld: Option<f64>,
    /// The reference that the quants were evaluated against.
    pub reference: ComparedReference,
    /// True if the reference was written by the unquantized original; false if by the largest quant.
    pub is_original: bool,
    /// The quants, by ascending mean KLD; those without any come last.
    pub models: Vec<PickedModel>,
    /// Quants of many that were not measured to the end, since they cannot be the pick.
    pub stopped: Vec<StoppedModel>,
    /// Files that are not among them, and why.
    pub left_out: Vec<LeftOut>,
    /// Warnings to read before you trust the numbers.
    pub warnings: Vec<Warning>,
    /// The comparison that the pick is made of.
    #[serde(skip)]
    pub comparison: Comparison,
}

/// The quant to run.
#[derive(Serialize, Debug, Clone, PartialEq, Eq)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct Picked {
    /// Its label.
    pub label: String,
    /// Why it is this one, in sentences.
    pub reason: String,
}

/// A quant as a row of the table.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct PickedModel {
    /// Its place among all, and its result.
    #[serde(flatten)]
    pub model: ComparedModel,
    /// True if it takes no more than the memory, with the context.
    pub fits: bool,
    /// True if no other quant that fits is as near, as fast and as small.
    pub on_front: bool,
    /// True if it fits and is near enough: no other that fits is nearer by more than chance, or it is below the
    /// highest KLD.
    pub is_near_enough: bool,
}

/// A quant that was not measured to the end, since it cannot be the pick.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct StoppedModel {
    /// Its result, over the windows that it got through.
    #[serde(flatten)]
    pub result: ModelResult,
    /// How far it got, and why not farther.
    pub stopped: Interrupted,
}

/// A file that is not among the quants.
#[derive(Serialize, Debug, Clone, PartialEq, Eq)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct LeftOut {
    /// Its name.
    pub file: String,
    /// Why, in one line.
    pub why: String,
}

impl LeftOut {
    /// Leaves out the file at `path`. Where `why` starts with the path, as errors do, that is left out.
    pub fn new(path: &Path, why: &str) -> Self {
        let name = path.file_name().unwrap_or(path.as_os_str());
        Self {
            file: name.display().to_string(),
            why: without_path(path, why).to_owned(),
        }
    }
}

/// What a pick is made for.
#[derive(Debug, Clone, Copy)]
pub struct Wishes {
    /// The tokens of the context.
    pub context: u64,
    pub limits: Limits,
    /// True if the reference's model is the unquantized original.
    pub is_original: bool,
}

impl Pick {
    /// Picks one of the models of a comparison, in which every two were compared.
    pub fn new(
        comparison: Comparison,
        wishes: Wishes,
        mut stopped: Vec<StoppedModel>,
        mut left_out: Vec<LeftOut>,
    ) -> Self {
        let mean_kld = |of: &StoppedModel| {
            of.result
                .mean_kld()
                .map_or(f64::INFINITY, |mean| mean.value)
        };
        stopped.sort_by(|a, b| mean_kld(a).total_cmp(&mean_kld(b)));
        let not_compared = comparison.not_compared.iter();
        left_out.extend(not_compared.map(|of| LeftOut::new(Path::new(&of.sidecar), &of.why)));
        let limits = wishes.limits;
        let candidates: Vec<Candidate> = comparison.models.iter().map(candidate).collect();
        let is_nearer = |a: usize, b: usize| {
            let of = |place: usize| comparison.models.get(place);
            of(a)
                .zip(of(b))
                .is_some_and(|(a, b)| is_nearer(&comparison, a, b))
        };
        let outcome = rule::pick(&candidates, limits, is_nearer);
        let on_front = rule::front(&candidates, limits);
        let near = outcome
            .as_ref()
            .map_or(&[][..], |choice| choice.near.as_slice());
        let rows = comparison.models.iter().zip(&candidates).zip(&on_front);
        let models = rows
            .enumerate()
            .map(|(place, ((model, candidate), on_front))| PickedModel {
                model: model.clone(),
                fits: limits.are_kept_by(candidate),
                on_front: *on_front,
                is_near_enough: near.contains(&place),
            });
        let mut this = Self {
            versions: Versions::default(),
            pick: None,
            no_pick: None,
            undecided: Vec::new(),
            context: wishes.context,
            memory_limit: limits.memory,
            max_kld: limits.max_kld,
            reference: comparison.reference.clone(),
            is_original: wishes.is_original,
            models: models.collect(),
            stopped,
            left_out,
            warnings: comparison.warnings.clone(),
            comparison,
        };
        this.decide(outcome);
        this
    }

    /// Notes the outcome, and says why.
    fn decide(&mut self, outcome: Result<Choice, NoPick>) {
        match outcome {
            Err(why) => self.no_pick = Some(self.why_none(why)),
            Ok(choice) => {
                self.pick = self.models.get(choice.place).map(|picked| Picked {
                    label: picked.model.label.clone(),
                    reason: self.reason(&choice),
                });
                self.undecided = self.undecided_between(&choice);
            }
        }
        self.undecided.extend(self.what_is_hidden());
    }

    /// The names of all rows of the table, for lines of `width` columns.
    fn names(&self, width: usize) -> Names {
        let stopped = self.stopped.iter().map(|of| &*of.result.label);
        let labels = self.models.iter().map(|of| &*of.model.label).chain(stopped);
        Names::of(&Vec::from_iter(labels), width)
    }

    /// How many times as far the first model is as the second, on the same tokens.
    fn ratio(&self, a: usize, b: usize) -> Option<Ratio> {
        let label = |place: usize| Some(&self.models.get(place)?.model.label);
        ratio(&self.comparison, label(a)?, label(b)?)
    }

    /// The JSON of the pick.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn json(&self) -> serde_json::Result<String> {
        super::json_text(self)
    }

    /// The CSV of a comparison, with what the pick adds to each row.
    pub fn csv(&self) -> String {
        let picked = self.pick.as_ref().map(|pick| &pick.label);
        let mut more = self.models.iter().map(|of| {
            let is_pick = picked == Some(&of.model.label);
            format!(
                "{},{},{},{is_pick}",
                of.fits, of.on_front, of.is_near_enough
            )
        });
        let csv = self.comparison.csv();
        let lines = csv.lines().enumerate().map(|(i, line)| match i {
            0 => format!("{line},fits,on_front,is_near_enough,is_pick\n"),
            _ => format!("{line},{}\n", more.next().unwrap_or_default()),
        });
        lines.collect()
    }
}

/// What the rules look at in a model.
fn candidate(model: &ComparedModel) -> Candidate {
    let mean = model.mean_kld().filter(|_| model.is_candidate());
    Candidate {
        kld: mean.map(|mean| mean.value),
        upper: mean.and_then(|mean| mean.hi),
        generation: model.speed.map(|speed| speed.generation),
        memory: model.memory.map(|memory| memory.bytes()),
    }
}

/// True if the data show that `a` is nearer than `b`, allowing for the number of all that were measured: so a limit,
/// which leaves some of them out, does not move it. What is as near as can be measured is as near as any.
fn is_nearer(comparison: &Comparison, a: &ComparedModel, b: &ComparedModel) -> bool {
    let n_others = comparison
        .models
        .iter()
        .filter(|model| model.is_candidate())
        .count()
        .saturating_sub(1);
    let Some(ratio) = ratio(comparison, &b.label, &a.label) else {
        return false;
    };
    let p = ratio.p.map(|p| p * n_others as f64);
    let is_significant = p.is_some_and(|p| p < comparison.confidence.outside());
    ratio.value > 1.0 && is_significant && !comparison.is_noise(b)
}

/// How many times as far the model of label `a` is as that of label `b`; `None` if they were not compared.
fn ratio(comparison: &Comparison, a: &str, b: &str) -> Option<Ratio> {
    let pair_of = |a: &str, b: &str| {
        let mut pairs = comparison.pairs.iter();
        pairs.find(|pair| pair.a == a && pair.b == b)?.paired.ratio
    };
    let turned = || {
        let ratio = pair_of(b, a)?;
        Some(Ratio {
            value: 1.0 / ratio.value,
            lo: ratio.hi.map(f64::recip),
            hi: ratio.lo.map(f64::recip),
            upper: None,
            ..ratio
        })
    };
    pair_of(a, b).or_else(turned)
}
