//! Why it is this quant, in a few plain sentences.

use std::collections::BTreeSet;

use kl_formats::Pace;
use kl_stats::stats::{MIN_WINDOWS_TO_PLAN, Ratio};

use super::rule::{Choice, NoPick};
use super::{Pick, PickedModel};
use crate::comparison::same_kld;
use crate::layout::{WIDTH, list};
use crate::number::{bytes, count_of, is_or_are, printable, ratio, short_kld, short_percent};
use crate::speed::{is_uneven, was_busy};

impl Pick {
    /// The name of a model in a sentence.
    pub(super) fn name(&self, place: usize) -> String {
        let names = self.names(WIDTH);
        let label = self.models.get(place).map(|of| &*of.model.label);
        names.in_sentences()(label.unwrap_or_default())
    }

    /// What the models are distances from.
    fn original(&self) -> String {
        if self.is_original {
            return "the original".to_owned();
        }
        let model = self.reference.model.as_ref();
        let name = model.map(|model| printable(model.default_label()));
        name.unwrap_or_else(|| "the largest".to_owned())
    }

    /// As in `that fit 8.00 GiB with 8,192 tokens of context`, with this form of the verb.
    fn that(&self, fit: &str, were_measured: &str) -> String {
        let tokens = count_of(self.context, "token");
        match self.memory_limit {
            Some(limit) => format!("that {fit} {} with {tokens} of context", bytes(limit)),
            None => format!("that {were_measured}"),
        }
    }

    /// [`that`](Self::that) of several quants.
    fn that_fit(&self) -> String {
        self.that("fit", "were measured")
    }

    /// Why a quant was picked, and what others would give.
    pub(super) fn reason(&self, choice: &Choice) -> String {
        let (name, original, that_fit) =
            (self.name(choice.place), self.original(), self.that_fit());
        let max_kld = self.max_kld.map(short_kld);
        let why = match (max_kld, choice.near.len()) {
            // Those that stopped were found to be farther.
            _ if self.fitting().count() == 1 && self.stopped.is_empty() => {
                let fits = match self.models.len() {
                    1 => "was measured, and fits",
                    _ => "fits",
                };
                format!("it is the only quant {}.", self.that(fits, "was measured"))
            }
            (Some(max_kld), 1) => format!(
                "of the quants {that_fit}, it alone is surely nearer to {original} than {max_kld} nats."
            ),
            (Some(max_kld), _) => format!(
                "of the quants {that_fit}, it is the fastest of those that are surely nearer to {original} than {max_kld} nats."
            ),
            (None, 1) => format!(
                "of the quants {that_fit}, it is the nearest to {original}, by more than chance."
            ),
            (None, _) => format!(
                "of the quants {that_fit}, none is nearer to {original} by more than chance, and of those that are as near, it is the fastest."
            ),
        };
        let mut sentences = vec![format!("Pick {name}: {why}")];
        sentences.extend(self.faster_one(choice));
        sentences.extend(self.nearer_one(choice));
        sentences.join(" ")
    }

    /// The models that fit and were measured, with their places.
    fn fitting(&self) -> impl Iterator<Item = (usize, &PickedModel)> {
        let models = self.models.iter().enumerate();
        models.filter(|(_, of)| of.fits && of.model.is_candidate() && of.model.mean_kld().is_some())
    }

    fn generation(&self, place: usize) -> Option<Pace> {
        Some(self.models.get(place)?.model.speed?.generation)
    }

    /// What the nearest would give of those that are faster than any run of the pick.
    fn faster_one(&self, choice: &Choice) -> Option<String> {
        let own = self.generation(choice.place)?;
        let mut faster = self.fitting().filter_map(|(place, _)| {
            let speed = self.generation(place)?.tokens_per_s;
            (speed > own.hi && !choice.near.contains(&place)).then_some((place, speed))
        });
        // They come by ascending KLD.
        let (place, speed) = faster.next()?;
        let far = times_as_far(self.ratio(place, choice.place)?);
        let gain = short_percent((100.0 * (speed / own.tokens_per_s - 1.0)).round() / 100.0);
        let name = self.name(place);
        Some(format!("{name} is {gain} % faster and {far}."))
    }

    /// What the smallest of the nearer ones that do not fit would give.
    fn nearer_one(&self, choice: &Choice) -> Option<String> {
        let too_large = self.models.iter().enumerate().filter(|(_, of)| !of.fits);
        let nearer = too_large.filter_map(|(place, of)| {
            let memory = of.model.memory?.bytes();
            let times = self.ratio(place, choice.place)?;
            let is_nearer = times.hi.is_some_and(|hi| hi < 1.0);
            (of.model.is_candidate() && is_nearer).then_some((memory, place, times))
        });
        let (memory, place, times) = nearer.min_by_key(|(memory, ..)| *memory)?;
        let (name, far, memory) = (self.name(place), times_as_far(times), bytes(memory));
        Some(format!("{name}, {far}, needs {memory}."))
    }

