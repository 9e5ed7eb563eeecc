//! What to know before trusting a comparison.

use crate::commands::evaluation::DOUBTFUL_PERPLEXITY;
use crate::report::comparison::ComparedModel;
use crate::report::number::printable;
use crate::report::{UnfitText, Warning, unit};
use crate::stats::{ClusterKind, MIN_CLUSTERS};

/// The warnings that the models deserve; what is the same for all is said once. `of_prompts`:
/// whether windows are prompts.
pub fn of(models: &[ComparedModel], of_prompts: bool) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for model in models {
        let summary = &model.summary;
        let (n_excluded, n_infinite) = (summary.n_excluded, summary.n_infinite());
        if model.is_incomplete {
            warnings.push(Warning::LeftOut {
                label: printable(&model.label),
                n_excluded,
                n_infinite,
            });
        }
        let kld = summary.kld.as_ref();
        let is_identical = kld.is_some_and(|kld| kld.max == 0.0 && kld.n_infinite == 0);
        if is_identical && !model.is_reference_model {
            let path = printable(&model.label);
            warnings.push(Warning::Identical { path });
        }
    }
    // What all leave out is said once.
    if let Some(model) = models.iter().find(|model| !model.is_incomplete) {
        let (n_excluded, n_infinite) = (model.summary.n_excluded, model.summary.n_infinite());
        if n_excluded > 0 {
            warnings.push(Warning::Excluded(n_excluded));
        }
        if n_infinite > 0 {
            warnings.push(Warning::Infinite(n_infinite));
        }
    }
    warnings.extend(few_clusters(models, unit(of_prompts)));
    let perplexities = models.iter().filter_map(|model| model.summary.perplexity);
    let reference = perplexities.map(|perplexity| perplexity.reference).next();
    if let Some(perplexity) = reference.filter(|perplexity| *perplexity >= DOUBTFUL_PERPLEXITY) {
        let text = UnfitText::of(of_prompts);
        warnings.push(Warning::HighPerplexity { perplexity, text });
    }
    warnings
}

/// The warning about the models with the fewest clusters, if those are too few: named unless it is
/// all of them.
fn few_clusters(models: &[ComparedModel], unit: &'static str) -> Option<Warning> {
    let clusters_of = |model: &ComparedModel| model.summary.clusters;
    let fewest = models.iter().map(clusters_of).min_by_key(|of| of.n)?;
    let few = models
        .iter()
        .filter(|model| clusters_of(model).n == fewest.n);
    let labels: Vec<String> = few.map(|model| printable(&model.label)).collect();
    (1..MIN_CLUSTERS as u64)
        .contains(&fewest.n)
        .then(|| Warning::FewClusters {
            labels: match labels.len() == models.len() {
                true => Vec::new(),
                false => labels,
            },
            n: fewest.n,
            unit: match fewest.kind {
                ClusterKind::Block => "block",
                ClusterKind::Window => unit,
            },
        })
}
