//! The best mixture of types for a size, by a map: the fields of [`RecipeReport`] are the keys of its
//! JSON.

#[cfg(test)]
pub(super) mod tests;

use std::collections::BTreeMap;

use kl_formats::{GgmlType, Mixture, ModelIdentity, Unmeasured};
use kl_report::layout::{Sheet, hanging, laid_out, list};
use kl_report::number::{
    bytes, count, count_of, ends, fixed, percent_1, printable, ratio, short_kld,
};
use kl_report::table::Table;
use kl_report::{Versions, Warning};
use kl_stats::stats::{Clustering, Estimate, Ratio};
use kl_system::shell;
use serde::Serialize;

use crate::mathematics::{
    FrontierPoint, Recipe, RecipeKld, RecipeTensor, UnmeasuredTensor, thinned,
};
use crate::report::sensitivity::text::without_weight;

/// The width of the column of names.
const NAME_WIDTH: usize = 15;

/// The lines of the table of sizes, besides the recipe's own.
const N_SIZES: usize = 12;

/// The best mixture of types for a size, by a map of sensitivity.
#[derive(Serialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RecipeReport {
    /// The program that wrote the document, and the version of its keys.
    #[serde(flatten)]
    pub versions: Versions,
    /// The map's path, as given.
    pub map_path: String,
    /// The original.
    pub model: Option<ModelIdentity>,
    #[serde(flatten)]
    pub recipe: Recipe,
    /// The mixtures of these types that no other one of their size or of fewer bytes beats.
    pub frontier: Vec<FrontierPoint>,
    /// The call of llama-quantize that writes the file, word by word.
    pub command: Vec<String>,
    /// The measurement of the recipe; null if it was not measured.
    pub check: Option<RecipeCheck>,
    /// The file for llama-quantize's --tensor-type-file; null if none was written.
    pub types_path: Option<String>,
    /// The quantized model that the run writes after this; null for none.
    pub quantized_path: Option<String>,
    /// The warnings of the run, in the order in which they came up.
    pub warnings: Vec<Warning>,
}

/// The measurement of a recipe in memory.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RecipeCheck {
    /// The path of the text, as given.
    pub text_path: String,
    /// Tokens that are counted.
    pub n_tokens: u64,
    /// Windows that they are from.
    pub n_windows: u64,
    /// The clusters of the intervals.
    pub clusters: Clustering,
    /// The mean KLD of the original once its tensors were back, which must be 0.
    pub control: f64,
    /// The round that was measured around the recipe; null where prediction and measurement agree, and
    /// where the text is too short.
    pub second_round: Option<SecondRound>,
    /// The model of --like on the same tokens; null without one.
    pub like: Option<LikeCheck>,
}

/// A second round: the recipe with one tensor at a time moved to the next smaller and to the next larger
/// type, measured on windows that do not judge it.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SecondRound {
    /// Mixtures that were measured.
    pub n_cells: u64,
    /// Tokens that were decoded for them.
    pub n_tokens: u64,
    /// The recipe before the round.
    pub before: RecipeKld,
    /// The recipe that the round found.
    pub after: RecipeKld,
    /// The mean KLD on the windows that the round was measured on.
    pub kept_back: KeptBackKld,
    /// The measured KLD after the round over that before; null where it is not defined.
    pub ratio: Option<Ratio>,
    /// True if the recipe is the one that the round found: its measured KLD is lower.
    pub is_used: bool,
    /// The tensors whose types the round changed.
    pub changed: Vec<ChangedType>,
}

/// The mean KLD on the windows that are kept back for a second round, in nats: of few tokens, and those
/// that the recipe was chosen on.
#[derive(Serialize, Debug, Clone, Copy, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KeptBackKld {
    /// That of the recipe before the round, measured.
    pub before: f64,
    /// That which follows for the recipe after it, from one tensor's change at a time.
    pub after: f64,
}

/// A tensor whose type a second round changed.
#[derive(Serialize, Debug, Clone, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ChangedType {
    /// The tensor's name.
    pub name: String,
    /// Its type before.
    pub from: GgmlType,
    /// Its type after.
    pub to: GgmlType,
}

