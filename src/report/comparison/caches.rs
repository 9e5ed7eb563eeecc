//! The KV caches of models that were run with several: their types, their sizes, and what each costs.

use super::{ComparedModel, Comparison};
use crate::report::layout::columns;
use crate::report::number::{
    SizeUnit, UNDEFINED, ends, or_undefined, percent_1, printable, ratio, short_kld, short_percent,
};
use crate::report::set_up::setting;

/// The type of the KV cache beside which others are shown: llama.cpp's default.
const USUAL: &str = "f16";

/// A model that was run with several types of the KV cache.
pub(super) struct Caches<'c> {
    /// The model's name.
    pub name: String,
    /// Its runs, the largest cache first.
    runs: Vec<Run<'c>>,
}

impl Caches<'_> {
    /// Returns the number of its runs.
    pub(super) fn n_runs(&self) -> usize {
        self.runs.len()
    }
}

/// A run of it.
struct Run<'c> {
    types: [String; 2],
    bytes: u64,
    model: &'c ComparedModel,
}

/// A table of KV caches: the titles, and the cells of each run.
pub(super) struct CachesTable {
    pub titles: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Comparison {
    /// The models that were run with several types of the KV cache. Of runs with the same types, the first
    /// counts; one whose size is not recorded is left out.
    pub(super) fn caches(&self) -> Vec<Caches<'_>> {
        let mut of_models: Vec<Vec<&ComparedModel>> = Vec::new();
        for model in &self.models {
            let is_its = |runs: &&mut Vec<&ComparedModel>| {
                runs.first().is_some_and(|run| run.is_of_same_file(model))
            };
            match of_models.iter_mut().find(is_its) {
                Some(runs) => runs.push(model),
                None => of_models.push(vec![model]),
            }
        }
        let caches = of_models.into_iter().filter_map(|models| {
            let name = printable(models.first()?.model.default_label());
            let mut runs: Vec<Run<'_>> = Vec::new();
            for run in models.into_iter().filter_map(Run::of) {
                if runs.iter().all(|other| other.types != run.types) {
                    runs.push(run);
                }
            }
            // Of equally large ones, the nearest comes first, as they are sorted already.
            runs.sort_by_key(|run| std::cmp::Reverse(run.bytes));
            (runs.len() > 1).then_some(Caches { name, runs })
        });
        caches.collect()
    }

    /// The tables of KV caches, one for each model; empty without any.
    pub(super) fn caches_text(&self) -> String {
        let mut text = String::new();
        for caches in self.caches() {
            let CachesTable { titles, rows } = self.caches_table(&caches);
            text.push_str(&format!(
                "\nKV caches of {}, the largest first\n{}",
                caches.name,
                columns(titles, rows, 2, 2)
            ));
        }
        text
    }

    /// The table of a model's KV caches.
    pub(super) fn caches_table(&self, caches: &Caches<'_>) -> CachesTable {
        let runs = &caches.runs;
        let unit = SizeUnit::for_sizes(runs.first().map_or(0, |run| run.bytes));
        let usual = runs.iter().find(|run| run.types == [USUAL; 2]);
        let mut titles = vec![
            "  K".to_owned(),
            "V".to_owned(),
            format!("cache\n{}", unit.symbol),
        ];
        titles.extend(usual.map(|_| format!("share of\n{USUAL}")));
        titles.extend([
            "mean\nKLD".to_owned(),
            "times\nthe best".to_owned(),
            format!("{} %\ninterval", short_percent(self.confidence.level())),
            "same\ntop %".to_owned(),
        ]);
        let row = |run: &Run<'_>| {
            let to_best = run.model.ratio_to_best.map(|to_best| to_best.ratio);
            let [k, v] = &run.types;
            let mut cells = vec![
                format!("  {k}"),
                v.clone(),
                format!("{:.2}", run.bytes as f64 / unit.bytes),
            ];
            cells.extend(usual.map(|usual| percent_1(run.bytes as f64 / usual.bytes as f64)));
            cells.extend([
                or_undefined(run.model.mean_kld(), |mean| short_kld(mean.value)),
                to_best.map_or_else(|| self.without_ratio(run.model), |of| ratio(of.value)),
                to_best.map_or_else(String::new, |of| ends(of.lo, of.hi, ratio)),
                or_undefined(run.model.same_top(), |share| {
                    format!("{:.2}", 100.0 * share)
                }),
            ]);
            cells
        };
        CachesTable {
            titles,
            rows: runs.iter().map(row).collect(),
        }
    }

    /// The cell of a model that has no ratio to the best.
    fn without_ratio(&self, model: &ComparedModel) -> String {
        match self.best() {
            Some(best) if best.label == model.label => "best".to_owned(),
            _ => UNDEFINED.to_owned(),
        }
    }
}

