//! The models that cannot be ranked: why, and what to do.

use super::sentence::list;
use super::{ComparedModel, Comparison};
use crate::report::number::{count, count_of};

impl Comparison {
    /// Says which models cannot be ranked, why, and what to do; empty where all can.
    pub fn unranked(&self, name: &impl Fn(&ComparedModel) -> String) -> Vec<String> {
        let is_unranked = |model: &&ComparedModel| model.is_incomplete && !model.is_noise_floor;
        let unranked = Vec::from_iter(self.models.iter().filter(is_unranked));
        let mut said = match unranked.as_slice() {
            [] => return Vec::new(),
            [only] => {
                let tokens = match only.n_left_out() {
                    1 => "a token",
                    _ => "tokens",
                };
                vec![format!(
                    "{} cannot be ranked: {}, so its mean KLD leaves out {tokens} that the others count.",
                    name(only),
                    reasons(only)
                )]
            }
            several => vec![format!(
                "{} cannot be ranked: their mean KLDs leave out tokens that the others count, because a \
                 row is not finite or a KLD infinite.",
                list(several.iter().map(|model| name(model)).collect())
            )],
        };
        said.extend(self.may_be_nearest(&unranked, name));
        if unranked.iter().any(|model| model.summary.n_excluded > 0) {
            let [it, it_ran, file] = match unranked.len() {
                1 => ["it", "it ran", "its file"],
                _ => ["them", "they ran", "their files"],
            };
            said.push(format!(
                "Evaluate {it} again, on the CPU if {it_ran} on a GPU; if that changes nothing, make or \
                 download {file} again."
            ));
        }
        said
    }

    /// Names the one of some unranked models whose mean KLD is lower than that of the best, which none
    /// is that has an infinite KLD where the best has a finite one.
    fn may_be_nearest(
        &self,
        unranked: &[&ComparedModel],
        name: &impl Fn(&ComparedModel) -> String,
    ) -> Option<String> {
        let best = self.best()?;
        let mean = |model: &ComparedModel| Some(model.mean_kld()?.value);
        let n_infinite = best.summary.n_infinite();
        let finite = unranked
            .iter()
            .filter(|model| model.summary.n_infinite() <= n_infinite);
        let means = finite.filter_map(|model| Some((*model, mean(model)?)));
        let (lowest, lowest_mean) = means.min_by(|(_, a), (_, b)| a.total_cmp(b))?;
        let is_lowest = lowest_mean < mean(best)?;
        is_lowest.then(|| {
            format!(
                "Over its other tokens, {} has the lowest mean of all, so it may be the nearest.",
                name(lowest)
            )
        })
    }
}

/// Says why a model leaves out tokens: `1 of its 4,184 rows is not finite`.
fn reasons(model: &ComparedModel) -> String {
    let summary = &model.summary;
    let (n_excluded, n_infinite) = (summary.n_excluded, summary.n_infinite());
    let n = count(summary.n_tokens + n_excluded);
    let are = if n_excluded == 1 { "is" } else { "are" };
    let excluded = format!("{} of its {n} rows {are} not finite", count(n_excluded));
    let infinite = format!("its KLD is infinite at {}", count_of(n_infinite, "token"));
    let given = [(n_excluded, excluded), (n_infinite, infinite)].into_iter();
    list(given.filter(|(n, _)| *n > 0).map(|(_, why)| why).collect())
}