impl ChangedType {
    /// The tensors whose types differ in two mixtures.
    pub fn of_each(before: &Mixture, after: &Mixture) -> Vec<Self> {
        let changed = before.iter().filter_map(|(name, &from)| {
            let to = *after.get(name)?;
            (from != to).then(|| Self {
                name: name.clone(),
                from,
                to,
            })
        });
        changed.collect()
    }
}

/// Another model on the same tokens.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LikeCheck {
    /// Its path, as given.
    pub path: String,
    /// Bytes of its file.
    pub size_bytes: u64,
    /// Its mean KLD from the original, in nats, with its clustered interval.
    pub kld: Estimate,
    /// The recipe's KLD over this one's; null where it is not defined.
    pub ratio: Option<Ratio>,
    /// The importance matrix that its file states it was quantized with; null: none.
    pub made_with: Option<String>,
    /// The best recipe with this model's types for the embedding and the output; null where the recipe has those, and
    /// where none of its size can.
    pub at_equal_embedding: Option<EqualEmbedding>,
    /// The ratio on the map's text, as the map predicts it; null if the map does not know the types of
    /// this model's tensors.
    pub predicted_ratio: Option<Estimate>,
}

/// The best recipe of the same size with the types of another model for the embedding and the output.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EqualEmbedding {
    /// Their types in the recipe, and in the other model.
    pub changed: Vec<ChangedType>,
    /// Bytes of its file.
    pub size_bytes: u64,
    /// Its KLD over the other model's; null where it is not defined.
    pub ratio: Option<Ratio>,
}

impl RecipeReport {
    /// True if the mixture is one that a second round found.
    pub fn is_of_second_round(&self) -> bool {
        let check = self.check.as_ref();
        let round = check.and_then(|check| check.second_round.as_ref());
        round.is_some_and(|round| round.is_used)
    }
}

/// The recipe: its size and its KLD, its types by role, the sizes around it, and the command that
/// writes the file.
pub fn recipe_text(report: &RecipeReport) -> String {
    let name = report.model.as_ref().and_then(|model| model.shown_name());
    let mut out = Sheet::new(NAME_WIDTH);
    let (model, map) = (name.unwrap_or("a model"), &report.map_path);
    out.title(&format!("A recipe for {model}, by {map}"));
    let exact = format!("{} bytes", count(report.recipe.size_bytes));
    out.value("size", &bytes(report.recipe.size_bytes), &exact);
    out.value("bits", &fixed(report.recipe.bpw, 3), "a parameter");
    out.estimate("predicted KLD", &report.recipe.kld.predicted, short_kld);
    out.line("", &gap(report));
    if let Some(measured) = &report.recipe.kld.measured {
        out.estimate("measured KLD", measured, short_kld);
    }
    if let Some(check) = &report.check {
        measured(&mut out, check);
    }
    out.title("Types by role, those that cost most first");
    out.text += &roles(&report.recipe.tensors);
    out.text += &unmeasured(&report.recipe.unmeasured);
    out.title("Sizes, and the lowest KLD that is predicted for each");
    out.text += &sizes(report);
    out.title(match report.quantized_path {
        None => "To write the file",
        Some(_) => "To write the same file with llama-quantize",
    });
    out.text += &command(&report.command);
    if report.types_path.is_none() {
        let missing = "This run writes no file of types: -w recipe.txt does.";
        out.text += &hanging("  ", 2, missing);
    }
    out.title("Next");
    if report.check.is_none() {
        let measure = "-m ORIGINAL -t OTHER.txt measures the recipe, on a text that the map was not made on; \
                       with --like, beside that model.";
        out.text += &hanging("  - ", 4, measure);
    }
    let evaluate = if report.quantized_path.is_some() {
        "kl -m OUT.gguf -r REF evaluates the quantized file."
    } else {
        "-m ORIGINAL --quantize OUT.gguf writes the quantized file itself, and \
         kl -m OUT.gguf -r REF evaluates it."
    };
    out.text + &hanging("  - ", 4, evaluate)
}

