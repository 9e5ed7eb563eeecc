//! A second round: measures the recipe's neighbours on windows that do not judge it.

use anyhow::Result;
use kl_formats::{GgmlType, Mixture};

use super::check::Trials;
use crate::commands::observer::Watch;
use crate::engine::Model;
use crate::recipe::{Goal, Neighbour, Recipe, Sensitivities, improved};
use crate::report::recipe::KeptBackKld;

/// What a second round found.
pub struct Round {
    /// As the map predicts it.
    pub recipe: Recipe,
    pub kept_back: KeptBackKld,
    /// Mixtures that were measured.
    pub n_cells: u64,
    /// Tokens that were decoded for them.
    pub n_tokens: u64,
}

/// Measures the neighbours, and solves again. `None` where no windows are kept back.
///
/// # Errors
/// Those of [`Trials::try_out`].
pub fn second_round<M: Model + Sync>(
    trials: &Trials<'_, M>,
    costs: &Sensitivities,
    recipe: &Recipe,
    goal: Goal,
    types: &[GgmlType],
    watch: &Watch<'_>,
) -> Result<Option<Round>> {
    let n_rows = trials.n_kept_back_rows();
    if n_rows == 0 {
        return Ok(None);
    }
    let neighbours = Neighbour::of_each(costs, &recipe.mixture, types);
    let n_cells = neighbours.len() as u64 + 1;
    let phase = watch.begin("second round", Some(n_cells), Some(n_cells * n_rows));
    let measure = |mixture: &Mixture| -> Result<Option<f64>> {
        let klds = trials.try_out(mixture)?;
        phase.rows(n_rows as usize);
        phase.window(klds.mean());
        Ok(klds.mean())
    };
    let Some(kld) = measure(&recipe.mixture)? else {
        return Ok(None);
    };
    let mut measured = Vec::new();
    for neighbour in neighbours {
        let moved = measure(&neighbour.mixture(recipe.mixture.clone()))?;
        measured.extend(moved.map(|moved| (neighbour, moved)));
    }
    let found = improved(costs, recipe, goal, kld, &measured);
    let kept_back = KeptBackKld {
        before: kld,
        after: found.kld.value,
    };
    let predicted = costs.predict(&found.mixture, found.selection);
    Ok(Some(Round {
        recipe: Recipe {
            kld: predicted,
            // By the map, no mixture is better than the first recipe by more than its own gap.
            gap: (predicted.value - recipe.kld.value + recipe.gap).max(0.0),
            ..found
        },
        kept_back,
        n_cells,
        n_tokens: n_cells * n_rows,
    }))
}
