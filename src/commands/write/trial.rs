//! A trial before hidden states are written: do they give the model's own rows?

use std::collections::{BTreeSet, HashMap};

use anyhow::Result;
use kl_formats::{CheckRow, Encoding, HeadCheck, StateType, States, WindowSpec};

use crate::commands::observer::Watch;
use crate::engine::{Decoder, Head, Outputs};
use crate::input::{Plan, n_rows};
use crate::pipeline::{self, Recompute};
use crate::score::Recomputed;

/// A trial goes over the first windows that have so many rows together.
pub const N_TRIAL_ROWS: u64 = 64;

/// Rows that a file holds as the model gave them, so that every reader can see how far its own are
/// from those.
const N_CHECK_ROWS: usize = 8;

/// Of the sizes of products that the trial has not seen, so many are tried: the smallest, for which
/// kernels differ most.
const MAX_OTHER_SIZES: usize = 16;

/// What a trial has found.
pub enum Outcome {
    /// Rows can be computed from states of this type.
    Passed(StateType, Trial),
    /// They cannot: how far the nearest are from the model's own.
    Failed(Recomputed),
}

/// A trial that has succeeded; by default, none at all.
#[derive(Default)]
pub struct Trial {
    /// How far the computed rows are from the model's own.
    pub compared: Recomputed,
    /// The model's own rows of [`check_positions`].
    pub check_rows: Vec<Vec<f32>>,
    /// The states of each window that was decoded, by its number.
    pub known: HashMap<u32, Vec<f32>>,
}

impl Trial {
    /// What a header records of it.
    pub fn head_check(&self, rows: Vec<CheckRow>) -> HeadCheck {
        HeadCheck {
            n_rows: self.compared.n_rows,
            mean_kld: self.compared.mean_kld() as f32,
            max_kld: self.compared.max_kld as f32,
            rows,
        }
    }
}

/// The largest KL divergence of a computed row from the model's own that an encoding accepts, in
/// nats; `None`: rows must be equal to the bit.
pub fn tolerance(encoding: Encoding) -> Option<f64> {
    (encoding == Encoding::Hidden16).then_some(1e-4)
}

/// The types in which an encoding may store states, the smallest first.
pub fn state_types(encoding: Encoding) -> &'static [StateType] {
    match encoding {
        Encoding::Hidden16 => &[StateType::F16],
        _ => &[StateType::F16, StateType::Bf16, StateType::F32],
    }
}

/// The positions whose rows a file holds as the model gave them: spread evenly over the first window
/// of all parts, its first and its last row among them.
pub fn check_positions(plan: &Plan) -> Vec<CheckRow> {
    let Some(window) = plan.whole().first() else {
        return Vec::new();
    };
    let last = window.n_rows.saturating_sub(1) as usize;
    let n = N_CHECK_ROWS.min(window.n_rows as usize);
    let position = |i: usize| CheckRow {
        window: window.window,
        position: window.first_scored + (i * last / n.saturating_sub(1).max(1)) as u32,
    };
    (0..n).map(position).collect()
}

