//! Two models in depth, for `kl report --pair`: the fields of [`InDepth`] are the keys of its JSON.

use kl_stats::stats::{
    Acceptance, Clustering, Confidence, Estimate, IdenticalOutput, PairedComparison, PairedToken,
    Ratio,
};
use serde::Serialize;

use super::{ComparedModel, ComparedReference, Comparison};
use crate::condition::Verdict;
use crate::layout::{USUAL_QUANTILES, View, laid_out, quoted};
use crate::number::{
    count, ends_beside, finite, or_undefined, p_value, percent, quantile_name, ratio, short_kld,
};
use crate::result::{ModelInfo, Versions, WorstText};
use crate::table::Table;
use crate::warning::Warning;

/// Two evaluations against one reference, compared token by token. Ratios are a's over b's, and
/// differences a's less b's.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
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
    /// The two beside each other, as the text shows them first.
    #[serde(skip)]
    pub comparison: Comparison,
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
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
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
    /// The agreement of its greedy answers with the reference's; null without greedy answers.
    pub identical_output: Option<IdenticalOutput>,
}

/// A quantile of both models' KLDs, each over all tokens that the model counts.
#[derive(Serialize, Debug, Clone, Copy)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
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

/// A token on which the two models differ, with texts where the sidecar holds them.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
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
const N_TOP: usize = 2;

/// The width of a token's text, in quotes.
const TOKEN_WIDTH: usize = 24;

/// The width of the text before a token, and that of the token beside it: both fit a line.
const BEFORE_WIDTH: usize = 30;
const NEXT_WIDTH: usize = 16;

impl InDepthModel {
    fn new(model: &ComparedModel, comparison: &Comparison) -> Self {
        Self {
            label: model.label.clone(),
            sidecar: model.sidecar.clone(),
            model: model.model.clone(),
            mean_kld: model.mean_kld().map(|mean| mean.value),
            is_noise: comparison.is_noise(model),
            acceptance: model.summary.acceptance.clone(),
            identical_output: model.summary.identical_output.clone(),
        }
    }
}

impl InDepth {
    /// The comparison of two of some compared models, token by token.
    pub fn new(
        comparison: &Comparison,
        [a, b]: [&ComparedModel; 2],
        paired: PairedComparison,
        top: Vec<InDepthToken>,
    ) -> Self {
        let [quantiles_a, quantiles_b] =
            [a, b].map(|model| model.summary.kld.iter().flat_map(|kld| &kld.quantiles));
        let quantiles = quantiles_a
            .zip(quantiles_b)
            .map(|(quantile_a, quantile_b)| {
                let (a, b) = (quantile_a.estimate.value, quantile_b.estimate.value);
                PairedQuantile {
                    p: quantile_a.p,
                    a,
                    b,
                    ratio: finite(a / b),
                }
            });
        Self {
            versions: comparison.versions,
            reference: comparison.reference.clone(),
            confidence: comparison.confidence,
            clusters: comparison.clusters,
            a: InDepthModel::new(a, comparison),
            b: InDepthModel::new(b, comparison),
            paired,
            quantiles: quantiles.collect(),
            conditions: Vec::new(),
            top,
            warnings: comparison.warnings.clone(),
            comparison: comparison.clone(),
        }
    }

    /// The two models as any report shows them, and then what only a comparison token by token shows.
    pub fn text(&self, view: View) -> String {
        let names = self.comparison.names(view.width);
        // The ratio of the two is among the numbers of both.
        let mut text = self.comparison.text_of_models(view, false);
        text += &Table::fitted(&names, |name| self.klds_table(name, view));
        text += &Table::fitted(&names, |name| self.tokens_table(name));
        let title = match self.top.len() {
            0 => "",
            _ => "\nTokens on which they differ most: KLD, and top token\n",
        };
        let n_shown = if view.full { self.top.len() } else { N_TOP };
        let name = names.in_sentences();
        let [a, b] = [&self.a.label, &self.b.label].map(|label| name(label));
        let tokens: String = self
            .top
            .iter()
            .take(n_shown)
            .map(|token| token_text(token, &a, &b, self.reference.unit()))
            .collect();
        text + title + &tokens + view.more_hint()
    }

