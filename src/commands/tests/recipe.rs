//! Recipes on the fake engine: chosen, measured beside their files, written, and refused.

use super::*;
use crate::commands::settings::{OriginalSettings, RecipeGoal, RecipeSettings, SensitivitySource};
use crate::commands::{quantize, recipe};
use crate::recipe::Goal;
use crate::report::recipe::RecipeReport;

impl Folder {
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
            goal: RecipeGoal::Reach(goal),
            types: Vec::new(),
            imatrix: None,
            confidence: Confidence::default(),
            output: None,
            json: None,
            html: None,
            report: None,
            existing: Existing::asked(false, None),
            original: None,
        }
    }

    /// What is measured on a text, whose windows are those of the map.
    fn original(&self, text: &str) -> Box<OriginalSettings> {
        let SensitivitySource::Text(Source::Texts(mut source)) = self.map_settings("none").source
        else {
            panic!("a text");
        };
        source.texts[0].path = self.path(text);
        let mut run = run();
        run.model.is_exchangeable = true;
        Box::new(OriginalSettings {
            path: self.path("f16"),
            text: Some(Source::Texts(source)),
            clusters: ClusterRule::Window,
            run,
            quantized: None,
        })
    }

    fn recipe(&self, settings: &RecipeSettings) -> RecipeReport {
        recipe(settings, &FakeEngine::default(), &()).unwrap()
    }

    fn no_recipe(&self, settings: &RecipeSettings) -> String {
        let refused = recipe(settings, &FakeEngine::default(), &());
        one_line(&refused.unwrap_err())
    }
}

#[test]
fn a_recipe_in_memory_is_its_file() {
    let folder = Folder::with_map();
    let mut settings = folder.recipe_settings(Goal::Bpw(4.5));
    settings.output = Some(folder.path("types"));
    settings.original = Some(folder.original("other"));
    settings.original.as_mut().unwrap().quantized = Some(folder.path("mine"));
    let report = folder.recipe(&settings);
    assert!(report.bpw <= 4.5 && report.bpw > 4.3, "{}", report.bpw);
    assert_eq!((report.tensors.len(), report.gap), (8, 0.0));
    let check = report.check.as_ref().unwrap();
    assert_eq!(check.control, 0.0);
    let measured = report.kld.measured.unwrap();
    assert!(measured.value > 0.0 && measured.lo.is_some());
    let types = String::from_utf8(folder.bytes("types")).unwrap();
    assert_eq!(types.lines().count(), 8, "{types}");

    quantize(&settings, &report, &FakeEngine::default(), &()).unwrap();
    assert_eq!(folder.bytes("mine").len() as u64, report.size_bytes);
    // A file of that size is the recipe's own.
    settings.existing = Existing::Replace;
    settings.goal = RecipeGoal::Like(folder.path("mine"));
    let again = folder.recipe(&settings);
    let like = again.check.unwrap().like.unwrap();
    assert_eq!(like.size_bytes, report.size_bytes);
    assert_eq!(again.size_bytes, report.size_bytes);
    assert_eq!(like.kld.value, again.kld.measured.unwrap().value);
    assert_eq!(like.ratio.unwrap().value, 1.0);
}

/// The intervals of so low a level have nothing in common.
#[test]
fn where_the_prediction_does_not_hold_the_neighbours_are_measured() {
    let folder = Folder::with_map();
    let mut settings = folder.recipe_settings(Goal::Bpw(3.5));
    settings.confidence = Confidence::new(0.001).unwrap();
    settings.original = Some(folder.original("other"));
    let recorder = Recorder::default();
    let report = recipe(&settings, &FakeEngine::default(), &recorder).unwrap();
    let heard = recorder.heard();
    assert!(
        heard.contains(&"begin second round".to_owned()),
        "{heard:?}"
    );
    let check = report.check.unwrap();
    let round = check.second_round.unwrap();
    assert!((9..=17).contains(&round.n_cells), "{}", round.n_cells);
    let [before, after] = [round.before, round.after].map(|kld| kld.measured.unwrap().value);
    assert_eq!(report.kld.measured.unwrap().value, f64::min(before, after));
    assert_eq!(round.is_used, after < before);
    assert!(report.bpw <= 3.5);
    // Whichever is used, the prediction is the map's, of the mixture that is shown.
    let predicted = [round.before, round.after].map(|kld| kld.predicted);
    assert_eq!(report.kld.predicted, predicted[usize::from(round.is_used)]);
    assert!(
        predicted.iter().all(|kld| kld.lo.is_some()),
        "{predicted:?}"
    );
    assert!(round.kept_back.before > 0.0);
}

