//! Identical output in words.

use super::number::{count, count_of, percent_1};
use crate::stats::IdenticalOutput;

/// Says how many greedy answers differ, within how many tokens, and how many are the same.
pub fn sentence(of: &IdenticalOutput) -> String {
    let (n, n_cut) = (of.n_answers, of.n_cut());
    let at = of.cut_at.map(|n| count_of(n.into(), "token"));
    let within = at.as_ref().map(|at| format!(" within {at}"));
    let (at, within) = (at.unwrap_or_default(), within.unwrap_or_default());
    let all = match n {
        0 => return "No greedy answer counts".to_owned(),
        1 => "The answer is".to_owned(),
        _ => format!("All {} answers are", count(n)),
    };
    let half = half(of).unwrap_or_default();
    let share = |part: u64| percent_1(part as f64 / n as f64);
    match (of.n_differ, of.n_ended, n_cut) {
        (0, _, 0) => format!("{all} the same to the end"),
        (0, 0, _) => format!("{all} the same up to the cut at {at}"),
        (0, ended, cut) => {
            let [ended, cut] = [ended, cut].map(count);
            format!("{all} the same, {ended} to the end and {cut} up to the cut at {at}")
        }
        (1, 0, 0) => format!("The answer differs {half}"),
        (_, 0, 0) => format!("All {} answers differ{within}, {half}", count(n)),
        (differ, ended, cut) => {
            let same = match (ended, cut) {
                (ended, 0) => format!("{} are the same to the end", share(ended)),
                (0, cut) => format!("{} are the same up to the cut", share(cut)),
                (ended, cut) => {
                    let [ended, cut] = [ended, cut].map(share);
                    format!("{ended} are the same to the end, {cut} up to the cut")
                }
            };
            format!(
                "{} of the answers differ{within}, {half}; {same}",
                share(differ)
            )
        }
    }
}

/// Where the answers that differ do so: `half of those within 16`. `None` if none does.
fn half(of: &IdenticalOutput) -> Option<String> {
    let tokens = of.half_differ_within?;
    Some(match (of.n_differ, tokens) {
        (1, tokens) => format!("at token {}", count(tokens.into())),
        (_, 1) => "half of those at the first".to_owned(),
        (_, tokens) => format!("half of those within {}", count(tokens.into())),
    })
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

/// Says how many answers are left out, and why: `2 of 40 left out: near ties`.
fn left_out_of(of: &IdenticalOutput) -> Option<String> {
    let reasons = [
        (of.n_near_ties, "near ties"),
        (of.n_unknown, "not finite"),
        (of.n_cut_short, "cut before others"),
    ];
    let given: Vec<&(u64, &str)> = reasons.iter().filter(|(n, _)| *n > 0).collect();
    let why = match given.as_slice() {
        [] => return None,
        [(_, why)] => (*why).to_owned(),
        several => {
            let each = several
                .iter()
                .map(|(n, why)| format!("{} {why}", count(*n)));
            Vec::from_iter(each).join(", ")
        }
    };
    let n = of.n_left_out();
    let [n, all] = [n, n + of.n_answers].map(count);
    Some(format!("{n} of {all} left out: {why}"))
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
            (&[3][..], 1, "The answer differs at token 3"),
            (&[0], 1, "The answer is the same to the end"),
            (&[0], 0, "The answer is the same up to the cut at 9 tokens"),
            (
                &[1, 1, 1],
                3,
                "All 3 answers differ, half of those at the first",
            ),
            (
                &[1, 2, 3],
                0,
                "All 3 answers differ within 9 tokens, half of those within 2",
            ),
            (&[0, 0], 2, "All 2 answers are the same to the end"),
            (
                &[0, 0, 0],
                1,
                "All 3 answers are the same, 1 to the end and 2 up to the cut at 9 tokens",
            ),
            (
                &[4, 0],
                2,
                "50.0 % of the answers differ, at token 4; 50.0 % are the same to the end",
            ),
            (
                &[0, 8, 5, 0],
                0,
                "50.0 % of the answers differ within 9 tokens, half of those within 5; 50.0 % are \
                 the same up to the cut",
            ),
            (
                &[0, 8, 5, 0, 0],
                1,
                "40.0 % of the answers differ within 9 tokens, half of those within 5; 20.0 % are \
                 the same to the end, 40.0 % up to the cut",
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
        assert_eq!(left_out([&of, &of]).unwrap(), "2 of 40 left out: near ties");
        of.n_unknown = 1;
        let both = "3 of 41 left out: 2 near ties, 1 not finite";
        assert_eq!(left_out([&of]).unwrap(), both);
        (of.n_answers, of.n_differ, of.n_ended) = (0, 0, 0);
        assert_eq!(sentence(&of), "No greedy answer counts");
    }
}
