//! Conditions under which a model fails, for scripts: `--fail-if 'kld.mean > 0.01'`.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use kl_stats::stats::{ExcludedTokens, MIN_WINDOWS_TO_PLAN, PairedComparison};
use serde::Serialize;

use super::named_numbers::{NAMES, NAMES_OF_PAIR, NamedNumbers, named_numbers};
use super::number::left_out;
use super::result::ModelResult;

/// One of a model's numbers, an operator and a bound. A model for which the condition holds fails.
#[derive(Clone, Debug)]
pub struct Condition {
    /// The condition, as given.
    pub expression: String,
    name: String,
    holds: Operator,
    bound: f64,
}

type Operator = fn(&f64, &f64) -> bool;

/// The operators; of two that start alike, the longer comes first.
const OPERATORS: [(&str, Operator); 6] = [
    (">=", f64::ge),
    ("<=", f64::le),
    ("==", f64::eq),
    ("!=", f64::ne),
    (">", f64::gt),
    ("<", f64::lt),
];

impl FromStr for Condition {
    /// The reason that an expression is a condition neither on the numbers of a model, nor on those of
    /// `kl report --pair`.
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let expected =
            "expected a name, one of > >= < <= == != and a number, as in 'kld.mean > 0.01'";
        let index = text.find(['<', '>', '=', '!']).ok_or(expected)?;

        let (name, comparison) = text.split_at(index);
        let (holds, bound) = OPERATORS
            .iter()
            .find_map(|(sign, holds)| Some((holds, comparison.strip_prefix(sign)?)))
            .ok_or(expected)?;
        let (name, bound) = (name.trim(), bound.trim());
        let finite_bound = bound.parse().ok().filter(|bound: &f64| bound.is_finite());
        let condition = Self {
            expression: text.trim().to_owned(),
            name: name.to_owned(),
            holds: *holds,
            bound: finite_bound.ok_or_else(|| format!("'{bound}' is not a finite number"))?,
        };
        if condition.is_of_model() || condition.is_of_pair() {
            return Ok(condition);
        }
        let similar = similar_names(name).join(", ");
        Err(format!(
            "the result has no number named '{name}'; similar names: {similar}"
        ))
    }
}

impl Condition {
    /// True if its number is one of a model's.
    pub fn is_of_model(&self) -> bool {
        NAMES.lines().any(|name| name == self.name)
    }

    /// True if its number is one of the comparison of two models.
    pub fn is_of_pair(&self) -> bool {
        NAMES_OF_PAIR.lines().any(|name| name == self.name)
    }

    /// The section of the report that its number is in: the first key of the number's name.
    pub fn section(&self) -> &str {
        self.name.split('.').next().unwrap_or_default()
    }

    /// The outcome for these numbers. `left_out` names the tokens that its number leaves out and nobody
    /// has accepted; `n_windows` are those that a ratio of two models is over.
    fn verdict(
        &self,
        numbers: &NamedNumbers,
        left_out: Option<String>,
        n_windows: Option<u64>,
    ) -> Verdict {
        let value = numbers.get(&self.name).copied().flatten();
        let holds = value.is_some_and(|value| (self.holds)(&value, &self.bound));
        let too_few_windows =
            n_windows.filter(|n| self.section() == "ratio" && *n < MIN_WINDOWS_TO_PLAN);
        let (reason, outcome) = if let Some(n) = too_few_windows {
            let outcome = format!(
                "needs at least {MIN_WINDOWS_TO_PLAN} windows, and these are of {n}: \
                 the interval is not reliable enough to gate on"
            );
            (Some(Reason::FewWindows), outcome)
        } else if value.is_none() {
            let outcome = "cannot be checked: this result has no such value";
            (Some(Reason::NoValue), outcome.to_owned())
        } else if holds {
            (Some(Reason::Holds), "holds".to_owned())
        } else if let Some(tokens) = left_out {
            let outcome =
                format!("does not hold, but {tokens} left out (--allow-excluded accepts that)");
            (Some(Reason::LeftOut), outcome)
        } else {
            (None, "does not hold".to_owned())
        };
        Verdict {
            expression: self.expression.clone(),
            value,
            failed: reason.is_some(),
            reason,
            outcome,
        }
    }
}

/// Names that other tools give to some numbers, each with `kl`'s own name.
const NAMES_ELSEWHERE: [(&str, &str); 5] = [
    ("top1", "agreement.ref_top1"),
    ("top_1", "agreement.ref_top1"),
    ("top_p", "agreement.ref_top1"),
    ("same_top", "agreement.ref_top1"),
    ("ppl", "perplexity.ratio"),
];

/// The known names that people may mean: those of the numbers that other tools call so, or else the closest by edit
/// distance.
fn similar_names(name: &str) -> Vec<&'static str> {
    const MAX_NAMES: usize = 5;
    let translated: Vec<_> = NAMES_ELSEWHERE
        .iter()
        .filter(|(elsewhere, _)| name.contains(elsewhere))
        .map(|(_, own_name)| *own_name)
        .collect();
    if !translated.is_empty() {
        return translated;
    }
    let mut known_names: Vec<_> = NAMES.lines().chain(NAMES_OF_PAIR.lines()).collect();
    known_names.sort_by_cached_key(|known| strsim::levenshtein(name, known));
    known_names.truncate(MAX_NAMES);
    known_names
}

