//! Two models in depth, for `kl report --pair`: the fields of [`InDepth`] are the keys of its JSON.

use serde::Serialize;

use super::sentence::{AS_CAN_BE_MEASURED, same_everywhere};
use super::tables::{ACCEPTED, clusters as clusters_text, legend, mark};
use super::{ComparedModel, ComparedReference, Comparison};
use crate::report::condition::Verdict;
use crate::report::identical_output::{left_out, title};
use crate::report::layout::{Sheet, USUAL_QUANTILES, View, hanging, laid_out, wrapped};
use crate::report::names::{MIN_NAME, Names};
use crate::report::number::{
    count, count_of, ends, or_undefined, p_value, percent, printable, ratio, short_kld,
    short_percent,
};
use crate::report::result::{ModelInfo, Versions, WorstText};
use crate::report::table::Table;
use crate::report::warning::Warning;
use crate::stats::{
    Acceptance, Clustering, Confidence, Estimate, IdenticalOutput, PairedComparison, PairedToken,
    Ratio, Summary,
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
        let both = quantiles(a)
            .into_iter()
            .flatten()
            .zip(quantiles(b).into_iter().flatten());
        let paired = both.map(|(of_a, of_b)| {
            let (a, b) = (of_a.estimate.value, of_b.estimate.value);
            Self {
                p: of_a.p,
                a,
                b,
                ratio: Some(a / b).filter(|ratio| ratio.is_finite()),
            }
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
        let (a, b) = (name(&self.a.label), name(&self.b.label));
        let level = short_percent(self.confidence.level());
        let against = printable(self.reference.shown_name());
        let longest = a.chars().count().max(b.chars().count());
        let mut out = Sheet::new(true, longest.max(COLUMN_WIDTH), self.reference.unit());
        let sentence = self.sentence(&a, &b);
        let sentence = match self.unranked.is_empty() {
            true => sentence,
            false => format!(
                "{} On the tokens that both count, {sentence}",
                self.unranked.join(" ")
            ),
        };
        out.text = wrapped(&sentence) + "\n";
        out.text
            .push_str(&hanging("", 2, &format!("{a} and {b} against {against}")));
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
        out.title("Mean KLD, nats");
        for (name, model) in [(&a, &self.a), (&b, &self.b)] {
            let mean = model.mean_kld.map(short_kld);
            out.line(name, &mean.unwrap_or_default());
        }
        if let Some(of) = self.shown(self.paired.ratio) {
            let ends = ends(of.lo, of.hi, ratio);
            let shown = format!("{} {ends}{}", ratio(of.value), with_p(of.p));
            out.line("ratio", &shown);
        }
        if view.full {
            out.line("difference", &estimate(&self.paired.difference, signed));
        }
        if !self.quantiles.is_empty() {
            out.title("Quantiles of the KLD, nats");
            let quantiles = self.quantiles.iter();
            let quantiles = quantiles.filter(|of| view.full || USUAL_QUANTILES.contains(&of.p));
            let table = Table::new("", quantiles)
                .left("  quantile", |of| format!("  {} %", short_percent(of.p)))
                .right(&*a, |of| short_kld(of.a))
                .right(&*b, |of| short_kld(of.b))
                .right("ratio", |of| {
                    or_undefined(of.ratio.filter(|_| !self.b.is_noise), ratio)
                });
            out.text.push_str(&table.rows_text());
        }
        self.tokens_won(&mut out, &a, &b, view);
        self.in_use(&mut out, &a, &b, view);
        if !self.paired.by_span.is_empty() {
            out.title(&format!("By span ({level} %)"));
            out.text.push_str(&self.by_span());
        }
        if !self.top.is_empty() {
            out.title("Tokens on which they differ most: KLD, and top token");
            let n_shown = if view.full { self.top.len() } else { N_TOP };
            for token in self.top.iter().take(n_shown) {
                out.text.push_str(&token_text(token, &a, &b, out.unit));
            }
        }
        out.text + view.more()
    }

    /// Shows how often each of the two is nearer to the reference, and has its top token.
    fn tokens_won(&self, out: &mut Sheet, a: &str, b: &str, view: View) {
        let nearer = &self.paired.nearer;
        out.title("Tokens on which a model is nearer to the reference");
        if view.full {
            out.line(a, &count(nearer.n_a));
            out.line(b, &count(nearer.n_b));
        }
        if view.full && nearer.n_ties > 0 {
            out.line("neither", &count(nearer.n_ties));
        }
        if let Some(share) = nearer.share_a.as_ref().map(|share| share.estimate) {
            let (value, ends) = (percent(share.value), ends(share.lo, share.hi, percent));
            out.line(&format!("share of {a}"), &format!("{value} {ends}"));
        }
        let agreement = &self.paired.agreement;
        let points = |share: f64| format!("{:+.2} %", 100.0 * share);
        out.title("Same top token as the reference");
        out.line(&format!("only {a}"), &count(agreement.n_only_a));
        out.line(&format!("only {b}"), &count(agreement.n_only_b));
        if view.full {
            out.line("both", &count(agreement.n_both));
            out.line("neither", &count(agreement.n_neither));
        }
        let of = &agreement.difference;
        let shown = estimate(&of.estimate, points) + &with_p(of.p);
        out.line("difference", &shown);
    }

    /// Shows how long each model's greedy answers stay the same, and how many of its tokens are accepted.
    fn in_use(&self, out: &mut Sheet, a: &str, b: &str, view: View) {
        let models = [(a, &self.a), (b, &self.b)];
        let with = |has: fn(&InDepthModel) -> bool| models.iter().any(|(_, model)| has(model));
        let both = [&self.a, &self.b].into_iter();
        let answers: Vec<_> = both.filter_map(|of| of.identical_output.as_ref()).collect();
        if let Some(of) = answers.first() {
            out.title(&title(of));
        }
        for (name, model) in models {
            if let Some(of) = &model.identical_output {
                let same = of.same_to_the_end.map(|same| estimate(&same, percent));
                let [n, all] = [of.n_answers - of.n_differ, of.n_answers].map(count);
                let half = of.half_differ_within.map(|n| {
                    let tokens = count_of(n.into(), "token");
                    format!("; half of the others within {tokens}")
                });
                let (same, half) = (same.unwrap_or_default(), half.unwrap_or_default());
                out.line(name, &format!("{n} of {all}  {same}{half}"));
            }
        }
        if let Some(why) = left_out(answers) {
            out.text.push_str(&hanging("  ", 2, &why));
        }
        // Of plain text, few ask how a draft would do.
        if !view.full && !with(|model| model.measures_answers) {
            return;
        }
        if with(|model| model.acceptance.is_some()) {
            out.title(ACCEPTED);
        }
        for (name, model) in models {
            if let Some(of) = &model.acceptance {
                out.line(name, &estimate(&of.mean, percent));
            }
        }
        if let Some(of) = &self.paired.acceptance_difference {
            let points = |share: f64| format!("{:+.2} %", 100.0 * share);
            out.line("difference", &estimate(of, points));
        }
    }

    fn by_span(&self) -> String {
        let of_each = &self.paired.by_span;
        let table = Table::new("", of_each)
            .left("  span", |of| {
                format!("  {}{}", printable(&of.label), mark(of.n_tokens))
            })
            .right("tokens", |of| count(of.n_tokens))
            .right("ratio", |of| {
                or_undefined(self.shown(of.ratio), |of| ratio(of.value))
            })
            .right("interval", |of| {
                self.shown(of.ratio)
                    .map(|of| ends(of.lo, of.hi, ratio))
                    .unwrap_or_default()
            })
            .right("to the others'", |of| {
                or_undefined(of.to_others, |of| ratio(of.value))
            })
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
        let ends = ends(of.lo, of.hi, ratio);
        let times = format!("{} {ends}", ratio(of.value));
        let far = format!(
            "{farther} is {} times as far from the original",
            times.trim_end()
        );
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
        text += &format!(": {}", quoted_end(&around.before, BEFORE_WIDTH));
        if let Some(next) = &around.next {
            text += &format!(" {}", quoted_start(next, NEXT_WIDTH));
        }
    }
    let top = |text: &Option<String>, id: u32| match text {
        Some(text) => quoted_start(text, TOKEN_WIDTH),
        None => format!("<{id}>"),
    };
    let (kld_a, kld_b) = (short_kld(token.kld_a), short_kld(token.kld_b));
    let tops = [
        format!("reference {}", top(&of.ref_top_text, token.ref_top)),
        format!("{a} {kld_a} {}", top(&of.top_a_text, token.top_a)),
        format!("{b} {kld_b} {}", top(&of.top_b_text, token.top_b)),
    ];
    let tops = tops.iter().map(String::as_str);
    text + "\n" + &laid_out("    ", 4, "; ", tops)
}

/// The start of a text, in quotes.
fn quoted_start(text: &str, width: usize) -> String {
    let n = text.chars().take(width + 1).count();
    let start = |n| -> String { text.chars().take(n).collect() };
    quoted(n, width, |n| match text.chars().nth(n) {
        Some(_) => format!("{}…", start(n)),
        None => start(n),
    })
}

/// The end of a text, in quotes.
fn quoted_end(text: &str, width: usize) -> String {
    let n_chars = text.chars().count();
    let end = |n| -> String { text.chars().skip(n_chars.saturating_sub(n)).collect() };
    quoted(n_chars.min(width), width, |n| {
        if n < n_chars {
            format!("…{}", end(n))
        } else {
            end(n)
        }
    })
}

/// The longest of the texts of `n` characters or fewer that fits `width` in quotes, where a line
/// feed takes two characters.
fn quoted(n: usize, width: usize, text: impl Fn(usize) -> String) -> String {
    let mut texts = (0..=n).rev().map(|n| format!("{:?}", text(n)));
    let fits = |text: &String| text.chars().count() <= width;
    texts.find(fits).unwrap_or_default()
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
        assert_eq!(quoted_start(" there", 10), "\" there\"");
        assert_eq!(quoted_start(" therefore", 10), "\" theref…\"");
        assert_eq!(quoted_start("\n\n\n\n\n", 8), "\"\\n\\n…\"");
        assert_eq!(quoted_start("\u{202e}", 10), "\"\\u{202e}\"");
        assert_eq!(quoted_end("Once upon", 10), "\"…ce upon\"");
        assert_eq!(quoted_end("Once", 10), "\"Once\"");
        assert_eq!(quoted_end("", 10), "\"\"");
    }
}
