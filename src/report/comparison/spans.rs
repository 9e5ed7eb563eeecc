//! The models on the tokens of each span: their mean KLDs, and how many times as far as the best.

use super::breakdown::{legend, mark};
use super::names::Names;
use super::{ComparedModel, Comparison};
use crate::report::layout::{View, columns, wrapped};
use crate::report::number::{
    count, count_of, ends, or_undefined, percent, printable, ratio, short_kld, short_percent,
};
use crate::stats::{Bin, SpanRatio};

/// Marks a model that loses more in a span than elsewhere.
const MORE_HERE: &str = "+";

/// Explains the mark.
pub const MORE_HERE_LEGEND: &str =
    "+ loses more in this span than elsewhere, compared with the best, by Holm's test";

/// The ratio to its loss elsewhere that a model must reach in a span, compared with the best, for a
/// sentence to say so. Not measured: a smaller factor seldom decides which quant to use.
const MUCH_MORE: f64 = 1.5;

impl Comparison {
    /// The spans of the models' tokens, in order; empty unless there are several.
    pub(in crate::report) fn spans(&self) -> &[Bin] {
        let mut spans = self.models.iter().map(|model| &model.breakdown.by_span);
        spans
            .find(|spans| spans.len() > 1)
            .map_or(&[], Vec::as_slice)
    }

    /// Returns true if a model loses more in this span than elsewhere, compared with the best, and the
    /// data show that it is more than chance.
    pub(in crate::report) fn loses_more(&self, of: &SpanRatio) -> bool {
        let is_more = of.to_others.is_some_and(|times| times.value > 1.0);
        is_more && of.p_holm.is_some_and(|p| p < self.confidence.outside())
    }

    /// Says of the model that loses much more in one span than elsewhere which span that is; `None` if
    /// none does. Of several, it is the one with the largest factor.
    pub(super) fn much_worse_span(
        &self,
        name: impl Fn(&ComparedModel) -> String,
    ) -> Option<String> {
        let best = self.best()?;
        let models = self.models.iter().filter(|model| model.is_candidate());
        let in_spans = models.flat_map(|model| {
            let of_each = model.ratio_to_best_by_span.iter();
            of_each.map(move |of| (model, of))
        });
        let much_more = in_spans.filter_map(|(model, of)| {
            let (here, times) = (of.ratio?, of.to_others?);
            let is_more = times.value >= MUCH_MORE && here.value > 1.0 && self.loses_more(of);
            (is_more && mark(of.n_tokens).is_empty()).then_some((model, of, here, times.value))
        });
        let (model, of, here, times) = much_more.max_by(|a, b| a.3.total_cmp(&b.3))?;
        let ends = ends(here.lo, here.hi, ratio);
        Some(format!(
            "In the span {:?}, {} is {} {ends} times as far as {}; elsewhere, {} times.",
            printable(&of.label),
            name(model),
            ratio(here.value),
            name(best),
            ratio(here.value / times)
        ))
    }

    /// A table of the mean KLDs in each span, with a row for each model; empty unless there are several.
    pub(super) fn brief_spans_text(&self, names: &Names, view: View) -> String {
        let spans = self.spans();
        if spans.is_empty() {
            return String::new();
        }
        let titles = spans.iter().map(|span| {
            let (label, n) = (printable(&span.label), count(span.n_tokens));
            format!("{label}\n{n}{}", mark(span.n_tokens))
        });
        let titles = ["\n  tokens".to_owned()].into_iter().chain(titles);
        let titles: Vec<String> = titles.collect();
        let (models, more) = view.first(&self.models);
        let table = names.fitted(|name| {
            let rows = models.iter().map(|model| {
                let cells = spans.iter().map(|span| {
                    let [mark, kld, ..] = self.span_cells(model, &span.label);
                    mark + &kld
                });
                let name = format!("  {}", name(&model.label));
                [name].into_iter().chain(cells).collect()
            });
            columns(titles.clone(), rows, 1, 2)
        });
        let legends = self.span_legends();
        let legends = legends.iter().map(|legend| format!("{legend}\n"));
        format!(
            "\nMean KLD by span, nats\n{table}{more}{}",
            String::from_iter(legends)
        )
    }

