//! Identical output in words.

use kl_stats::stats::IdenticalOutput;

use super::number::{count, count_of};

/// Says how many greedy answers are the same, and within how many tokens half of the others differ.
pub fn sentence(output: &IdenticalOutput) -> String {
    let same_answers = match (output.n_answers, output.n_differ) {
        (0, _) => return "No greedy answer counts".to_owned(),
        (1, 0) => "The only greedy answer is".to_owned(),
        (all, 0) => format!("All {} greedy answers are", count(all)),
        (all, n) => {
            let is_one = all == 1 || all - n == 1;
            let verb = if is_one { "is" } else { "are" };
            let (same, all) = (count(all - n), count_of(all, "greedy answer"));
            format!("{same} of {all} {verb}")
        }
    };
    let half_of_others = output.half_differ_within.map(|n| {
        let tokens = count_of(n.into(), "token");
        format!("; half of the others differ within {tokens}")
    });
    format!(
        "{same_answers} the same {}{}",
        same_up_to(output),
        half_of_others.unwrap_or_default()
    )
}

/// Names the point up to which answers are the same: `to the end`, or also the cut.
pub fn same_up_to(output: &IdenticalOutput) -> String {
    let cut = output
        .cut_at
        .map(|n| format!(" or the cut at {}", count_of(n.into(), "token")));
    format!("to the end{}", cut.unwrap_or_default())
}

/// Says how many answers are left out, and why; near ties are the same for all models.
pub fn left_out<'o>(outputs: impl IntoIterator<Item = &'o IdenticalOutput>) -> Option<String> {
    let mut phrases: Vec<String> = outputs.into_iter().filter_map(left_out_of).collect();
    phrases.dedup();
    (!phrases.is_empty()).then(|| phrases.join("; "))
}

/// Says how many answers are left out, and why: `2 of 40 left out: 2 near ties`.
fn left_out_of(output: &IdenticalOutput) -> Option<String> {
    let reasons: Vec<String> = [
        (output.n_near_ties, count_of(output.n_near_ties, "near tie")),
        (
            output.n_unknown,
            format!("{} not finite", count(output.n_unknown)),
        ),
        (
            output.n_cut_short,
            format!("{} cut before others", count(output.n_cut_short)),
        ),
    ]
    .into_iter()
    .filter(|(n, _)| *n > 0)
    .map(|(_, reason)| reason)
    .collect();
    let n = output.n_left_out();
    let [left_out, all] = [n, n + output.n_answers].map(count);
    (n > 0).then(|| format!("{left_out} of {all} left out: {}", reasons.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{made_up, sample};

    /// The sentence about answers of 9 tokens, of which each differs at one of these, from 1 (0: at none), and
    /// the first `n_ended` of which the model ended.
    fn said(differ_at: &[u32], n_ended: u32) -> String {
        let records = made_up::greedy(9, differ_at, n_ended);
        let result = made_up::result("q4.gguf", 1, &records, &[]);
        sentence(&result.summary.identical_output.unwrap())
    }

    #[test]
    fn every_case_has_its_sentence() {
        for (differ_at, n_ended, sentence) in [
            (
                &[3][..],
                1,
                "0 of 1 greedy answer is the same to the end; half of the others differ within 3 tokens",
            ),
            (&[0], 1, "The only greedy answer is the same to the end"),
            (
                &[0, 0],
                0,
                "All 2 greedy answers are the same to the end or the cut at 9 tokens",
            ),
            (
                &[0, 8, 5, 0, 0],
                1,
                "3 of 5 greedy answers are the same to the end or the cut at 9 tokens; \
                 half of the others differ within 5 tokens",
            ),
        ] {
            assert_eq!(said(differ_at, n_ended), sentence);
        }
    }

    #[test]
    fn what_is_left_out_is_said() {
        let mut output = sample::identical(4.0);
        assert_eq!(left_out([&output]), None);
        output.n_answers = 38;
        output.n_near_ties = 2;
        assert_eq!(
            left_out([&output, &output]).unwrap(),
            "2 of 40 left out: 2 near ties"
        );
        output.n_unknown = 1;
        let both = "3 of 41 left out: 2 near ties, 1 not finite";
        assert_eq!(left_out([&output]).unwrap(), both);
        output.n_near_ties = 1;
        let one = "2 of 40 left out: 1 near tie, 1 not finite";
        assert_eq!(left_out([&output]).unwrap(), one);
        (output.n_answers, output.n_differ, output.n_ended) = (0, 0, 0);
        assert_eq!(sentence(&output), "No greedy answer counts");
    }
}
