//! The page's table of models and settings, and the settings of the reference.

use kl_formats::BackendIdentity;

use crate::report::comparison::{ComparedModel, Comparison, clusters_text};
use crate::report::number::{count, count_of};
use crate::report::set_up::SETTINGS;

/// The text of a column for a model and the word for its windows; `None` where it is not recorded.
type Value = fn(&ComparedModel, &str) -> Option<String>;

const COLUMNS: [(&str, Value); 10] = [
    ("File", |m, _| Some(m.model.path.clone())),
    ("Architecture", |m, _| m.model.architecture.clone()),
    ("Parameters", |m, _| m.model.n_params.map(count)),
    ("Sidecar", |m, _| {
        Some(match m.parts.len() {
            0 => m.sidecar.clone(),
            n => format!("{} ({})", m.sidecar, count_of(n as u64, "part")),
        })
    }),
    ("Tokens", |m, _| Some(count(m.summary.n_tokens))),
    ("Left out", |m, _| Some(count(m.n_left_out()))),
    ("SHA-256 of the header", |m, _| {
        m.model.metadata_sha256.clone()
    }),
    ("SHA-256 of samples", |m, _| m.model.sample_sha256.clone()),
    ("windows", |m, _| Some(count(m.summary.n_windows))),
    ("Clusters", |m, unit| {
        Some(clusters_text(&m.summary.clusters, unit))
    }),
];

/// The columns of a table with a row for each model: titles and values. Columns that no model has
/// are left out.
pub(super) fn columns(of: &Comparison) -> Vec<(String, Vec<Option<String>>)> {
    let (models, unit) = (&of.models, of.reference.unit());
    let of_models = COLUMNS.iter().map(|(title, value)| {
        let values = models.iter().map(|model| value(model, unit));
        (title.replace("window", unit), values.collect())
    });
    let of_set_ups = SETTINGS.iter().map(|(title, _)| {
        let values = models.iter().map(|model| setting(&model.set_up, title));
        ((*title).to_owned(), values.collect())
    });
    of_models
        .chain(of_set_ups)
        .filter(|(_, values): &(_, Vec<_>)| values.iter().any(Option::is_some))
        .collect()
}

/// The settings that the reference was computed with.
pub(super) fn of_reference(comparison: &Comparison) -> Option<String> {
    let backend = comparison.reference.backend.as_ref()?;
    let settings = SETTINGS
        .iter()
        .filter_map(|(title, _)| Some(format!("{title} {}", setting(backend, title)?)));
    Some(settings.collect::<Vec<_>>().join(", "))
}

/// A setting, where commas separate settings, not devices.
fn setting(set_up: &BackendIdentity, title: &str) -> Option<String> {
    match title {
        "devices" => Some(set_up.devices.as_ref()?.join(" ")),
        title => crate::report::set_up::setting(set_up, title),
    }
}