    /// A table of the spans for a terminal, in full; empty unless there are several.
    pub(super) fn spans_text(&self, names: &Names) -> String {
        let (spans, has_ratios) = (self.spans(), self.has_span_ratios());
        if spans.is_empty() {
            return String::new();
        }
        let interval = format!("{} %\ninterval", short_percent(self.confidence.level()));
        let titles = [
            "",
            "",
            "mean\nKLD",
            "same\ntop %",
            "times\nas far",
            &interval,
        ];
        let n_columns = if has_ratios { titles.len() } else { 4 };
        let table = names.fitted(|name| {
            let mut rows = Vec::new();
            for span in spans {
                let n = count_of(span.n_tokens, "token");
                let title = format!("  {}, {n}{}", printable(&span.label), mark(span.n_tokens));
                rows.push(vec![title]);
                for model in &self.models {
                    let [more, kld, same, times, interval] = self.span_cells(model, &span.label);
                    let same = same.trim_end_matches(" %").to_owned();
                    let name = format!("    {}", name(&model.label));
                    let mut cells = vec![name, more, kld, same, times, interval];
                    cells.truncate(n_columns);
                    rows.push(cells);
                }
            }
            columns(titles[..n_columns].iter().copied(), rows, 2, 1)
        });
        let title = match self.best() {
            Some(best) if has_ratios => {
                let best = names.in_sentences()(&best.label);
                format!("By span, and how many times as far as {best}, the best")
            }
            _ => "By span".to_owned(),
        };
        let mut text = format!("\n{}{table}", wrapped(&title));
        for legend in self.span_legends() {
            text.push_str(&format!("{legend}\n"));
        }
        text
    }

    /// A row for each span and model: the span, its tokens, the model, and the cells of the table.
    pub(super) fn span_rows(&self) -> Vec<[String; 8]> {
        let spans = self.spans().iter();
        let rows = spans.flat_map(|span| {
            self.models.iter().map(|model| {
                let [more, kld, same, times, interval] = self.span_cells(model, &span.label);
                let tokens = format!("{}{}", count(span.n_tokens), mark(span.n_tokens));
                let (label, name) = (span.label.clone(), model.label.clone());
                [label, tokens, name, kld, same, times, interval, more]
            })
        });
        rows.collect()
    }

    /// The explanations of the marks that occur.
    pub(super) fn span_legends(&self) -> Vec<String> {
        let mut of_each = self.models.iter().flat_map(|of| &of.ratio_to_best_by_span);
        let more = of_each.any(|of| self.loses_more(of));
        let more = more.then(|| MORE_HERE_LEGEND.to_owned());
        let few = legend(self.spans().iter().map(|span| span.n_tokens));
        more.into_iter().chain(few).collect()
    }

    /// Returns true if a model was compared with the best by span.
    pub(in crate::report) fn has_span_ratios(&self) -> bool {
        let mut models = self.models.iter();
        models.any(|model| !model.ratio_to_best_by_span.is_empty())
    }

    /// A model's mark, mean KLD, agreement, ratio to the best and its interval in a span.
    fn span_cells(&self, model: &ComparedModel, span: &str) -> [String; 5] {
        let bin = model.breakdown.by_span.iter().find(|bin| bin.label == span);
        let mut of_each = model.ratio_to_best_by_span.iter();
        let of = of_each.find(|of| of.label == span);
        let times = of.and_then(|of| of.ratio);
        let more = of.is_some_and(|of| self.loses_more(of));
        [
            if more { MORE_HERE } else { "" }.to_owned(),
            or_undefined(bin.and_then(|bin| bin.kld), |kld| short_kld(kld.value)),
            or_undefined(bin.and_then(|bin| bin.agreement), percent),
            times.map(|of| ratio(of.value)).unwrap_or_default(),
            times
                .map(|of| ends(of.lo, of.hi, ratio))
                .unwrap_or_default(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use crate::report::tests::FULL;
    use crate::report::tests::sample::comparison;

    #[test]
    fn a_model_that_is_much_worse_in_a_span_is_named() {
        let mut of = comparison();
        let said = |of: &super::Comparison| of.sentences(str::to_owned).join(" ");
        // Too few tokens to be named.
        assert!(!said(&of).contains("In the span"), "{}", said(&of));
        for model in &mut of.models {
            for of in &mut model.ratio_to_best_by_span {
                of.n_tokens = 1000;
            }
        }
        let text = said(&of);
        let expected = "In the span \"tool call\", tiny-q4_0 is 3.60 [3.24, 4.00] times as far as \
                        tiny-q4_K_M; elsewhere, 1.80 times.";
        assert!(text.contains(expected), "{text}");
        // What may be chance is not.
        for model in &mut of.models {
            for of in &mut model.ratio_to_best_by_span {
                of.p_holm = Some(0.06);
            }
        }
        assert!(!said(&of).contains("In the span"));
        assert!(!of.text(FULL).contains("+ loses more"));
    }

    #[test]
    fn a_single_span_is_not_shown() {
        let mut of = comparison();
        assert!(of.text(FULL).contains("\nBy span"));
        for model in &mut of.models {
            model.breakdown.by_span.truncate(1);
            model.ratio_to_best_by_span.clear();
        }
        assert!(!of.text(FULL).contains("\nBy span") && !of.markdown(true).contains("By span"));
    }
}
