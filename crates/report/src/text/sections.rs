//! The sections of a report, in the order in which they are printed.

use kl_stats::stats::{
    Bin, DEFAULT_DRAFTED, Distribution, Estimate, IdenticalOutput, LogitSummary,
    LogitsNotAvailable, Metric, Perplexity, Summary,
};

use crate::comparison::tables::{
    BY_CONFIDENCE, BY_GROUP, BY_KIND, BY_POSITION, BY_SPAN, division_title, few_tokens_legend,
    few_tokens_mark,
};
use crate::identical_output::{left_out, sentence};
use crate::layout::{Sheet, USUAL_QUANTILES, View, laid_out};
use crate::names::Names;
use crate::number::{
    count, count_of, duration, ends, fixed, kld, or_undefined, per_second, percent, quantile_name,
    short_kld, signed_percent, significant,
};
use crate::result::{DivergentToken, ModelReport, TimingInfo, TopToken, notable_core_wait};
use crate::table::Table;

/// The quantiles that kl.py prints.
const KL_PY_QUANTILES: [f64; 3] = [0.9, 0.95, 0.99];

/// The share of the model's own greedy answers that are the reference's.
pub fn identical_output(out: &mut Sheet, output: &IdenticalOutput) {
    out.title(&sentence(output));
    if let Some(same_share) = &output.same_to_the_end {
        let or_cut = output.cut_at.map_or("", |_| " or cut");
        out.estimate(&format!("same to the end{or_cut}"), same_share, percent);
    }
    let left_out = left_out([output]).unwrap_or_default();
    out.value("greedy answers", &count(output.n_answers), &left_out);
}

/// The KL divergence: its mean, what the mean rests on, and its tail. `max_at_text` is the text of
/// the token after the largest divergence.
pub fn divergence(out: &mut Sheet, summary: &Summary, max_at_text: Option<&str>, view: View) {
    out.title("KL divergence, nats");
    if let Some(kld_distribution) = &summary.kld {
        let mean = kld_distribution.mean.estimate();
        if mean.lo.is_none() && out.has_intervals {
            let why = format!("no interval: too few {}s decide it", out.unit);
            out.value("mean", &kld(mean.value), &why);
        } else {
            out.estimate("mean", &mean, kld);
        }
        basis(out, kld_distribution, view);
        if let Some(std) = kld_distribution.std.filter(|_| view.full) {
            out.value("standard deviation", &kld(std), "");
        }
        out.quantiles(
            kld_distribution
                .quantiles
                .iter()
                .filter(|quantile| view.full || USUAL_QUANTILES.contains(&quantile.p)),
        );
        out.maximum(kld_distribution.max, &kld_distribution.max_at, max_at_text);
    }
    infinite(out, "infinite", summary.n_infinite());
    if let Some(reverse) = summary.reverse_kld.as_ref().filter(|_| view.full) {
        out.estimate("reverse KLD, mean", &reverse.mean.estimate(), kld);
        infinite(out, "reverse KLD, infinite", reverse.n_infinite);
    }
}

/// The numbers that show how far the mean can be trusted.
fn basis(out: &mut Sheet, distribution: &Distribution, view: View) {
    let mean = &distribution.mean;
    if let Some(n) = mean.clustered.n_effective.filter(|_| view.full) {
        out.value("  effective tokens", &count(n as u64), "");
    }
    let tail = &distribution.tail;
    if let Some(share) = tail.top_1_percent {
        let top_0_1_percent = tail
            .top_0_1_percent
            .map(|share| format!("top 0.1 %: {}", percent(share)));
        let name = "  share of the top 1 % of tokens";
        out.value(name, &percent(share), &top_0_1_percent.unwrap_or_default());
    }
    if let Some(mean_without_max) = tail.mean_without_max.filter(|_| view.full) {
        out.value("  without the largest token", &kld(mean_without_max), "");
    }
}

/// The numbers beside the divergence: those that most people look at, and in full all others.
pub fn other_numbers(out: &mut Sheet, report: &ModelReport, view: View) {
    let summary = &report.summary;
    if summary.agreement.is_none() && report.timing.is_none() {
        return;
    }
    out.title("Other numbers");
    if let Some(agreement) = &summary.agreement {
        out.estimate("same top token", &agreement.ref_top1.estimate, percent);
    }
    let shows_drafts = view.full || report.measures_answers();
    if let Some(acceptance) = summary.acceptance.as_ref().filter(|_| shows_drafts) {
        if view.full {
            out.estimate("accepted of drafted tokens", &acceptance.mean, percent);
        }
        if let Some(accepted) = acceptance.of_drafted(DEFAULT_DRAFTED) {
            let name = format!("accepted of {DEFAULT_DRAFTED} drafted tokens");
            out.estimate(&name, accepted, |n| fixed(n, 3));
        }
    }
    if let Some(perplexity) = &summary.perplexity {
        put_perplexity(out, perplexity, view);
    }
    if let Some(delta_p) = summary.delta_p.as_ref().filter(|_| view.full) {
        out.estimate("Δp, mean", &delta_p.mean.estimate(), signed_percent);
        let three_decimals = |x| format!("{} %", fixed(100.0 * x, 3));
        out.estimate("Δp, RMS", &delta_p.rms.estimate(), three_decimals);
        let [loss, gain] = [delta_p.min, delta_p.max].map(signed_percent);
        out.value("Δp, largest loss, largest gain", &loss, &gain);
    }
    if let Some(timing) = &report.timing {
        put_timing(out, timing, view);
    }
}

