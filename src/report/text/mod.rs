//! One model's report, as printed.

mod breakdown;
mod divergence;
mod kl_py;
mod llama_perplexity;
mod logit_metrics;
mod prompts;
mod sheet;
mod states;

use std::fmt::Write as _;

use kl_formats::{Values, klpy};

use self::breakdown::{breakdown, groups};
use self::divergence::divergence;
use self::kl_py::kl_py_section;
use self::llama_perplexity::llama_perplexity_block;
use self::logit_metrics::logit_sections;
use self::prompts::prompt_table;
use self::sheet::Sheet;
use self::states::states;
use super::number::{
    bytes, count, count_of, duration, fixed, kld, part, percent, printable, short_percent,
    signed_percent, significant,
};
use super::result::{
    DivergentToken, Interrupted, ModelInfo, ModelReport, ReferenceInfo, TimingInfo, TopToken,
    UntilInfo, notable_core_wait,
};
use crate::stats::{Agreement, ClusterKind, DeltaP, Estimate, MIN_CLUSTERS, Perplexity, Summary};

/// The report of one model: its numbers with their intervals, a section for each subject.
#[must_use]
pub fn text_report(report: &ModelReport, reference: &ReferenceInfo) -> String {
    let summary = &report.summary;
    let mut out = Sheet::new(summary.clusters.n > 1, reference.unit());
    heading(&mut out, report, reference);
    let unit = reference.unit();
    divergence(&mut out, summary, unit, report.max_at_text.as_deref());
    groups(&mut out, &report.breakdown, summary);
    if report.shows_breakdown {
        breakdown(&mut out, &report.breakdown);
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
        logit_sections(&mut out, logits);
    }
    if let Some(prompts) = &report.prompts
        && !prompts.is_empty()
    {
        out.title("Prompts");
        out.block(&prompt_table(prompts));
    }
    if let Some(top) = &report.top
        && !top.is_empty()
    {
        largest(&mut out, top);
    }
    if let Some(reverse_kld) = &summary.reverse_kld
        && reference.kind == klpy::KIND.name()
    {
        kl_py_section(&mut out, reverse_kld);
    }
    if let Some(statistics) = &report.llama_perplexity {
        out.title(&format!(
            "As llama-perplexity prints it, ± one standard error; {}\n",
            llama_perplexity_differs(reference)
        ));
        out.block(&llama_perplexity_block(statistics));
    }
    out.into_text()
}