/// Decodes the first windows of all parts, and finds the smallest type of states whose rows are near
/// enough to the model's own for `encoding`.
///
/// # Errors
/// Those of the model, and an interruption.
pub fn run<D: Decoder, H: Head>(
    decoder: &mut D,
    recompute: &mut Recompute<H>,
    states: &States,
    encoding: Encoding,
    plan: &Plan,
    watch: &Watch<'_>,
) -> Result<Outcome> {
    let windows = plan.first(N_TRIAL_ROWS);
    let phase = watch.begin(
        "checking",
        Some(windows.len() as u64),
        Some(n_rows(windows)),
    );
    let mut candidates = Candidates::of(encoding, recompute);
    let mut check_rows = Vec::new();
    let mut known = HashMap::new();
    for window in windows {
        let mut of_window = Vec::new();
        let mut position = window.first_scored;
        let on_call = |outputs: &Outputs<'_>| {
            candidates.compare(outputs)?;
            of_window.extend_from_slice(outputs.states);
            for row in outputs.rows.unwrap_or_default() {
                let window = window.window;
                if states.check.rows.contains(&CheckRow { window, position }) {
                    check_rows.push(row.to_vec());
                }
                position += 1;
                phase.rows(1);
            }
            watch.check()
        };
        match decoder.decode_states(window, |_| true, on_call) {
            Ok(()) => known.insert(window.window, of_window),
            Err(pipeline::Error::Enough) => return Ok(Outcome::Failed(candidates.nearest)),
            Err(error) => return Err(error.into()),
        };
        phase.window(None);
    }
    let in_order = windows
        .iter()
        .filter_map(|window| known.get(&window.window));
    let in_order: Vec<f32> = in_order.flatten().copied().collect();
    candidates.try_sizes(
        &other_sizes(states, plan),
        states.n_embd as usize,
        &in_order,
    )?;
    Ok(match candidates.left.first() {
        Some(&Candidate {
            state_type,
            compared,
        }) => Outcome::Passed(
            state_type,
            Trial {
                compared,
                check_rows,
                known,
            },
        ),
        None => Outcome::Failed(candidates.nearest),
    })
}

/// The numbers of rows that a product has in some window of the plan, but in none of the trial's.
fn other_sizes(states: &States, plan: &Plan) -> BTreeSet<usize> {
    let sizes = |windows: &[WindowSpec]| {
        let groups = windows
            .iter()
            .flat_map(|window| states.groups(&window.entry()));
        groups.map(|rows| rows.len()).collect::<BTreeSet<_>>()
    };
    let seen = sizes(plan.first(N_TRIAL_ROWS));
    let others = sizes(plan.whole())
        .into_iter()
        .filter(|size| !seen.contains(size));
    others.take(MAX_OTHER_SIZES).collect()
}

/// The types in which states could be stored.
struct Candidates<'r, H> {
    recompute: &'r mut Recompute<H>,
    tolerance: Option<f64>,
    /// Those whose rows are near enough so far, the smallest first.
    left: Vec<Candidate>,
    /// How far the rows of the largest are from the model's own.
    nearest: Recomputed,
}

struct Candidate {
    state_type: StateType,
    compared: Recomputed,
}

impl<'r, H: Head> Candidates<'r, H> {
    fn of(encoding: Encoding, recompute: &'r mut Recompute<H>) -> Self {
        let candidate = |&state_type| Candidate {
            state_type,
            compared: Recomputed::default(),
        };
        Self {
            recompute,
            tolerance: tolerance(encoding),
            left: state_types(encoding).iter().map(candidate).collect(),
            nearest: Recomputed::default(),
        }
    }

    /// Drops the types that do not give the rows of a decode call. If none is left, that is
    /// [`pipeline::Error::Enough`].
    fn compare(&mut self, outputs: &Outputs<'_>) -> Result<(), pipeline::Error> {
        for candidate in &mut self.left {
            for row in self.recompute.compare(outputs, candidate.state_type)? {
                candidate.compared += row;
            }
            self.nearest = candidate.compared;
        }
        let tolerance = self.tolerance;
        self.left.retain(|candidate| match tolerance {
            Some(most) => candidate.compared.max_kld <= most,
            None => candidate.compared.is_exact(),
        });
        match self.left.is_empty() {
            true => Err(pipeline::Error::Enough),
            false => Ok(()),
        }
    }

