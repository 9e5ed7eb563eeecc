//! Two models in depth, for `kl report --pair`: the fields of [`InDepth`] are the keys of its JSON.

use serde::Serialize;

use super::sentence::{AS_CAN_BE_MEASURED, same_everywhere, times};
use super::tables::{ACCEPTED, clusters as clusters_text, legend, mark};
use super::{ComparedModel, ComparedReference, Comparison};
use crate::report::condition::Verdict;
use crate::report::identical_output::{left_out, title};
use crate::report::layout::{Sheet, USUAL_QUANTILES, View, hanging, laid_out, wrapped};
use crate::report::names::{MIN_NAME, Names};
use crate::report::number::{
    count, count_of, ends, finite, or_undefined, p_value, percent, printable, ratio, short_kld,
    short_percent,
};
use crate::report::result::{ModelInfo, Versions, WorstText};
use crate::report::table::Table;
use crate::report::warning::Warning;
use crate::stats::{
    Acceptance, Clustering, Confidence, Estimate, IdenticalOutput, PairedComparison, PairedToken,
    Ratio, SpanRatio, Summary,
};

/// Two evaluations against one reference, compared token by token. Ratios are a's over b's, and
/// differences a's less b's.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct InDepth {
    /// The program that wrote the document, and the version of its keys.
    #[serde(flatten)]
    pub versions: Versions,
    /// The reference that both models were evaluated against.
    pub reference: ComparedReference,
    /// The level of every interval.
    pub confidence: Confidence,
    /// The clusters of every interval.
    pub clusters: Option<Clustering>,
    /// The first model.
    pub a: InDepthModel,
    /// The second model.
    pub b: InDepthModel,
    /// Which of the two cannot be ranked, why, and what to do, in sentences; empty where both can.
    #[serde(skip)]
    pub unranked: Vec<String>,
    /// The comparison of the two.
    #[serde(flatten)]
    pub paired: PairedComparison,
    /// The quantiles of both models' KLDs; empty without any.
    pub quantiles: Vec<PairedQuantile>,
    /// The outcome of each condition; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Verdict>,
    /// The tokens on which the KLDs differ most, the largest difference first.
    pub top: Vec<InDepthToken>,
    /// Warnings to read before you trust the numbers.
    pub warnings: Vec<Warning>,
}

/// One of the two models.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct InDepthModel {
    /// Its name.
    pub label: String,
    /// The path of its sidecar, or of its first part.
    pub sidecar: String,
    /// The evaluated model.
    pub model: ModelInfo,
    /// Its mean KLD in nats, over all tokens that it counts; null without any.
    pub mean_kld: Option<f64>,
    /// True if that is noise: the model is as near to the reference as can be measured.
    pub is_noise: bool,
    /// The acceptance of tokens that it drafts, over all tokens that it counts; null where it is not
    /// known.
    pub acceptance: Option<Acceptance>,
    /// How many of its greedy answers are the reference's; null without greedy answers.
    pub identical_output: Option<IdenticalOutput>,
    /// True if its text shows drafts.
    #[serde(skip)]
    pub measures_answers: bool,
}

/// A quantile of both models' KLDs, each over all tokens that the model counts.
#[derive(Serialize, Debug, Clone, Copy)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PairedQuantile {
    /// The quantile: the share of tokens below it.
    pub p: f64,
    /// Model a's, in nats.
    pub a: f64,
    /// Model b's, in nats.
    pub b: f64,
    /// a's over b's; null where b's is 0.
    pub ratio: Option<f64>,
}

impl PairedQuantile {
    /// The quantiles that both models' statistics have.
    pub fn of_each(a: &Summary, b: &Summary) -> Vec<Self> {
        let quantiles = |of: &Summary| of.kld.as_ref().map(|kld| kld.quantiles.clone());
        let of_b = quantiles(b).into_iter().flatten();
        let both = quantiles(a).into_iter().flatten().zip(of_b);
        let paired = both.map(|(of_a, of_b)| {
            let (p, a, b) = (of_a.p, of_a.estimate.value, of_b.estimate.value);
            let ratio = finite(a / b);
            Self { p, a, b, ratio }
        });
        paired.collect()
    }
}

/// A token on which the two models differ, with texts where the sidecar holds them.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct InDepthToken {
    /// The token, and each model's numbers.
    #[serde(flatten)]
    pub token: PairedToken,
    /// The text around the position.
    pub text: Option<WorstText>,
    /// The text of the reference's top token.
    pub ref_top_text: Option<String>,
    /// The text of model a's top token.
    pub top_a_text: Option<String>,
    /// The text of model b's top token.
    pub top_b_text: Option<String>,
}