/// What was evaluated against what, and what the numbers below cover.
fn heading(out: &mut Sheet, report: &ModelReport, reference: &ReferenceInfo) {
    let summary = &report.summary;
    let named = match report.label == report.model.default_label() {
        true => report.model.path.clone(),
        false => format!("{} ({})", report.label, report.model.path),
    };
    out.title(&printable(&format!("{named} against {}", reference.path)));
    if let Some(interrupted) = &report.interrupted {
        out.line("PARTIAL", &partial(interrupted, reference.unit()));
    }
    if let Some(shard) = &report.shard {
        let part = format!(
            "{}: the numbers below cover only that part; kl merge joins the parts' sidecars",
            part(shard)
        );
        out.line("PART", &part);
    }
    out.line("model", &describe(&report.model));
    if report.is_noise_floor {
        out.line("", "the reference's own model: the noise floor");
    } else if report.is_reference_model {
        out.line("", "the reference's own model, another KV cache");
    }
    if let Some(model) = &reference.model {
        out.line("reference model", &describe(model));
    }
    if let Some(of_reference) = &reference.states {
        states(out, of_reference);
    }
    let left_out = match summary.n_excluded {
        0 => String::new(),
        n => format!("; {} left out: not finite", count(n)),
    };
    out.line(
        "tokens",
        &format!(
            "{} in {}{left_out}",
            count(summary.n_tokens),
            windows(summary.n_windows, reference),
        ),
    );
    if let Some(until) = &report.until {
        let is_over = report.interrupted.is_none();
        out.line("until", &until_line(until, summary, is_over, reference));
    }
    if report.n_resumed > 0 {
        let resumed = count(report.n_resumed);
        out.line(
            "",
            &format!("{resumed} of these measured by an earlier run"),
        );
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
    if let Some(unknown) = &summary.unknown_p {
        let (mean, max) = (percent(unknown.mean), percent(unknown.max));
        let weight = format!("at most {mean} of the probability, {max} at one token");
        out.line("not in the base file", &weight);
    }
    out.line("intervals", &intervals(summary, reference));
    if summary.clusters.n > 1 {
        out.line("", "± is half of an interval");
    }
    for missing in &report.not_available {
        out.line(
            "not available",
            &format!("{}: {}", missing.what, missing.why),
        );
    }
}

fn partial(interrupted: &Interrupted, unit: &str) -> String {
    let done = match interrupted.of {
        Some(of) => format!("{} of {}", count(interrupted.n_windows), count_of(of, unit)),
        None => count_of(interrupted.n_windows, unit),
    };
    format!("interrupted after {done}: the numbers below cover only that part")
}

/// How near the mean's interval came to what `--until` asks for.
fn until_line(
    until: &UntilInfo,
    summary: &Summary,
    is_over: bool,
    reference: &ReferenceInfo,
) -> String {
    let unit = reference.unit();
    let target = short_percent(until.target);
    let known = match until.relative_half_width {
        Some(width) => format!("the mean is known to ±{:.1} %", 100.0 * width),
        None => "the mean has no interval".to_owned(),
    };
    if until.reached {
        let done = match until.of {
            Some(of) => format!("{} of {}", count(summary.n_windows), count_of(of, unit)),
            None => count_of(summary.n_windows, unit),
        };
        return format!("{known}: stopped at --until {target}% after {done}");
    }
    if !is_over {
        return format!("{known} so far; --until {target}%");
    }
    let needed = match until.windows_needed {
        Some(needed) => format!("; about {} would be enough", count_of(needed, unit)),
        None => String::new(),
    };
    let all = count_of(summary.n_windows, unit);
    let why = match summary.clusters.n < MIN_CLUSTERS as u64 {
        true => format!(", from fewer than {MIN_CLUSTERS} clusters"),
        false => String::new(),
    };
    format!("{known}{why}: --until {target}% is not reached after all {all}{needed}")
}

/// The windows that the tokens are in, or the prompts.
fn windows(n: u64, reference: &ReferenceInfo) -> String {
    let n_ctx = reference.n_ctx;
    let Some(prompts) = &reference.prompts else {
        let stride = reference.stride;
        let stride = stride.map_or(String::new(), |stride| format!(", one every {stride}"));
        return format!("{} of {n_ctx}{stride}", count_of(n, "window"));
    };
    let generated = match prompts.generated {
        Some(generated) => format!(", {generated} of them generated"),
        None => String::new(),
    };
    format!("{} of at most {n_ctx}{generated}", count_of(n, "prompt"))
}

/// What the intervals allow for.
fn intervals(summary: &Summary, reference: &ReferenceInfo) -> String {
    let clusters = &summary.clusters;
    let what = reference.unit();
    if clusters.n < 2 {
        return format!("none: too few {what}s");
    }
    let level = short_percent(summary.confidence.level());
    let by = match clusters.kind {
        ClusterKind::Window => format!("by {what}"),
        ClusterKind::Block => format!("by {} {what}s in a row", clusters.windows_per_block),
    };
    let n = count_of(clusters.n, "cluster");
    format!("at {level} %, {by} ({n})")
}

/// How the numbers of llama-perplexity's block differ from those above.
fn llama_perplexity_differs(reference: &ReferenceInfo) -> &'static str {
    if reference.values == Values::FlooredLogProbabilities {
        "the KLD above renormalises the entries that the base records, while this one uses them as \
         stored and skips ln p <= -16"
    } else {
        "from true log-probabilities, at the positions above that have a next token"
    }
}

/// A model in one line: name, architecture, size, BPW.
fn describe(model: &ModelInfo) -> String {
    let mut text = printable(model.name.as_ref().unwrap_or(&model.path));
    if let Some(architecture) = &model.architecture {
        let _ = write!(text, " ({})", printable(architecture));
    }
    if let (Some(size), Some(bpw)) = (model.shown_bytes(), model.bpw) {
        let _ = write!(text, ", {}, {bpw:.2} BPW", bytes(size));
    }
    text
}

