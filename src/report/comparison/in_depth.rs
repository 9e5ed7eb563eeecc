//! Two models in depth. The fields of [`InDepth`] are the keys of the JSON of `kl report --pair`.

use serde::Serialize;

use super::names::Names;
use super::text::{clusters, fitted, kld, lines, p_value, signed, wrapped};
use super::{ComparedModel, Comparison, WorstText};
use crate::report::number::{count, ends, percent, printable, short_percent};
use crate::report::result::ModelInfo;
use crate::report::warning::Warning;
use crate::stats::{
    Confidence, EntropyBin, McNemar, Nearer, PairedComparison, PairedDifference, PairedToken,
    SignTest,
};

use super::ComparedReference;

/// Two evaluations against one reference, compared token by token. Differences are a's less b's.
#[derive(Serialize, Debug, Clone)]
pub struct InDepth {
    /// The version of this program.
    pub kl_version: &'static str,
    /// What both models were evaluated against.
    pub reference: ComparedReference,
    /// The level of every interval.
    pub confidence: Confidence,
    /// The first model.
    pub a: InDepthModel,
    /// The second model.
    pub b: InDepthModel,
    /// Tokens that are compared.
    pub n_tokens: u64,
    /// Tokens that are not: left out in either evaluation, or with an infinite KLD.
    pub n_left_out: u64,
    /// The mean difference of the KLDs, in nats.
    pub difference: PairedDifference,
    /// On how many tokens each model is nearer to the reference.
    pub nearer: Nearer,
    /// The sign test over clusters.
    pub sign_test: SignTest,
    /// How often each model has the reference's top token.
    pub agreement: McNemar,
    /// The difference by decile of the reference's entropy.
    pub by_entropy: Vec<EntropyBin>,
    /// The tokens on which the KLDs differ most, the largest difference first.
    pub top: Vec<InDepthToken>,
    /// What the user should know before trusting the numbers.
    pub warnings: Vec<Warning>,
}

/// One of the two models.
#[derive(Serialize, Debug, Clone)]
pub struct InDepthModel {
    /// What it is called.
    pub label: String,
    /// The path of its sidecar, or of its first part.
    pub sidecar: String,
    /// The evaluated model.
    pub model: ModelInfo,
    /// Its mean KLD in nats, over all tokens that it counts; null without any.
    pub mean_kld: Option<f64>,
}

/// A token on which the two models differ, with texts where the sidecar holds them.
#[derive(Serialize, Debug, Clone)]
pub struct InDepthToken {
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

impl InDepthModel {
    /// A model of a comparison.
    #[must_use]
    pub fn of(model: &ComparedModel) -> Self {
        Self {
            label: model.label.clone(),
            sidecar: model.sidecar.clone(),
            model: model.model.clone(),
            mean_kld: model.mean_kld().map(|mean| mean.estimate.value),
        }
    }
}

impl InDepth {
    /// Puts together what is known of two models of a comparison. `describe` adds the texts to a
    /// token.
    #[must_use]
    pub fn new(
        comparison: Comparison,
        (a, b): (InDepthModel, InDepthModel),
        paired: PairedComparison,
        describe: impl Fn(PairedToken) -> InDepthToken,
    ) -> Self {
        Self {
            kl_version: comparison.kl_version,
            reference: comparison.reference,
            confidence: comparison.confidence,
            a,
            b,
            n_tokens: paired.n_tokens,
            n_left_out: paired.n_left_out,
            difference: paired.difference,
            nearer: paired.nearer,
            sign_test: paired.sign_test,
            agreement: paired.agreement,
            by_entropy: paired.by_entropy,
            top: paired.top.into_iter().map(describe).collect(),
            warnings: comparison.warnings,
        }
    }

