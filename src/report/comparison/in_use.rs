//! Numbers that a person feels: drafted tokens that are accepted, and greedy answers that stay the same.

use super::names::Names;
use super::sentence::list;
use super::{ComparedModel, Comparison};
use crate::report::identical_output::{left_out, title};
use crate::report::layout::{View, columns, wrapped};
use crate::report::number::{
    bytes, count, count_of, ends, fixed, or_undefined, printable, short_percent,
};
use crate::stats::{Acceptance, DEFAULT_DRAFTED, IdenticalOutput};

/// The use of the table of acceptance.
const AS_A_DRAFT: &str = "To draft for the original, take a small quant of which many tokens are accepted: a draft costs \
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
    pub(super) fn in_use_text(&self, names: &Names, view: View) -> String {
        let mut text = String::new();
        let mut add = |title: &str, of: UseTable, below: Option<String>| {
            if of.rows.is_empty() {
                return;
            }
            let (rows, more) = view.first(&of.rows);
            let table = names.fitted(|name| {
                let titles = ["".to_owned()].into_iter().chain(of.titles.iter().cloned());
                let rows = rows.iter().map(|(label, cells)| {
                    let name = format!("  {}", name(label));
                    [name].into_iter().chain(cells.iter().cloned()).collect()
                });
                columns(titles, rows, 1, 1)
            });
            let below = below.map(|below| wrapped(&below)).unwrap_or_default();
            text.push_str(&format!("\n{}{table}{more}{below}", wrapped(title)));
        };
        let mut identical = self.identical_table("\n");
        if !view.full {
            self.add_acceptance(&mut identical);
        }
        // Without greedy answers, drafts have no column there.
        let shows_drafts = identical.rows.is_empty() && self.shows_drafts();
        add(&self.identical_title(), identical, self.answers_left_out());
        if view.full || shows_drafts {
            let notes = self.draft_notes().join(" ");
            add(ACCEPTED, self.acceptance_table("\n"), Some(notes));
        }
        text
    }

    /// Adds the tokens that a round of drafts accepts to each row.
    fn add_acceptance(&self, table: &mut UseTable) {
        let title = format!("accepted of\n{DEFAULT_DRAFTED} drafted");
        table.titles.push(title);
        for (label, cells) in &mut table.rows {
            let model = self.models.iter().find(|model| model.label == *label);
            let acceptance = model.and_then(|model| model.summary.acceptance.as_ref());
            let accepted = acceptance.and_then(|of| of.of_drafted(DEFAULT_DRAFTED));
            cells.push(or_undefined(accepted, |of| fixed(of.value, 2)));
        }
    }

    /// The models whose drafted tokens were counted. `joint` stands between the words of a title.
    pub(super) fn acceptance_table(&self, joint: &str) -> UseTable {
        let level = short_percent(self.confidence.level());
        let titles = vec![
            format!("file{joint}size"),
            format!("accepted{joint}%"),
            format!("accepted of{joint}{DEFAULT_DRAFTED} drafted"),
            format!("{level} %{joint}interval"),
        ];
        let tokens = |n: f64| fixed(n, 2);
        let row = |model: &ComparedModel, of: &Acceptance| {
            let in_a_round = of.of_drafted(DEFAULT_DRAFTED);
            let interval = in_a_round.map(|of| ends(of.lo, of.hi, tokens));
            vec![
                or_undefined(model.model.shown_bytes(), bytes),
                fixed(100.0 * of.mean.value, 2),
                or_undefined(in_a_round, |of| tokens(of.value)),
                interval.unwrap_or_default(),
            ]
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
            "answers".to_owned(),
            "%".to_owned(),
            format!("{level} %{joint}interval"),
            format!("half of those that{joint}differ do so within"),
        ];
        let points = |share: f64| fixed(100.0 * share, 2);
        let models = self.models.iter();
        let rows = models.filter_map(|model| {
            let of = model.summary.identical_output.as_ref()?;
            let same = of.same_to_the_end.as_ref();
            let tokens = |n: u32| count_of(n.into(), "token");
            let cells = vec![
                format!(
                    "{} of {}",
                    count(of.n_answers - of.n_differ),
                    count(of.n_answers)
                ),
                or_undefined(same, |same| points(same.value)),
                same.map(|same| ends(same.lo, same.hi, points))
                    .unwrap_or_default(),
                or_undefined(of.half_differ_within, tokens),
            ];
            Some((model.label.clone(), cells))
        });
        UseTable {
            rows: rows.collect(),
            titles,
        }
    }

    /// The greedy answers of the models that have them.
    fn identical(&self) -> impl Iterator<Item = &IdenticalOutput> {
        let models = self.models.iter();
        models.filter_map(|model| model.summary.identical_output.as_ref())
    }

    /// The title of the table of greedy answers. The cut is the reference's, so it is the same for all.
    pub(in crate::report) fn identical_title(&self) -> String {
        self.identical().next().map(title).unwrap_or_default()
    }

    /// Says how many greedy answers are left out, and why; near ties are the same for all models.
    pub(in crate::report) fn answers_left_out(&self) -> Option<String> {
        left_out(self.identical())
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

    /// Returns true if texts show the drafts: they are about answers. Pages and JSON always do.
    pub(super) fn shows_drafts(&self) -> bool {
        self.models.iter().any(|model| model.measures_answers())
    }

    /// Explains the table of drafts, and names the models that are not in it; empty without drafts.
    pub(in crate::report) fn draft_notes(&self) -> Vec<String> {
        let drafts = self.drafts();
        if drafts.is_empty() {
            return Vec::new();
        }
        let mut notes = vec![format!(
            "A round drafts {DEFAULT_DRAFTED} tokens, llama.cpp's default, and ends with one of the \
             original's own."
        )];
        if self.has_sizes_to_draft() {
            notes.push(AS_A_DRAFT.to_owned());
        }
        let named = |is: &dyn Fn(&ComparedModel) -> bool| {
            let models = self.models.iter().filter(|model| is(model));
            let labels: Vec<String> = models.map(|model| printable(&model.label)).collect();
            let be = if labels.len() == 1 { "is" } else { "are" };
            (!labels.is_empty()).then(|| (list(labels), be))
        };
        let is_drawn = |model: &ComparedModel| drafts.iter().any(|of| of.label == model.label);
        let is_a_run = |model: &ComparedModel| {
            let has_acceptance = model.summary.acceptance.is_some();
            has_acceptance && !model.is_reference_model && !is_drawn(model)
        };
        notes.extend(named(&is_a_run).map(|(runs, be)| {
            format!("{runs} {be} not in the table: it has each file once, whatever its KV cache.")
        }));
        let is_old = |model: &ComparedModel| {
            model.summary.acceptance.is_none() && model.mean_kld().is_some()
        };
        notes.extend(named(&is_old).map(|(old, be)| {
            format!("{old} {be} not in the table: evaluate again to see acceptance, which older versions did not record.")
        }));
        notes
    }
    /// Returns true if there are drafts of several sizes to choose from.
    fn has_sizes_to_draft(&self) -> bool {
        let drafts = self.drafts().into_iter();
        let mut sizes = drafts.filter_map(|model| model.model.shown_bytes());
        sizes
            .next()
            .is_some_and(|first| sizes.any(|size| size != first))
    }
}