/// The command over several lines of a shell: each flag with its value, and last the two files and the
/// type that the file is marked with.
fn command(words: &[String]) -> String {
    const LAST: usize = 3;
    let (flags, last) = words.split_at(words.len().saturating_sub(LAST));
    let mut lines: Vec<String> = Vec::new();
    for word in flags {
        match lines.last_mut() {
            Some(line) if !word.starts_with("--") => *line += &format!(" {}", shell::quoted(word)),
            _ => lines.push(shell::quoted(word)),
        }
    }
    let files: Vec<String> = last.iter().map(|word| shell::quoted(word)).collect();
    lines.push(files.join(" "));
    format!("  {}\n", lines.join(" \\\n    "))
}

/// The measurements, and the text that they were made on.
fn measured(out: &mut Sheet, check: &RecipeCheck) {
    out.title(&format!("Measured on {}", check.text_path));
    let windows = format!("in {}", count_of(check.n_windows, "window"));
    out.value("tokens", &count(check.n_tokens), &windows);
    let control = "the original, with its tensors back";
    out.value("control", &short_kld(check.control), control);
    if let Some(like) = &check.like {
        out.value("like", &bytes(like.size_bytes), &like.path);
        out.estimate("its KLD", &like.kld, short_kld);
        match &like.ratio {
            Some(paired) => ratio_line(out, "ratio", paired, "the recipe's KLD over that"),
            None => out.line("ratio", "not defined: both are 0"),
        }
        let equal = like.at_equal_embedding.as_ref();
        if let Some((equal, paired)) = equal.and_then(|equal| Some((equal, equal.ratio.as_ref()?)))
        {
            let changed = equal.changed.iter().map(|change| {
                let name = printable(without_weight(&change.name));
                format!("{name} at {}", change.to)
            });
            let changed = list(changed.collect());
            ratio_line(out, "at equal types", paired, "");
            let size = bytes(equal.size_bytes);
            out.line("", &format!("by the best with {changed}, as there: {size}"));
        }
        if let Some(predicted) = &like.predicted_ratio {
            out.estimate("predicted ratio", predicted, ratio);
        }
    }
    let Some(round) = &check.second_round else {
        return;
    };
    let cells = count_of(round.n_cells, "mixture");
    let why = "around the recipe, as the prediction did not hold";
    out.line("second round", &format!("{cells} {why}"));
    let changed = count_of(round.changed.len() as u64, "tensor");
    let used = match (round.is_used, round.changed.is_empty()) {
        (_, true) => return out.line("", "and no better one was found"),
        (true, false) => format!("and {changed} changed"),
        (false, false) => format!("and the change of {changed} dropped: it was no better here"),
    };
    out.line("", &used);
    let [before, after] = [round.kept_back.before, round.kept_back.after].map(short_kld);
    let expected = format!("after it, as expected there, and {before} before");
    out.value("kept back", &after, &expected);
    for (name, kld) in [("before", &round.before), ("after", &round.after)] {
        if let Some(measured) = &kld.measured {
            out.estimate(name, measured, short_kld);
        }
    }
    if let Some(paired) = &round.ratio {
        ratio_line(out, "after/before", paired, "");
    }
}

fn ratio_line(out: &mut Sheet, name: &str, paired: &Ratio, what: &str) {
    let ends = ends(paired.lo, paired.hi, ratio);
    out.value(name, &ratio(paired.value), format!("{ends}  {what}").trim());
}

/// Compares the mixture with the best that is predicted for its size.
fn gap(report: &RecipeReport) -> String {
    let best = "the best that is predicted for this size";
    if report.is_of_second_round() {
        "of the mixture that the second round found".to_owned()
    } else if report.recipe.kld.predicted.value == 0.0 {
        "of the original itself, which is within what was asked for".to_owned()
    } else if report.recipe.gap > 0.0 {
        format!("{best}, to within {}", short_kld(report.recipe.gap))
    } else {
        best.to_owned()
    }
}

/// The tensors of each role and the sum of their KLDs, those that cost most first.
pub(super) fn by_role(tensors: &[RecipeTensor]) -> Vec<(&str, Vec<&RecipeTensor>, f64)> {
    let mut of_roles: BTreeMap<&str, (Vec<&RecipeTensor>, f64)> = BTreeMap::new();
    for tensor in tensors {
        let (of_role, kld) = of_roles.entry(&tensor.role).or_default();
        of_role.push(tensor);
        *kld += tensor.kld;
    }
    let sums = of_roles.into_iter();
    let mut by_role = Vec::from_iter(sums.map(|(role, (of, kld))| (role, of, kld)));
    by_role.sort_by(|(.., a), (.., b)| b.total_cmp(a));
    by_role
}