    /// The comparison as JSON, which ends with a line feed.
    ///
    /// # Errors
    /// If a value cannot be written as JSON.
    pub fn json(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// The comparison as text for a terminal of 80 columns.
    #[must_use]
    pub fn text(&self) -> String {
        let names = Names::of_labels(&[&self.a.label, &self.b.label]);
        /// Wide enough for most quants.
        const NAME_WIDTH: usize = 24;
        let name = |model: &InDepthModel| names.short(&model.label, NAME_WIDTH);
        let (a, b) = (name(&self.a), name(&self.b));
        let level = short_percent(self.confidence.level());
        let against = self.reference.file_name.as_deref().map(printable);
        let mut text = format!(
            "{a} and {b} against {}\n",
            against.unwrap_or_else(|| "one reference".to_owned())
        );
        let mut line = |name: &str, value: &str| text.push_str(&format!("  {name:<22} {value}\n"));
        line("tokens", &count(self.n_tokens));
        if self.n_left_out > 0 {
            line("left out", &count(self.n_left_out));
        }
        let clusters = clusters(&self.difference.clusters);
        line("intervals", &format!("at {level} %, {clusters}"));
        if !names.prefix.is_empty() {
            line("models", &format!("{}…", names.prefix));
        }
        let interval = |difference: &PairedDifference, show: fn(f64) -> String| {
            let p = difference.p.map(|p| format!("  p {}", p_value(p)));
            format!(
                "{} {}{}",
                show(difference.value),
                ends(difference.lo, difference.hi, show),
                p.unwrap_or_default()
            )
        };
        text.push_str("\nMean KLD, nats\n");
        let mut line = |name: &str, value: &str| text.push_str(&format!("  {name:<22} {value}\n"));
        for (name, model) in [(&a, &self.a), (&b, &self.b)] {
            line(name, &model.mean_kld.map(kld).unwrap_or_default());
        }
        line("difference", &interval(&self.difference, signed));
        text.push_str("\nTokens on which a model is nearer to the reference\n");
        let mut line = |name: &str, value: &str| text.push_str(&format!("  {name:<22} {value}\n"));
        line(&a, &count(self.nearer.n_a));
        line(&b, &count(self.nearer.n_b));
        if self.nearer.n_ties > 0 {
            line("neither", &count(self.nearer.n_ties));
        }
        if let Some(share) = &self.nearer.share_a {
            let estimate = &share.estimate;
            let ends = ends(estimate.lo, estimate.hi, percent);
            line(
                &format!("share of {a}"),
                &format!("{} {ends}", percent(estimate.value)),
            );
        }
        let test = &self.sign_test;
        line(
            "sign test by cluster",
            &format!("{} to {}, p {}", test.n_a, test.n_b, p_value(test.p)),
        );
        text.push_str("\nSame top token as the reference\n");
        let mut line = |name: &str, value: &str| text.push_str(&format!("  {name:<22} {value}\n"));
        let agreement = &self.agreement;
        line(&format!("only {a}"), &count(agreement.n_only_a));
        line(&format!("only {b}"), &count(agreement.n_only_b));
        line("both", &count(agreement.n_both));
        line("neither", &count(agreement.n_neither));
        let points = |share: f64| format!("{:+.2} %", 100.0 * share);
        line("difference", &interval(&agreement.difference, points));
        text.push_str(&self.by_entropy_text(&names, &level));
        text.push_str(&self.top_text(&a, &b));
        text.push('\n');
        text.push_str(&wrapped(&self.verdict(&a, &b)));
        text
    }

    /// Which of the two is nearer to the reference, in words.
    fn verdict(&self, a: &str, b: &str) -> String {
        let (nearer, farther) = match self.difference.value <= 0.0 {
            true => (a, b),
            false => (b, a),
        };
        let level = short_percent(self.confidence.level());
        let is_real = self
            .difference
            .p
            .is_some_and(|p| p < self.confidence.outside());
        match is_real {
            true => format!("{nearer} is nearer to the reference than {farther}, at {level} %."),
            false => format!(
                "{nearer} has the lower mean KLD, but cannot be told from {farther} on this text."
            ),
        }
    }

    fn by_entropy_text(&self, names: &Names, level: &str) -> String {
        if self.by_entropy.is_empty() {
            return String::new();
        }
        let titles = ["  entropy", "tokens", "difference", "interval", "p"];
        let rows = self.by_entropy.iter().map(|bin| {
            let difference = &bin.difference;
            vec![
                format!("  {} to {}", kld(bin.from), kld(bin.to)),
                count(difference.n_tokens),
                signed(difference.value),
                ends(difference.lo, difference.hi, signed),
                difference.p.map(p_value).unwrap_or_default(),
            ]
        });
        let rows: Vec<Vec<String>> = rows.collect();
        let titles: Vec<String> = titles.map(str::to_owned).to_vec();
        let table = fitted(names, |_| lines(titles.clone(), rows.clone(), 1));
        format!("\nDifference by the reference's entropy, nats ({level} %)\n{table}")
    }

    fn top_text(&self, a: &str, b: &str) -> String {
        if self.top.is_empty() {
            return String::new();
        }
        let mut text = "\nTokens on which they differ most: KLD, and top token\n".to_owned();
        for token in &self.top {
            let at = &token.token.location;
            let shown = |text: &Option<String>, id: u32| match text {
                Some(text) => format!("{text:?}"),
                None => format!("<{id}>"),
            };
            let top_a = shown(&token.top_a_text, token.token.top_a);
            let top_b = shown(&token.top_b_text, token.token.top_b);
            text.push_str(&format!("  window {}, position {}", at.window, at.position));
            if let Some(around) = &token.text {
                let next = around.next.as_deref().unwrap_or_default();
                let before: Vec<char> = around.before.chars().collect();
                /// What fits a line.
                const BEFORE: usize = 32;
                let start = before.len().saturating_sub(BEFORE);
                let before: String = before.iter().skip(start).collect();
                text.push_str(&format!(": {before:?} {next:?}"));
            }
            text.push('\n');
            text.push_str(&format!(
                "    reference {}; {a} {} {top_a}; {b} {} {top_b}\n",
                shown(&token.ref_top_text, token.token.ref_top),
                kld(token.token.kld_a),
                kld(token.token.kld_b),
            ));
        }
        text
    }
}
