//! One model's report, as printed.

use std::fmt::Write as _;

use kl_formats::ReferenceKind;

use super::llama_perplexity::llama_perplexity_block;
use super::logit_metrics::logit_section;
use super::model::{ModelInfo, ModelReport, ReferenceInfo, TimingInfo};
use super::number::{bytes, count, duration, kld, percent, printable, significant};
use super::prompts::prompt_table;
use super::top::{Choice, TopToken};
use crate::stats::{Agreement, DeltaP, Distribution, Estimate, Perplexity, Uncertain};

/// The width of the column of names.
const NAME_WIDTH: usize = 34;

/// The report of one model: every number with its interval, under the design's names.
#[must_use]
pub fn text_report(report: &ModelReport, reference: &ReferenceInfo) -> String {
    let summary = &report.summary;
    let mut out = Sheet(String::new());
    out.title(&format!("{} against {}", report.model.path, reference.path));
    if let Some(part) = &report.interrupted {
        let of = part.of.map(|n| format!(" of {}", count(n)));
        out.line(
            "PARTIAL",
            &format!(
                "interrupted after {}{} windows: what follows is of these",
                count(part.n_windows),
                of.unwrap_or_default()
            ),
        );
    }
    out.line("model", &describe(&report.model));
    if report.is_reference_model {
        out.line(
            "",
            "the reference's own model: what follows is the noise floor of this set-up",
        );
    }
    if let Some(model) = &reference.model {
        out.line("reference model", &describe(model));
    }
    out.line(
        "tokens",
        &format!(
            "{} in {}{}",
            count(summary.n_tokens),
            windows(summary.n_windows, reference),
            match summary.n_excluded {
                0 => String::new(),
                n => format!("; {} left out: their rows are not finite", count(n)),
            }
        ),
    );
    if report.n_resumed > 0 {
        let n = count(report.n_resumed);
        out.line("", &format!("{n} of these were measured by an earlier run"));
    }
    if report.n_vocab_compared != reference.n_vocab {
        out.line(
            "vocabulary",
            &format!(
                "first {} of {} entries, renormalised",
                count(report.n_vocab_compared.into()),
                count(reference.n_vocab.into())
            ),
        );
    }
    out.line(
        "intervals",
        &format!("at {} %", significant_percent(summary.confidence.level())),
    );
    for lacking in &report.not_available {
        out.line(
            "not available",
            &format!("{}: {}", lacking.what, lacking.why),
        );
    }
    if let Some(kld) = &summary.kld {
        divergence(&mut out, kld, report.max_at_text.as_deref());
    }
    if let Some(reverse) = &summary.reverse_kld {
        out.estimate("reverse KLD, mean", &reverse.mean.estimate, kld_at_least_0);
    }
    if let Some(agreement) = &summary.agreement {
        agreements(&mut out, agreement);
    }
    if let Some(perplexity) = &summary.perplexity {
        perplexities(&mut out, perplexity);
    }
    if let Some(delta_p) = &summary.delta_p {
        delta_ps(&mut out, delta_p);
    }
    if let Some(timing) = &report.timing {
        times(&mut out, timing);
    }
    if let Some(logits) = &report.logits {
        out.0 += "\n";
        out.0 += &logit_section(logits);
    }
    if let Some(prompts) = &report.prompts
        && !prompts.is_empty()
    {
        out.title("Prompts");
        out.0 += &prompt_table(prompts);
    }
    if let Some(top) = &report.top
        && !top.is_empty()
    {
        largest(&mut out, top);
    }
    if let Some(statistics) = &report.llama_perplexity {
        out.title(&format!(
            "As llama-perplexity prints it; {}\n",
            how_it_differs(reference)
        ));
        out.0 += &llama_perplexity_block(statistics);
    }
    out.0
}

