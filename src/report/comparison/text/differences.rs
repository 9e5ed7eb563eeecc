//! The paired differences of models.

use super::super::names::Names;
use super::super::{ComparedPair, Comparison, PairKind};
use super::models::kld;
use super::{fitted, lines};
use crate::report::number::{ends, short_percent};
use crate::report::wrap::wrapped;

/// The differences to the best model, and those to the next in size; empty without any.
pub fn table(comparison: &Comparison, names: &Names) -> String {
    if comparison.pairs.is_empty() {
        return String::new();
    }
    let level = short_percent(comparison.confidence.level());
    let mut text =
        "\nPaired differences in mean KLD, nats: the first model less the second\n".to_owned();
    text.push_str(&fitted(names, |width| {
        let titles = [
            "",
            "\ndifference",
            &format!("{level} %\ninterval"),
            "\np",
            "first is\nnearer",
        ];
        let mut rows = Vec::new();
        for (kind, title) in [
            (PairKind::Best, "to the best, Holm's p"),
            (PairKind::Size, "to the next in size"),
        ] {
            let of_kind = comparison.pairs.iter().filter(|pair| pair.kind == kind);
            let mut pairs: Vec<&ComparedPair> = of_kind.collect();
            pairs.sort_by_key(|pair| rank(comparison, &pair.a));
            if !pairs.is_empty() {
                rows.push(vec![title.to_owned()]);
            }
            rows.extend(pairs.iter().map(|pair| row(comparison, pair, names, width)));
        }
        lines(titles.map(str::to_owned).to_vec(), rows, 1)
    }));
    if let Some(why) = comparison.why_p_differs() {
        text.push_str(&wrapped(&why));
    }
    text
}

fn row(comparison: &Comparison, pair: &ComparedPair, names: &Names, width: usize) -> Vec<String> {
    let difference = &pair.difference;
    let name = |label: &str| names.short(label, width);
    vec![
        format!("  {} - {}", name(&pair.a), name(&pair.b)),
        signed(difference.value),
        ends(difference.lo, difference.hi, signed),
        comparison.p_of(pair).map(p_value).unwrap_or_default(),
        pair.share_a_nearer
            .map(|share| format!("{:.1} %", 100.0 * share))
            .unwrap_or_default(),
    ]
}

/// Where a model is in the table.
fn rank(comparison: &Comparison, label: &str) -> Option<usize> {
    let mut models = comparison.models.iter();
    models.position(|model| model.label == label)
}

/// A difference of KLDs, with its sign.
pub fn signed(value: f64) -> String {
    let sign = if value > 0.0 { "+" } else { "" };
    format!("{sign}{}", kld(value))
}

/// A p-value to two digits; small ones by a bound.
pub fn p_value(p: f64) -> String {
    match p < 0.001 {
        true => "< 0.001".to_owned(),
        false => format!("{p:.3}"),
    }
}
