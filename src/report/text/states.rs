//! The lines about a reference of hidden states: how exact its rows are.

use crate::report::layout::Sheet;
use crate::report::number::short_kld;
use crate::report::result::{HereInfo, RowError, StatesInfo};

/// Where the rows were computed, how far they are from the model's own, and the encoding's own error
/// if it has one.
pub fn states(out: &mut Sheet, states: &StatesInfo) {
    if let Some(here) = &states.here {
        let of = format!(
            "computed on {} from {} states",
            here.device, states.state_type
        );
        out.line("reference rows", &of);
        out.line("", &moved(here));
    }
    if states.error.max_kld > 0.0 {
        out.line("error of the encoding", &nats(states.error));
    }
}

/// How far the rows computed here are from the model's own.
fn moved(here: &HereInfo) -> String {
    match here.is_exact {
        Some(true) => "to the bit as the model gave them".to_owned(),
        Some(false) => format!("off by {}", nats(here.error)),
        None => "not checked: it holds no row to check with".to_owned(),
    }
}

fn nats(error: RowError) -> String {
    let [mean, max] = [error.mean_kld, error.max_kld].map(short_kld);
    format!("{mean} nats, {max} at most")
}
