//! Numbers that a person feels: drafted tokens that are accepted, and greedy answers that stay the same.

use super::names::Names;
use super::sentence::list;
use super::{ComparedModel, Comparison};
use crate::report::identical_output::{median, median_ends};
use crate::report::layout::{columns, wrapped};
use crate::report::number::{bytes, count, ends, fixed, or_undefined, printable, short_percent};
use crate::stats::{Acceptance, Estimate};

/// The lengths of the drafts that are shown.
const DRAFTED: [u32; 3] = [4, 8, 16];

/// The use of the table of acceptance.
pub(in crate::report) const AS_A_DRAFT: &str = "To draft for the original, take a small quant of which many tokens are accepted: a draft costs \
     time by its size, and saves as many of the original's steps as tokens are accepted.";

/// A table with a row for each model that has the numbers.
pub(super) struct UseTable {
    /// The titles of the columns after the model's.
    pub titles: Vec<String>,
    /// The model's label, and the other cells.
    pub rows: Vec<(String, Vec<String>)>,
}

impl Comparison {
    /// Tables for a terminal, each after its title; empty where no model has the numbers.
    pub(super) fn in_use_text(&self, names: &Names) -> String {
        let mut text = String::new();
        let mut add = |title: &str, of: UseTable| {
            if of.rows.is_empty() {
                return;
            }
            let table = names.fitted(|name| {
                let titles = ["".to_owned()].into_iter().chain(of.titles.iter().cloned());
                let rows = of.rows.iter().map(|(label, cells)| {
                    let name = format!("  {}", name(label));
                    [name].into_iter().chain(cells.iter().cloned()).collect()
                });
                columns(titles, rows, 1, 1)
            });
            text.push_str(&format!("\n{title}\n{table}"));
        };
        add(IDENTICAL, self.identical_table("\n"));
        add(ACCEPTED, self.acceptance_table("\n"));
        if self.has_sizes_to_draft() {
            text.push_str(&wrapped(AS_A_DRAFT));
        }
        if let Some(why) = self.without_acceptance() {
            text.push_str(&wrapped(&why));
        }
        text
    }

    /// The models whose drafted tokens were counted. `joint` stands between the words of a title.
    pub(super) fn acceptance_table(&self, joint: &str) -> UseTable {
        let level = short_percent(self.confidence.level());
        let mut titles = vec![
            format!("{joint}size"),
            format!("accepted{joint}%"),
            format!("{level} %{joint}interval"),
        ];
        titles.extend(DRAFTED.map(|n| format!("of {n}{joint}drafted")));
        let points = |share: f64| fixed(100.0 * share, 2);
        let row = |model: &ComparedModel, of: &Acceptance| {
            let mean = &of.mean;
            let mut cells = vec![
                or_undefined(model.model.shown_bytes(), bytes),
                points(mean.value),
                ends(mean.lo, mean.hi, points),
            ];
            let accepted = DRAFTED.map(|n| of.of_drafted(n));
            let shown = |accepted: &Estimate| fixed(accepted.value, 2);
            cells.extend(accepted.map(|accepted| or_undefined(accepted, shown)));
            cells
        };
        let rows = self.drafts().into_iter().filter_map(|model| {
            let of = model.summary.acceptance.as_ref()?;
            Some((model.label.clone(), row(model, of)))
        });
        UseTable {
            rows: rows.collect(),
            titles,
        }
    }

    /// The models whose greedy answers were compared.
    pub(super) fn identical_table(&self, joint: &str) -> UseTable {
        let level = short_percent(self.confidence.level());
        let titles = vec![
            format!("half of the answers{joint}are the same for"),
            format!("{level} %{joint}interval"),
            format!("the same{joint}to their end"),
        ];
        let models = self.models.iter();
        let rows = models.filter_map(|model| {
            let of = model.summary.identical_output.as_ref()?;
            let cells = vec![
                median(of),
                median_ends(of),
                format!("{} of {}", count(of.n_identical), count(of.n_answers)),
            ];
            Some((model.label.clone(), cells))
        });
        UseTable {
            rows: rows.collect(),
            titles,
        }
    }