/// The tokens that a number leaves out: those that no statistic counts, and those with an infinite KLD or
/// for which the number itself is infinite. `None` if there are none, or if that is accepted.
fn unaccepted_tokens(
    excluded: ExcludedTokens,
    n_infinite: u64,
    allow_excluded: bool,
) -> Option<String> {
    let why = match (excluded.n_ref, excluded.n_eval) {
        (0, 1..) => "with a row of the evaluated model that is not finite",
        (1.., 0) => "with a row of the reference that is not finite",
        _ => "with a row that is not finite",
    };
    let is_partial = !allow_excluded && excluded.n + n_infinite > 0;
    is_partial.then(|| {
        left_out([
            (excluded.n, why),
            (n_infinite, "with an infinite or unknown value"),
        ])
    })
}

/// Checks `conditions` against the numbers of `report`.
///
/// A condition on a missing number fails: one on perplexity, for instance, where no token has a
/// next one. Unless `allow_excluded` is set, every condition fails if tokens are left out or have an
/// infinite KLD, and so does one on a number that leaves out infinite values of its own. Otherwise a
/// model that gives NaN where it is worst would pass.
pub fn judge<R>(conditions: &[Condition], report: &R, allow_excluded: bool) -> Vec<Verdict>
where
    R: Serialize + Deref<Target = ModelResult>,
{
    if conditions.is_empty() {
        return Vec::new();
    }
    let (numbers, summary) = (named_numbers(report), &report.summary);
    conditions
        .iter()
        .map(|condition| {
            let n_infinite_in_section = match condition.section() {
                "reverse_kld" => summary.reverse_kld.as_ref().map(|kld| kld.n_infinite),
                "perplexity" | "delta_p" => summary
                    .perplexity
                    .map(|perplexity| perplexity.n_infinite + perplexity.n_unknown),
                _ => None,
            };
            let n_infinite = summary.n_infinite().max(n_infinite_in_section.unwrap_or(0));
            let left_out = unaccepted_tokens(summary.all_excluded(), n_infinite, allow_excluded);
            condition.verdict(&numbers, left_out, None)
        })
        .collect()
}

/// Checks `conditions` against the numbers of `pair`, which compares two models' tokens in `paired`, as
/// [`judge`] does against those of one. One on the ratio, whose interval needs many windows, fails where
/// they are fewer.
pub fn judge_pair(
    conditions: &[Condition],
    pair: &impl Serialize,
    paired: &PairedComparison,
    allow_excluded: bool,
) -> Vec<Verdict> {
    let numbers = named_numbers(pair);
    let left_out = unaccepted_tokens(ExcludedTokens::default(), paired.n_left_out, allow_excluded);
    conditions
        .iter()
        .map(|condition| condition.verdict(&numbers, left_out.clone(), Some(paired.n_windows)))
        .collect()
}

/// The outcome of one condition for one model.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct Verdict {
    /// The condition, as given.
    pub expression: String,
    /// The number that it names; null if the result has none.
    pub value: Option<f64>,
    /// True if the model fails.
    pub failed: bool,
    /// The reason why it fails; absent if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The outcome in words, which follow the condition.
    #[serde(skip)]
    outcome: String,
}

