//! Identical output in words.

use super::number::{count, count_of, ends};
use crate::stats::IdenticalOutput;

/// Says for how many tokens the greedy answers are the same.
pub fn sentence(of: &IdenticalOutput) -> String {
    let n = count(of.n_answers);
    let differs_at_once = of.curve.get(1).is_some_and(|point| point.share == 0.0);
    match (of.n_answers, of.median_tokens) {
        (1, Some(0)) => "The answer differs at its first token".to_owned(),
        (1, Some(tokens)) => format!("The answer is the same for {}", tokens_of(tokens)),
        (1, None) if of.n_identical == 1 => "The answer is the same to its end".to_owned(),
        (_, Some(0)) if differs_at_once => format!("All {n} answers differ at their first token"),
        (_, Some(0)) => "Half of the answers differ at their first token".to_owned(),
        (_, Some(tokens)) => format!("Half of the answers are the same for {}", tokens_of(tokens)),
        (all, None) if of.n_identical == all => {
            format!("All {n} answers are the same to their end")
        }
        (_, None) => {
            let same = count(of.n_identical);
            let are = if of.n_identical == 1 { "is" } else { "are" };
            format!("Of {n} answers {same} {are} the same to their end")
        }
    }
}

/// The tokens for which half of the answers are the same.
pub fn median(of: &IdenticalOutput) -> String {
    match of.median_tokens {
        Some(0) => "no token".to_owned(),
        Some(n) => tokens_of(n),
        None => "their whole length".to_owned(),
    }
}

/// The interval of the median. An end of 0 tokens is left out: every number of tokens is above it.
pub fn median_ends(of: &IdenticalOutput) -> String {
    let end = |end: Option<u32>| end.filter(|n| *n > 0).map(f64::from);
    ends(end(of.median_lo), end(of.median_hi), |n| count(n as u64))
}

fn tokens_of(n: u32) -> String {
    count_of(n.into(), "token")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{made_up, sample};

    /// The sentence about answers of 9 tokens, one of each differing at these (9: none).
    fn said(differ_at: &[u32]) -> String {
        let records = made_up::greedy(9, differ_at);
        let result = made_up::result("q4.gguf", 1, &records, &[]);
        sentence(&result.summary.identical_output.unwrap())
    }

    #[test]
    fn a_median_of_no_token_has_words() {
        let mut of = sample::identical(4.0);
        let mut said = |lo, median_tokens, hi| {
            (of.median_lo, of.median_tokens, of.median_hi) = (lo, median_tokens, hi);
            (median(&of), median_ends(&of))
        };
        let words = |median: &str, ends: &str| (median.to_owned(), ends.to_owned());
        assert_eq!(said(Some(0), Some(0), Some(0)), words("no token", ""));
        assert_eq!(said(Some(0), Some(0), Some(3)), words("no token", "≤ 3"));
        assert_eq!(said(Some(0), Some(2), None), words("2 tokens", ""));
        assert_eq!(said(Some(1), Some(1), Some(3)), words("1 token", "[1, 3]"));
        assert_eq!(
            said(Some(9), None, None),
            words("their whole length", "≥ 9")
        );
    }

    #[test]
    fn every_case_has_its_sentence() {
        for (differ_at, sentence) in [
            (&[0][..], "The answer differs at its first token"),
            (&[1], "The answer is the same for 1 token"),
            (&[5], "The answer is the same for 5 tokens"),
            (&[9], "The answer is the same to its end"),
            (&[0, 0, 0], "All 3 answers differ at their first token"),
            (
                &[0, 0, 5],
                "Half of the answers differ at their first token",
            ),
            (&[1, 1, 5], "Half of the answers are the same for 1 token"),
            (&[2, 5, 9], "Half of the answers are the same for 5 tokens"),
            (&[2, 9, 9], "Of 3 answers 2 are the same to their end"),
            (&[9, 9, 9], "All 3 answers are the same to their end"),
        ] {
            assert_eq!(said(differ_at), sentence);
        }
    }
}