    /// The models that could draft for the original, of which each file counts once, whatever its KV
    /// cache; none where the models are runs of a single file.
    pub(in crate::report) fn drafts(&self) -> Vec<&ComparedModel> {
        let mut drafts: Vec<&ComparedModel> = Vec::new();
        let models = self.models.iter();
        for model in models.filter(|model| !model.is_reference_model) {
            let is_known = drafts.iter().any(|other| other.is_of_same_file(model));
            if model.summary.acceptance.is_some() && !is_known {
                drafts.push(model);
            }
        }
        let of_one_file = |models: &[ComparedModel]| match models {
            [first, others @ ..] => others.iter().all(|other| first.is_of_same_file(other)),
            [] => true,
        };
        match of_one_file(&self.models) {
            true => Vec::new(),
            false => drafts,
        }
    }

    /// Names the models that have no acceptance beside drafts that have; `None` without any.
    pub(in crate::report) fn without_acceptance(&self) -> Option<String> {
        let is_old = |model: &&ComparedModel| {
            model.summary.acceptance.is_none() && model.mean_kld().is_some()
        };
        let old = self.models.iter().filter(is_old);
        let old: Vec<String> = old.map(|model| printable(&model.label)).collect();
        (!old.is_empty() && !self.drafts().is_empty()).then(|| {
            let verb = if old.len() == 1 { "was" } else { "were" };
            let old = list(old);
            format!(
                "{old} {verb} evaluated before acceptance was recorded: evaluate again to see it."
            )
        })
    }

    /// Returns true if there are drafts of several sizes to choose from.
    pub(in crate::report) fn has_sizes_to_draft(&self) -> bool {
        let drafts = self.drafts().into_iter();
        let mut sizes = drafts.filter_map(|model| model.model.shown_bytes());
        sizes
            .next()
            .is_some_and(|first| sizes.any(|size| size != first))
    }
}

/// The title of the table of greedy answers.
pub(super) const IDENTICAL: &str = "Greedy answers: for how many tokens they are the original's";

/// The title of the table of acceptance.
pub(super) const ACCEPTED: &str =
    "Tokens that the quant drafts and the original accepts, at temperature 1";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample::comparison;

    fn labels(of: &Comparison) -> Vec<&str> {
        let drafts = of.drafts().into_iter();
        drafts.map(|model| model.label.as_str()).collect()
    }

    #[test]
    fn neither_the_original_nor_runs_of_one_file_are_drafts_to_choose_from() {
        let mut of = comparison();
        of.models.truncate(3);
        assert_eq!(labels(&of), ["tiny-q4_K_M", "tiny-iq4_xs"]);
        assert!(of.has_sizes_to_draft() && of.text().contains(ACCEPTED));
        // Another file of the same size.
        of.models[2].model.file_bytes = of.models[1].model.file_bytes;
        of.models[2].model.size_bytes = of.models[1].model.size_bytes;
        assert!(!of.has_sizes_to_draft() && of.text().contains(ACCEPTED));
        // A sidecar of kl 0.1.0.
        of.models[0].is_reference_model = false;
        of.models[0].summary.acceptance = None;
        let why = "tiny-f16 was evaluated before acceptance was recorded";
        assert!(of.text().contains(why), "{}", of.text());
        assert!(of.markdown(false).contains(&why.replace('_', "\\_")));
        // Two runs of one.
        of.models[2].model = of.models[1].model.clone();
        assert_eq!(labels(&of), ["tiny-q4_K_M"]);
        of.models.remove(0);
        for shown in [of.text(), of.markdown(false)] {
            assert!(!shown.contains(ACCEPTED), "{shown}");
        }
        let page = crate::report::page::html(&of).unwrap();
        assert!(!page.contains("Drafted tokens that are accepted"));
    }
}