fn agreements(out: &mut Sheet, agreement: &Agreement) {
    out.title("Agreement of top tokens");
    for (name, share) in [
        ("same top token", &agreement.ref_top1),
        ("reference's top in model's top 5", &agreement.ref_top5),
        ("reference's top in model's top 10", &agreement.ref_top10),
        ("model's top in reference's top 5", &agreement.eval_top5),
        ("model's top in reference's top 10", &agreement.eval_top10),
    ] {
        out.estimate(name, &share.estimate, percent);
    }
}

fn perplexities(out: &mut Sheet, perplexity: &Perplexity) {
    let six_digits = |x| significant(x, 6);
    let six_decimals = |x| fixed(x, 6);
    out.title("Perplexity");
    let model = Estimate {
        value: perplexity.evaluated,
        lo: perplexity.eval_cluster_lo,
        hi: perplexity.eval_cluster_hi,
    };
    out.estimate("model", &model, six_digits);
    let reference = Estimate {
        value: perplexity.reference,
        lo: perplexity.ref_cluster_lo,
        hi: perplexity.ref_cluster_hi,
    };
    out.estimate("reference", &reference, six_digits);
    for (name, of) in [
        ("ratio", &perplexity.ratio),
        ("ln ratio", &perplexity.ln_ratio),
    ] {
        out.clustered(name, of.value, &of.clustered, six_decimals);
    }
    if perplexity.n_unknown > 0 {
        let n = count(perplexity.n_unknown);
        out.value_and(
            "left out",
            &n,
            "tokens, whose probability is not in the base file",
        );
    }
    if perplexity.n_infinite > 0 {
        let n = count(perplexity.n_infinite);
        out.value_and("left out", &n, "tokens that a model finds impossible");
    }
}

fn delta_ps(out: &mut Sheet, delta_p: &DeltaP) {
    out.title("Change in the actual token's probability");
    let (mean, rms) = (&delta_p.mean, &delta_p.rms);
    out.clustered("mean", mean.estimate.value, &mean.clustered, signed_percent);
    let three_decimals = |x| format!("{} %", fixed(100.0 * x, 3));
    out.clustered("RMS", rms.value, &rms.clustered, three_decimals);
    out.value_and(
        "largest loss, largest gain",
        &signed_percent(delta_p.min),
        &signed_percent(delta_p.max),
    );
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
    if let Some(device) = &timing.device {
        out.line(
            "device",
            &format!(
                "busy {} of the time, waited {} for the CPU, {} for the file",
                percent(device.busy_share),
                duration(device.waited_cpu_s),
                duration(device.waited_file_s)
            ),
        );
    }
    out.line(
        "speed",
        &format!("{:.0} scored tokens/s", timing.tokens_per_s),
    );
    if let Some(waited_s) = notable_core_wait(timing.core_wait_s, timing.wall_s) {
        let waited = duration(waited_s);
        let text = format!("busy with other work: this run waited {waited} for one");
        out.line("cores", &text);
    }
}

/// Lists tokens, two lines each: texts are quoted and escaped, so that they fit whatever they hold.
fn largest(out: &mut Sheet, tokens: &[DivergentToken]) {
    out.title("Largest KL divergences, with the top tokens there");
    for token in tokens {
        let divergence = match token.kld.is_infinite() {
            true => "infinite".to_owned(),
            false => kld(token.kld),
        };
        let next = match &token.token_text {
            Some(text) => format!("before {text:?}"),
            None => format!("at the {}'s end", out.unit),
        };
        out.value_and(
            &format!("{} {}, position {}", out.unit, token.window, token.position),
            &divergence,
            &format!("{:?} {next}", token.context),
        );
        let top = |top: &TopToken| format!("{:?} {}", top.text, percent(top.p));
        let (reference, model) = (top(&token.ref_top), top(&token.eval_top));
        out.value_and("", "", &format!("reference {reference}, model {model}"));
    }
}