    /// Where rows must be equal to the bit: drops the types whose rounding changes a product of one
    /// of these sizes, as far as there are so many `states`. A kernel that rounds the states itself
    /// may be used for products of many rows, and one that does not for those of few.
    fn try_sizes(
        &mut self,
        sizes: &BTreeSet<usize>,
        n_embd: usize,
        states: &[f32],
    ) -> Result<(), pipeline::Error> {
        if self.tolerance.is_some() {
            return Ok(());
        }
        for &size in sizes {
            let Some(states) = states.get(..size * n_embd) else {
                continue;
            };
            let mut kept = Vec::new();
            for candidate in self.left.drain(..) {
                if self
                    .recompute
                    .is_rounding_exact(states, candidate.state_type)?
                {
                    kept.push(candidate);
                }
            }
            self.left = kept;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kl_formats::HeadTensor;

    use super::*;
    use crate::engine::EngineError;
    use crate::input::{ScoreFrom, Windowing};

    fn states() -> States {
        States {
            n_embd: 1,
            state_type: StateType::F32,
            head: HeadTensor {
                name: String::new(),
                type_name: "f32".to_owned(),
                type_id: 0,
                bytes: 0,
                sha256: String::new(),
            },
            then: Vec::new(),
            n_batch: 32,
            n_ubatch: 16,
            equal_calls: false,
            check: HeadCheck::default(),
        }
    }

    fn plan(n_tokens: u32) -> Plan {
        let windowing = Windowing {
            n_ctx: 50,
            stride: None,
            score: ScoreFrom::All,
            max_windows: None,
        };
        Plan::cut(&vec![1; n_tokens as usize], &windowing, None)
    }

    #[test]
    fn sizes_that_only_later_windows_have_are_tried() {
        // Two windows of 50 rows make the trial: products of 16 and of 2.
        let other = |n_tokens| other_sizes(&states(), &plan(n_tokens));
        assert_eq!(other(100), BTreeSet::new());
        assert_eq!(other(150), BTreeSet::new());
        assert_eq!(other(107), BTreeSet::from([7]));
        assert_eq!(other(190), BTreeSet::from([8]));
        // Every part of a text tries the same.
        let mut part = plan(107);
        part.keep(Some("0/3".parse().unwrap())).unwrap();
        assert_eq!(other_sizes(&states(), &part), BTreeSet::from([7]));
    }

    /// A head of one logit that rounds states to half precision, but not in a product of one.
    struct RoundsMany(Vec<f32>);

    impl Head for RoundsMany {
        fn n_vocab(&self) -> usize {
            1
        }

        fn rows(&mut self, states: &[f32]) -> Result<&[f32], EngineError> {
            let mut bytes = vec![0; 2 * states.len()];
            self.0 = states.to_vec();
            if states.len() > 1 {
                StateType::F16.encode(states, &mut bytes);
                StateType::F16.decode_into(&bytes, &mut self.0);
            }
            Ok(&self.0)
        }

        fn device(&self) -> &str {
            "test"
        }

        fn is_shared(&self) -> bool {
            false
        }
    }

    #[test]
    fn a_type_is_dropped_if_rounding_shows_in_a_product_of_another_size() {
        let mut recompute = Recompute::new(RoundsMany(Vec::new()));
        let left = |sizes: &[usize], recompute: &mut Recompute<RoundsMany>| {
            let mut candidates = Candidates::of(Encoding::Hidden, recompute);
            let sizes: BTreeSet<usize> = sizes.iter().copied().collect();
            candidates.try_sizes(&sizes, 1, &[0.1, 0.2, 0.3]).unwrap();
            let types = candidates.left.iter().map(|left| left.state_type);
            types.collect::<Vec<_>>()
        };
        let (f16, f32) = (StateType::F16, StateType::F32);
        // bf16 has fewer digits than f16: it always shows.
        assert_eq!(left(&[2, 3], &mut recompute), [f16, f32]);
        assert_eq!(left(&[1], &mut recompute), [f32]);
        // There are not so many states to try.
        assert_eq!(left(&[4], &mut recompute).len(), 3);
    }

    #[test]
    fn check_rows_are_spread_over_the_first_window() {
        let positions = |n_tokens| {
            let rows = check_positions(&plan(n_tokens));
            rows.iter().map(|row| row.position).collect::<Vec<_>>()
        };
        assert_eq!(positions(100), [0, 7, 14, 21, 28, 35, 42, 49]);
        assert_eq!(positions(3), [0, 1, 2]);
        assert_eq!(positions(1), [0]);
    }
}
