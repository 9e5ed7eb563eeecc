//! The lines about a reference of hidden states: how exact its rows are.

use super::sheet::Sheet;
use crate::report::number::count;
use crate::report::result::{HereInfo, StatesInfo};

/// Where the rows were computed, and the encoding's own error if it has one.
pub fn states(out: &mut Sheet, states: &StatesInfo) {
    if let Some(here) = &states.here {
        let of = format!(
            "computed on {} from {} states",
            here.device, states.state_type
        );
        out.line("reference rows", &format!("{of}: {}", moved(here)));
    }
    if states.error.max_kld > 0.0 {
        let error = format!("{} when it was written", states.error);
        out.line("error of the encoding", &error);
    }
}

/// How far the rows computed here are from the model's own.
fn moved(here: &HereInfo) -> String {
    match here.is_exact {
        Some(true) => format!(
            "to the bit as the model gave them ({} checked)",
            count(here.error.n_rows)
        ),
        Some(false) => format!("off by a {} of those that the model gave", here.error),
        None => "not checked, since the file holds no row of its windows to check with".to_owned(),
    }
}
