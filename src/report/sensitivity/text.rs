//! A map as text, and in sentences.

use super::{LayerSensitivity, RoleSensitivity, Sensitivity, TensorSensitivity};
use crate::recipe::{Additivity, Check, quoted};
use crate::report::layout::{hanging, wrapped};
use crate::report::names::Names;
use crate::report::number::{
    bytes, count, count_of, duration, ends, fixed, or_undefined, printable, ratio, short_count,
    short_kld, short_percent, significant,
};
use crate::report::table::Table;
use crate::stats::Estimate;

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

/// The most roles that a sentence names.
const MAX_NAMED: usize = 3;

/// Roles are called dear from this many times the average cost on, and cheap down to this.
const DEAR: f64 = 1.5;
const CHEAP: f64 = 0.5;

impl Sensitivity {
    /// The tensors at each type as CSV. Columns' names and their order are stable; new ones are added at
    /// the end. What is not known is empty.
    pub fn csv(&self) -> String {
        let number = |value: Option<f64>| {
            let finite = value.filter(|value| value.is_finite());
            finite.map(|value| value.to_string()).unwrap_or_default()
        };
        let tensors = self.tensors.iter().map(|of| &of.tensor);
        let costs = tensors.flat_map(|tensor| tensor.costs.iter().map(move |cost| (tensor, cost)));
        Table::new("", costs)
            .left("tensor", |(tensor, _)| tensor.name.clone())
            .left("role", |(tensor, _)| tensor.role.clone())
            .right("layer", |(tensor, _)| {
                tensor
                    .layer
                    .map(|layer| layer.to_string())
                    .unwrap_or_default()
            })
            .right("n_params", |(tensor, _)| tensor.n_params.to_string())
            .right("type", |(_, cost)| cost.kind.to_string())
            .right("bytes", |(_, cost)| cost.bytes.to_string())
            .right("kld", |(_, cost)| number(Some(cost.kld.value)))
            .right("kld_lo", |(_, cost)| number(cost.kld.lo))
            .right("kld_hi", |(_, cost)| number(cost.kld.hi))
            .right("is_measured", |(_, cost)| cost.is_measured.to_string())
            .csv()
    }

    /// Everything that a terminal shows. `map` is the path of the map. Names are cut until tables fit lines
    /// of at most `width`.
    pub fn text(&self, map: &str, width: usize) -> String {
        let mut text = String::new();
        let sentences = self.sentences();
        if !sentences.is_empty() {
            text.push_str(&wrapped(&sentences.join(" ")));
            text.push('\n');
        }
        text.push_str(&self.head());
        text.push_str(&self.roles_text(width));
        text.push_str(&self.layers_text());
        text.push_str(&self.tensors_text(width));
        text.push_str(&self.additivity_text());
        text.push_str(&self.checks_text(width));
        text + &self.next_text(map)
    }

    fn head(&self) -> String {
        let model = &self.model;
        let parameters = model
            .n_params
            .map(|n| format!("{} parameters", short_count(n)));
        let size = model.shown_bytes().map(bytes);
        let of_model = [Some(printable(&model.path)), parameters, size];
        let of_model: Vec<String> = of_model.into_iter().flatten().collect();
        let title = format!("What quantization costs {}", of_model.join(", "));
        let mut text = hanging("", 2, &title);
        let mut fact = |name: &str, value: String| {
            text.push_str(&hanging(&format!("  {name:<14}"), 16, &value));
        };
        let of = self.text.as_ref().and_then(|text| text.name.as_ref());
        let of = of.map_or_else(String::new, |name| format!(" of {}", printable(name)));
        let windows = count_of(self.n_windows, "window");
        fact(
            "text",
            format!("up to {windows} of {} tokens{of}", self.n_ctx),
        );
        let against = match &self.reference {
            Some(file) => printable(file),
            None => "the original's own logits".to_owned(),
        };
        let others = match self.at_other_types().count() as u64 {
            0 => String::new(),
            n => format!(" ({} at the nearest type allowed)", count_of(n, "tensor")),
        };
        let at = self.measured_type;
        fact(
            "compared",
            format!("each tensor alone at {at}{others}, against {against}"),
        );
        let time = self.cost.seconds;
        let time = time.map_or_else(String::new, |seconds| format!(", {}", duration(seconds)));
        let cells = count_of(self.cost.n_cells, "cell");
        let tokens = count_of(self.cost.n_tokens, "token");
        fact("measured", format!("{cells}, {tokens} decoded{time}"));
        if let Some(imatrix) = &self.imatrix {
            fact("imatrix", printable(&imatrix.file_name));
        }
        if let Some(control) = self.control.map(short_kld) {
            let of = "the original against itself, which must be 0";
            fact("control", format!("{control} ({of})"));
        }
        let marked = if self.tensors.iter().all(|of| of.at.is_measured) {
            String::new()
        } else {
            format!("; {PREDICTED} marks a KLD that is predicted, not measured")
        };
        let level = short_percent(self.confidence.level());
        fact("intervals", format!("at {level} %{marked}"));
        text
    }