impl<'c> Run<'c> {
    /// Reads the run of a model; `None` if its KV cache is not recorded, or it has none.
    fn of(model: &'c ComparedModel) -> Option<Self> {
        let type_of = |name| setting(&model.set_up, name).map(|kind| printable(&kind));
        Some(Self {
            types: [type_of("K cache")?, type_of("V cache")?],
            bytes: model.set_up.kv_cache_bytes.filter(|&bytes| bytes > 0)?,
            model,
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::report::comparison::Comparison;
    use crate::report::layout::WIDTH;
    use crate::report::tests::{FULL, sample};

    /// Five runs of two models, each with a KV cache of its own.
    fn swept() -> Comparison {
        let mut of = sample::comparison();
        of.models.truncate(5);
        let caches = [
            ("q4", "f16", "f16", 8 << 30),
            ("q4", "q8_0", "f16", 6_576_668_672),
            ("q4", "q4_0", "q4_0", 2_415_919_104),
            ("q2", "f16", "f16", 8 << 30),
            ("q2", "q8_0", "q8_0", 4_563_402_752),
        ];
        for (model, (name, k, v, bytes)) in of.models.iter_mut().zip(caches) {
            model.model.path = format!("{name}.gguf");
            model.set_up.type_k = Some(k.to_owned());
            model.set_up.type_v = Some(v.to_owned());
            model.set_up.kv_cache_bytes = Some(bytes);
        }
        of
    }

    #[test]
    fn each_model_that_was_run_with_several_has_a_table() {
        let of = swept();
        insta::assert_snapshot!(of.caches_text());
        assert!(of.text(FULL).contains(&of.caches_text()));
        for line in of.text(FULL).lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        // All of the types are there already.
        assert!(!of.text(FULL).contains("Set-up, where models differ"));
    }

    #[test]
    fn there_is_none_where_it_would_say_nothing() {
        assert_eq!(sample::comparison().caches_text(), "");
        // No size is recorded.
        let mut of = swept();
        of.models
            .iter_mut()
            .for_each(|model| model.set_up.kv_cache_bytes = None);
        assert_eq!(of.caches_text(), "");
        // All runs have the same types.
        let mut of = swept();
        for model in &mut of.models {
            model.set_up.type_k = Some("f16".to_owned());
            model.set_up.type_v = Some("f16".to_owned());
        }
        assert_eq!(of.caches_text(), "");
    }

    /// A plain run beside those of a sweep, and one of a file that does not record the size.
    #[test]
    fn the_first_run_with_a_pair_of_types_counts() {
        let whole = swept();
        let mut of = swept();
        let mut twice = of.models[0].clone();
        twice.label = "again".to_owned();
        of.models.push(twice);
        assert_eq!(of.caches_text(), whole.caches_text());
        let n_rows = |of: &super::Comparison| {
            of.caches()
                .iter()
                .map(|caches| caches.n_runs())
                .sum::<usize>()
        };
        of.models.pop();
        of.models[0].set_up.kv_cache_bytes = None;
        assert_eq!(n_rows(&of) + 1, n_rows(&whole));
    }

    #[test]
    fn a_share_needs_the_usual_cache() {
        let mut of = swept();
        of.models.remove(0);
        let text = of.caches_text();
        assert!(text.contains("KV caches of q4"), "{text}");
        // Below the two lines of titles.
        let (q4, q2) = text.split_once("KV caches of q2").unwrap();
        assert!(!q4.contains("share of") && !q4.contains("0 %"), "{q4}");
        assert!(q2.contains("share of") && q2.contains("100.0 %"), "{q2}");
    }
}
