//! How fast a model ran, as an evaluation with `--speed` records it.

use serde::{Deserialize, Serialize};

/// The speeds of a model in the set-up of its evaluation: of a prompt, and of what is generated after it.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Speed {
    /// The prompt, which is decoded in batches.
    pub prompt: Pace,
    /// What follows the prompt, a token at a time.
    pub generation: Pace,
    /// The part of the time for which the thread that decodes waited for a core, while others had them;
    /// `None` where the system does not measure it.
    pub waited: Option<f64>,
}

/// Tokens a second over several runs.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pace {
    /// Tokens of a run.
    pub n_tokens: u32,
    /// Tokens a second: the median of the runs.
    pub tokens_per_s: f64,
    /// Those of the slowest run.
    pub lo: f64,
    /// Those of the fastest run.
    pub hi: f64,
}

impl Pace {
    /// The pace of runs of `n_tokens` tokens that took these seconds each; `None` without any.
    pub fn of_runs(n_tokens: u32, seconds: &[f64]) -> Option<Self> {
        let mut paces: Vec<f64> = seconds.iter().map(|s| f64::from(n_tokens) / s).collect();
        paces.sort_by(f64::total_cmp);
        let (lo, hi) = (*paces.first()?, *paces.last()?);
        let [below, above] = [(paces.len() - 1) / 2, paces.len() / 2];
        let tokens_per_s = f64::midpoint(*paces.get(below)?, *paces.get(above)?);
        let pace = Self {
            n_tokens,
            tokens_per_s,
            lo,
            hi,
        };
        [lo, tokens_per_s, hi]
            .iter()
            .all(|pace| pace.is_finite())
            .then_some(pace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_the_median_and_the_range_of_the_runs() {
        let pace = Pace::of_runs(60, &[2.0, 1.0, 3.0]).unwrap();
        assert_eq!((pace.lo, pace.tokens_per_s, pace.hi), (20.0, 30.0, 60.0));
        let pace = Pace::of_runs(60, &[2.0, 1.0]).unwrap();
        assert_eq!((pace.lo, pace.tokens_per_s, pace.hi), (30.0, 45.0, 60.0));
        assert_eq!(Pace::of_runs(60, &[]), None);
        assert_eq!(Pace::of_runs(60, &[0.0, 1.0]), None);
    }
}