    /// Why none was picked, and what to do.
    pub(super) fn why_none(&self, why: NoPick) -> String {
        let memory = |place: usize| {
            let memory = self.models.get(place).and_then(|of| of.model.memory);
            memory.map_or_else(|| "an unknown amount".to_owned(), |m| bytes(m.bytes()))
        };
        match why {
            NoPick::NoneMeasured => "No quant could be measured, so none is picked.".to_owned(),
            NoPick::NoneFits(smallest) => {
                let limit = self.memory_limit.map(bytes).unwrap_or_default();
                let tokens = count_of(self.context, "token");
                format!(
                    "No quant fits {limit} with {tokens} of context: the smallest, {}, takes {}. Use a shorter context (-c), smaller cache types (--cache-types), or smaller quants.",
                    self.name(smallest),
                    memory(smallest)
                )
            }
            NoPick::NoneBelow(nearest) => {
                let max_kld = self.max_kld.map(short_kld).unwrap_or_default();
                let mean = self.models.get(nearest).and_then(|of| of.model.mean_kld());
                let mean = mean.map_or_else(String::new, |mean| {
                    let upper = mean
                        .hi
                        .map_or_else(String::new, |hi| format!(", at most {}", short_kld(hi)));
                    format!(" ({}{upper})", short_kld(mean.value))
                });
                format!(
                    "No quant {} is surely below {max_kld} nats: the nearest is {}{mean}. Give a higher --max-kld, more memory, or more text.",
                    self.that_fit(),
                    self.name(nearest)
                )
            }
        }
    }

    /// Those of some models that have the KLDs of this one, which is the first of them in the table.
    fn copies_of(&self, first: usize, places: &[usize]) -> Vec<usize> {
        let of = |place: usize| self.models.get(place).map(|of| &of.model);
        let label = of(first).map(|first| &first.label);
        let is_copy = |place: usize| {
            let same_as = of(place).and_then(|copy| copy.same_as.as_ref());
            same_as.is_some() && same_as == label
        };
        let places = places.iter().copied();
        places.filter(|&place| is_copy(place)).collect()
    }

    /// What the evidence does not decide.
    pub(super) fn undecided_between(&self, choice: &Choice) -> Vec<String> {
        let mut sentences = Vec::new();
        let n_windows = self
            .models
            .get(choice.place)
            .map_or(0, |of| of.model.summary.n_windows);
        let mut copies = BTreeSet::new();
        for &first in &choice.near {
            let own = self.copies_of(first, &choice.near);
            if !own.is_empty() {
                let all = [first].into_iter().chain(own.iter().copied());
                let names = list(all.map(|place| self.name(place)).collect());
                sentences.push(same_kld(&names));
            }
            copies.extend(own);
        }
        let near = choice.near.iter().filter(|place| !copies.contains(place));
        let near: Vec<String> = near.map(|&place| self.name(place)).collect();
        if self.max_kld.is_none() && near.len() > 1 {
            let names = list(near);
            let windows = count_of(n_windows, self.reference.unit());
            let more = if n_windows < MIN_WINDOWS_TO_PLAN {
                ": more text may"
            } else {
                ""
            };
            let verb = if n_windows == 1 { "does" } else { "do" };
            sentences.push(format!(
                "{windows} {verb} not decide which of {names} is nearest{more}."
            ));
        }
        let equals = choice.fast.iter().filter(|&&place| place != choice.place);
        let equals = equals.filter(|place| !copies.contains(place));
        let equals: Vec<String> = equals.map(|&place| self.name(place)).collect();
        if self.generation(choice.place).is_none() {
            sentences.push("Speeds were not measured, so they do not count.".to_owned());
        } else if !equals.is_empty() {
            let verb = is_or_are(equals.len() as u64);
            let names = list(equals);
            sentences.push(format!(
                "{names} {verb} as fast, as far as the runs show: the nearest of them is picked."
            ));
        }
        let speeds = || self.models.iter().filter_map(|of| of.model.speed);
        if speeds().any(|speed| was_busy(&speed)) {
            sentences.push("Other work had the cores while models were timed: their speeds are too low, and may be in another order.".to_owned());
        } else {
            let n = speeds().filter(is_uneven).count();
            if n > 0 {
                let models = count_of(n as u64, "model");
                sentences.push(format!(
                    "The timed runs of {models} differ by a fifth or more: other work used the machine or its devices meanwhile, and the order of speeds may be another."
                ));
            }
        }
        sentences
    }

    /// What the numbers cannot show.
    pub(super) fn what_is_hidden(&self) -> Option<String> {
        if self.is_original {
            return None;
        }
        let reference = self.original();
        Some(format!(
            "KLDs are distances from {reference}, which is a quant: what it lost itself, all others may have lost too, and that does not show. Give the f16 or bf16 with --original or --ref-hf for the truth."
        ))
    }
}

/// As in `1.24 [1.10, 1.40] times as far`.
fn times_as_far(times: Ratio) -> String {
    let ends = times.lo.zip(times.hi);
    let ends = ends.map_or_else(String::new, |(lo, hi)| {
        format!(" [{}, {}]", ratio(lo), ratio(hi))
    });
    format!("{}{ends} times as far", ratio(times.value))
}
