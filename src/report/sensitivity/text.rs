//! A map as text.

use super::sentence::relative;
use super::{LayerSensitivity, Sensitivity, TensorSensitivity};
use crate::recipe::{Additivity, Check, quoted};
use crate::report::comparison::Names;
use crate::report::layout::{columns, hanging, wrapped};
use crate::report::number::{
    bytes, count, count_of, duration, ends, fixed, or_undefined, printable, ratio, short_count,
    short_kld, short_percent, significant,
};

/// The most lines of a list of tensors.
const MAX_LISTED: usize = 10;

/// The most lines that layers are shown in: more layers share lines.
const MAX_LAYER_LINES: usize = 16;

/// The bits a parameter that many quants have.
const USUAL_BITS: f64 = 4.5;

/// The width of the longest bar.
const BAR: f64 = 24.0;

/// The mark of a KLD that was not measured.
const PREDICTED: &str = "~";

impl Sensitivity {
    /// Everything that a terminal shows. `map` is the path of the map. Names are cut until tables fit lines
    /// of at most `width`.
    pub fn text(&self, map: &str, width: usize) -> String {
        let mut text = String::new();
        let sentences = self.sentences();
        if !sentences.is_empty() {
            text.push_str(&wrapped(&sentences.join(" ")));
            text.push('\n');
        }
        text.push_str(&self.title());
        text.push_str(&self.roles_text(width));
        text.push_str(&self.layers_text());
        text.push_str(&self.tensors_text(width));
        text.push_str(&self.additivity_text());
        text.push_str(&self.checks_text(width));
        text + &self.next_text(map)
    }

    fn title(&self) -> String {
        let model = &self.model;
        let level = short_percent(self.confidence.level());
        let n_others = self.at_other_types().count() as u64;
        let mut of_model = vec![printable(&model.path)];
        of_model.extend(
            model
                .n_params
                .map(|n| format!("{} parameters", short_count(n))),
        );
        of_model.extend(model.shown_bytes().map(bytes));
        let mut text = hanging(
            "",
            2,
            &format!("What quantization costs {}", of_model.join(", ")),
        );
        let mut fact = |name: &str, value: &str| {
            text.push_str(&hanging(&format!("  {name:<14}"), 16, value));
        };
        let of = self.text.as_ref().and_then(|text| text.name.as_ref());
        let of = of.map(|name| format!(" of {}", printable(name)));
        let windows = count_of(self.n_windows, "window");
        fact(
            "text",
            &format!(
                "up to {windows} of {} tokens{}",
                self.n_ctx,
                of.unwrap_or_default()
            ),
        );
        let against = match &self.reference {
            Some(file) => format!("against {}", printable(file)),
            None => "against the original's own logits".to_owned(),
        };
        let others = match n_others {
            0 => String::new(),
            n => format!(" ({} at the nearest type allowed)", count_of(n, "tensor")),
        };
        let at = self.measured_type;
        fact(
            "compared",
            &format!("each tensor alone at {at}{others}, {against}"),
        );
        let time = self
            .cost
            .seconds
            .map(|seconds| format!(", {}", duration(seconds)));
        fact(
            "measured",
            &format!(
                "{}, {} decoded{}",
                count_of(self.cost.n_cells, "cell"),
                count_of(self.cost.n_tokens, "token"),
                time.unwrap_or_default()
            ),
        );
        if let Some(imatrix) = &self.imatrix {
            fact("imatrix", &printable(&imatrix.file_name));
        }
        if let Some(control) = self.control {
            let of = "the original against itself, which must be 0";
            fact("control", &format!("{} ({of})", short_kld(control)));
        }
        let marked = match self.tensors.iter().all(|of| of.at.is_measured) {
            true => String::new(),
            false => format!("; {PREDICTED} marks a KLD that is predicted, not measured"),
        };
        fact("intervals", &format!("at {level} %{marked}"));
        text
    }

    /// A row for each role, and one for all.
    fn roles_text(&self, width: usize) -> String {
        let interval = self.interval_title();
        let titles = [
            "\nrole",
            "ten-\nsors",
            "para-\nmeters",
            "\nKLD",
            &interval,
            "share\n%",
            "relative\ncost",
        ];
        let labels: Vec<&str> = self.by_role.iter().map(|role| role.role.as_str()).collect();
        let table = Names::whole(&labels, width).fitted(|name| {
            let roles = self
                .by_role
                .iter()
                .map(|role| (name(&role.role), &role.part));
            let all = [("all".to_owned(), &self.whole)];
            let rows = roles.chain(all).map(|(role, part)| {
                vec![
                    format!("  {role}"),
                    count(part.n_tensors),
                    short_count(part.n_params),
                    short_kld(part.kld.value),
                    ends(part.kld.lo, part.kld.hi, end),
                    or_undefined(part.share, share),
                    or_undefined(part.relative_cost, relative),
                ]
            });
            columns(titles, rows, 1, 1)
        });
        let explained = "Relative cost: KLD for each byte that the type saves, over that of all \
                         tensors. Above 1, bits are better spent than elsewhere.";
        format!("\nBy role\n{table}{}", wrapped(explained))
    }

