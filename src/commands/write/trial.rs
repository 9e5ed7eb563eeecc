//! The rules of the trial of hidden states, which comes before they are written.

use std::collections::BTreeSet;

use kl_formats::{CheckRow, States, WindowSpec};

use crate::input::Plan;

/// A trial goes over the first windows that have so many rows together.
pub const N_TRIAL_ROWS: u64 = 64;

/// Rows that a file holds as the model gave them, so that every reader can see how far its own are
/// from those.
const N_CHECK_ROWS: usize = 8;

/// Of the sizes of products that the trial has not seen, so many are tried: the smallest, for which
/// kernels differ most.
const MAX_OTHER_SIZES: usize = 16;

/// The positions whose rows a file holds as the model gave them: spread evenly over the first window
/// of all parts that has rows, its first and its last row among them.
pub fn check_positions(plan: &Plan) -> Vec<CheckRow> {
    // A conversation may have ended before a window. Every part has the rows of these.
    let mut windows = plan.first(N_TRIAL_ROWS).iter();
    let Some(window) = windows.find(|window| window.n_rows > 0) else {
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

/// The numbers of rows that a product has in some window of the plan, but in none of the trial's.
pub fn other_sizes(states: &States, plan: &Plan) -> BTreeSet<usize> {
    let sizes = |windows: &[WindowSpec]| {
        let groups = windows
            .iter()
            .flat_map(|window| states.row_batches(&window.entry()));
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
    use kl_formats::{Calls, Float, HeadCheck, HeadTensor};

    use super::*;
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
            calls: Calls {
                n_batch: 32,
                n_ubatch: 16,
                is_equal: false,
            },
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

    #[test]
    fn check_rows_are_of_the_first_window_that_has_rows() {
        let mut plan = plan(150);
        let planned = plan.windows.clone();
        (plan.windows[0].tokens, plan.windows[0].n_rows) = (Vec::new(), 0);
        plan.was_planned_as(planned, 2);
        let windows = check_positions(&plan).into_iter().map(|row| row.window);
        assert_eq!(windows.collect::<Vec<_>>(), [1; N_CHECK_ROWS]);
    }
}