/// What the tokens are in.
fn windows(n: u64, reference: &ReferenceInfo) -> String {
    let (n, n_ctx) = (count(n), reference.n_ctx);
    let Some(prompts) = &reference.prompts else {
        let stride = reference.stride;
        let stride = stride.map_or(String::new(), |stride| format!(", one every {stride}"));
        return format!("{n} windows of {n_ctx}{stride}");
    };
    let generated = match prompts.generated {
        Some(generated) => format!(", {generated} of them generated"),
        None => String::new(),
    };
    format!("{n} prompts of {n_ctx} at most{generated}")
}

/// Why its numbers are not those above.
fn how_it_differs(reference: &ReferenceInfo) -> &'static str {
    if reference.kind == ReferenceKind::LlamaCpp.to_string() {
        "the KLD above renormalises the base's rows and counts every entry, this takes them as stored and skips ln p <= -16"
    } else if reference.log_probabilities && reference.kind == ReferenceKind::Native.to_string() {
        "of a base file's floored log-probabilities, renormalised, over the positions above that have a next token"
    } else {
        "of true log-probabilities, over the positions above that have a next token"
    }
}

/// A model in one line: name, architecture, size, BPW.
fn describe(model: &ModelInfo) -> String {
    let mut text = printable(model.name.as_ref().unwrap_or(&model.path));
    if let Some(architecture) = &model.architecture {
        let _ = write!(text, " ({})", printable(architecture));
    }
    // A reference converted from another program's file knows no size.
    if model.size_bytes > 0 {
        let _ = write!(text, ", {}, {:.2} BPW", bytes(model.size_bytes), model.bpw);
    }
    text
}

fn divergence(out: &mut Sheet, distribution: &Distribution, max_at_text: Option<&str>) {
    out.title("KL divergence, nats");
    let mean = &distribution.mean;
    out.estimate("mean", &mean.estimate, kld_at_least_0);
    if let (Some(lo), Some(hi)) = (mean.cluster_lo, mean.cluster_hi) {
        out.line(
            "  windows, not tokens, independent",
            &format!("{:>12}  {}", "", range(lo, hi, kld_at_least_0)),
        );
    }
    if let Some(std) = distribution.std {
        out.value("standard deviation", &kld(std));
    }
    for quantile in &distribution.quantiles {
        let name = if quantile.p == 0.5 {
            "median".to_owned()
        } else {
            format!("{} %", significant_percent(quantile.p))
        };
        out.estimate(&name, &quantile.estimate, kld_at_least_0);
    }
    let at = &distribution.max_at;
    let before = max_at_text
        .map(|text| format!(", before {text:?}"))
        .unwrap_or_default();
    out.value(
        "maximum",
        &format!(
            "{:>12}  window {}, position {}{before}",
            kld(distribution.max),
            at.window,
            at.position
        ),
    );
    out.value("minimum", &kld(distribution.min));
}

fn agreements(out: &mut Sheet, agreement: &Agreement) {
    out.title("Agreement of first choices");
    for (name, share) in [
        ("same top token", &agreement.ref_top1),
        ("reference's in the model's top 5", &agreement.ref_top5),
        ("reference's in the model's top 10", &agreement.ref_top10),
        ("model's in the reference's top 5", &agreement.eval_top5),
        ("model's in the reference's top 10", &agreement.eval_top10),
    ] {
        out.estimate(name, share, percent);
    }
}

fn perplexities(out: &mut Sheet, perplexity: &Perplexity) {
    out.title("Perplexity, ± one standard error");
    let with_se = |value: f64, se: Option<f64>| Uncertain { value, se };
    out.uncertain(
        "model",
        &with_se(perplexity.evaluated, perplexity.eval_se),
        |x| significant(x, 6),
    );
    out.uncertain(
        "reference",
        &with_se(perplexity.reference, perplexity.ref_se),
        |x| significant(x, 6),
    );
    out.uncertain("ratio", &perplexity.ratio, |x| format!("{x:.6}"));
    out.uncertain("ln ratio", &perplexity.ln_ratio, |x| format!("{x:.6}"));
}

