//! What a comparison comes to, in a few plain sentences: the top of every report.

use kl_stats::stats::{Estimate, Ratio};

use super::tables::few_tokens_mark;
use super::{ComparedModel, Comparison, ROUNDING_KLD};
use crate::identical_output::same_up_to;
use crate::layout::list;
use crate::number::{
    bytes, count, is_or_are, percent_1, printable, ratio, short_kld, short_percent, with_ends,
};

/// The ratio to its loss elsewhere that a model must reach in a span, compared with the best, for a
/// sentence to say so. Not measured: a smaller factor seldom decides which quant to use.
const MUCH_MORE_FACTOR: f64 = 1.5;

/// The models of a comparison that are ranked.
struct Ranked<'c> {
    comparison: &'c Comparison,
    best: &'c ComparedModel,
    /// The others, by ascending mean KLD.
    others: &'c [&'c ComparedModel],
    name: &'c dyn Fn(&ComparedModel) -> String,
}

impl Comparison {
    /// Says which models cannot be ranked, which of the others is nearest to the original and how near that
    /// is, which cannot be told from it, what a smaller one costs, which can be left out, and which is much
    /// worse in one span than elsewhere. `name` makes a name of a label.
    pub fn sentences(&self, name: impl Fn(&str) -> String) -> Vec<String> {
        let name = &|model: &ComparedModel| name(&model.label);
        let mut sentences = self.unranked_sentences(name);
        let has_unranked = !sentences.is_empty();
        let ranked: Vec<_> = self
            .models
            .iter()
            .filter(|model| model.is_candidate() && model.mean_kld().is_some())
            .collect();
        if let [best, others @ ..] = &ranked[..] {
            let ranked = Ranked {
                comparison: self,
                best,
                others,
                name,
            };
            sentences.extend(ranked.sentences(has_unranked));
        }
        sentences.extend(self.rounding_sentence(name));
        sentences
    }

    /// Says which models cannot be ranked, why, and what to do; empty where all can.
    fn unranked_sentences(&self, name: &dyn Fn(&ComparedModel) -> String) -> Vec<String> {
        let mut unranked: Vec<&ComparedModel> = self.models.iter().collect();
        unranked.retain(|model| model.is_incomplete && !model.is_noise_floor);
        if unranked.is_empty() {
            return Vec::new();
        }
        let names = list(unranked.iter().map(|model| name(model)).collect());
        let mut sentences = vec![format!(
            "{names} cannot be ranked: a row that is not finite, or an infinite KLD, leaves out a token \
             that others count."
        )];
        if unranked
            .iter()
            .any(|model| model.summary.n_excluded_eval > 0)
        {
            let remedy = "Evaluate again, on the CPU if it was a GPU; if that changes nothing, make or \
                          download the file again.";
            sentences.push(remedy.to_owned());
        }
        sentences
    }
}