    /// A bar for each layer, or for some in a row.
    fn layers_text(&self) -> String {
        let layers = &self.by_layer;
        let Some(worst) = layers.iter().max_by(|a, b| kld_of(a).total_cmp(&kld_of(b))) else {
            return String::new();
        };
        let of_line = layers.len().div_ceil(MAX_LAYER_LINES);
        let means: Vec<f64> = layers.chunks(of_line).map(mean_kld).collect();
        let most = means.iter().copied().fold(0.0, f64::max);
        let rows = layers.chunks(of_line).zip(&means).map(|(of, &mean)| {
            let total: f64 = of.iter().filter_map(|layer| layer.part.share).sum();
            vec![
                format!("  {}", layer_names(of)),
                short_kld(mean),
                share(total),
            ]
        });
        let (name, kld) = match of_line {
            1 => ("\n  layer", "\nKLD"),
            _ => ("\n  layers", "KLD per\nlayer"),
        };
        let titles = [name, kld, "share\n%"];
        let table = columns(titles, rows, 1, 2);
        let n_titles = table.lines().count().saturating_sub(means.len());
        let bars = vec![String::new(); n_titles].into_iter();
        let bars = bars.chain(means.iter().map(|mean| format!("  {}", bar(mean / most))));
        let lines = table
            .lines()
            .zip(bars)
            .map(|(line, bar)| format!("{line}{bar}\n"));
        let worst = match of_line {
            1 => String::new(),
            _ => wrapped(&format!(
                "The worst one is layer {}, with {}.",
                worst.layer,
                short_kld(kld_of(worst))
            )),
        };
        format!("\nBy layer\n{}{worst}", String::from_iter(lines))
    }

    /// The tensors with the largest and with the smallest relative costs.
    fn tensors_text(&self, width: usize) -> String {
        let ranked = self.by_relative_cost();
        let n = MAX_LISTED.min(ranked.len() / 2);
        if n == 0 {
            return String::new();
        }
        let (worst, rest) = ranked.split_at(n);
        let last = rest.iter().rev().take(n).copied().collect::<Vec<_>>();
        let labels: Vec<&str> = worst.iter().chain(&last).map(|of| bare(of)).collect();
        let interval = self.interval_title();
        let table = Names::whole(&labels, width).fitted(|name| {
            let row = |of: &&TensorSensitivity| {
                vec![
                    format!("    {}", name(bare(of))),
                    short_count(of.tensor.n_params),
                    format!("{}{}", mark(of.at.is_measured), short_kld(of.kld().value)),
                    ends(of.kld().lo, of.kld().hi, end),
                    or_undefined(of.share, share),
                    or_undefined(of.relative_cost, relative),
                ]
            };
            let group = |title: &str| [vec![format!("  {title}")]].into_iter();
            let most = group("most").chain(worst.iter().map(row));
            let least = group("least").chain(last.iter().map(row));
            let titles = [
                "",
                "para-\nmeters",
                "\nKLD",
                &interval,
                "share\n%",
                "relative\ncost",
            ];
            columns(titles, most.chain(least), 1, 1)
        });
        let n = counted(n);
        format!(
            "\nThe {n} tensors that cost most per byte saved, and the {n} that cost least\n{table}"
        )
    }

    /// How far the KLDs of single tensors add up to that of all of them.
    fn additivity_text(&self) -> String {
        if self.additivity.is_empty() {
            return String::new();
        }
        let interval = self.interval_title();
        let titles = [
            "\n  all at",
            "KLD\ntogether",
            &interval,
            "sum of\nsingles",
            "together\nover sum",
        ];
        let rows = self.additivity.iter().map(|of| {
            vec![
                format!("  {}", of.kind),
                short_kld(of.together.value),
                ends(of.together.lo, of.together.hi, end),
                short_kld(of.sum),
                ratio(times_sum(of)),
            ]
        });
        let explained = "Recipes are corrected by the last column: 1 means that tensors do not \
                         interact.";
        format!(
            "\nAll tensors together, against the sum of each alone\n{}{}",
            columns(titles, rows, 1, 2),
            wrapped(explained)
        )
    }

