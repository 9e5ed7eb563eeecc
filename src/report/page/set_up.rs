//! How everything was measured, as rows of text.

use serde::Serialize;

use crate::report::comparison::{ComparedModel, Comparison};
use crate::report::number::{bytes, count, count_of};
use crate::stats::ClusterKind;

/// A column: its title, and its text for a model, `None` where that is not recorded.
type Column = (&'static str, fn(&ComparedModel) -> Option<String>);

const COLUMNS: [Column; 17] = [
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
    ("Left out", |m| Some(count(m.summary.n_excluded))),
    ("Windows", |m| Some(count(m.summary.n_windows))),
    ("Clusters", |m| Some(clusters(m))),
    ("K cache", |m| m.set_up.type_k.clone()),
    ("V cache", |m| m.set_up.type_v.clone()),
    ("Devices", |m| {
        m.set_up.devices.as_ref().map(|d| d.join(", "))
    }),
    ("GPU layers", |m| {
        m.set_up.n_gpu_layers.map(|n| n.to_string())
    }),
    ("Batch", |m| m.set_up.n_batch.map(|n| n.to_string())),
    ("Physical batch", |m| {
        m.set_up.n_ubatch.map(|n| n.to_string())
    }),
    ("Flash attention", |m| m.set_up.flash_attn.clone()),
    ("Threads", |m| m.set_up.threads.map(|n| n.to_string())),
    ("llama.cpp", |m| m.set_up.llama_cpp.clone()),
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
    pub fn of(models: &'c [ComparedModel]) -> Self {
        let columns: Vec<&Column> = COLUMNS
            .iter()
            .filter(|(_, value)| models.iter().any(|model| value(model).is_some()))
            .collect();
        let row = |model: &'c ComparedModel| SetUpRow {
            label: &model.label,
            values: columns
                .iter()
                .map(|(_, value)| value(model).unwrap_or_else(|| "–".to_owned()))
                .collect(),
        };
        Self {
            titles: columns.iter().map(|(title, _)| *title).collect(),
            rows: models.iter().map(row).collect(),
        }
    }
}

fn clusters(model: &ComparedModel) -> String {
    let clusters = &model.summary.clusters;
    match clusters.kind {
        ClusterKind::Window => count_of(clusters.n, "window"),
        ClusterKind::Block => format!(
            "{} of {}",
            count_of(clusters.n, "block"),
            count_of(clusters.windows_per_block, "window")
        ),
    }
}

/// What is known of the reference: pairs of a name and a text.
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
            model.size_bytes.map(bytes),
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
        ("Groups", groups),
        ("Tokens in a window", Some(count(reference.n_ctx.into()))),
        (
            "First scored position",
            Some(reference.first_scored.to_string()),
        ),
        (
            "Vocabulary",
            Some(count_of(reference.n_vocab.into(), "entry").replace("entrys", "entries")),
        ),
        ("Confidence of intervals", Some(percent_level(comparison))),
    ];
    rows.into_iter()
        .filter_map(|(name, text)| Some((name, text?)))
        .collect()
}

fn percent_level(comparison: &Comparison) -> String {
    let level = comparison.confidence.level();
    format!("{} %", crate::report::number::short_percent(level))
}
