//! Recipes on the fake engine: chosen, measured beside their files, written, and refused.

use kl_measure::input::Source;
use kl_stats::stats::{ClusterRule, Confidence};

use super::*;
use crate::mathematics::Goal;
use crate::report::recipe::RecipeReport;
use crate::settings::{RecipeGoal, RecipeSettings};
use crate::{quantize, recipe};

impl MapFolder {
    /// A folder with a map of the original, and another text.
    fn with_map() -> Self {
        let folder = Self::new();
        folder.map(&folder.map_settings("map"));
        let other = "a different text, which has other words in it. ".repeat(30);
        fs::write(folder.path("other"), other).unwrap();
        folder
    }

    fn recipe_settings(&self, goal: Goal) -> RecipeSettings {
        RecipeSettings {
            map: self.path("map"),
            goal: RecipeGoal::Number(goal),
            types: Vec::new(),
            output: None,
            quantize: None,
            may_replace: false,
            confidence: Confidence::default(),
            model: None,
            text: None,
            max_rows: None,
            clusters: ClusterRule::Window,
            imatrix: None,
            run: exchangeable_run(),
        }
    }

    /// The same, measured on a text whose windows are those of the map.
    fn measured_settings(&self, goal: Goal, text: &str) -> RecipeSettings {
        RecipeSettings {
            model: Some(self.path("f16")),
            text: Some(Source::one_text(&self.path(text), 32)),
            ..self.recipe_settings(goal)
        }
    }

    fn recipe(&self, settings: &RecipeSettings) -> RecipeReport {
        recipe(settings, &FakeEngine::default(), &()).unwrap().0
    }
}

#[test]
fn a_recipe_in_memory_is_its_file() {
    let folder = MapFolder::with_map();
    let mut settings = folder.measured_settings(Goal::Bpw(4.5), "other");
    settings.output = Some(folder.path("types"));
    settings.quantize = Some(folder.path("mine"));
    let report = folder.recipe(&settings);
    let bpw = report.recipe.bpw;
    assert!(bpw <= 4.5 && bpw > 4.3, "{bpw}");
    assert_eq!((report.recipe.tensors.len(), report.recipe.gap), (8, 0.0));
    let check = report.check.as_ref().unwrap();
    assert_eq!(check.control, 0.0);
    let measured = report.recipe.kld.measured.unwrap();
    assert!(measured.value > 0.0 && measured.lo.is_some());
    let types = String::from_utf8(folder.bytes("types")).unwrap();
    assert_eq!(types.lines().count(), 8, "{types}");

    quantize(&settings, &report.recipe, None, &FakeEngine::default(), &()).unwrap();
    assert_eq!(folder.bytes("mine").len() as u64, report.recipe.size_bytes);
    // A file of that size is the recipe's own.
    settings.may_replace = true;
    settings.goal = RecipeGoal::Like(folder.path("mine"));
    let again = folder.recipe(&settings);
    let like = again.check.unwrap().like.unwrap();
    assert_eq!(like.size_bytes, report.recipe.size_bytes);
    assert_eq!(again.recipe.size_bytes, report.recipe.size_bytes);
    assert_eq!(like.kld.value, again.recipe.kld.measured.unwrap().value);
    assert_eq!(like.ratio.unwrap().value, 1.0);
}

/// The intervals of so low a level have nothing in common.
#[test]
fn where_the_prediction_does_not_hold_the_neighbours_are_measured() {
    let folder = MapFolder::with_map();
    let mut settings = folder.measured_settings(Goal::Bpw(3.5), "other");
    settings.confidence = Confidence::new(0.001).unwrap();
    let recorder = Recorder::default();
    let (report, _) = recipe(&settings, &FakeEngine::default(), &recorder).unwrap();
    assert!(recorder.heard().contains(&"begin second round".to_owned()));
    let check = report.check.unwrap();
    let round = check.second_round.unwrap();
    assert!((9..=17).contains(&round.n_cells), "{}", round.n_cells);
    let [before, after] = [round.before, round.after].map(|kld| kld.measured.unwrap().value);
    let kld = report.recipe.kld;
    assert_eq!(kld.measured.unwrap().value, f64::min(before, after));
    assert_eq!(round.is_used, after < before);
    assert!(report.recipe.bpw <= 3.5);
    // Whichever is used, the prediction is the map's, of the mixture that is shown.
    let predicted = [round.before, round.after].map(|kld| kld.predicted);
    assert_eq!(kld.predicted, predicted[usize::from(round.is_used)]);
    assert!(predicted.iter().all(|kld| kld.lo.is_some()));
    assert!(round.kept_back.before > 0.0);
}

/// Of few bits, this fake measures what the map predicts, and a little more of many.
#[test]
fn a_measurement_that_misses_the_goal_is_a_warning() {
    let folder = MapFolder::with_map();
    for (most, is_missed) in [(0.1, false), (0.000297, true)] {
        let report = folder.recipe(&folder.measured_settings(Goal::Kld(most), "other"));
        let lo = report.recipe.kld.measured.unwrap().lo.unwrap();
        assert_eq!(lo > most, is_missed, "{lo}");
        let kinds: Vec<&str> = report.warnings.iter().map(|of| of.kind()).collect();
        assert_eq!(kinds.contains(&"missed_kld"), is_missed, "{kinds:?}");
        assert!(!kinds.contains(&"prediction_off") && !kinds.contains(&"few_windows"));
    }
}