    /// The mean and the quantiles of both KLDs, and a's over b's. If b's mean is noise, the ratio says
    /// nothing and is left out.
    fn klds_table(&self, name: &dyn Fn(&str) -> String, view: View) -> Table<PairedKld> {
        let means = self.a.mean_kld.zip(self.b.mean_kld);
        let mean = means.map(|(a, b)| {
            let ratio = self.paired.ratio.map(|ratio| ratio.value);
            ("mean".to_owned(), a, b, ratio)
        });
        let quantiles = self
            .quantiles
            .iter()
            .filter(|quantile| view.full || USUAL_QUANTILES.contains(&quantile.p))
            .map(|quantile| {
                (
                    quantile_name(quantile.p),
                    quantile.a,
                    quantile.b,
                    quantile.ratio,
                )
            });
        let rows = mean.into_iter().chain(quantiles);
        Table::new("KLD, nats, and its ratio", rows)
            .left("", |(statistic, ..)| format!("  {statistic}"))
            .right(name(&self.a.label), |(_, a, ..)| short_kld(*a))
            .right(name(&self.b.label), |(_, _, b, _)| short_kld(*b))
            .number(
                "ratio",
                |(.., ratio)| ratio.filter(|_| !self.b.is_noise),
                ratio,
            )
    }

    /// The counts of tokens at which each of the two is nearer to the reference, or alone has its top token.
    fn tokens_table(&self, name: &dyn Fn(&str) -> String) -> Table<(String, String)> {
        let (nearer, agreement) = (&self.paired.nearer, &self.paired.agreement);
        let [a, b] = [&self.a.label, &self.b.label].map(|label| name(label));
        let estimate_text = |estimate: &Estimate, show: fn(f64) -> String| {
            format!("{} {}", show(estimate.value), ends_beside(estimate, show))
        };
        let p_text = |p: Option<f64>| p.map_or_else(String::new, |p| format!("  p {}", p_value(p)));
        let share_a = nearer
            .share_a
            .map(|share| estimate_text(&share.estimate, percent));
        let difference = estimate_text(&agreement.difference.estimate, |x| {
            format!("{:+.2} %", 100.0 * x)
        });
        let ratio_of_means = self.paired.ratio.filter(|_| !self.b.is_noise).map(
            |Ratio {
                 value, lo, hi, p, ..
             }| estimate_text(&Estimate { value, lo, hi }, ratio) + &p_text(p),
        );
        let only_one = format!(
            "{} ({a}), {} ({b})",
            count(agreement.n_only_a),
            count(agreement.n_only_b)
        );
        let rows = [
            ("ratio of the means".to_owned(), ratio_of_means),
            (
                format!("{a} is nearer"),
                Some(or_undefined(share_a, |share| share)),
            ),
            ("same top token, only one".to_owned(), Some(only_one)),
            (
                "difference".to_owned(),
                Some(difference + &p_text(agreement.difference.p)),
            ),
        ];
        let rows = rows
            .into_iter()
            .filter_map(|(label, value)| Some((label, value?)));
        let title = format!("  of {} tokens", count(self.paired.n_tokens));
        Table::new("Token by token", rows)
            .gap(2)
            .left(title, |(label, _)| format!("  {label}"))
            .left("", |(_, value)| value.clone())
    }
}

/// The name of a statistic, its value for each of the two models, and their ratio.
type PairedKld = (String, f64, f64, Option<f64>);

/// A token with the text around it, and below it what the reference and the two models `a` and `b`
/// make of it.
fn token_text(token: &InDepthToken, a: &str, b: &str, unit: &str) -> String {
    let (paired, location) = (&token.token, &token.token.location);
    let mut text = format!(
        "  {unit} {}, position {}",
        location.window, location.position
    );
    if let Some(around) = &token.text {
        text += &format!(": {}", quoted(&around.before, BEFORE_WIDTH, true));
        if let Some(next) = &around.next {
            text += &format!(" {}", quoted(next, NEXT_WIDTH, false));
        }
    }
    let top_token = |text: &Option<String>, id: u32| match text {
        Some(text) => quoted(text, TOKEN_WIDTH, false),
        None => format!("<{id}>"),
    };
    let (kld_a, kld_b) = (short_kld(paired.kld_a), short_kld(paired.kld_b));
    let top_tokens = [
        format!(
            "reference {}",
            top_token(&token.ref_top_text, paired.ref_top)
        ),
        format!("{a} {kld_a} {}", top_token(&token.top_a_text, paired.top_a)),
        format!("{b} {kld_b} {}", top_token(&token.top_b_text, paired.top_b)),
    ];
    text + "\n" + &laid_out("    ", 4, "; ", top_tokens.iter().map(String::as_str))
}