impl Ranked<'_> {
    /// Compares the best with the other models; `has_unranked`: there are some that are not ranked.
    fn sentences(&self, has_unranked: bool) -> Vec<String> {
        let best = (self.name)(self.best);
        if self.others.is_empty() {
            return has_unranked
                .then(|| format!("That leaves nothing to compare {best} with."))
                .into_iter()
                .chain(self.loss())
                .collect();
        }
        let mut sentences = Vec::new();
        if self
            .others
            .iter()
            .all(|model| model.difference_to_best.is_none())
        {
            sentences.push(self.lowest());
            let caution = "Only a comparison on the same tokens can show whether that is more than \
                           chance.";
            sentences.push(caution.to_owned());
        } else {
            sentences.extend(self.nearest());
            sentences.extend(self.copies());
            sentences.extend(self.smaller());
            sentences.extend(self.left_out());
            sentences.extend(self.much_worse_span());
            sentences.extend(self.same_answers());
        }
        if let Some(first) = sentences.first_mut().filter(|_| has_unranked) {
            first.insert_str(0, "Of the others, ");
        }
        sentences
    }

    fn models(&self) -> impl Iterator<Item = &ComparedModel> {
        [self.best].into_iter().chain(self.others.iter().copied())
    }

    fn names<'m>(&self, models: impl IntoIterator<Item = &'m ComparedModel>) -> String {
        list(models.into_iter().map(self.name).collect())
    }

    /// Says how near the nearest model is, in a sentence of its own.
    fn loss(&self) -> Option<String> {
        let loss = self.best.loss_in_words()?;
        Some(format!("{}: {loss}.", (self.name)(self.best)))
    }

    /// A sentence about the nearest model, at whose end it says how near that is.
    fn with_loss(&self, sentence: &str) -> String {
        let loss = self.best.loss_in_words();
        sentence.to_owned() + &loss.map_or_else(|| ".".to_owned(), |loss| format!(": {loss}."))
    }

    fn lowest(&self) -> String {
        self.with_loss(&format!(
            "{} has the lowest mean KLD",
            (self.name)(self.best)
        ))
    }

    /// Names the nearest model, and those that cannot be told from it.
    fn nearest(&self) -> Vec<String> {
        let (comparison, best) = (self.comparison, (self.name)(self.best));
        if comparison.is_noise(self.best) {
            let equals: Vec<_> = self
                .models()
                .filter(|model| comparison.is_noise(model))
                .collect();
            let verb = is_or_are(equals.len() as u64);
            let names = self.names(equals);
            let why = if comparison.noise_kld() > ROUNDING_KLD {
                "the original, run again, is about as far from itself".to_owned()
            } else {
                format!("a mean KLD below {ROUNDING_KLD:e} nats is rounding")
            };
            let sentence =
                format!("{names} {verb} as near to the original as can be measured: {why}.");
            // The noise itself may be far.
            let loss = self
                .loss()
                .filter(|_| comparison.noise_kld() > ROUNDING_KLD);
            return [sentence].into_iter().chain(loss).collect();
        }
        let mut others = self.others.to_vec();
        others.retain(|model| model.same_as.as_ref() != Some(&self.best.label));
        if others.is_empty() {
            return Vec::from_iter(self.loss());
        }
        let lowest = self.lowest();
        let p = |model: &ComparedModel| model.ratio_to_best?.ratio.p;
        if others.iter().all(|model| p(model).is_none()) {
            let caution = "One cluster cannot show whether that is more than chance.";
            return vec![lowest, caution.to_owned()];
        }
        let n_others = others.len();
        others.retain(|model| model.is_near_best());
        if others.is_empty() {
            let level = short_percent(comparison.confidence.level());
            return vec![self.with_loss(&format!(
                "{best} is nearest to the original, by more than chance at {level} %"
            ))];
        }
        let largest_ratio = others
            .iter()
            .copied()
            .filter_map(upper_ratio)
            .fold(0.0, f64::max);
        let n = others.len();
        let joint = if n == 1 { ", but" } else { "; one" };
        let subject = if n > 1 && n == n_others {
            format!("None of the other {} can", count(n as u64))
        } else {
            format!("{} cannot", self.names(others))
        };
        let reservation = if largest_ratio > comparison.near {
            format!("{joint} may be up to {} times as far", ratio(largest_ratio))
        } else {
            String::new()
        };
        let alike = format!("{subject} be told from it on this text{reservation}.");
        vec![lowest, alike]
    }

    /// Names the models that have the same KLDs as another.
    fn copies(&self) -> impl Iterator<Item = String> {
        self.models().filter_map(|first| {
            let copies: Vec<_> = self
                .models()
                .filter(|model| model.same_as.as_ref() == Some(&first.label))
                .collect();
            if first.same_as.is_some() || copies.is_empty() {
                return None;
            }
            let names = self.names([first].into_iter().chain(copies));
            Some(same_kld(&names))
        })
    }

    /// Says what a smaller model than the nearest costs; `None` where sizes are not known.
    fn smaller(&self) -> Option<String> {
        let (sizes, name) = (self.comparison.sizes(), self.name);
        let (best_size, context) = (sizes.of_model(self.best)?, sizes.context());
        let smaller = self
            .others
            .iter()
            .filter(|model| model.pareto)
            .filter_map(|model| Some((*model, sizes.saved(self.best, model)?)));
        let as_near = smaller.clone().filter(|(model, _)| model.is_as_near);
        if let Some((model, saved)) = as_near.max_by_key(|(_, saved)| *saved) {
            let distance = upper_ratio(model).map_or_else(String::new, |upper| {
                format!("at most {} times as far, and ", ratio(upper))
            });
            let (model, saved) = (name(model), bytes(saved));
            return Some(format!(
                "{model} is as near as makes no difference: {distance}{saved} smaller{context}."
            ));
        }
        let Some((model, saved)) = smaller.min_by_key(|(_, saved)| *saved) else {
            // Nothing is known of those without a size.
            let sizes = self.others.iter().map(|model| sizes.of_model(model));
            let smallest = sizes.collect::<Option<Vec<u64>>>()?.into_iter().min();
            return Some(if smallest.is_some_and(|size| size <= best_size) {
                format!("No other is even 1 % smaller{context}.")
            } else {
                format!("{} is also the smallest.", name(self.best))
            });
        };
        let (model_name, saved) = (name(model), bytes(saved));
        if model.is_near_best() {
            return Some(format!(
                "The next smaller, {model_name}, saves {saved}{context}."
            ));
        }
        let finite_ratio = model
            .ratio_to_best
            .map(|to_best| to_best.ratio)
            .filter(|ratio| ratio.value.is_finite());
        let distance = match finite_ratio {
            Some(ratio) => format!("is {} times as far", ratio_text(&ratio)),
            None => format!(
                "has a mean KLD of {} nats",
                short_kld(model.mean_kld()?.value)
            ),
        };
        Some(format!(
            "The next smaller, {model_name}, {distance}, and is {saved} smaller{context}."
        ))
    }

    /// Says which models can be left out, since another is no larger and no farther: by more than chance,
    /// or on this text alone. Copies are said to be such already.
    fn left_out(&self) -> Vec<String> {
        let sizes = self.comparison.sizes();
        let (dominated, may_be_chance): (Vec<_>, Vec<_>) = self
            .others
            .iter()
            .copied()
            .filter(|model| {
                sizes.of_model(model).is_some() && !model.pareto && model.same_as.is_none()
            })
            .partition(|model| model.is_dominated);
        let mut sentences = Vec::new();
        if !dominated.is_empty() {
            sentences.push(format!(
                "Leaving out {} costs nothing: another is no larger, and nearer by more than chance.",
                self.names(dominated)
            ));
        }
        if !may_be_chance.is_empty() {
            let s = if may_be_chance.len() == 1 { "s" } else { "" };
            let names = self.names(may_be_chance);
            sentences.push(format!(
                "{names} show{s} no gain over a model that is no larger."
            ));
        }
        sentences
    }

    /// Says of the model that loses much more in one span than elsewhere which span that is; `None` if
    /// none does. Of several, it is the one with the largest factor.
    fn much_worse_span(&self) -> Option<String> {
        let spans = self.others.iter().flat_map(|model| {
            model.ratio_to_best_by_span.iter().filter_map(move |span| {
                let ratio_in_span = span.ratio?;
                Some((model, span, ratio_in_span, span.to_others?.value))
            })
        });
        let much_worse = spans.filter(|(_, span, ratio_in_span, factor)| {
            *factor >= MUCH_MORE_FACTOR
                && ratio_in_span.value > 1.0
                && self.comparison.loses_more(span)
                && few_tokens_mark(span.n_tokens).is_empty()
        });
        let (model, span, ratio_in_span, factor) = much_worse.max_by(|a, b| a.3.total_cmp(&b.3))?;
        let [name, best] = [model, self.best].map(self.name);
        let span_name = printable(&span.label);
        let times_in_span = ratio_text(&ratio_in_span);
        let times_elsewhere = ratio(ratio_in_span.value / factor);
        Some(format!(
            "In the span {span_name:?}, {name} is {times_in_span} times as far as {best}; elsewhere, {times_elsewhere} times."
        ))
    }

    /// Says how many greedy answers of the best and of the farthest model are the original's; `None` without
    /// greedy answers.
    fn same_answers(&self) -> Option<String> {
        let share_text = |model: &ComparedModel| {
            let output = model.summary.identical_output.as_ref()?;
            let share = percent_1(output.same_to_the_end?.value);
            Some(format!("{share} of {}'s", (self.name)(model)))
        };
        let best_share = share_text(self.best)?;
        let up_to = same_up_to(self.best.summary.identical_output.as_ref()?);
        let farthest_share = self
            .others
            .last()
            .and_then(|farthest| share_text(farthest))
            .map_or_else(String::new, |share| format!(", {share}"));
        Some(format!(
            "{best_share} greedy answers are the original's {up_to}{farthest_share}."
        ))
    }
}