/// The perplexities, with their intervals in full.
fn put_perplexity(out: &mut Sheet, perplexity: &Perplexity, view: View) {
    out.estimate("PPL ratio", &perplexity.ratio.estimate(), |x| fixed(x, 6));
    if !view.full {
        let [model, reference] =
            [perplexity.evaluated, perplexity.reference].map(|ppl| significant(ppl, 6));
        out.value("PPL", &model, &format!("the reference's {reference}"));
        if perplexity.n_unknown > 0 {
            let left_out = count_of(perplexity.n_unknown, "token");
            let remark = format!(
                "without {left_out} that the base file does not know: llama-perplexity's are higher"
            );
            out.line("", &remark);
        }
        return;
    }
    let evaluated = Estimate {
        value: perplexity.evaluated,
        lo: perplexity.eval_cluster_lo,
        hi: perplexity.eval_cluster_hi,
    };
    let reference = Estimate {
        value: perplexity.reference,
        lo: perplexity.ref_cluster_lo,
        hi: perplexity.ref_cluster_hi,
    };
    out.estimate("PPL", &evaluated, kld);
    out.estimate("PPL of the reference", &reference, kld);
    let unknown = "tokens, whose probability is not in the base file";
    let impossible = "tokens that a model finds impossible";
    for (n, why) in [
        (perplexity.n_unknown, unknown),
        (perplexity.n_infinite, impossible),
    ] {
        if n > 0 {
            out.value("  left out", &count(n), why);
        }
    }
}

/// The time it took, in full also that of each part, and a notable wait for other work.
fn put_timing(out: &mut Sheet, timing: &TimingInfo, view: View) {
    let speed = format!("{} scored tokens/s", per_second(timing.tokens_per_s));
    out.value("time", &duration(timing.wall_s), &speed);
    if view.full {
        let parts = [
            ("load", timing.load_s),
            ("decode", timing.decode_s),
            ("score", timing.score_s),
            ("read", timing.read_s),
            ("write", timing.write_s),
        ]
        .map(|(name, seconds)| format!("{name} {}", duration(seconds)));
        out.list("  of which", ", ", parts.iter().map(String::as_str));
        for (name, seconds) in [
            ("tokenizing", timing.tokenize_s),
            ("generating", timing.generate_s),
        ] {
            if let Some(seconds) = seconds {
                out.value(name, &duration(seconds), "before, for all models");
            }
        }
    }
    if let Some(device) = timing.device.as_ref().filter(|_| view.full) {
        let busy = format!("busy {} of the time", percent(device.busy_share));
        let [cpu, file] = [device.waited_cpu_s, device.waited_file_s].map(duration);
        let device_use = format!("{busy}, waited {cpu} for the CPU, {file} for the file");
        out.line("device", &device_use);
    }
    if let Some(waited_s) = notable_core_wait(timing.core_wait_s, timing.wall_s) {
        let waited = duration(waited_s);
        out.line("cores", &format!("busy elsewhere: waited {waited} for one"));
    }
}

/// A line that counts the tokens that one model finds impossible where the other does not.
fn infinite(out: &mut Sheet, name: &str, n: u64) {
    if n > 0 {
        out.value(name, &count(n), "tokens, left out of the numbers above");
    }
}

/// A table for each way to divide the tokens: those of groups and of spans always, the others if asked
/// for. A single span is all of the tokens.
pub fn breakdown(out: &mut Sheet, report: &ModelReport, view: View) {
    let breakdown = &report.breakdown;
    let mut groups = breakdown.by_group.clone();
    let (first_rows, more_line) = view.first_rows(&groups);
    let n_shown = first_rows.len();
    if n_shown < groups.len() {
        let mean = |bin: &Bin| bin.kld.map_or(-1.0, |kld| kld.value);
        groups.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        groups.truncate(n_shown);
    }
    put_bins(out, BY_GROUP, &groups, view);
    out.text += &more_line;
    let spans = match breakdown.by_span.as_slice() {
        [_] => &[],
        spans => spans,
    };
    put_bins(out, BY_SPAN, spans, view);
    let mut shown: Vec<&Bin> = groups.iter().chain(spans).collect();
    if view.breakdown {
        for (division, bins) in [
            (BY_CONFIDENCE, &breakdown.by_confidence),
            (BY_POSITION, &breakdown.by_position),
            (BY_KIND, &breakdown.special),
        ] {
            put_bins(out, division, bins, view);
            shown.extend(bins);
        }
    }
    if let Some(legend) = few_tokens_legend(shown.iter().map(|bin| bin.n_tokens)) {
        out.title(&legend);
    }
}

