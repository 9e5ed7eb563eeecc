//! The whole report of a single model, from its sidecar.

use kl_formats::Values;

use super::{ComparedModel, ComparedReference, Comparison, WorstToken};
use crate::report::result::{ModelReport, PromptsInfo, ReferenceInfo};
use crate::report::text_report;

impl Comparison {
    /// The report of the only model, as its evaluation printed it, but for what no sidecar holds.
    /// `None` for several models.
    #[must_use]
    pub fn only_report(&self, shows_breakdown: bool) -> Option<String> {
        let [model] = self.models.as_slice() else {
            return None;
        };
        let report = report(model, self.reference.n_vocab, shows_breakdown);
        let text = text_report(&report, &reference(&self.reference));
        Some(text + &self.not_compared_text())
    }
}

fn report(model: &ComparedModel, n_vocab: u32, shows_breakdown: bool) -> ModelReport {
    ModelReport {
        label: model.label.clone(),
        model: model.model.clone(),
        set_up: Some(model.set_up.clone()),
        is_reference_model: model.is_reference_model,
        is_noise_floor: model.is_noise_floor,
        // Older sidecars do not record how many entries were compared.
        n_vocab_compared: model.n_vocab_compared.unwrap_or(n_vocab),
        summary: model.summary.clone(),
        breakdown: model.breakdown.clone(),
        shows_breakdown,
        llama_perplexity: None,
        logits: None,
        max_at_text: max_at_text(model),
        sidecar: Some(model.sidecar.clone()),
        interrupted: None,
        shard: None,
        until: model.until,
        n_resumed: 0,
        timing: None,
        not_available: Vec::new(),
        conditions: Vec::new(),
        prompts: None,
        top: None,
        tokens: None,
    }
}

/// The text of the token with the largest finite KLD; infinite ones come before it in `top`.
fn max_at_text(model: &ComparedModel) -> Option<String> {
    let at = &model.summary.kld.as_ref()?.max_at;
    let is_there = |token: &&WorstToken| (token.window, token.position) == (at.window, at.position);
    let largest = model.top.iter().find(is_there)?;
    largest.text.as_ref()?.next.clone()
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
    }
}

#[cfg(test)]
mod tests {
    use crate::report::tests::sample;

    /// The largest KLD is the largest finite one, and infinite ones are listed before it.
    #[test]
    fn the_token_at_the_maximum_is_not_an_infinite_one() {
        let mut of = sample::comparison();
        of.models.truncate(1);
        let model = &mut of.models[0];
        let (infinite, finite) = model.top.split_first_mut().unwrap();
        infinite.kld = f64::INFINITY;
        let at = &model.summary.kld.as_ref().unwrap().max_at;
        (finite[0].window, finite[0].position) = (at.window, at.position);
        let text = finite[0].text.as_mut().unwrap();
        text.next = Some(" finite".to_owned());
        let report = of.only_report(false).unwrap();
        let line = report.lines().find(|line| line.contains("maximum"));
        assert!(line.unwrap().contains("\" finite\""), "{report}");
        of.models[0].top.truncate(1);
        let report = of.only_report(false).unwrap();
        assert!(!report.contains("\" there\""), "{report}");
    }
}
