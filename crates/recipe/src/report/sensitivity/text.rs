//! A map as text, and in sentences.

use kl_report::layout::{Sheet, hanging, list, wrapped};
use kl_report::names::Names;
use kl_report::number::{
    bytes, count, count_of, duration, finite, fixed, printable, ratio, short_count, short_kld,
    short_percent, significant,
};
use kl_report::table::Table;
use kl_system::shell;

use super::{LayerSensitivity, RoleSensitivity, Sensitivity, TensorGroup, TensorSensitivity};
use crate::mathematics::{Additivity, CheckedPrediction};

/// The width of the column of names.
const NAME_WIDTH: usize = 13;

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

/// The sum of tensors' KLDs is the KLD of all of them if it is off by at most this factor.
const HOLDS: f64 = 1.25;

impl Sensitivity {
    /// The tensors at each type as CSV. Columns' names and their order are stable; new ones are added at
    /// the end. What is not known is empty.
    pub fn csv(&self) -> String {
        let number = |value: Option<f64>| {
            let finite = value.and_then(finite);
            finite.map(|value| value.to_string()).unwrap_or_default()
        };
        let tensors = self.tensors.iter().map(|tensor| &tensor.tensor);
        let costs = tensors.flat_map(|tensor| tensor.costs.iter().map(move |cost| (tensor, cost)));
        let layer = |number: Option<u32>| number.map(|layer| layer.to_string()).unwrap_or_default();
        Table::new("", costs)
            .left("tensor", |(tensor, _)| tensor.name.clone())
            .left("role", |(tensor, _)| tensor.role.clone())
            .right("layer", |(tensor, _)| layer(tensor.layer))
            .right("n_params", |(tensor, _)| tensor.n_params.to_string())
            .right("type", |(_, cost)| cost.kind.to_string())
            .right("bytes", |(_, cost)| cost.bytes.to_string())
            .right("kld", |(_, cost)| number(Some(cost.kld.value)))
            .right("kld_lo", |(_, cost)| number(cost.kld.lo))
            .right("kld_hi", |(_, cost)| number(cost.kld.hi))
            .right("is_measured", |(_, cost)| cost.is_measured.to_string())
            .csv()
    }

    /// Everything that a terminal shows of the map at the path `map`.
    pub fn text(&self, map: &str, width: usize) -> String {
        let roles = Vec::from_iter(self.by_role.iter().map(|role| role.role.as_str()));
        let tensors = Vec::from_iter(self.checks.iter().map(|check| check.tensor.as_str()));
        let [roles, checks] = [roles, tensors].map(|names| Names::whole(&names, width));
        let n_checks = self.checks.len().min(MAX_LISTED);
        let joined = self.sentences().join(" ");
        let sentences = Some(wrapped(&joined) + "\n").filter(|_| !joined.is_empty());
        let parts = [
            sentences.unwrap_or_default(),
            self.head(),
            Table::fitted(&roles, |name| self.roles_table(name)),
            self.layers_text(),
            self.tensors_text(width),
            self.additivity_table().text(),
            Table::fitted(&checks, |name| self.checks_table(name, n_checks)),
            self.next_text(map),
        ];
        parts.concat()
    }