fn delta_ps(out: &mut Sheet, delta_p: &DeltaP) {
    out.title("Change of the actual token's probability");
    out.estimate("mean", &delta_p.mean.estimate, signed_percent);
    out.uncertain("RMS", &delta_p.rms, |x| format!("{:.3} %", 100.0 * x));
    out.value(
        "most lost, most gained",
        &format!(
            "{:>12}  {}",
            signed_percent(delta_p.min),
            signed_percent(delta_p.max)
        ),
    );
}

/// Texts are quoted and escaped, so that each token takes two lines whatever it holds.
fn largest(out: &mut Sheet, top: &[TopToken]) {
    out.title("Largest KL divergences, and the first choices there");
    for token in top {
        let next = match &token.token_text {
            Some(text) => format!("before {text:?}"),
            None => "at the window's end".to_owned(),
        };
        out.line(
            &format!("window {}, position {}", token.window, token.position),
            &format!("{:>12}  {:?} {next}", kld(token.kld), token.context),
        );
        let choice = |choice: &Choice| format!("{:?} {}", choice.text, percent(choice.p));
        let (reference, model) = (choice(&token.ref_top), choice(&token.eval_top));
        out.line(
            "",
            &format!("{:>12}  reference {reference}, model {model}", ""),
        );
    }
}

fn times(out: &mut Sheet, timing: &TimingInfo) {
    out.title("Time");
    out.line(
        "wall",
        &format!(
            "{}: load {}, decode {}, score {}, read {}, write {}",
            duration(timing.wall_s),
            duration(timing.load_s),
            duration(timing.decode_s),
            duration(timing.score_s),
            duration(timing.read_s),
            duration(timing.write_s)
        ),
    );
    out.line(
        "speed",
        &format!("{:.0} scored tokens/s", timing.tokens_per_s),
    );
}

fn signed_percent(share: f64) -> String {
    format!("{:+.3} %", 100.0 * share)
}

/// 0.999 as 99.9, without trailing zeros.
pub(super) fn significant_percent(share: f64) -> String {
    // Rounded to hide that 100 * 0.999 is 99.9 only nearly.
    format!("{}", (share * 1e10).round() / 1e8)
}

pub(super) fn range(lo: f64, hi: f64, show: impl Fn(f64) -> String) -> String {
    format!("[{}, {}]", show(lo), show(hi))
}

/// A KLD's interval, cut at 0: a symmetric one may reach below it, a KLD cannot.
fn kld_at_least_0(value: f64) -> String {
    kld(value.max(0.0))
}

/// Titles, and lines of a name and a value.
pub(super) struct Sheet(pub(super) String);

impl Sheet {
    pub(super) fn title(&mut self, title: &str) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.0.push_str(title);
        self.0.push('\n');
    }

    pub(super) fn line(&mut self, name: &str, text: &str) {
        let _ = writeln!(self.0, "  {name:<NAME_WIDTH$} {text}");
    }

    pub(super) fn value(&mut self, name: &str, value: &str) {
        self.line(name, &format!("{value:>12}"));
    }

    pub(super) fn estimate(
        &mut self,
        name: &str,
        estimate: &Estimate,
        show: impl Fn(f64) -> String,
    ) {
        let interval = match estimate.interval() {
            Some((lo, hi)) => format!("  {}", range(lo, hi, &show)),
            None => String::new(),
        };
        self.line(name, &format!("{:>12}{interval}", show(estimate.value)));
    }

    fn uncertain(&mut self, name: &str, uncertain: &Uncertain, show: impl Fn(f64) -> String) {
        let se = uncertain
            .se
            .map(|se| format!("  ± {}", show(se)))
            .unwrap_or_default();
        self.line(name, &format!("{:>12}{se}", show(uncertain.value)));
    }
}
