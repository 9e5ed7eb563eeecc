//! A trial before hidden states are written: do they give the model's own rows?

use std::collections::BTreeSet;

use anyhow::Result;
use kl_formats::{CheckRow, Encoding, Float, States, WindowSpec, n_rows};

use super::stored::Hidden;
use crate::commands::observer::Watch;
use crate::engine::{Decoder as _, Head, Model, Outputs};
use crate::input::Plan;
use crate::pipeline::{Error, RowCheck};
use crate::score::RowError;

/// A trial goes over the first windows that have so many rows together.
pub const N_TRIAL_ROWS: u64 = 64;

/// Rows that a file holds as the model gave them, so that every reader can see how far its own are
/// from those.
const N_CHECK_ROWS: usize = 8;

/// Of the sizes of products that the trial has not seen, so many are tried: the smallest, for which
/// kernels differ most.
const MAX_OTHER_SIZES: usize = 16;

/// The largest KL divergence of a computed row from the model's own that an encoding accepts, in
/// nats; `None`: rows must be equal to the bit.
pub fn tolerance(encoding: Encoding) -> Option<f64> {
    (encoding == Encoding::Hidden16).then_some(1e-4)
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

/// Types in which states could be stored, the smallest first, and how far the rows of each are from the
/// model's own.
type Candidates = Vec<(Float, RowError)>;

/// Decodes the first windows of all parts, and finds the smallest type of states whose rows are near
/// enough to the model's own for `encoding`; else returns how far those of the largest are. `hidden`
/// keeps what it has computed.
///
/// # Errors
/// Those of the model, and an interruption.
pub fn run<M: Model>(
    hidden: &mut Hidden<'_, M>,
    states: &States,
    encoding: Encoding,
    plan: &Plan,
    watch: &Watch<'_>,
) -> Result<Result<(), RowError>> {
    let windows = plan.first(N_TRIAL_ROWS);
    let phase = watch.begin(
        "checking",
        Some(windows.len() as u64),
        Some(n_rows(windows)),
    );
    let (writing, check_rows) = (&mut hidden.writing, &mut hidden.check_rows);
    let check = &mut writing.check;
    let mut left = candidates(encoding);
    let mut nearest = RowError::default();
    for window in windows {
        let mut of_window = Vec::new();
        let mut position = window.first_scored;
        let on_call = |outputs: &Outputs<'_>| {
            for (state_type, compared) in &mut left {
                for row in check.compare(outputs, *state_type)? {
                    *compared += row;
                }
                nearest = *compared;
            }
            left.retain(|(_, compared)| check.accepts(compared));
            if left.is_empty() {
                return Err(Error::Enough);
            }
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
        match hidden.decoder.decode_states(window, |_| true, on_call) {
            Ok(()) => writing.known.insert(window.window, of_window),
            Err(Error::Enough) => return Ok(Err(nearest)),
            Err(error) => return Err(error.into()),
        };
        phase.window(None);
    }
    // Where rows may differ a little, no product shows more.
    if tolerance(encoding).is_none() {
        let states_of = |window: &WindowSpec| writing.known.get(&window.window);
        let in_order = windows.iter().filter_map(states_of).flatten();
        let in_order: Vec<f32> = in_order.copied().collect();
        let n_embd = states.n_embd as usize;
        try_sizes(
            check,
            &mut left,
            &other_sizes(states, plan),
            n_embd,
            &in_order,
        )?;
    }
    let Some(&(state_type, compared)) = left.first() else {
        return Ok(Err(nearest));
    };
    (writing.state_type, writing.checked) = (state_type, compared);
    Ok(Ok(()))
}

fn candidates(encoding: Encoding) -> Candidates {
    let types: &[Float] = match encoding {
        Encoding::Hidden16 => &[Float::F16],
        _ => &[Float::F16, Float::Bf16, Float::F32],
    };
    let new = |&state_type| (state_type, RowError::default());
    types.iter().map(new).collect()
}

/// Drops the types whose rounding changes a product of one of these sizes, as far as there are so many
/// `states`. A kernel that rounds the states itself may be used for products of many rows, and one that
/// does not for those of few.
fn try_sizes<H: Head>(
    check: &mut RowCheck<H>,
    left: &mut Candidates,
    sizes: &BTreeSet<usize>,
    n_embd: usize,
    states: &[f32],
) -> Result<(), Error> {
    for size in sizes {
        let Some(states) = states.get(..size * n_embd) else {
            continue;
        };
        for (state_type, compared) in std::mem::take(left) {
            if check.is_rounding_exact(states, state_type)? {
                left.push((state_type, compared));
            }
        }
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use kl_formats::{HeadCheck, HeadTensor};

    use super::*;
    use crate::engine::EngineError;
    use crate::input::{ScoreFrom, Windowing};

    fn states() -> States {
        States {
            n_embd: 1,
            state_type: Float::F32,
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
                Float::F16.encode(states, &mut bytes);
                Float::F16.decode(&bytes, &mut self.0);
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
        let mut recompute = RowCheck::new(RoundsMany(Vec::new()), None);
        let left = |sizes: &[usize], recompute: &mut RowCheck<RoundsMany>| {
            let mut left = candidates(Encoding::Hidden);
            let sizes: BTreeSet<usize> = sizes.iter().copied().collect();
            try_sizes(recompute, &mut left, &sizes, 1, &[0.1, 0.2, 0.3]).unwrap();
            left.iter().map(|left| left.0).collect::<Vec<_>>()
        };
        let (f16, f32) = (Float::F16, Float::F32);
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