/// A row for each part of the tokens; nothing without any.
fn put_bins(out: &mut Sheet, division: &str, bins: &[Bin], view: View) {
    let labels: Vec<&str> = bins.iter().map(|bin| bin.label.as_str()).collect();
    let title = format!("KL divergence {}", division_title(division, out.unit));
    let names = Names::whole(&labels, view.width);
    out.text += &Table::fitted(&names, |name| {
        Table::new(title.as_str(), bins)
            .gap(2)
            .left("", |bin| {
                format!("  {}{}", name(&bin.label), few_tokens_mark(bin.n_tokens))
            })
            .right("tokens", |bin| count(bin.n_tokens))
            .number("mean KLD", |bin| Some(bin.kld?.value), short_kld)
            .interval("interval", |bin| bin.kld, short_kld)
            .number("of KLD", |bin| bin.share_of_kld, percent)
            .number("same top", |bin| bin.agreement, percent)
    });
}

/// The distances between logits, the Jensen-Shannon divergence and the smoothed KLD.
pub fn logits(out: &mut Sheet, summary: &LogitSummary) {
    if let Some(LogitsNotAvailable::LogProbabilitiesOnly) = summary.logits_not_available {
        out.title("Differences of logits");
        let why = "the stored rows are log-probabilities, not logits";
        out.line("not available", why);
    }
    let mut section = |title: &str, metric: &Metric| {
        out.title(title);
        out.estimate("mean", &metric.mean.estimate(), kld);
        out.quantiles(&metric.quantiles);
        out.maximum(metric.max, &metric.max_at, None);
    };
    if let Some(distances) = &summary.logits {
        section(
            "Mean absolute difference of logits",
            &distances.mean_abs_diff,
        );
        section(
            "Largest absolute difference of logits",
            &distances.max_abs_diff,
        );
        section("Cosine distance of logits", &distances.cosine_distance);
    }
    if let Some(metric) = &summary.jensen_shannon {
        section("Jensen-Shannon divergence, nats", metric);
    }
    if let Some(metric) = &summary.smoothed_kld {
        section("KL divergence smoothed with 1e-10, nats", metric);
    }
}

/// The tokens with the largest KLD, three lines each. Texts are quoted and escaped, so that they fit
/// whatever they hold.
pub fn largest(out: &mut Sheet, tokens: &[DivergentToken]) {
    out.title("Largest KL divergences, with the top tokens there");
    for token in tokens {
        let divergence = if token.kld.is_infinite() {
            "infinite".to_owned()
        } else {
            kld(token.kld)
        };
        let next_token = match &token.token_text {
            Some(text) => format!("before {text:?}"),
            None => format!("at the {}'s end", out.unit),
        };
        let position = out.position(token.window, token.position);
        let top_token = |top: &TopToken| {
            let text = top.text.as_deref().unwrap_or_default();
            format!("{text:?} {}", or_undefined(top.p, percent))
        };
        let (reference, model) = (top_token(&token.ref_top), top_token(&token.eval_top));
        out.value(&position, &divergence, "");
        let mut add_line = |joint, pieces: [&str; 2]| {
            out.text += &laid_out("      ", 6, joint, pieces.into_iter());
        };
        add_line(" ", [&format!("{:?}", token.context), &next_token]);
        add_line(
            ", ",
            [&format!("reference {reference}"), &format!("model {model}")],
        );
    }
}

/// The divergence as kl.py prints it, to be laid beside its output: its intervals treat tokens as
/// independent, the Bayesian one of the mean, and Maritz and Jarrett's of the quantiles.
pub fn kl_py(out: &mut Sheet, reverse_kld: &Distribution) {
    out.title("As kl.py computes it: KL(model ‖ reference), tokens as independent");
    let mean = &reverse_kld.mean.independent;
    out.value("mean", &kld(mean.value), &ends(mean.lo, mean.hi, kld));
    for quantile in reverse_kld
        .quantiles
        .iter()
        .filter(|quantile| KL_PY_QUANTILES.contains(&quantile.p))
    {
        let ends = ends(quantile.mj_lo, quantile.mj_hi, kld);
        let value = kld(quantile.estimate.value);
        out.value(&quantile_name(quantile.p), &value, &ends);
    }
    out.value("maximum", &kld(reverse_kld.max), "");
}