/// Says that the models of these names are equal.
pub fn same_kld(names: &str) -> String {
    format!("{names} have the same KLD at every token, as copies of one file do.")
}

/// A ratio with its interval: `2.00 [1.80, 2.22]`.
fn ratio_text(&Ratio { value, lo, hi, .. }: &Ratio) -> String {
    with_ends(ratio(value), &Estimate { value, lo, hi }, ratio)
}

/// The one-sided upper end of a model's ratio to the best.
fn upper_ratio(model: &ComparedModel) -> Option<f64> {
    model.ratio_to_best?.ratio.upper
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sample;

    /// Without greedy answers.
    fn without_greedy_answers() -> Comparison {
        let mut comparison = sample::comparison();
        for model in &mut comparison.models {
            model.summary.identical_output = None;
        }
        comparison
    }

    #[test]
    fn greedy_answers_of_the_best_and_of_the_farthest() {
        let mut comparison = sample::comparison();
        let text = said(&mut comparison);
        let end = " 45.0 % of tiny-q4_K_M's greedy answers are the original's to the end or the cut at \
                   64 tokens, 0.0 % of other.npz's.";
        assert!(text.ends_with(end), "{text}");
        let best = comparison.models[1]
            .summary
            .identical_output
            .as_mut()
            .unwrap();
        best.cut_at = None;
        comparison.models[5].summary.identical_output = None;
        let text = said(&mut comparison);
        let end = " 45.0 % of tiny-q4_K_M's greedy answers are the original's to the end.";
        assert!(text.ends_with(end), "{text}");
    }

    fn said(comparison: &mut Comparison) -> String {
        for model in &mut comparison.models {
            let is_best = model.label == "tiny-q4_K_M";
            model.is_as_near =
                is_best || upper_ratio(model).is_some_and(|upper| upper <= comparison.near);
        }
        comparison.sentences(str::to_owned).join(" ")
    }

    /// The best and the model `i`, with the size and the upper end given.
    fn two(i: usize, size: Option<u64>) -> Comparison {
        let mut comparison = without_greedy_answers();
        comparison.models = vec![comparison.models[1].clone(), comparison.models[i].clone()];
        comparison.models[1].model.file_bytes = size;
        comparison.models[1].model.size_bytes = size;
        comparison
    }

    #[test]
    fn what_no_p_value_can_show() {
        let mut comparison = two(2, None);
        comparison.models[1].ratio_to_best.as_mut().unwrap().ratio.p = None;
        let text = "tiny-q4_K_M has the lowest mean KLD: near-lossless, 1 top token in 10 differs. \
                    One cluster cannot show whether that is more than chance.";
        assert_eq!(said(&mut comparison), text);
        comparison.models[1].difference_to_best = None;
        let text = "tiny-q4_K_M has the lowest mean KLD: near-lossless, 1 top token in 10 differs. \
                    Only a comparison on the same tokens can show whether that is more than chance.";
        assert_eq!(said(&mut comparison), text);
        comparison.models.truncate(1);
        let text = "tiny-q4_K_M: near-lossless, 1 top token in 10 differs.";
        assert_eq!(said(&mut comparison), text);
        comparison.models[0].is_noise_floor = true;
        assert_eq!(said(&mut comparison), "");
    }

    #[test]
    fn long_lists_are_counted() {
        let names = |n: usize| (0..n).map(|i| i.to_string()).collect();
        assert_eq!(list(names(1)), "0");
        assert_eq!(list(names(2)), "0 and 1");
        assert_eq!(list(names(4)), "0, 1, 2 and 3");
        assert_eq!(list(names(6)), "0, 1, 2 and 3 others");
    }
}
