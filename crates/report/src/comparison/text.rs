//! A comparison as text.

use super::tables::{ShownName, clusters_text};
use super::{ComparedModel, Comparison};
use crate::layout::{Sheet, View, hanging, list, wrapped};
use crate::names::Names;
use crate::number::{count, count_of, printable, short_percent};
use crate::result::{ModelReport, NotAvailable};
use crate::table::Table;
use crate::text_report;

impl Comparison {
    /// The report of the model if there is only one: as its evaluation printed it, without what no
    /// sidecar holds. `None` for several models.
    pub fn only_report(&self, view: View) -> Option<String> {
        let [model] = self.models.as_slice() else {
            return None;
        };
        let report = ModelReport {
            max_at_text: max_at_text(model),
            not_available: Vec::from_iter(self.without_memory(model)),
            result: model.result.clone(),
            set_up: Some(model.set_up.clone()),
            ..ModelReport::default()
        };
        let text = text_report(&report, &self.reference.info(), view);
        Some(text + &self.not_compared_text())
    }

    /// Says that a model's memory is not known, where it was asked for.
    fn without_memory(&self, model: &ComparedModel) -> Option<NotAvailable> {
        let is_missing = self.for_context.is_some() && model.memory.is_none();
        is_missing.then_some(NotAvailable::WITHOUT_CACHE_SIZES)
    }

    /// Everything that a terminal shows.
    pub fn text(&self, view: View) -> String {
        let text = self.text_of_models(view, true);
        text + &self.not_compared_text() + view.more_hint()
    }

    /// The result in sentences, the table of the models, the ratios to the best if wanted or in full, and the
    /// tables that explain them.
    pub(super) fn text_of_models(&self, view: View, wants_ratios: bool) -> String {
        let names = &self.names(view.width);
        let mut text = String::new();
        let sentences = self.sentences(names.in_sentences());
        if !sentences.is_empty() {
            text += &wrapped(&sentences.join(" "));
        }
        let unpaired = self
            .warnings
            .iter()
            .find(|warning| warning.kind() == "unpaired");
        if let Some(warning) = unpaired {
            text += &wrapped(&printable(&warning.to_string()));
        }
        if !text.is_empty() {
            text.push('\n');
        }
        text += &self.heading(names);
        text.push('\n');
        text += &names.fitted(|name| self.models_table(name).rows_text());
        text.extend(self.legend().iter().map(|line| format!("{line}\n")));
        // The tables of KV caches have the ratios to the best, too.
        if view.full || wants_ratios && !self.all_are_in_tables_of_caches() {
            text += &Table::fitted(names, |name| self.ratios_table(name, view));
        }
        text += &Table::fitted(names, |name| self.rounding_table(name));
        text += &if view.full {
            Table::fitted(names, |name| self.spans_table(name))
        } else {
            Table::fitted(names, |name| self.brief_spans_table(name).first_rows(view))
        };
        text.extend(self.caches_tables().iter().map(Table::text));
        text += &self.in_use_text(names, view);
        text += &Table::fitted(names, |name| self.set_up_table(name).first_rows(view));
        if view.breakdown {
            text += &self.breakdown_text(view.width);
        }
        text
    }

    /// The models, the reference, and the tokens. With `--until`, models stop after different numbers of
    /// tokens: the lines state the fewest and the most then.
    pub(crate) fn heading(&self, names: &Names) -> String {
        const NAME_WIDTH: usize = 16;
        let (reference, n_models) = (&self.reference, self.models.len() as u64);
        let against = printable(reference.shown_name());
        let title = format!("{} against {against}", count_of(n_models, "model"));
        let mut out = Sheet::new(NAME_WIDTH);
        out.text = hanging("", 2, &title);
        out.known("reference model", reference.model_name());
        if n_models > 0 {
            let tokens = self.count_range("token", |model| {
                model.summary.n_tokens + model.summary.n_excluded
            });
            let windows = self.count_range(reference.unit(), |model| model.summary.n_windows);
            let text_name = reference.text.as_ref().and_then(|text| text.name.as_ref());
            let of_text = text_name.map_or_else(String::new, |name| format!(" of {name}"));
            let at_most = if reference.prompts { "at most " } else { "" };
            let n_ctx = count(reference.n_ctx.into());
            let coverage = format!("{tokens}{of_text} in {windows} of {at_most}{n_ctx}");
            out.line("tokens", &coverage);
            out.known("answers", reference.sampled_answers());
            let level = short_percent(self.confidence.level());
            let intervals = format!("at {level} %, {}", self.clusters_text());
            out.line("intervals", &intervals);
        }
        if !names.prefix.is_empty() {
            out.line("models", &format!("{}…", names.prefix));
        }
        out.text
    }

    /// A count of each model, `480 to 960 tokens` where they differ.
    fn count_range(&self, thing: &str, n: impl Fn(&ComparedModel) -> u64) -> String {
        let fewest = self.models.iter().map(&n).min().unwrap_or(0);
        let most = self.models.iter().map(&n).max().unwrap_or(0);
        if fewest == most {
            count_of(most, thing)
        } else {
            format!("{} to {}", count(fewest), count_of(most, thing))
        }
    }

    /// Describes the clusters of the intervals, each kind and number that a model has.
    pub(super) fn clusters_text(&self) -> String {
        let mut descriptions: Vec<String> = self
            .models
            .iter()
            .map(|model| clusters_text(&model.summary.clusters, self.reference.unit()))
            .collect();
        descriptions.sort();
        descriptions.dedup();
        list(descriptions)
    }

    /// The greedy answers that stay the same, and the drafted tokens that are accepted.
    fn in_use_text(&self, names: &Names, view: View) -> String {
        let mut text = Table::fitted(names, |name| {
            self.identical_table(name, !view.full).first_rows(view)
        });
        // Without greedy answers, drafts have no column there.
        if view.full || (text.is_empty() && self.shows_drafts()) {
            text += &Table::fitted(names, |name| self.acceptance_table(name).first_rows(view));
        }
        text
    }

    /// The tables of the breakdown, a few models beside each other.
    pub(super) fn breakdown_text(&self, width: usize) -> String {
        /// The models in one table: as many as have columns that fit 80 characters.
        const MODELS_PER_TABLE: usize = 5;
        let names = self.names(width);
        let mut text = String::new();
        for models in self.models.chunks(MODELS_PER_TABLE) {
            let tables = |name: ShownName<'_>| self.breakdown_tables(models, name, Some(width));
            for i in 0..tables(&str::to_owned).len() {
                text += &Table::fitted(&names, |name| tables(name).swap_remove(i));
            }
        }
        let legend = self.breakdown_legend();
        text + &legend.map_or_else(String::new, |legend| format!("\n{legend}\n"))
    }

    /// The files that are not among the models; empty if all are.
    pub(super) fn not_compared_text(&self) -> String {
        let mut text = String::new();
        if !self.not_compared.is_empty() {
            text += "\nNot compared\n";
        }
        for (why, files) in self.not_compared_by_reason() {
            text.extend(files.iter().map(|file| format!("  {}\n", printable(file))));
            text += &hanging("    ", 4, &printable(why));
        }
        text
    }
}

/// The text of the token with the largest finite KLD; infinite ones come before it in `top`.
fn max_at_text(model: &ComparedModel) -> Option<String> {
    let location = &model.summary.kld.as_ref()?.max_at;
    let token = model
        .top
        .iter()
        .find(|token| (token.window, token.position) == (location.window, location.position))?;
    token.text.as_ref()?.next.clone()
}