/// The number of tokens on which the models differ most that are shown unless all are asked for.
const N_TOP: usize = 3;

/// The width of a token's text, in quotes.
const TOKEN_WIDTH: usize = 24;

/// The width of the text before a token, and that of the token beside it: both fit a line.
const BEFORE_WIDTH: usize = 30;
const NEXT_WIDTH: usize = 16;

impl InDepthModel {
    /// A model of a comparison.
    pub fn of(model: &ComparedModel, comparison: &Comparison) -> Self {
        Self {
            label: model.label.clone(),
            sidecar: model.sidecar.clone(),
            model: model.model.clone(),
            mean_kld: model.mean_kld().map(|mean| mean.value),
            is_noise: comparison.is_noise(model),
            acceptance: model.summary.acceptance.clone(),
            identical_output: model.summary.identical_output.clone(),
            measures_answers: model.measures_answers(),
        }
    }
}

impl InDepth {
    /// The comparison as text.
    pub fn text(&self, view: View) -> String {
        /// What stands beside a model's name: the longest is an interval of shares.
        const BESIDE: usize = 56;
        /// The narrowest column of names.
        const COLUMN_WIDTH: usize = 22;
        let names = Names::of(&[&self.a.label, &self.b.label], view.width);
        let name = names.within(view.width.saturating_sub(BESIDE).max(MIN_NAME));
        let (a, b) = (&name(&self.a.label), &name(&self.b.label));
        let level = short_percent(self.confidence.level());
        let longest = a.chars().count().max(b.chars().count());
        let mut out = Sheet::new(true, longest.max(COLUMN_WIDTH), self.reference.unit());
        let mut sentences = self.unranked.clone();
        if !sentences.is_empty() {
            sentences.push("On the tokens that both count,".to_owned());
        }
        sentences.push(self.sentence(a, b));
        let against = printable(self.reference.shown_name());
        out.text = wrapped(&sentences.join(" ")) + "\n";
        out.text += &hanging("", 2, &format!("{a} and {b} against {against}"));
        out.line("tokens", &count(self.paired.n_tokens));
        if self.paired.n_left_out > 0 {
            out.line("left out", &count(self.paired.n_left_out));
        }
        if let Some(clusters) = &self.clusters {
            let by = clusters_text(clusters, out.unit);
            out.line("intervals", &format!("at {level} %, {by}"));
        }
        if !names.prefix.is_empty() {
            out.line("models", &format!("{}…", names.prefix));
        }
        self.means(&mut out, a, b, view);
        self.tokens_won(&mut out, a, b, view);
        self.in_use(&mut out, a, b, view);
        if !self.paired.by_span.is_empty() {
            out.title(&format!("By span ({level} %)"));
            out.text += &self.by_span();
        }
        if !self.top.is_empty() {
            out.title("Tokens on which they differ most: KLD, and top token");
        }
        let n_shown = if view.full { self.top.len() } else { N_TOP };
        for token in self.top.iter().take(n_shown) {
            out.text += &token_text(token, a, b, out.unit);
        }
        out.text + view.more()
    }

    /// Shows the mean KLDs, their ratio, and the quantiles.
    fn means(&self, out: &mut Sheet, a: &str, b: &str, view: View) {
        out.title("Mean KLD, nats");
        for (name, model) in [(a, &self.a), (b, &self.b)] {
            out.line(name, &model.mean_kld.map(short_kld).unwrap_or_default());
        }
        if let Some(of) = self.shown(self.paired.ratio) {
            let ends = ends(of.lo, of.hi, ratio);
            let shown = format!("{} {ends}{}", ratio(of.value), with_p(of.p));
            out.line("ratio", &shown);
        }
        if view.full {
            out.line("difference", &estimate(&self.paired.difference, signed));
        }
        if self.quantiles.is_empty() {
            return;
        }
        out.title("Quantiles of the KLD, nats");
        let quantiles = self.quantiles.iter();
        let quantiles = quantiles.filter(|of| view.full || USUAL_QUANTILES.contains(&of.p));
        let table = Table::new("", quantiles)
            .left("  quantile", |of| format!("  {} %", short_percent(of.p)))
            .right(a, |of| short_kld(of.a))
            .right(b, |of| short_kld(of.b))
            .number("ratio", |of| of.ratio.filter(|_| !self.b.is_noise), ratio);
        out.text += &table.rows_text();
    }

