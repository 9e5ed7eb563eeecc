//! What a comparison comes to, in a few plain sentences: the top of every report.

use kl_stats::stats::{Estimate, Ratio};

use super::tables::mark;
use super::{ComparedModel, Comparison, ROUNDING};
use crate::identical_output::same_up_to;
use crate::layout::list;
use crate::number::{
    bytes, count, percent_1, printable, ratio, short_kld, short_percent, with_ends,
};

/// The ratio to its loss elsewhere that a model must reach in a span, compared with the best, for a
/// sentence to say so. Not measured: a smaller factor seldom decides which quant to use.
const MUCH_MORE: f64 = 1.5;

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
        let mut said = self.unranked(name);
        let n_unranked = said.len();
        let is_ranked = |model: &&ComparedModel| model.is_candidate() && model.mean_kld().is_some();
        let ranked = Vec::from_iter(self.models.iter().filter(is_ranked));
        if let [best, others @ ..] = &ranked[..] {
            let ranked = Ranked {
                comparison: self,
                best,
                others,
                name,
            };
            said.extend(ranked.sentences(n_unranked > 0));
        }
        said.extend(self.rounding_sentence(name));
        said
    }

    /// Says which models cannot be ranked, why, and what to do; empty where all can.
    fn unranked(&self, name: &dyn Fn(&ComparedModel) -> String) -> Vec<String> {
        let mut unranked: Vec<&ComparedModel> = self.models.iter().collect();
        unranked.retain(|model| model.is_incomplete && !model.is_noise_floor);
        if unranked.is_empty() {
            return Vec::new();
        }
        let names = list(unranked.iter().map(|model| name(model)).collect());
        let mut said = vec![format!(
            "{names} cannot be ranked: a row that is not finite, or an infinite KLD, leaves out a token \
             that others count."
        )];
        if unranked
            .iter()
            .any(|model| model.summary.n_excluded_eval > 0)
        {
            let again = "Evaluate again, on the CPU if it was a GPU; if that changes nothing, make or \
                         download the file again.";
            said.push(again.to_owned());
        }
        said
    }
}