    /// A row for each role, and one for all.
    fn roles_text(&self, width: usize) -> String {
        let labels: Vec<&str> = self.by_role.iter().map(|role| role.role.as_str()).collect();
        let explained = "Relative cost: KLD for each byte that the type saves, over that of all \
                         tensors. Above 1, bits are better spent than elsewhere.";
        Table::fitted(&Names::whole(&labels, width), |name| {
            let roles = self.by_role.iter();
            let roles = roles.map(|role| (name(&role.role), &role.part));
            let all = [("all".to_owned(), &self.whole)];
            Table::new("By role", roles.chain(all))
                .left("\nrole", |(role, _)| format!("  {role}"))
                .right("ten-\nsors", |(_, part)| count(part.n_tensors))
                .right("para-\nmeters", |(_, part)| short_count(part.n_params))
                .right("\nKLD", |(_, part)| short_kld(part.kld.value))
                .right(self.interval_title(), |(_, part)| interval(&part.kld))
                .number("share\n%", |(_, part)| part.share, share)
                .number("relative\ncost", |(_, part)| part.relative_cost, relative)
                .notes([explained.to_owned()])
        })
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
        let (title, kld) = match of_line {
            1 => ("\n  layer", "\nKLD"),
            _ => ("\n  layers", "KLD per\nlayer"),
        };
        let table = Table::new("By layer", layers.chunks(of_line).zip(&means))
            .gap(2)
            .left(title, |(of, _)| format!("  {}", layer_names(of)))
            .right(kld, |(_, mean)| short_kld(**mean))
            .right("share\n%", |(of, _)| {
                share(of.iter().filter_map(|layer| layer.part.share).sum())
            })
            .left("", |(_, mean)| bar(**mean / most));
        let worst_kld = short_kld(kld_of(worst));
        let worst = format!("The worst one is layer {}, with {worst_kld}.", worst.layer);
        table.notes((of_line > 1).then_some(worst)).text()
    }

    /// The tensors with the largest and with the smallest relative costs.
    fn tensors_text(&self, width: usize) -> String {
        let ranked = self.by_relative_cost();
        let n = MAX_LISTED.min(ranked.len() / 2);
        if n == 0 {
            return String::new();
        }
        let least = ranked.iter().rev().take(n);
        let shown: Vec<&TensorSensitivity> = ranked.iter().take(n).chain(least).copied().collect();
        let labels: Vec<&str> = shown.iter().map(|of| bare(of)).collect();
        let n_shown = counted(n);
        let title = format!(
            "The {n_shown} tensors that cost most per byte saved, and the {n_shown} that cost least"
        );
        Table::fitted(&Names::whole(&labels, width), |name| {
            Table::new(title.as_str(), &shown)
                .group(0, "  most".to_owned())
                .group(n, "  least".to_owned())
                .left("", |of| format!("    {}", name(bare(of))))
                .right("para-\nmeters", |of| short_count(of.tensor.n_params))
                .right("\nKLD", |of| {
                    format!("{}{}", mark(of.at.is_measured), short_kld(of.kld().value))
                })
                .right(self.interval_title(), |of| interval(&of.kld()))
                .number("share\n%", |of| of.share, share)
                .number("relative\ncost", |of| of.relative_cost, relative)
        })
    }

    /// How far the KLDs of single tensors add up to that of all of them.
    fn additivity_text(&self) -> String {
        let explained = "Recipes are corrected by the last column: 1 means that tensors do not \
                         interact.";
        Table::new(
            "All tensors together, against the sum of each alone",
            &self.additivity,
        )
        .gap(2)
        .left("\n  all at", |of| format!("  {}", of.kind))
        .right("KLD\ntogether", |of| short_kld(of.together.value))
        .right(self.interval_title(), |of| interval(&of.together))
        .right("sum of\nsingles", |of| short_kld(of.sum))
        .right("together\nover sum", |of| ratio(times_sum(of)))
        .notes([explained.to_owned()])
        .text()
    }