    /// Shows how often each of the two is nearer to the reference, and has its top token.
    fn tokens_won(&self, out: &mut Sheet, a: &str, b: &str, view: View) {
        let (nearer, same) = (&self.paired.nearer, &self.paired.agreement);
        out.title("Tokens on which a model is nearer to the reference");
        if view.full {
            out.line(a, &count(nearer.n_a));
            out.line(b, &count(nearer.n_b));
        }
        if view.full && nearer.n_ties > 0 {
            out.line("neither", &count(nearer.n_ties));
        }
        if let Some(share) = &nearer.share_a {
            out.line(
                &format!("share of {a}"),
                &estimate(&share.estimate, percent),
            );
        }
        out.title("Same top token as the reference");
        out.line(&format!("only {a}"), &count(same.n_only_a));
        out.line(&format!("only {b}"), &count(same.n_only_b));
        if view.full {
            out.line("both", &count(same.n_both));
            out.line("neither", &count(same.n_neither));
        }
        let shown = estimate(&same.difference.estimate, points) + &with_p(same.difference.p);
        out.line("difference", &shown);
    }

    /// Shows how long each model's greedy answers stay the same, and how many of its tokens are accepted.
    fn in_use(&self, out: &mut Sheet, a: &str, b: &str, view: View) {
        let models = [(a, &self.a), (b, &self.b)];
        let answer = |(name, of): (_, &'_ InDepthModel)| Some((name, of.identical_output.clone()?));
        let answered = Vec::from_iter(models.into_iter().filter_map(answer));
        if let Some((_, of)) = answered.first() {
            out.title(&title(of));
        }
        for (name, of) in &answered {
            let same = of.same_to_the_end.map(|same| estimate(&same, percent));
            let [n, all] = [of.n_answers - of.n_differ, of.n_answers].map(count);
            let half = of.half_differ_within.map(|n| count_of(n.into(), "token"));
            let half = half.map(|tokens| format!("; half of the others within {tokens}"));
            let (same, half) = (same.unwrap_or_default(), half.unwrap_or_default());
            out.line(name, &format!("{n} of {all}  {same}{half}"));
        }
        if let Some(why) = left_out(answered.iter().map(|(_, of)| of)) {
            out.text += &hanging("  ", 2, &why);
        }
        // Of plain text, few ask how a draft would do.
        if !view.full && !models.iter().any(|(_, of)| of.measures_answers) {
            return;
        }
        if models.iter().any(|(_, of)| of.acceptance.is_some()) {
            out.title(ACCEPTED);
        }
        for (name, of) in models {
            if let Some(acceptance) = &of.acceptance {
                out.line(name, &estimate(&acceptance.mean, percent));
            }
        }
        if let Some(of) = &self.paired.acceptance_difference {
            out.line("difference", &estimate(of, points));
        }
    }

    fn by_span(&self) -> String {
        let of_each = &self.paired.by_span;
        let ratio_of = |of: &&SpanRatio| self.shown(of.ratio);
        let ends = |of: Ratio| ends(of.lo, of.hi, ratio);
        let span = |of: &&SpanRatio| format!("  {}{}", printable(&of.label), mark(of.n_tokens));
        let table = Table::new("", of_each)
            .left("  span", span)
            .right("tokens", |of| count(of.n_tokens))
            .number("ratio", |of| Some(ratio_of(of)?.value), ratio)
            .right("interval", |of| ratio_of(of).map(ends).unwrap_or_default())
            .number("to the others'", |of| Some(of.to_others?.value), ratio)
            .right("p", |of| of.p_holm.map(p_value).unwrap_or_default());
        let legend = legend(of_each.iter().map(|of| of.n_tokens));
        let legend = legend.map(|legend| format!("  {legend}\n"));
        table.rows_text() + &legend.unwrap_or_default()
    }

    /// A ratio of a's mean to b's, unless b's is noise: a multiple of noise says nothing.
    fn shown(&self, ratio: Option<Ratio>) -> Option<Ratio> {
        ratio.filter(|_| !self.b.is_noise)
    }

    /// Says how many times as far one of the two is as the other.
    fn sentence(&self, a: &str, b: &str) -> String {
        let both = format!("{a} and {b}");
        let beside_noise = |noise: &str, other: &str, kld: Option<f64>| {
            let kld = or_undefined(kld, short_kld);
            format!("{noise} is {AS_CAN_BE_MEASURED}; {other} has a mean KLD of {kld} nats.")
        };
        match [self.a.is_noise, self.b.is_noise] {
            [true, true] => return format!("{both} are {AS_CAN_BE_MEASURED}."),
            [true, false] => return beside_noise(a, b, self.b.mean_kld),
            [false, true] => return beside_noise(b, a, self.a.mean_kld),
            [false, false] => {}
        }
        let are_same = self.paired.nearer.n_ties == self.paired.n_tokens;
        let Some(of) = self.paired.ratio.filter(|_| !are_same) else {
            return same_everywhere(&both);
        };
        let (nearer, farther, of) = if of.value <= 1.0 {
            (a, b, of.inverse())
        } else {
            (b, a, of)
        };
        let far = format!("{farther} is {} times as far from the original", times(&of));
        match of.p {
            None => format!(
                "{far} as {nearer}. One cluster cannot show whether that is more than chance."
            ),
            Some(p) if p < self.confidence.outside() => format!("{far} as {nearer}."),
            Some(_) => format!("{both} cannot be told apart on this text: {far}."),
        }
    }
}

/// A token with the text around it, and below it what the reference and the two models `a` and `b`
/// make of it.
fn token_text(of: &InDepthToken, a: &str, b: &str, unit: &str) -> String {
    let (token, at) = (&of.token, &of.token.location);
    let mut text = format!("  {unit} {}, position {}", at.window, at.position);
    if let Some(around) = &of.text {
        text += &format!(": {}", quoted(&around.before, BEFORE_WIDTH, true));
        let next = around.next.iter();
        text.extend(next.map(|next| format!(" {}", quoted(next, NEXT_WIDTH, false))));
    }
    let top = |text: &Option<String>, id: u32| match text {
        Some(text) => quoted(text, TOKEN_WIDTH, false),
        None => format!("<{id}>"),
    };
    let (kld_a, kld_b) = (short_kld(token.kld_a), short_kld(token.kld_b));
    let tops = [
        format!("reference {}", top(&of.ref_top_text, token.ref_top)),
        format!("{a} {kld_a} {}", top(&of.top_a_text, token.top_a)),
        format!("{b} {kld_b} {}", top(&of.top_b_text, token.top_b)),
    ];
    text + "\n" + &laid_out("    ", 4, "; ", tops.iter().map(String::as_str))
}

/// As much of the start, or of the end, of a text as fits `width` in quotes, where a line feed takes two
/// characters.
fn quoted(text: &str, width: usize, is_end: bool) -> String {
    let chars = Vec::from_iter(text.chars());
    let part = |n: usize| {
        let cut = if n < chars.len() { "…" } else { "" };
        let start = if is_end { chars.len() - n } else { 0 };
        let part: String = chars.iter().skip(start).take(n).collect();
        let part = if is_end {
            format!("{cut}{part}")
        } else {
            part + cut
        };
        format!("{part:?}")
    };
    let mut parts = (0..=chars.len().min(width)).rev().map(part);
    let fits = |text: &String| text.chars().count() <= width;
    parts.find(fits).unwrap_or_default()
}

/// A difference of shares, with its sign.
fn points(share: f64) -> String {
    format!("{:+.2} %", 100.0 * share)
}

/// A difference of KLDs, with its sign.
fn signed(value: f64) -> String {
    let sign = if value > 0.0 { "+" } else { "" };
    format!("{sign}{}", short_kld(value))
}

/// A p-value, to stand after an interval; empty if there is none.
fn with_p(p: Option<f64>) -> String {
    p.map(|p| format!("  p {}", p_value(p))).unwrap_or_default()
}

/// A value with its interval.
fn estimate(of: &Estimate, show: impl Fn(f64) -> String) -> String {
    format!("{} {}", show(of.value), ends(of.lo, of.hi, &show))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_tokens_are_cut() {
        for (text, width, is_end, cut) in [
            (" there", 10, false, "\" there\""),
            (" therefore", 10, false, "\" theref…\""),
            ("\n\n\n\n\n", 8, false, "\"\\n\\n…\""),
            ("\u{202e}", 10, false, "\"\\u{202e}\""),
            ("Once upon", 10, true, "\"…ce upon\""),
            ("Once", 10, true, "\"Once\""),
            ("", 10, true, "\"\""),
        ] {
            assert_eq!(quoted(text, width, is_end), cut);
        }
    }
}