    fn head(&self) -> String {
        let mut of_model = vec![printable(&self.model.path)];
        let n_params = self.model.n_params.map(short_count);
        of_model.extend(n_params.map(|n| format!("{n} parameters")));
        of_model.extend(self.model.shown_bytes().map(bytes));
        let title = format!("What quantization costs {}", of_model.join(", "));
        let mut out = Sheet::new(NAME_WIDTH);
        out.text = hanging("", 2, &title);
        let name = self.text.as_ref().and_then(|text| text.name.as_ref());
        let of = name.map_or_else(String::new, |name| format!(" of {name}"));
        let (windows, n_ctx) = (count_of(self.n_windows, "window"), self.n_ctx);
        out.line("text", &format!("up to {windows} of {n_ctx} tokens{of}"));
        let reference = self.reference.as_deref();
        let against = reference.unwrap_or("the original's own logits");
        let mut at = self.compared_type.to_string();
        if self.compared_type != self.measured_type {
            at += &format!(", the nearest to {} that all can have", self.measured_type);
        }
        let n_others = self.at_other_types().count() as u64;
        if n_others > 0 {
            let others = count_of(n_others, "tensor");
            at += &format!(" ({others} at the nearest type allowed)");
        }
        let compared = format!("each tensor alone at {at}, against {against}");
        out.line("compared", &compared);
        let spent = self.cost.seconds.map(duration);
        let time = spent.map_or_else(String::new, |time| format!(", {time}"));
        let cells = count_of(self.cost.n_cells, "cell");
        let tokens = count_of(self.cost.n_tokens, "token");
        out.line("measured", &format!("{cells}, {tokens} decoded{time}"));
        out.known(
            "imatrix",
            self.imatrix.as_ref().map(|imatrix| &imatrix.file_name),
        );
        let control = self.control.map(short_kld);
        let meaning = "the original against itself, which must be 0";
        let explained = control.map(|control| format!("{control} ({meaning})"));
        out.known("control", explained);
        let mut level = format!("at {} %", short_percent(self.confidence.level()));
        if self.tensors.iter().any(|tensor| !tensor.at.is_measured) {
            level += &format!("; {PREDICTED} marks a KLD that is predicted, not measured");
        }
        out.line("intervals", &level);
        out.text
    }

    /// A row for each role, and one for all.
    pub(in crate::report) fn roles_table(
        &self,
        name: &dyn Fn(&str) -> String,
    ) -> Table<(String, &TensorGroup)> {
        let interval = self.interval_title();
        let explained = "Relative cost: KLD for each byte that the type saves, over that of all \
                         tensors. Above 1, bits are better spent than elsewhere.";
        let roles = self
            .by_role
            .iter()
            .map(|role| (name(&role.role), &role.part));
        Table::new("By role", roles.chain([("all".to_owned(), &self.whole)]))
            .left("\nrole", |(role, _)| format!("  {role}"))
            .right("ten-\nsors", |(_, part)| count(part.n_tensors))
            .right("para-\nmeters", |(_, part)| short_count(part.n_params))
            .number("\nKLD", |(_, part)| Some(part.kld.value), short_kld)
            .interval(interval, |(_, part)| Some(part.kld), two_digits)
            .number("share\n%", |(_, part)| part.share, share)
            .number("relative\ncost", |(_, part)| part.relative_cost, two_digits)
            .notes([explained.to_owned()])
    }

    /// A bar for each layer, or for some in a row.
    fn layers_text(&self) -> String {
        let layers = &self.by_layer;
        let kld_of = |layer: &LayerSensitivity| layer.part.kld.value;
        let Some(worst) = layers.iter().max_by(|a, b| kld_of(a).total_cmp(&kld_of(b))) else {
            return String::new();
        };
        let of_line = layers.len().div_ceil(MAX_LAYER_LINES);
        let mean =
            |group: &[LayerSensitivity]| group.iter().map(kld_of).sum::<f64>() / group.len() as f64;
        let lines = layers.chunks(of_line).map(|group| (group, mean(group)));
        let most = lines.clone().map(|(_, mean)| mean).fold(0.0, f64::max);
        let (title, kld) = match of_line {
            1 => ("\n  layer", "\nKLD"),
            _ => ("\n  layers", "KLD per\nlayer"),
        };
        let part =
            |group: &[LayerSensitivity]| group.iter().filter_map(|layer| layer.part.share).sum();
        let (layer, kld_there) = (worst.layer, short_kld(kld_of(worst)));
        let note = format!("The worst one is layer {layer}, with {kld_there}.");
        Table::new("By layer", lines)
            .gap(2)
            .left(title, |(group, _)| format!("  {}", layer_names(group)))
            .right(kld, |(_, mean)| short_kld(*mean))
            .right("share\n%", |(group, _)| share(part(group)))
            .left("", |(_, mean)| bar(mean / most))
            .notes((of_line > 1).then_some(note))
            .text()
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
        let bare = |tensor: &TensorSensitivity| without_weight(&tensor.tensor.name).to_owned();
        let kld = |tensor: &&&TensorSensitivity| {
            let mark = if tensor.at.is_measured { "" } else { PREDICTED };
            format!("{mark}{}", short_kld(tensor.at.kld.value))
        };
        let names = shown
            .iter()
            .map(|tensor| without_weight(&tensor.tensor.name));
        let labels: Vec<&str> = names.collect();
        let title =
            format!("The {n} tensors that cost most per byte saved, and the {n} that cost least");
        Table::fitted(&Names::whole(&labels, width), |name| {
            Table::new(title.as_str(), &shown)
                .group(0, "  most".to_owned())
                .group(n, "  least".to_owned())
                .left("", |tensor| format!("    {}", name(&bare(tensor))))
                .right("para-\nmeters", |tensor| {
                    short_count(tensor.tensor.n_params)
                })
                .right("\nKLD", kld)
                .interval(
                    self.interval_title(),
                    |tensor| Some(tensor.at.kld),
                    two_digits,
                )
                .number("share\n%", |tensor| tensor.share, share)
                .number("relative\ncost", |tensor| tensor.relative_cost, two_digits)
        })
    }

