//! Two evaluations in depth.

use anyhow::{Context, Result, bail};
use kl_formats::TokenTexts;

use super::Comparer;
use super::row::{Row, around};
use crate::report::comparison::{
    ComparedModel, Comparison, InDepth, InDepthModel, InDepthToken, PairedQuantile,
};
use crate::report::number::printable;
use crate::stats::{PairedComparison, PairedToken};

/// The number of tokens that are listed, those on which two models differ most.
const N_TOP: usize = 10;

/// Compares the two rows of a comparison in depth, in the order in which they were given.
///
/// # Errors
/// If there are not two, or if one cannot be read again.
pub fn in_depth(comparer: &Comparer, comparison: Comparison) -> Result<InDepth> {
    if let Some(file) = comparison.not_compared.first() {
        bail!(
            "--pair needs two models that can be compared: {}: {}",
            file.sidecar,
            file.why
        );
    }
    let rows: Vec<&Row> = comparer.rows.values().collect();
    let [first, second] = rows[..] else {
        bail!(
            "--pair compares two models, and {} are given: name two sidecars",
            rows.len()
        );
    };
    let ((a, texts), (b, texts_b)) = (first.read_all()?, second.read_all()?);
    let clusters = comparer.clusters(&rows);
    let spans = &first.header().spans;
    let paired = clusters.as_ref().and_then(|clusters| {
        PairedComparison::of(&a, &b, spans, clusters, comparer.confidence, N_TOP)
    });
    let paired = paired.context("no token has a finite KLD under both models")?;
    let describe = |token: PairedToken| {
        let one = |texts: &TokenTexts, id| texts.get(id).is_some().then(|| texts.text(&[id]));
        let at = token.location;
        let index = a
            .iter()
            .position(|r| (r.window, r.position) == (at.window, at.position));
        InDepthToken {
            text: index.and_then(|index| around(&a, index, &texts)),
            ref_top_text: one(&texts, token.ref_top),
            top_a_text: one(&texts, token.top_a),
            top_b_text: one(&texts_b, token.top_b),
            token,
        }
    };
    let label = |model: &ComparedModel| printable(&model.label);
    Ok(InDepth {
        unranked: comparison.unranked(&label),
        a: model(&comparison, first)?,
        b: model(&comparison, second)?,
        quantiles: PairedQuantile::of_each(&first.result.summary, &second.result.summary),
        conditions: Vec::new(),
        top: paired.top.iter().copied().map(describe).collect(),
        paired,
        versions: comparison.versions,
        reference: comparison.reference,
        clusters: comparison.clusters,
        confidence: comparison.confidence,
        warnings: comparison.warnings,
    })
}

/// A row's model, under the label that tells it from the other.
fn model(comparison: &Comparison, row: &Row) -> Result<InDepthModel> {
    let mut models = comparison.models.iter();
    let its = models.find(|model| model.sidecar == row.sidecar());
    let its = its.context("the sidecar is not among those compared")?;
    Ok(InDepthModel::of(its, comparison))
}
