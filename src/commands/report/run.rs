//! The table of a run of several models.

use std::path::{Path, PathBuf};

use super::{Comparer, label, ranking, warnings};
use crate::commands::observer::Watch;
use crate::commands::parts::stored_evaluations;
use crate::commands::settings::{ResultSettings, Sidecar};
use crate::report::comparison::{ComparedModel, ComparedReference, Comparison};
use crate::report::{ModelReport, ReferenceInfo, Report, Versions, Warning};
use crate::stats::Breakdown;

/// Compares the models of a run by the sidecars that it has written; `None` for fewer than two.
/// Without sidecars, or if the models were evaluated on different tokens, there are no paired
/// differences, and the table states why.
pub fn compare_run(
    settings: &ResultSettings,
    report: &Report,
    watch: &Watch<'_>,
) -> Option<Comparison> {
    let whole = report.models.iter();
    let whole: Vec<&ModelReport> = whole.filter(|model| model.interrupted.is_none()).collect();
    if whole.len() < 2 {
        return None;
    }
    let why = match settings.sidecar {
        _ if watch.should_stop() => "the run was interrupted",
        Sidecar::None => "--no-sidecar leaves nothing to compare the models by, token by token",
        _ if settings.part.is_some() => {
            "these are parts: kl report compares them once all are there"
        }
        _ => match paired(settings, &whole, watch) {
            Some(comparison) if comparison.not_compared.is_empty() => return Some(comparison),
            Some(_) => "the models were not evaluated on the same tokens (--until, -n)",
            None => "not every model has left a sidecar",
        },
    };
    Some(unpaired(
        settings,
        &report.reference,
        &whole,
        report.versions,
        why,
    ))
}

/// The comparison by the sidecars; `None` if one is missing or cannot be read.
fn paired(
    settings: &ResultSettings,
    models: &[&ModelReport],
    watch: &Watch<'_>,
) -> Option<Comparison> {
    let sidecar = |model: &&ModelReport| model.sidecar.as_ref().map(PathBuf::from);
    let paths: Option<Vec<PathBuf>> = models.iter().map(sidecar).collect();
    let (stored, unusable) = stored_evaluations(&paths?);
    let mut comparer = Comparer::new(settings.confidence, settings.clusters);
    let unreadable = comparer.add(stored, watch, &|_| ()).ok()?;
    let is_whole = unusable.is_empty() && unreadable.is_empty();
    comparer.compare(watch).ok().filter(|comparison| {
        let n_found = comparison.models.len() + comparison.not_compared.len();
        is_whole && n_found == models.len()
    })
}

/// The table without paired differences.
fn unpaired(
    settings: &ResultSettings,
    reference: &ReferenceInfo,
    models: &[&ModelReport],
    versions: Versions,
    why: &'static str,
) -> Comparison {
    let mut models: Vec<ComparedModel> = models.iter().copied().map(unpaired_model).collect();
    ranking::mark_incomplete(&mut models);
    models.sort_by(ranking::by_mean_kld);
    label::make_distinct(&mut models);
    ranking::mark_pareto_front(&mut models);
    let file_name = Path::new(&reference.path).file_name();
    let mut warnings = warnings::of(&models, reference.prompts.is_some());
    warnings.push(Warning::Unpaired(why));
    Comparison {
        versions,
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
            prompts: reference.prompts.is_some(),
        },
        confidence: settings.confidence,
        models,
        pairs: Vec::new(),
        not_compared: Vec::new(),
        warnings,
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
        until: report.until,
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
