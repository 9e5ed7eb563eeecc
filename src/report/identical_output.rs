//! Identical output in words.

use super::number::{count, count_of};
use crate::stats::IdenticalOutput;

/// Says how many greedy answers differ, within how many tokens, and how many are the same.
pub fn sentence(of: &IdenticalOutput) -> String {
    if of.n_answers == 0 {
        return "No greedy answer counts".to_owned();
    }
    let tokens = |n: u32| count_of(n.into(), "token");
    let half = of.half_differ_within.map(tokens);
    let half = half.map(|tokens| format!(", half of those within {tokens}"));
    let cut_at = of.cut_at.map(tokens).unwrap_or_default();
    let up_to_cut = format!(" the same up to the cut at {cut_at}");
    let parts = [
        (of.n_differ, ["differs", "differ"], half.as_deref()),
        (of.n_ended, ["is", "are"], Some(" the same to the end")),
        (of.n_cut(), ["is", "are"], Some(&up_to_cut)),
    ];
    let given = parts.into_iter().filter(|(n, ..)| *n > 0);
    let given = given.map(|(n, [one, several], what)| {
        let verb = if n == 1 { one } else { several };
        format!("{} {verb}{}", count(n), what.unwrap_or_default())
    });
    let all = count_of(of.n_answers, "greedy answer");
    format!("Of {all}, {}", Vec::from_iter(given).join("; "))
}

/// How far the answers are the same that do not differ.
pub fn same_to(of: &IdenticalOutput) -> String {
    let cut = of
        .cut_at
        .map(|n| format!(" or the cut at {}", count_of(n.into(), "token")));
    format!("to the end{}", cut.unwrap_or_default())
}

/// The title of a table of several models. The cut is the reference's, so it is the same for all.
pub fn title(of: &IdenticalOutput) -> String {
    format!("Greedy answers that are the original's {}", same_to(of))
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
        (of.n_near_ties, "near ties"),
        (of.n_unknown, "not finite"),
        (of.n_cut_short, "cut before others"),
    ];
    let given = reasons.into_iter().filter(|(n, _)| *n > 0);
    let given = given.map(|(n, why)| format!("{} {why}", count(n)));
    let n = of.n_left_out();
    let [left_out, all] = [n, n + of.n_answers].map(count);
    let why = Vec::from_iter(given).join(", ");
    (n > 0).then(|| format!("{left_out} of {all} left out: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{made_up, sample};

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
                "Of 1 greedy answer, 1 differs, half of those within 3 tokens",
            ),
            (&[0], 1, "Of 1 greedy answer, 1 is the same to the end"),
            (
                &[0, 0],
                0,
                "Of 2 greedy answers, 2 are the same up to the cut at 9 tokens",
            ),
            (
                &[0, 8, 5, 0, 0],
                1,
                "Of 5 greedy answers, 2 differ, half of those within 5 tokens; \
                 1 is the same to the end; 2 are the same up to the cut at 9 tokens",
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
        (of.n_answers, of.n_differ, of.n_ended) = (0, 0, 0);
        assert_eq!(sentence(&of), "No greedy answer counts");
    }
}
