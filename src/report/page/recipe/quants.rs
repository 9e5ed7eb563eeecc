//! The quants of a `kl report`, to draw beside a recipe.

use serde::Serialize;
use serde_json::Value;

use crate::report::comparison::Comparison;
use crate::stats::Estimate;

/// A quant of a report: its size and its KLD.
#[derive(Serialize, Debug, Clone, PartialEq)]
pub struct ReportedQuant {
    pub label: String,
    /// Bytes of its file, or of its tensors where that is unknown.
    pub size_bytes: u64,
    /// Its mean KLD, in nats.
    pub kld: Estimate,
}

impl ReportedQuant {
    /// The quants of a comparison whose size and KLD are known, without the noise floor.
    pub fn of_comparison(of: &Comparison) -> Vec<Self> {
        let models = of.models.iter().filter(|model| !model.is_noise_floor);
        let quants = models.filter_map(|model| {
            Some(Self {
                label: model.label.clone(),
                size_bytes: model.model.shown_bytes()?,
                kld: model.mean_kld()?,
            })
        });
        quants.collect()
    }

    /// The same quants of the JSON of `kl report`, or of an evaluation.
    ///
    /// # Errors
    /// If the text is not such a document.
    pub fn of_json(json: &str) -> Result<Vec<Self>, String> {
        let is_none = || "is not the JSON of kl report: write one with kl report --json".to_owned();
        let document: Value = serde_json::from_str(json).map_err(|_| is_none())?;
        let models = document.get("models").and_then(Value::as_array);
        let is_floor = |model: &Value| model.get("is_noise_floor") == Some(&Value::Bool(true));
        let quants = models.ok_or_else(is_none)?.iter();
        let quants = quants.filter(|model| !is_floor(model)).filter_map(of_model);
        Ok(quants.collect())
    }
}

/// A model of the JSON, if its size and its KLD are known.
fn of_model(model: &Value) -> Option<ReportedQuant> {
    let bytes = |name| {
        model
            .pointer(&format!("/model/{name}"))
            .and_then(Value::as_u64)
    };
    let mean = |name| {
        model
            .pointer(&format!("/kld/mean/{name}"))
            .and_then(Value::as_f64)
    };
    Some(ReportedQuant {
        label: model.get("label")?.as_str()?.to_owned(),
        size_bytes: bytes("file_bytes").or(bytes("size_bytes"))?,
        kld: Estimate {
            value: mean("value")?,
            lo: mean("cluster_lo"),
            hi: mean("cluster_hi"),
        },
    })
}