    /// The predictions that were checked, the farthest off first.
    fn checks_text(&self, width: usize) -> String {
        if self.checks.is_empty() {
            return String::new();
        }
        let mut checks: Vec<&Check> = self.checks.iter().collect();
        let off = |check: &Check| times_predicted(check).ln().abs();
        checks.sort_by(|a, b| off(b).total_cmp(&off(a)));
        let shown = &checks[..checks.len().min(MAX_LISTED)];
        let interval = self.interval_title();
        let labels: Vec<&str> = shown.iter().map(|check| check.tensor.as_str()).collect();
        let table = Names::whole(&labels, width).fitted(|name| {
            let titles = [
                "\n  tensor",
                "\ntype",
                "\npredicted",
                "\nmeasured",
                &interval,
                "measured /\npredicted",
            ];
            let rows = shown.iter().map(|check| {
                vec![
                    format!("  {}", without_weight(&name(&check.tensor))),
                    check.kind.to_string(),
                    short_kld(check.predicted),
                    short_kld(check.measured.value),
                    ends(check.measured.lo, check.measured.hi, end),
                    ratio(times_predicted(check)),
                ]
            });
            columns(titles, rows, 2, 1)
        });
        let which = match shown.len() < checks.len() {
            true => format!(" (the {} that are farthest off)", counted(shown.len())),
            false => String::new(),
        };
        let sentence = off_by(&checks);
        format!(
            "\nPredicted, then measured{which}\n{table}{}",
            wrapped(&sentence)
        )
    }

    /// The command that comes next, with a size that the map reaches.
    fn next_text(&self, map: &str) -> String {
        let bits = USUAL_BITS.max((2.0 * self.fewest_bits).ceil() / 2.0);
        format!(
            "\nNext, the best mixture of types for a size, which no model needs to run for:\n\n  \
             kl recipe {} --bpw {bits} -w recipe.txt\n",
            printable(&quoted(map))
        )
    }

    fn interval_title(&self) -> String {
        format!("{} %\ninterval", short_percent(self.confidence.level()))
    }
}

/// The KLD of all tensors at once over the sum of the singles.
pub(in crate::report) fn times_sum(of: &Additivity) -> f64 {
    of.together.value / of.sum
}

/// How many times its prediction a measurement is.
pub(in crate::report) fn times_predicted(check: &Check) -> f64 {
    check.measured.value / check.predicted
}

/// How far predictions are off, the farthest first; nothing where no measurement is above 0.
fn off_by(checks: &[&Check]) -> String {
    let factors = checks
        .iter()
        .map(|check| times_predicted(check).ln().abs().exp());
    let factors: Vec<f64> = factors.filter(|factor| factor.is_finite()).collect();
    match factors[..] {
        [] => String::new(),
        [only] => format!("The prediction is off by a factor of {}.", ratio(only)),
        [most, .., least] => format!(
            "The predictions are off by factors of {} to {}, in the median {}.",
            ratio(least),
            ratio(most),
            ratio(factors[factors.len() / 2])
        ),
    }
}

/// An end of an interval in a table, where two digits are enough.
fn end(kld: f64) -> String {
    significant(kld, 2)
}

/// A share in percent: `8.7`, `<0.1`.
fn share(share: f64) -> String {
    match share > 0.0 && share < 0.0005 {
        true => "<0.1".to_owned(),
        false => fixed(100.0 * share, 1),
    }
}

fn kld_of(layer: &LayerSensitivity) -> f64 {
    layer.part.kld.value
}

fn mean_kld(layers: &[LayerSensitivity]) -> f64 {
    layers.iter().map(kld_of).sum::<f64>() / layers.len().max(1) as f64
}

/// `7`, or `4 to 7`.
fn layer_names(layers: &[LayerSensitivity]) -> String {
    match layers {
        [] => String::new(),
        [only] => only.layer.to_string(),
        [first, .., last] => format!("{} to {}", first.layer, last.layer),
    }
}

/// A bar in eighths of a column, for a share of the longest.
fn bar(share: f64) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share.clamp(0.0, 1.0) * BAR * 8.0).round() as usize;
    let part = PARTS.get(eighths % 8).copied().unwrap_or_default();
    "█".repeat(eighths / 8) + part
}

fn mark(is_measured: bool) -> &'static str {
    if is_measured { "" } else { PREDICTED }
}

/// A tensor's name without `.weight`.
fn bare(of: &TensorSensitivity) -> &str {
    without_weight(&of.tensor.name)
}

fn without_weight(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

/// A number in words up to ten.
fn counted(n: usize) -> String {
    const WORDS: [&str; 11] = [
        "no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    ];
    WORDS
        .get(n)
        .map_or_else(|| n.to_string(), |&word| word.to_owned())
}
