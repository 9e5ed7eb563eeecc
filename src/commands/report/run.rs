//! The table of a run of several models, made anew after each.

use std::path::{Path, PathBuf};

use super::{Comparer, label, ranking, warnings};
use crate::commands::observer::Watch;
use crate::commands::parts::stored_evaluations;
use crate::commands::settings::{ResultSettings, Sidecar};
use crate::report::comparison::{ComparedModel, ComparedReference, Comparison};
use crate::report::{ModelReport, Report, Warning};
use crate::stats::{Breakdown, Confidence};

/// Compares the models of a run by the sidecars that it has written.
pub struct RunTable {
    comparer: Comparer,
    /// How many models of the run are in it.
    n_added: usize,
    has_sidecars: bool,
    /// Whether the run evaluates one part of the windows.
    is_part: bool,
    confidence: Confidence,
}

impl RunTable {
    /// A table without models.
    pub fn new(settings: &ResultSettings) -> Self {
        Self {
            comparer: Comparer::new(settings.confidence, settings.clusters),
            n_added: 0,
            has_sidecars: settings.sidecar != Sidecar::None,
            is_part: settings.part.is_some(),
            confidence: settings.confidence,
        }
    }

    /// The table of all models so far; `None` for fewer than two. Without sidecars, or if the models
    /// were evaluated on different tokens, it has no paired differences, and states why.
    pub fn compare(&mut self, report: &Report, watch: &Watch<'_>) -> Option<Comparison> {
        if report.models.len() < 2 {
            return None;
        }
        let why = match self.has_sidecars {
            false => "--no-sidecar leaves nothing to compare the models by, token by token",
            true if self.is_part => "these are parts: kl report compares them once all are there",
            true => match self.paired(report, watch) {
                Some(comparison) if comparison.not_compared.is_empty() => return Some(comparison),
                Some(_) => "the models were not evaluated on the same tokens (--until, -n)",
                None => "not every model has left a sidecar",
            },
        };
        Some(self.unpaired(report, why))
    }

    /// The comparison by the sidecars; `None` if one is missing or cannot be read.
    fn paired(&mut self, report: &Report, watch: &Watch<'_>) -> Option<Comparison> {
        let new = report.models.get(self.n_added..)?;
        let paths: Option<Vec<PathBuf>> = new
            .iter()
            .map(|model| model.sidecar.as_ref().map(PathBuf::from))
            .collect();
        let (stored, unusable) = stored_evaluations(&paths?);
        let unreadable = self.comparer.add(stored, watch, &|_| ()).ok()?;
        self.n_added = report.models.len();
        let is_whole = unusable.is_empty() && unreadable.is_empty();
        self.comparer.compare(watch).ok().filter(|comparison| {
            let n_found = comparison.models.len() + comparison.not_compared.len();
            is_whole && n_found == report.models.len()
        })
    }

    /// The table without paired differences.
    fn unpaired(&self, report: &Report, why: &'static str) -> Comparison {
        let mut models: Vec<ComparedModel> = report.models.iter().map(unpaired_model).collect();
        ranking::mark_incomplete(&mut models);
        models.sort_by(ranking::by_mean_kld);
        label::make_distinct(&mut models);
        ranking::mark_pareto_front(&mut models);
        let reference = &report.reference;
        let file_name = Path::new(&reference.path).file_name();
        let mut warnings = warnings::of(&models);
        warnings.push(Warning::Unpaired(why));
        Comparison {
            versions: report.versions,
            reference: ComparedReference {
                file_name: file_name.map(|name| name.to_string_lossy().into_owned()),
                kind: Some(reference.kind.clone()),
                model: reference.model.clone(),
                text: reference.text.clone(),
                fingerprint: None,
                backend: reference.backend.clone(),
                n_ctx: reference.n_ctx,
                n_vocab: reference.n_vocab,
                first_scored: reference.first_scored.unwrap_or(0),
                groups: Vec::new(),
            },
            confidence: self.confidence,
            models,
            pairs: Vec::new(),
            not_compared: Vec::new(),
            warnings,
        }
    }
}

/// A row with what the report of a model has.
fn unpaired_model(report: &ModelReport) -> ComparedModel {
    ComparedModel {
        label: report.label.clone(),
        sidecar: report.sidecar.clone().unwrap_or_default(),
        parts: Vec::new(),
        model: report.model.clone(),
        is_reference_model: report.is_reference_model,
        is_noise_floor: report.is_noise_floor,
        is_incomplete: false,
        n_vocab_compared: Some(report.n_vocab_compared),
        summary: report.summary.clone(),
        difference_to_best: None,
        indistinguishable_from_best: false,
        pareto: false,
        set_up: report.set_up.clone().unwrap_or_default(),
        breakdown: Breakdown {
            by_confidence: Vec::new(),
            by_position: Vec::new(),
            by_group: Vec::new(),
            special: Vec::new(),
        },
        ccdf: Vec::new(),
        by_window: Vec::new(),
        top: Vec::new(),
    }
}