/// Of few bits, this fake measures what the map predicts, and a little more of many.
#[test]
fn a_measurement_that_misses_the_goal_is_a_warning() {
    let folder = Folder::with_map();
    for (most, is_missed) in [(0.1, false), (0.000297, true)] {
        let mut settings = folder.recipe_settings(Goal::Kld(most));
        settings.original = Some(folder.original("other"));
        let report = folder.recipe(&settings);
        let lo = report.kld.measured.unwrap().lo.unwrap();
        assert_eq!(lo > most, is_missed, "{lo}");
        let kinds: Vec<&str> = report.warnings.iter().map(|of| of.kind()).collect();
        assert_eq!(kinds.contains(&"missed_kld"), is_missed, "{kinds:?}");
        assert!(!kinds.contains(&"prediction_off") && !kinds.contains(&"few_windows"));
    }
}

#[test]
fn the_maps_own_text_is_a_warning() {
    let folder = Folder::with_map();
    let mut settings = folder.recipe_settings(Goal::Bpw(4.5));
    for (text, n) in [("other", 0), ("text", 1)] {
        settings.original = Some(folder.original(text));
        let warnings = folder.recipe(&settings).warnings;
        let own = warnings.iter().filter(|of| of.kind() == "text_of_map");
        assert_eq!(own.count(), n, "{text}");
    }
}

#[test]
fn what_does_not_fit_the_map_is_refused() {
    let folder = Folder::with_map();
    let size = folder
        .recipe(&folder.recipe_settings(Goal::Bpw(16.5)))
        .size_bytes;
    assert!(
        folder
            .recipe(&folder.recipe_settings(Goal::Size(size)))
            .kld
            .predicted
            .value
            == 0.0
    );
    let small = folder.no_recipe(&folder.recipe_settings(Goal::Size(1000)));
    assert!(
        small.contains("map: no mixture") && small.contains("the smallest file has"),
        "{small}"
    );

    let mut settings = folder.recipe_settings(Goal::Bpw(4.5));
    settings.types = vec!["tq1_0".parse().unwrap()];
    let unknown = folder.no_recipe(&settings);
    assert!(
        unknown.contains("--types tq1_0") && unknown.contains("q4_K"),
        "{unknown}"
    );

    settings.types.clear();
    settings.imatrix = Some(folder.path("text"));
    let imatrix = folder.no_recipe(&settings);
    assert!(
        imatrix.contains("made without an importance matrix"),
        "{imatrix}"
    );

    settings.imatrix = None;
    settings.original = Some(folder.original("other"));
    settings.original.as_mut().unwrap().path = folder.path("q4");
    let other = folder.no_recipe(&settings);
    assert!(other.contains("was made of another model"), "{other}");

    settings.original = None;
    settings.map = folder.path("text");
    settings.output = Some(folder.path("types"));
    let not_a_map = folder.no_recipe(&settings);
    assert!(not_a_map.contains("text: not a map"), "{not_a_map}");
    assert!(!folder.path("types").exists() && !folder.path("types.partial").exists());
}

#[test]
fn a_map_cut_off_is_used_as_far_as_it_goes() {
    let folder = Folder::with_map();
    let bytes = folder.bytes("map");
    let half = &bytes[..bytes.len() * 2 / 3];
    fs::write(folder.path("map"), half).unwrap();
    let report = folder.recipe(&folder.recipe_settings(Goal::Bpw(5.0)));
    let kinds: Vec<&str> = report.warnings.iter().map(|of| of.kind()).collect();
    assert!(kinds.contains(&"map_cut_off"), "{kinds:?}");
    assert!(report.bpw <= 5.0);
    assert_eq!(folder.bytes("map"), half);
}
