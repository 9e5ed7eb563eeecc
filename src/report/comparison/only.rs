//! The whole report of a single model, from its sidecar.

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
        let report = ModelReport {
            shows_breakdown,
            max_at_text: max_at_text(model),
            ..ModelReport::of(model.result.clone())
        };
        let text = text_report(&report, &reference(&self.reference));
        Some(text + &self.not_compared_text())
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
    let name = of.file_name.clone();
    ReferenceInfo {
        path: name.unwrap_or_else(|| "one reference".to_owned()),
        kind: of.kind.clone().unwrap_or_default(),
        n_ctx: of.n_ctx,
        n_vocab: of.n_vocab,
        model: of.model.clone(),
        first_scored: Some(of.first_scored),
        text: of.text.clone(),
        backend: of.backend.clone(),
        groups: Some(of.groups.clone()),
        prompts: of.prompts.then(PromptsInfo::default),
        ..ReferenceInfo::default()
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
        let at = model.summary.kld.as_ref().unwrap().max_at;
        let (infinite, finite) = model.top.split_first_mut().unwrap();
        infinite.kld = f64::INFINITY;
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