/// The title of the table of acceptance.
pub(super) const ACCEPTED: &str =
    "Tokens that the quant drafts and the original accepts, at temperature 1";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::FULL;
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
        assert!(of.has_sizes_to_draft() && of.text(FULL).contains(ACCEPTED));
        // Another file of the same size.
        of.models[2].model.file_bytes = of.models[1].model.file_bytes;
        of.models[2].model.size_bytes = of.models[1].model.size_bytes;
        assert!(!of.has_sizes_to_draft() && of.text(FULL).contains(ACCEPTED));
        // A sidecar of kl 0.1.0.
        of.models[0].is_reference_model = false;
        of.models[0].summary.acceptance = None;
        let why = "tiny-f16 is not in the table: evaluate again";
        let one_line = |text: String| text.replace('\n', " ");
        assert!(one_line(of.text(FULL)).contains(why), "{}", of.text(FULL));
        assert!(of.markdown(false).contains(&why.replace('_', "\\_")));
        // Two runs of one.
        of.models[2].model = of.models[1].model.clone();
        assert_eq!(labels(&of), ["tiny-q4_K_M"]);
        let why = "tiny-iq4_xs is not in the table: it has each file once";
        assert!(one_line(of.text(FULL)).contains(why), "{}", of.text(FULL));
        let page = crate::report::page::html(&of).unwrap();
        assert!(page.contains(why));
        of.models.remove(0);
        for shown in [of.text(FULL), of.markdown(false)] {
            assert!(!shown.contains(ACCEPTED), "{shown}");
        }
        let page = crate::report::page::html(&of).unwrap();
        assert!(!page.contains("Drafted tokens that are accepted"));
    }

    /// Only the page, the JSON and the whole report show drafts of plain texts.
    #[test]
    fn drafts_are_shown_where_answers_are_measured() {
        let brief = View {
            full: false,
            ..FULL
        };
        let mut of = comparison();
        assert!(of.text(brief).contains("3 drafted"));
        for model in &mut of.models {
            model.summary.identical_output = None;
        }
        // Answers without greedy ones have spans.
        assert!(of.text(brief).contains(ACCEPTED));
        for model in &mut of.models {
            model.breakdown.by_span.clear();
        }
        for shown in [of.text(brief), of.markdown(false)] {
            assert!(!shown.contains("draft"), "{shown}");
        }
        assert!(of.text(FULL).contains(ACCEPTED));
        let page = crate::report::page::html(&of).unwrap();
        assert!(page.contains("Drafted tokens that are accepted"));
    }
}
