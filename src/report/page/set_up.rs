//! The set-up of every model and of the reference, as rows of text.

use serde::Serialize;

use crate::report::comparison::{ComparedModel, Comparison};
use crate::report::number::{bytes, count, count_of, short_percent};
use crate::report::set_up::SETTINGS;
use crate::report::unit;
use crate::stats::ClusterKind;

/// A column: its title, and its text for a model, `None` where that is not recorded.
type Column = (&'static str, fn(&ComparedModel) -> Option<String>);

const COLUMNS: [Column; 8] = [
    ("File", |m| Some(m.model.path.clone())),
    ("Architecture", |m| m.model.architecture.clone()),
    ("Parameters", |m| m.model.n_params.map(count)),
    ("Sidecar", |m| {
        Some(match m.parts.len() {
            0 => m.sidecar.clone(),
            n => format!("{} ({})", m.sidecar, count_of(n as u64, "part")),
        })
    }),
    ("Tokens", |m| Some(count(m.summary.n_tokens))),
    ("Left out", |m| Some(count(m.n_left_out()))),
    ("SHA-256 of the header", |m| m.model.metadata_sha256.clone()),
    ("SHA-256 of samples", |m| m.model.sample_sha256.clone()),
];

/// A row for each model; columns that no model has are left out.
#[derive(Serialize, Debug)]
pub(super) struct SetUpTable<'c> {
    titles: Vec<&'static str>,
    rows: Vec<SetUpRow<'c>>,
}

#[derive(Serialize, Debug)]
struct SetUpRow<'c> {
    label: &'c str,
    values: Vec<String>,
}

impl<'c> SetUpTable<'c> {
    /// The table of models whose windows may be prompts.
    pub fn of(models: &'c [ComparedModel], prompts: bool) -> Self {
        let mut table = Self {
            titles: Vec::new(),
            rows: models
                .iter()
                .map(|model| SetUpRow {
                    label: &model.label,
                    values: Vec::new(),
                })
                .collect(),
        };
        for (title, value) in COLUMNS {
            table.add(title, models.iter().map(value));
        }
        let windows = models.iter().map(|m| Some(count(m.summary.n_windows)));
        table.add(if prompts { "Prompts" } else { "Windows" }, windows);
        let unit = unit(prompts);
        table.add("Clusters", models.iter().map(|m| Some(clusters(m, unit))));
        for (title, value) in SETTINGS {
            table.add(title, models.iter().map(|model| value(&model.set_up)));
        }
        table
    }

    /// Adds a column, if a model has a value in it.
    fn add(&mut self, title: &'static str, values: impl Iterator<Item = Option<String>> + Clone) {
        if values.clone().all(|value| value.is_none()) {
            return;
        }
        self.titles.push(title);
        for (row, value) in self.rows.iter_mut().zip(values) {
            row.values.push(value.unwrap_or_else(|| "–".to_owned()));
        }
    }
}

fn clusters(model: &ComparedModel, unit: &str) -> String {
    let clusters = &model.summary.clusters;
    match clusters.kind {
        ClusterKind::Window => count_of(clusters.n, unit),
        ClusterKind::Block => format!(
            "{} of {}",
            count_of(clusters.n, "block"),
            count_of(clusters.windows_per_block, unit)
        ),
    }
}

/// Describes the reference: pairs of a name and a text.
pub(super) fn reference_rows(comparison: &Comparison) -> Vec<(&'static str, String)> {
    let reference = &comparison.reference;
    let model = reference.model.as_ref();
    let text = reference.text.as_ref();
    let described = model.map(|model| {
        let bpw = model.bpw.map(|bpw| format!("{bpw:.2} BPW"));
        let parts = [
            Some(model.path.clone()).filter(|path| !path.is_empty()),
            model.name.clone(),
            model.architecture.clone(),
            model.shown_bytes().map(bytes),
            bpw,
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    });
    let text_size = text.and_then(|text| text.bytes).map(bytes);
    let n_tokens = text.and_then(|text| text.n_tokens);
    let described_text = text.and_then(|text| text.name.clone()).map(|name| {
        let tokens = n_tokens.map(|n| count_of(n, "token"));
        let parts = [Some(name), text_size, tokens];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    });
    let set_up = reference.backend.as_ref().map(|backend| {
        let parts = SETTINGS
            .iter()
            .filter_map(|(name, value)| Some(format!("{name} {}", value(backend)?)));
        parts.collect::<Vec<_>>().join(", ")
    });
    let groups = Some(reference.groups.join(", ")).filter(|groups| !groups.is_empty());
    let rows = [
        ("File", reference.file_name.clone()),
        ("Kind", reference.kind.clone()),
        ("Fingerprint", reference.fingerprint.clone()),
        ("Model", described.filter(|model| !model.is_empty())),
        ("Text", described_text),
        (
            "SHA-256 of the text",
            text.and_then(|text| text.sha256.clone()),
        ),
        ("Computed with", set_up.filter(|set_up| !set_up.is_empty())),
        ("Groups", groups),
        (
            if reference.prompts {
                "Most tokens in a prompt"
            } else {
                "Tokens in a window"
            },
            Some(count(reference.n_ctx.into())),
        ),
        (
            "First scored position",
            Some(reference.first_scored.to_string()),
        ),
        (
            "Vocabulary",
            Some(format!("{} entries", count(reference.n_vocab.into()))),
        ),
        (
            "Confidence of intervals",
            Some(format!(
                "{} %",
                short_percent(comparison.confidence.level())
            )),
        ),
    ];
    rows.into_iter()
        .filter_map(|(name, text)| Some((name, text?)))
        .collect()
}
