//! What a comparison shows, in words.

use super::names::Names;
use super::{ComparedModel, Comparison};
use crate::report::number::{bytes, short_percent};

/// How many models a sentence names before it counts the others.
const NAMED: usize = 4;

/// Which model is the best, and whether that is real; `None` for fewer than two candidates. Names
/// are at most `width` characters wide.
pub fn verdict(comparison: &Comparison, names: &Names, width: usize) -> Option<String> {
    let best = comparison.best()?;
    let name = |model: &ComparedModel| names.short(&model.label, width);
    let is_other = |model: &&ComparedModel| model.is_candidate() && model.label != best.label;
    let others: Vec<&ComparedModel> = comparison.models.iter().filter(is_other).collect();
    if others.is_empty() {
        return None;
    }
    let leads = format!("{} has the lowest mean KLD", name(best));
    if others
        .iter()
        .all(|model| model.difference_to_best.is_none())
    {
        return Some(format!(
            "{leads}; whether that is more than chance, only paired differences can show."
        ));
    }
    let alike: Vec<String> = comparison.near_best().map(name).collect();
    let level = short_percent(comparison.confidence.level());
    if alike.is_empty() {
        return Some(format!(
            "{leads}, and every other model is farther from the reference, at {level} %."
        ));
    }
    let n_alike = alike.len();
    let mut text = format!(
        "{leads}; {} cannot be told from it on this text.",
        list(alike)
    );
    let smallest = comparison.smallest_near_best();
    if let Some((smallest, size)) =
        smallest.and_then(|model| Some((model, model.model.shown_bytes()?)))
    {
        let size = bytes(size);
        text.push_str(&match n_alike {
            1 => format!(" It is smaller: {size}."),
            _ => format!(" The smallest of these is {}: {size}.", name(smallest)),
        });
    }
    Some(text)
}

/// `a`, `a and b`, `a, b and c`, or the first few and how many others there are.
fn list(mut names: Vec<String>) -> String {
    if names.len() > NAMED {
        let n_others = names.len() - (NAMED - 1);
        names.truncate(NAMED - 1);
        names.push(format!("{n_others} others"));
    }
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample::comparison;

    fn said(comparison: &Comparison) -> Option<String> {
        verdict(comparison, &Names::of(comparison), usize::MAX)
    }

    #[test]
    fn the_sentence_says_what_is_real() {
        let mut of = comparison();
        let text = "tiny-q4_K_M has the lowest mean KLD; tiny-iq4_xs cannot be told from it on \
                    this text. It is smaller: 1.10 MiB.";
        assert_eq!(said(&of).unwrap(), text);
        of.models[2].indistinguishable_from_best = false;
        let text = "tiny-q4_K_M has the lowest mean KLD, and every other model is farther from \
                    the reference, at 95 %.";
        assert_eq!(said(&of).unwrap(), text);
        for model in &mut of.models[2..] {
            model.indistinguishable_from_best = true;
        }
        let text = said(&of).unwrap();
        assert!(
            text.contains("tiny-iq4_xs, tiny-q4_0, tiny-q2_K and other.npz cannot"),
            "{text}"
        );
        assert!(
            text.ends_with("The smallest of these is tiny-q2_K: 830.08 KiB."),
            "{text}"
        );
        for model in &mut of.models {
            model.difference_to_best = None;
        }
        assert!(
            said(&of)
                .unwrap()
                .ends_with("only paired differences can show.")
        );
        of.models.truncate(2);
        assert_eq!(said(&of), None);
    }

    #[test]
    fn long_lists_are_counted() {
        let names = |n: usize| (0..n).map(|i| i.to_string()).collect();
        assert_eq!(list(names(1)), "0");
        assert_eq!(list(names(2)), "0 and 1");
        assert_eq!(list(names(4)), "0, 1, 2 and 3");
        assert_eq!(list(names(6)), "0, 1, 2 and 3 others");
    }
}
