//! The lines about a reference of hidden states: how exact its rows are.

use super::sheet::Sheet;
use crate::report::number::{count, count_of, significant};
use crate::report::result::{HereInfo, RowError, StatesInfo};

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
        let error = error(&states.error);
        let error = format!("{error} when it was written");
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
        Some(false) => format!(
            "off by a {} of those that the model gave",
            error(&here.error)
        ),
        None => "not checked, since the file holds no row of its windows to check with".to_owned(),
    }
}

/// `mean KLD 1.2e-06, largest 3.4e-05, over 64 rows`.
pub fn error(error: &RowError) -> String {
    format!(
        "mean KLD of {}, {} at most, in {}",
        significant(error.mean_kld, 3),
        significant(error.max_kld, 3),
        count_of(error.n_rows, "row")
    )
}
