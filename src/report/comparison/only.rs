//! The whole report of a single model, from its sidecar.

use kl_formats::Values;

use super::{ComparedModel, ComparedReference, Comparison};
use crate::report::result::{ModelReport, PromptsInfo, ReferenceInfo};
use crate::report::text_report;

impl Comparison {
    /// The report of the only model, as its evaluation printed it, but for what no sidecar holds: the
    /// times, and the table of prompts. `None` for several models.
    #[must_use]
    pub fn only_report(&self, shows_breakdown: bool) -> Option<String> {
        let [model] = self.models.as_slice() else {
            return None;
        };
        // Older sidecars do not record how many entries were compared.
        let n_vocab_compared = model.n_vocab_compared.unwrap_or(self.reference.n_vocab);
        let report = ModelReport {
            n_vocab_compared,
            shows_breakdown,
            ..report(model)
        };
        let text = text_report(&report, &reference(&self.reference));
        Some(text + &self.not_compared_text())
    }
}

fn report(model: &ComparedModel) -> ModelReport {
    let largest = model.top.first().and_then(|top| top.text.as_ref());
    ModelReport {
        label: model.label.clone(),
        model: model.model.clone(),
        set_up: Some(model.set_up.clone()),
        is_reference_model: model.is_reference_model,
        is_noise_floor: model.is_noise_floor,
        n_vocab_compared: 0,
        summary: model.summary.clone(),
        breakdown: model.breakdown.clone(),
        shows_breakdown: false,
        llama_perplexity: None,
        logits: None,
        max_at_text: largest.and_then(|text| text.next.clone()),
        sidecar: Some(model.sidecar.clone()),
        interrupted: None,
        shard: None,
        until: None,
        n_resumed: 0,
        timing: None,
        not_available: Vec::new(),
        conditions: Vec::new(),
        prompts: None,
        top: None,
        tokens: None,
    }
}

fn reference(of: &ComparedReference) -> ReferenceInfo {
    ReferenceInfo {
        path: of
            .file_name
            .clone()
            .unwrap_or_else(|| "one reference".to_owned()),
        kind: of.kind.clone().unwrap_or_default(),
        n_ctx: of.n_ctx,
        n_vocab: of.n_vocab,
        encoding: String::new(),
        states: None,
        model: of.model.clone(),
        first_scored: Some(of.first_scored),
        n_windows: None,
        text: of.text.clone(),
        backend: of.backend.clone(),
        seed: None,
        stride: None,
        groups: Some(of.groups.clone()),
        prompts: of.prompts.then_some(PromptsInfo {
            n_prompts: 0,
            chat_template: None,
            generated: None,
        }),
        log_probabilities: false,
        values: Values::Logits,
        is_base_file: false,
    }
}