impl Ranked<'_> {
    /// Compares the best with the other models; `has_unranked`: there are some that are not ranked.
    fn sentences(&self, has_unranked: bool) -> Vec<String> {
        let best = (self.name)(self.best);
        if self.others.is_empty() {
            let nothing = format!("That leaves nothing to compare {best} with.");
            let nothing = Some(nothing).filter(|_| has_unranked);
            return nothing.into_iter().chain(self.loss()).collect();
        }
        let mut said = Vec::new();
        if self.others.iter().all(|of| of.difference_to_best.is_none()) {
            said.push(self.lowest());
            let why = "Only a comparison on the same tokens can show whether that is more than \
                       chance.";
            said.push(why.to_owned());
        } else {
            said.extend(self.nearest());
            said.extend(self.copies());
            said.extend(self.smaller());
            said.extend(self.left_out());
            said.extend(self.much_worse_span());
            said.extend(self.same_answers());
        }
        if let Some(first) = said.first_mut().filter(|_| has_unranked) {
            first.insert_str(0, "Of the others, ");
        }
        said
    }

    fn all(&self) -> impl Iterator<Item = &ComparedModel> {
        [self.best].into_iter().chain(self.others.iter().copied())
    }

    fn names<'m>(&self, models: impl IntoIterator<Item = &'m ComparedModel>) -> String {
        list(models.into_iter().map(self.name).collect())
    }

    /// Says how near the nearest model is: in a sentence of its own, and at the end of another.
    fn loss(&self) -> Option<String> {
        let loss = self.best.loss_in_words()?;
        Some(format!("{}: {loss}.", (self.name)(self.best)))
    }

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
        let (of, best) = (self.comparison, (self.name)(self.best));
        if of.is_noise(self.best) {
            let equals = Vec::from_iter(self.all().filter(|model| of.is_noise(model)));
            let are = if equals.len() == 1 { "is" } else { "are" };
            let they_are = format!("{} {are}", self.names(equals));
            let why = if of.noise() > ROUNDING {
                "the original, run again, is about as far from itself".to_owned()
            } else {
                format!("a mean KLD below {ROUNDING:e} nats is rounding")
            };
            let nearest = format!("{they_are} as near to the original as can be measured: {why}.");
            // The noise itself may be far.
            let loss = self.loss().filter(|_| of.noise() > ROUNDING);
            return [nearest].into_iter().chain(loss).collect();
        }
        let mut others = self.others.to_vec();
        others.retain(|model| model.same_as.as_ref() != Some(&self.best.label));
        if others.is_empty() {
            return Vec::from_iter(self.loss());
        }
        let lowest = self.lowest();
        let p = |model: &ComparedModel| model.ratio_to_best?.ratio.p;
        if others.iter().all(|model| p(model).is_none()) {
            let why = "One cluster cannot show whether that is more than chance.";
            return vec![lowest, why.to_owned()];
        }
        let n_others = others.len();
        others.retain(|model| model.is_near_best());
        if others.is_empty() {
            let level = short_percent(of.confidence.level());
            let nearest = "is nearest to the original, by more than chance at";
            return vec![self.with_loss(&format!("{best} {nearest} {level} %"))];
        }
        let farthest = others.iter().copied().filter_map(upper).fold(0.0, f64::max);
        let n = others.len();
        let one = if n == 1 { ", but" } else { "; one" };
        let who = if n > 1 && n == n_others {
            format!("None of the other {} can", count(n as u64))
        } else {
            format!("{} cannot", self.names(others))
        };
        let but = if farthest > of.near {
            format!("{one} may be up to {} times as far", ratio(farthest))
        } else {
            String::new()
        };
        let told = format!("{who} be told from it on this text{but}.");
        vec![lowest, told]
    }

    /// Names the models that have the same KLDs as another.
    fn copies(&self) -> impl Iterator<Item = String> {
        self.all().filter_map(|first| {
            let is_it = |of: &&ComparedModel| of.same_as.as_ref() == Some(&first.label);
            let copies = Vec::from_iter(self.all().filter(is_it));
            let all = self.names([first].into_iter().chain(copies.iter().copied()));
            let said = format!("{all} have the same KLD at every token, as copies of one file do.");
            Some(said).filter(|_| first.same_as.is_none() && !copies.is_empty())
        })
    }

    /// Says what a smaller model than the nearest costs; `None` where sizes are not known.
    fn smaller(&self) -> Option<String> {
        let (sizes, name) = (self.comparison.sizes(), self.name);
        let (best_size, context) = (sizes.of_model(self.best)?, sizes.context());
        let on_front = self.others.iter().filter(|model| model.pareto);
        let smaller = on_front.filter_map(|model| Some((*model, sizes.saved(self.best, model)?)));
        let as_near = smaller.clone().filter(|(model, _)| model.is_as_near);
        if let Some((model, saved)) = as_near.max_by_key(|(_, saved)| *saved) {
            let at_most = upper(model).map(ratio);
            let far = at_most.map(|upper| format!("at most {upper} times as far, and "));
            let (which, far, saved) = (name(model), far.unwrap_or_default(), bytes(saved));
            return Some(format!(
                "{which} is as near as makes no difference: {far}{saved} smaller{context}."
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
        let (which, saved) = (name(model), bytes(saved));
        if model.is_near_best() {
            return Some(format!(
                "The next smaller, {which}, saves {saved}{context}."
            ));
        }
        let of = model.ratio_to_best.map(|to_best| to_best.ratio);
        let far = match of.filter(|of| of.value.is_finite()) {
            Some(of) => format!("is {} times as far", times(&of)),
            None => format!(
                "has a mean KLD of {} nats",
                short_kld(model.mean_kld()?.value)
            ),
        };
        Some(format!(
            "The next smaller, {which}, {far}, and is {saved} smaller{context}."
        ))
    }

    /// Says which models can be left out, since another is no larger and no farther: by more than chance,
    /// or on this text alone. Copies are said to be such already.
    fn left_out(&self) -> Vec<String> {
        let (models, sizes) = (self.others.iter().copied(), self.comparison.sizes());
        let left_out = models.filter(|model| {
            sizes.of_model(model).is_some() && !model.pareto && model.same_as.is_none()
        });
        let (told, may_be_chance): (Vec<_>, Vec<_>) = left_out.partition(|of| of.is_dominated);
        let mut said = Vec::new();
        if !told.is_empty() {
            said.push(format!(
                "Leaving out {} costs nothing: another is no larger, and nearer by more than chance.",
                self.names(told)
            ));
        }
        if !may_be_chance.is_empty() {
            let s = if may_be_chance.len() == 1 { "s" } else { "" };
            let who = self.names(may_be_chance);
            said.push(format!(
                "{who} show{s} no gain over a model that is no larger."
            ));
        }
        said
    }

    /// Says of the model that loses much more in one span than elsewhere which span that is; `None` if
    /// none does. Of several, it is the one with the largest factor.
    fn much_worse_span(&self) -> Option<String> {
        let in_spans = self.others.iter().flat_map(|model| {
            let of_each = model.ratio_to_best_by_span.iter();
            of_each.filter_map(move |of| Some((model, of, of.ratio?, of.to_others?.value)))
        });
        let much_more = in_spans.filter(|(_, of, here, factor)| {
            let is_more = *factor >= MUCH_MORE && here.value > 1.0;
            is_more && self.comparison.loses_more(of) && mark(of.n_tokens).is_empty()
        });
        let (model, of, here, factor) = much_more.max_by(|a, b| a.3.total_cmp(&b.3))?;
        let [name, best] = [model, self.best].map(self.name);
        let span = printable(&of.label);
        let (there, elsewhere) = (times(&here), ratio(here.value / factor));
        Some(format!(
            "In the span {span:?}, {name} is {there} times as far as {best}; elsewhere, {elsewhere} times."
        ))
    }

    /// Says how many greedy answers of the best and of the farthest model are the original's; `None` without
    /// greedy answers.
    fn same_answers(&self) -> Option<String> {
        let said = |model: &ComparedModel| {
            let of = model.summary.identical_output.as_ref()?;
            let share = percent_1(of.same_to_the_end?.value);
            Some((
                format!("{share} of {}'s", (self.name)(model)),
                same_up_to(of),
            ))
        };
        let (of_best, to) = said(self.best)?;
        let of_last = self.others.last().and_then(|model| said(model));
        let farthest = of_last.map_or_else(String::new, |(of, _)| format!(", {of}"));
        Some(format!(
            "{of_best} greedy answers are the original's {to}{farthest}."
        ))
    }
}

/// A ratio with its interval: `2.00 [1.80, 2.22]`.
fn times(of: &Ratio) -> String {
    let Ratio { value, lo, hi, .. } = *of;
    with_ends(ratio(value), &Estimate { value, lo, hi }, ratio)
}

/// The one-sided upper end of a model's ratio to the best.
fn upper(model: &ComparedModel) -> Option<f64> {
    model.ratio_to_best?.ratio.upper
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sample;

    /// Without greedy answers.
    fn comparison() -> Comparison {
        let mut of = sample::comparison();
        for model in &mut of.models {
            model.summary.identical_output = None;
        }
        of
    }

    #[test]
    fn greedy_answers_of_the_best_and_of_the_farthest() {
        let mut of = sample::comparison();
        let text = said(&mut of);
        let end = " 45.0 % of tiny-q4_K_M's greedy answers are the original's to the end or the cut at \
                   64 tokens, 0.0 % of other.npz's.";
        assert!(text.ends_with(end), "{text}");
        let best = of.models[1].summary.identical_output.as_mut().unwrap();
        best.cut_at = None;
        of.models[5].summary.identical_output = None;
        let text = said(&mut of);
        let end = " 45.0 % of tiny-q4_K_M's greedy answers are the original's to the end.";
        assert!(text.ends_with(end), "{text}");
    }

    fn said(of: &mut Comparison) -> String {
        for model in &mut of.models {
            let is_best = model.label == "tiny-q4_K_M";
            model.is_as_near = is_best || upper(model).is_some_and(|upper| upper <= of.near);
        }
        of.sentences(str::to_owned).join(" ")
    }

    /// The best and the model `i`, with the size and the upper end given.
    fn two(i: usize, size: Option<u64>) -> Comparison {
        let mut of = comparison();
        of.models = vec![of.models[1].clone(), of.models[i].clone()];
        of.models[1].model.file_bytes = size;
        of.models[1].model.size_bytes = size;
        of
    }

    #[test]
    fn what_no_p_value_can_show() {
        let mut of = two(2, None);
        of.models[1].ratio_to_best.as_mut().unwrap().ratio.p = None;
        let text = "tiny-q4_K_M has the lowest mean KLD: near-lossless, 1 top token in 10 differs. \
                    One cluster cannot show whether that is more than chance.";
        assert_eq!(said(&mut of), text);
        of.models[1].difference_to_best = None;
        let text = "tiny-q4_K_M has the lowest mean KLD: near-lossless, 1 top token in 10 differs. \
                    Only a comparison on the same tokens can show whether that is more than chance.";
        assert_eq!(said(&mut of), text);
        of.models.truncate(1);
        let text = "tiny-q4_K_M: near-lossless, 1 top token in 10 differs.";
        assert_eq!(said(&mut of), text);
        of.models[0].is_noise_floor = true;
        assert_eq!(said(&mut of), "");
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