/// The reason why a model fails a condition.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The condition holds.
    Holds,
    /// The result has no such number.
    NoValue,
    /// The condition does not hold, but its number leaves out tokens, which may be the worst.
    LeftOut,
    /// The interval of the ratio needs more windows.
    FewWindows,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.failed { "failed" } else { "passed" };
        write!(f, "{verdict}: {} {}", self.expression, self.outcome)?;
        // All digits, because six may look equal to the bound.
        match self.value {
            Some(value) if value != 0.0 && value.abs() < 1e-5 => write!(f, ": {value:e}"),
            Some(value) => write!(f, ": {value}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_names_are_known() {
        let names = "kld.mean kld.mean.value kld.mean.hi kld.mean.cluster_hi kld.std kld.max \
                     kld.max_at.window kld.median kld.median.lo kld.q50 kld.q90 kld.q95 kld.q99 \
                     kld.q99.hi kld.q99.9 kld.q99.9.lo reverse_kld.mean agreement.ref_top1 \
                     agreement.ref_top1.lo perplexity.ref perplexity.ratio perplexity.ln_ratio.se \
                     acceptance.mean acceptance.mean.lo acceptance.drafted1 acceptance.drafted16.lo \
                     delta_p.rms delta_p.q0.1 n_tokens n_excluded confidence model.size_bytes model.bpw \
                     timing.tokens_per_s";
        for name in names.split_whitespace() {
            let condition: Condition = format!("{name}>0").parse().expect(name);
            assert_eq!(condition.name, name);
        }
    }

    #[test]
    fn names_of_a_pair_are_known() {
        let names = "ratio ratio.upper ratio.p difference difference.hi agreement.difference \
                     agreement.difference.lo nearer.share_a nearer.share_a.lo agreement.difference.p \
                     median.ratio q99.9.ratio q99.9.a a.mean_kld n_left_out";
        for name in names.split_whitespace() {
            let condition: Condition = format!("{name} > 0").parse().expect(name);
            assert!(condition.is_of_pair(), "{name}");
        }
        let wrong = "ratio.uper > 1".parse::<Condition>().unwrap_err();
        assert!(wrong.contains("ratio.upper"), "{wrong}");
        let of_model: Condition = "kld.mean > 1".parse().unwrap();
        assert!(of_model.is_of_model() && !of_model.is_of_pair());
    }

    #[test]
    fn comparisons_compare() {
        for (sign, below, equal, above) in [
            (">", false, false, true),
            (">=", false, true, true),
            ("<", true, false, false),
            ("<=", true, true, false),
            ("==", false, true, false),
            ("!=", true, false, true),
        ] {
            for space in ["", " ", "  "] {
                let text = format!("{space}kld.mean{space}{sign}{space}-1.5e-2{space}");
                let condition: Condition = text.parse().unwrap();
                let holds = |value: f64| (condition.holds)(&value, &condition.bound);
                assert_eq!(
                    (holds(-0.02), holds(-0.015), holds(-0.01)),
                    (below, equal, above),
                    "{text}"
                );
                assert_eq!(condition.expression, text.trim());
            }
        }
    }

    #[test]
    fn errors_name_what_is_wrong() {
        for (text, said) in [
            ("", "as in 'kld.mean > 0.01'"),
            ("kld.mean", "as in"),
            ("kld.mean 0.01", "as in"),
            ("kld.mean = 0.01", "one of >"),
            ("kld.mean ! 0.01", "one of >"),
            ("kld.mean >", "'' is not"),
            ("kld.mean >> 1", "'> 1' is not"),
            ("kld.mean > 1 %", "'1 %' is not"),
            ("kld.mean > NaN", "'NaN' is not"),
            ("kld.mean < inf", "'inf' is not"),
            ("kld.meen > 1", "kld.mean"),
            ("kld.quantiles > 1", "named 'kld.quantiles'"),
            ("kld.p99 > 1", "kld.q99"),
            ("kl.mean > 1", "kld.mean"),
            ("perplexity.ln_ration > 1", "perplexity.ln_ratio"),
            ("kld > 1", "named 'kld'"),
            ("same_top < 0.9", "similar names: agreement.ref_top1"),
            ("ppl > 9", "similar names: perplexity.ratio"),
            ("model.name == 1", "named 'model.name'"),
            ("> 1", "named ''"),
        ] {
            let message = text.parse::<Condition>().unwrap_err().to_string();
            assert!(message.contains(said), "{text}: {message}");
            assert!(!message.contains('\n'), "{text}: one line");
        }
    }

    #[test]
    fn every_digit_is_shown() {
        let condition: Condition = "kld.mean > 0.01".parse().unwrap();
        let shown = |value| {
            let numbers = NamedNumbers::from([("kld.mean".to_owned(), value)]);
            condition.verdict(&numbers, None, None).to_string()
        };
        for (value, said) in [
            (
                Some(0.010_000_000_000_1),
                "failed: kld.mean > 0.01 holds: 0.0100000000001",
            ),
            (
                Some(7.9e-10),
                "passed: kld.mean > 0.01 does not hold: 7.9e-10",
            ),
            (
                None,
                "failed: kld.mean > 0.01 cannot be checked: this result has no such value",
            ),
        ] {
            assert_eq!(shown(value), said);
        }
    }

    #[test]
    fn what_the_numbers_leave_out_is_said() {
        let excluded = |n, n_ref, n_eval| ExcludedTokens { n, n_ref, n_eval };
        for (n_excluded, n_infinite, said) in [
            (
                excluded(1, 1, 0),
                0,
                "1 token with a row of the reference that is not finite is",
            ),
            (
                excluded(2, 0, 2),
                0,
                "2 tokens with a row of the evaluated model that is not finite are",
            ),
            (
                excluded(0, 0, 0),
                2,
                "2 tokens with an infinite or unknown value are",
            ),
            (
                excluded(3, 2, 2),
                1,
                "3 tokens with a row that is not finite and 1 token with an infinite or unknown value are",
            ),
        ] {
            let left_out = unaccepted_tokens(n_excluded, n_infinite, false);
            assert_eq!(left_out.as_deref(), Some(said));
            assert_eq!(unaccepted_tokens(n_excluded, n_infinite, true), None);
            let condition: Condition = "kld.mean > 0.01".parse().unwrap();
            let numbers = NamedNumbers::from([("kld.mean".to_owned(), Some(0.001))]);
            let verdict = condition.verdict(&numbers, left_out, None);
            assert_eq!(verdict.reason, Some(Reason::LeftOut));
            assert!(
                verdict
                    .to_string()
                    .contains(&format!("but {said} left out"))
            );
        }
        let json = serde_json::to_value(Reason::LeftOut);
        assert_eq!(json.unwrap(), "left_out");
    }
}