    /// The KLD of all tensors together, beside the sum of the KLDs of each alone.
    pub(in crate::report) fn additivity_table(&self) -> Table<&Additivity> {
        let explained = "Recipes are corrected by the last column: 1 means that tensors do not \
                         interact.";
        let title = "All tensors together, against the sum of each alone";
        let (together, sum) = ("KLD\ntogether", "sum of\nsingles");
        let over_sum = |whole: &&Additivity| Some(over_sum(whole));
        Table::new(title, &self.additivity)
            .gap(2)
            .left("\n  all at", |whole| format!("  {}", whole.kind))
            .number(together, |whole| Some(whole.together.value), short_kld)
            .interval(
                self.interval_title(),
                |whole| Some(whole.together),
                two_digits,
            )
            .number(sum, |whole| Some(whole.sum), short_kld)
            .number("together\nover sum", over_sum, ratio)
            .notes(
                [Some(explained.to_owned()), self.where_sums_hold()]
                    .into_iter()
                    .flatten(),
            )
    }

    /// States up to which whole model the sum of its tensors alone is its KLD, and by how much it is off beyond that.
    /// `None` where it holds for all of them.
    fn where_sums_hold(&self) -> Option<String> {
        let is_off = |whole: &Additivity| over_sum(whole).ln().abs() > HOLDS.ln();
        let first = self.additivity.iter().position(is_off)?;
        let (holding, beyond) = self.additivity.split_at_checked(first)?;
        let factors = beyond.iter().map(|whole| over_sum(whole).ln().abs().exp());
        let most = ratio(
            factors
                .filter(|factor| factor.is_finite())
                .fold(1.0, f64::max),
        );
        let from = beyond.first()?.kind;
        Some(match holding.last() {
            Some(last) => {
                let kld = short_kld(last.together.value);
                format!(
                    "Sums hold to a quarter up to {} ({kld} nats); from {from} on they are off by factors of up to {most}.",
                    last.kind
                )
            }
            None => format!("Sums are off from {from} on, by factors of up to {most}."),
        })
    }

    /// The first `n` of the predictions that were checked, the farthest off first.
    pub(in crate::report) fn checks_table(
        &self,
        name: &dyn Fn(&str) -> String,
        n: usize,
    ) -> Table<&CheckedPrediction> {
        let mut checks: Vec<&CheckedPrediction> = self.checks.iter().collect();
        let off = |check: &CheckedPrediction| times_predicted(check).ln().abs();
        checks.sort_by(|a, b| off(b).total_cmp(&off(a)));
        let mut title = "Predicted, then measured".to_owned();
        if n < checks.len() {
            title += &format!(" (the {n} that are farthest off)");
        }
        let tensor =
            |check: &&CheckedPrediction| format!("  {}", without_weight(&name(&check.tensor)));
        let measured = |check: &&CheckedPrediction| Some(check.measured.value);
        let times = |check: &&CheckedPrediction| Some(times_predicted(check));
        let factors = off_by(&checks);
        Table::new(title, checks.into_iter().take(n))
            .left("\n  tensor", tensor)
            .left("\ntype", |check| check.kind.to_string())
            .number("\npredicted", |check| Some(check.predicted), short_kld)
            .number("\nmeasured", measured, short_kld)
            .interval(
                self.interval_title(),
                |check| Some(check.measured),
                two_digits,
            )
            .number("measured /\npredicted", times, ratio)
            .notes(factors)
    }