/// A line for each role: its tensors and bytes, its share of the KLD, and its types.
fn roles(tensors: &[RecipeTensor]) -> String {
    let by_role = by_role(tensors);
    let all: f64 = tensors.iter().map(|tensor| tensor.kld).sum();
    let longest = by_role.iter().map(|(role, ..)| role.chars().count()).max();
    let width = longest.unwrap_or_default().max("role".len());
    let line = |role: &str, n: &str, size: &str, bits: &str, share: &str| {
        format!("  {role:<width$} {n:>7} {size:>11} {bits:>6} {share:>8}  ")
    };
    let mut out = line("role", "tensors", "size", "bits", "of KLD") + "types\n";
    for (role, tensors, kld) in by_role {
        let size: u64 = tensors.iter().map(|tensor| tensor.bytes).sum();
        let n_params: u64 = tensors.iter().map(|tensor| tensor.n_params).sum();
        let of_all = Some(kld / all).filter(|_| all > 0.0);
        let share = of_all.map(percent_1).unwrap_or_default();
        let bits = fixed(8.0 * size as f64 / n_params as f64, 2);
        let n = count(tensors.len() as u64);
        let start = line(&printable(role), &n, &bytes(size), &bits, &share);
        let counts = types(&tensors);
        let types = counts.iter().map(String::as_str);
        out += &laid_out(&start, start.chars().count(), ", ", types);
    }
    out
}

/// A line for the tensors that cannot be measured, for each reason and type.
fn unmeasured(tensors: &[UnmeasuredTensor]) -> String {
    let mut groups: BTreeMap<(&str, GgmlType), (u64, u64)> = BTreeMap::new();
    for tensor in tensors {
        let why = match tensor.why {
            Unmeasured::Unused => "that decoding does not use",
            Unmeasured::OtherOperation => "that decoding uses in another operation than a product",
        };
        let (n, size) = groups.entry((why, tensor.kind)).or_default();
        *n += 1;
        *size += tensor.bytes;
    }
    let line = |((why, kind), (n, size)): ((&str, GgmlType), (u64, u64))| {
        let text = format!(
            "and {} {why}, not measured: {kind}, {}",
            count_of(n, "tensor"),
            bytes(size)
        );
        hanging("  ", 2, &text)
    };
    groups.into_iter().map(line).collect()
}

/// The types of some tensors, the most frequent first: `12 q4_K`.
fn types(tensors: &[&RecipeTensor]) -> Vec<String> {
    let mut by_type: BTreeMap<GgmlType, u64> = BTreeMap::new();
    for tensor in tensors {
        *by_type.entry(tensor.kind).or_default() += 1;
    }
    let mut counts: Vec<_> = by_type.into_iter().collect();
    counts.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let shown = counts.iter().map(|(kind, n)| format!("{n} {kind}"));
    shown.collect()
}

/// The frontier at some sizes, which grow by a factor, and the recipe among them.
fn sizes(report: &RecipeReport) -> String {
    let own = FrontierPoint {
        size_bytes: report.recipe.size_bytes,
        bpw: report.recipe.bpw,
        kld: report.recipe.kld.predicted.value,
    };
    let mut points = thinned(&report.frontier, N_SIZES);
    points.retain(|point| point.size_bytes != own.size_bytes);
    points.push(own);
    points.sort_by_key(|point| point.size_bytes);
    let mark = |is_own: bool| if is_own { "<- this recipe" } else { "" };
    Table::new("", points)
        .gap(2)
        .left("  size", |point| format!("  {}", bytes(point.size_bytes)))
        .right("bits", |point| fixed(point.bpw, 2))
        .right("KLD", |point| short_kld(point.kld))
        .right("", |point| {
            mark(point.size_bytes == own.size_bytes).to_owned()
        })
        .rows_text()
}