    /// The predictions that were checked, the farthest off first.
    fn checks_text(&self, width: usize) -> String {
        let mut checks: Vec<&Check> = self.checks.iter().collect();
        let off = |check: &Check| times_predicted(check).ln().abs();
        checks.sort_by(|a, b| off(b).total_cmp(&off(a)));
        let shown = &checks[..checks.len().min(MAX_LISTED)];
        let which = if shown.len() < checks.len() {
            format!(" (the {} that are farthest off)", counted(shown.len()))
        } else {
            String::new()
        };
        let labels: Vec<&str> = shown.iter().map(|check| check.tensor.as_str()).collect();
        Table::fitted(&Names::whole(&labels, width), |name| {
            Table::new(format!("Predicted, then measured{which}"), shown)
                .left("\n  tensor", |of| {
                    format!("  {}", without_weight(&name(&of.tensor)))
                })
                .left("\ntype", |of| of.kind.to_string())
                .right("\npredicted", |of| short_kld(of.predicted))
                .right("\nmeasured", |of| short_kld(of.measured.value))
                .right(self.interval_title(), |of| interval(&of.measured))
                .right("measured /\npredicted", |of| ratio(times_predicted(of)))
                .notes(off_by(&checks))
        })
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

    /// Sentences of what costs much for its size, and what costs little.
    pub(in crate::report) fn sentences(&self) -> Vec<String> {
        let roles = |holds: &dyn Fn(f64) -> bool| -> Vec<&RoleSensitivity> {
            let roles = self.by_role.iter();
            roles
                .filter(|role| role.part.relative_cost.is_some_and(holds))
                .collect()
        };
        let list = |roles: &[&RoleSensitivity], unit: &str| {
            let named = roles.iter().take(MAX_NAMED).enumerate().map(|(i, role)| {
                let times = or_undefined(role.part.relative_cost, relative);
                let unit = if i == 0 { unit } else { "" };
                format!("{} ({times}{unit})", printable(&role.role))
            });
            let named = Vec::from_iter(named);
            match named.split_last() {
                Some((last, [])) => last.clone(),
                Some((last, first)) => format!("{} and {last}", first.join(", ")),
                None => String::new(),
            }
        };
        let dear = roles(&|cost| cost >= DEAR);
        let mut cheap = roles(&|cost| cost <= CHEAP);
        cheap.reverse();
        let mut sentences = Vec::new();
        let unit = " times the average";
        if !dear.is_empty() {
            let list = list(&dear, unit);
            sentences.push(format!(
                "A byte saved costs most in {list}: give more bits there."
            ));
        }
        if !cheap.is_empty() {
            let (subject, unit) = if dear.is_empty() {
                ("A byte saved", unit)
            } else {
                ("It", "")
            };
            let list = list(&cheap, unit);
            sentences.push(format!(
                "{subject} costs least in {list}: save there first."
            ));
        }
        sentences
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

/// How far predictions are off, the farthest first; `None` where no measurement is above 0.
fn off_by(checks: &[&Check]) -> Option<String> {
    let factors = checks
        .iter()
        .map(|check| times_predicted(check).ln().abs().exp());
    let factors: Vec<f64> = factors.filter(|factor| factor.is_finite()).collect();
    Some(match factors[..] {
        [] => return None,
        [only] => format!("The prediction is off by a factor of {}.", ratio(only)),
        [most, .., least] => format!(
            "The predictions are off by factors of {} to {}, in the median {}.",
            ratio(least),
            ratio(most),
            ratio(factors[factors.len() / 2])
        ),
    })
}

/// An interval in a table, where two digits are enough.
fn interval(of: &Estimate) -> String {
    ends(of.lo, of.hi, |end| significant(end, 2))
}

/// A share in percent: `8.7`, `<0.1`.
fn share(share: f64) -> String {
    if share > 0.0 && share < 0.0005 {
        "<0.1".to_owned()
    } else {
        fixed(100.0 * share, 1)
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

/// A relative cost: `8.0`, `0.031`.
fn relative(cost: f64) -> String {
    significant(cost, 2)
}