    /// The command that comes next, with a size that the map reaches.
    fn next_text(&self, map: &str) -> String {
        let bits = USUAL_BITS.max((2.0 * self.fewest_bits).ceil() / 2.0);
        format!(
            "\nNext, the best mixture of types for a size, which no model needs to run for:\n\n  \
             kl recipe {} --bpw {bits} -w recipe.txt\n",
            printable(&shell::file(map))
        )
    }

    /// Sentences of what costs much for its size, and what costs little.
    pub(in crate::report) fn sentences(&self) -> Vec<String> {
        let cost = |role: &RoleSensitivity| Some((printable(&role.role), role.part.relative_cost?));
        let roles = self.by_role.iter().filter_map(cost);
        let named = |roles: &mut dyn Iterator<Item = (String, f64)>, unit: &str| {
            let named = roles.take(MAX_NAMED).enumerate().map(|(i, (role, cost))| {
                let (times, unit) = (two_digits(cost), if i == 0 { unit } else { "" });
                format!("{role} ({times}{unit})")
            });
            list(named.collect())
        };
        let unit = " times the average";
        let dear = named(&mut roles.clone().filter(|(_, cost)| *cost >= DEAR), unit);
        let (subject, rest) = if dear.is_empty() {
            ("A byte saved", unit)
        } else {
            ("It", "")
        };
        let cheap = named(&mut roles.rev().filter(|(_, cost)| *cost <= CHEAP), rest);
        let most = format!("A byte saved costs most in {dear}: give more bits there.");
        let least = format!("{subject} costs least in {cheap}: save there first.");
        let both = [(dear, most), (cheap, least)].into_iter();
        let said = both.filter(|(roles, _)| !roles.is_empty());
        said.map(|(_, sentence)| sentence).collect()
    }

    fn interval_title(&self) -> String {
        format!("{} %\ninterval", short_percent(self.confidence.level()))
    }
}

/// The KLD of a whole model over the sum of its tensors' KLDs.
fn over_sum(whole: &Additivity) -> f64 {
    whole.together.value / whole.sum
}

/// A measurement over its prediction.
fn times_predicted(check: &CheckedPrediction) -> f64 {
    check.measured.value / check.predicted
}

/// States by what factors predictions are off; `checks` has the farthest first. `None` where no
/// measurement is above 0.
fn off_by(checks: &[&CheckedPrediction]) -> Option<String> {
    let factor = |check: &&CheckedPrediction| finite(times_predicted(check).ln().abs().exp());
    let factors: Vec<f64> = checks.iter().filter_map(factor).collect();
    let median = *factors.get(factors.len() / 2)?;
    Some(match factors[..] {
        [] => return None,
        [only] => format!("The prediction is off by a factor of {}.", ratio(only)),
        [most, .., least] => format!(
            "The predictions are off by factors of {} to {}, in the median {}.",
            ratio(least),
            ratio(most),
            ratio(median)
        ),
    })
}

/// A number to two digits: an end of an interval in a table, or a relative cost.
fn two_digits(number: f64) -> String {
    significant(number, 2)
}

/// A share in percent: `8.7`, `<0.1`.
fn share(share: f64) -> String {
    if share > 0.0 && share < 0.0005 {
        "<0.1".to_owned()
    } else {
        fixed(100.0 * share, 1)
    }
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

/// A tensor's name as tables show it.
pub(in crate::report) fn without_weight(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}
