//! Identical output in words.

use kl_stats::stats::IdenticalOutput;

use super::number::{count, count_of};

/// Says how many greedy answers are the same, and within how many tokens half of the others differ.
pub fn sentence(of: &IdenticalOutput) -> String {
    let same = match (of.n_answers, of.n_differ) {
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
    let within = of.half_differ_within.map(|n| count_of(n.into(), "token"));
    let half = within.map(|tokens| format!("; half of the others differ within {tokens}"));
    let (to, half) = (same_to(of), half.unwrap_or_default());
    format!("{same} the same {to}{half}")
}

/// Names the point up to which answers are the same: the end, or also the cut.
pub fn same_to(of: &IdenticalOutput) -> String {
    let tokens = of.cut_at.map(|n| count_of(n.into(), "token"));
    let cut = tokens.map(|tokens| format!(" or the cut at {tokens}"));
    format!("to the end{}", cut.unwrap_or_default())
}

/// Says how many answers are left out, and why; near ties are the same for all models.
pub fn left_out<'o>(of: impl IntoIterator<Item = &'o IdenticalOutput>) -> Option<String> {
    let mut said: Vec<String> = of.into_iter().filter_map(left_out_of).collect();
    said.dedup();
    (!said.is_empty()).then(|| said.join("; "))
}

/// Says how many answers are left out, and why: `2 of 40 left out: 2 near ties`.
fn left_out_of(of: &IdenticalOutput) -> Option<String> {
    let reasons = [
        (of.n_near_ties, count_of(of.n_near_ties, "near tie")),
        (of.n_unknown, format!("{} not finite", count(of.n_unknown))),
        (
            of.n_cut_short,
            format!("{} cut before others", count(of.n_cut_short)),
        ),
    ];
    let given = reasons.into_iter().filter(|(n, _)| *n > 0);
    let n = of.n_left_out();
    let [left_out, all] = [n, n + of.n_answers].map(count);
    let why = Vec::from_iter(given.map(|(_, why)| why)).join(", ");
    (n > 0).then(|| format!("{left_out} of {all} left out: {why}"))
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
        let mut of = sample::identical(4.0);
        assert_eq!(left_out([&of]), None);
        of.n_answers = 38;
        of.n_near_ties = 2;
        assert_eq!(
            left_out([&of, &of]).unwrap(),
            "2 of 40 left out: 2 near ties"
        );
        of.n_unknown = 1;
        let both = "3 of 41 left out: 2 near ties, 1 not finite";
        assert_eq!(left_out([&of]).unwrap(), both);
        of.n_near_ties = 1;
        let one = "2 of 40 left out: 1 near tie, 1 not finite";
        assert_eq!(left_out([&of]).unwrap(), one);
        (of.n_answers, of.n_differ, of.n_ended) = (0, 0, 0);
        assert_eq!(sentence(&of), "No greedy answer counts");
    }
}
