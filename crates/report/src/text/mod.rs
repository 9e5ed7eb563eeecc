//! The text report of one model.

mod llama_perplexity;
mod prompts;
mod sections;

use kl_formats::{Kind, Values};
use kl_stats::score::RowError;
use kl_stats::stats::{
    ClusterKind, MIN_WINDOWS_TO_PLAN, Summary, UntilInfo, WINDOWS_FOR_MOST_BLOCKS,
};

use self::llama_perplexity::llama_perplexity_block;
use self::prompts::prompt_table;
use super::comparison::clusters_text;
use super::layout::{Sheet, View};
use super::number::{
    bytes, count, count_of, duration, part, percent, printable, sampled_answers, short_kld,
    short_percent,
};
use super::result::{ModelInfo, ModelReport, ReferenceInfo, StatesInfo};

/// The width of the column of names.
const NAME_WIDTH: usize = 34;

/// The report of one model: its numbers with their intervals, a section for each subject; in
/// full, everything but what else is asked for.
pub fn text_report(report: &ModelReport, reference: &ReferenceInfo, view: View) -> String {
    let summary = &report.summary;
    let mut out = Sheet::new(NAME_WIDTH);
    (out.has_intervals, out.unit) = (summary.clusters.n > 1, reference.unit());
    heading(&mut out, report, reference);
    if let Some(identical) = &summary.identical_output {
        sections::identical_output(&mut out, identical);
    }
    if summary.n_tokens > 0 {
        sections::divergence(&mut out, summary, report.max_at_text.as_deref(), view);
    }
    sections::other_numbers(&mut out, report, view);
    if let Some(loss) = report.loss_sentence() {
        out.title(&loss);
    }
    sections::breakdown(&mut out, report, view);
    if let Some(logits) = &report.logits {
        sections::logits(&mut out, logits);
    }
    if let Some(prompts) = report.prompts.as_ref().filter(|of| !of.is_empty()) {
        out.title("Prompts");
        out.text += &prompt_table(prompts, view);
    }
    if let Some(top) = report.top.as_ref().filter(|top| !top.is_empty()) {
        sections::largest(&mut out, top);
    }
    if let Some(reverse_kld) = &summary.reverse_kld
        && view.full
        && reference.kind == Some(Kind::KlPy)
    {
        sections::kl_py(&mut out, reverse_kld);
    }
    if let Some(statistics) = &report.llama_perplexity {
        let differs = match reference.values {
            Values::FlooredLogProbabilities => {
                "the KLD above renormalises the entries that the base records, while this one uses \
                 them as stored and skips ln p <= -16"
            }
            _ => "from true log-probabilities, at the positions above that have a next token",
        };
        let prints = "As llama-perplexity prints it, ± one standard error";
        out.title(&format!("{prints}; {differs}"));
        out.text += &llama_perplexity_block(statistics);
    }
    out.text + view.more_hint()
}

/// Says what was evaluated against what, and what the numbers below cover.
fn heading(out: &mut Sheet, report: &ModelReport, reference: &ReferenceInfo) {
    let mut named = report.model.path.clone();
    if report.label != report.model.default_label() {
        named = format!("{} ({named})", report.label);
    }
    out.title(&format!("{named} against {}", reference.path));
    let covers = "the numbers below cover only that part";
    if let Some(interrupted) = &report.interrupted {
        let done = done_of(interrupted.n_windows, interrupted.of, reference.unit());
        out.line("PARTIAL", &format!("interrupted after {done}: {covers}"));
    }
    if let Some(shard) = &report.shard {
        let joins = "kl merge joins the parts' sidecars";
        out.line("PART", &format!("{}: {covers}; {joins}", part(shard)));
    }
    out.line("model", &describe(&report.model));
    let weights = report.set_up.as_ref().and_then(|of| of.weights.as_ref());
    if let Some(kind) = weights {
        let what = format!("its weights dequantized to {kind}: without rounding in kernels");
        out.line("", &what);
    }
    if report.is_noise_floor {
        out.line("", "the reference's own model: the noise floor");
    } else if report.is_reference_model && weights.is_none() {
        out.line("", "the reference's own model, another KV cache");
    }
    if let Some(of) = &report.memory {
        let context = count_of(of.context, "token");
        let [all, weights, cache] = [of.bytes(), of.weights, of.kv_cache].map(bytes);
        let parts = format!("weights {weights}, KV cache {cache}");
        out.line("memory", &format!("{all} for {context}: {parts}"));
    }
    out.known("reference model", reference.model.as_ref().map(describe));
    if let Some(of_reference) = &reference.states {
        states(out, of_reference);
    }
    covered(out, report, reference);
    for missing in &report.not_available {
        let why = format!("{}: {}", missing.what, missing.why);
        out.line("not available", &why);
    }
}

/// Says which tokens and which entries of their rows were measured, and what the intervals are by.
fn covered(out: &mut Sheet, report: &ModelReport, reference: &ReferenceInfo) {
    let summary = &report.summary;
    let windows = windows(summary.n_windows, reference);
    let mut tokens = format!("{} in {windows}", count(summary.n_tokens));
    if summary.n_excluded > 0 {
        tokens += &format!("; {} left out: not finite", count(summary.n_excluded));
    }
    out.line("tokens", &tokens);
    let sampling = reference.prompts.as_ref().and_then(|of| of.sampling);
    out.known("answers", sampling.as_ref().map(sampled_answers));
    let until = report.until.as_ref();
    let reached = until.map(|of| until_line(of, report, reference.unit()));
    out.known("until", reached);
    if report.n_resumed > 0 {
        let n = count(report.n_resumed);
        out.line("", &format!("{n} of these measured by an earlier run"));
    }
    let compared = report.n_vocab_compared;
    if let Some(compared) = compared.filter(|n| *n != reference.n_vocab) {
        let [first, of] = [compared, reference.n_vocab].map(|n| count(n.into()));
        let entries = format!("first {first} of {of} entries, renormalised");
        out.line("vocabulary", &entries);
    }
    if let Some(unknown) = &summary.unknown_p {
        let [mean, max] = [unknown.mean, unknown.max].map(percent);
        let weight = format!("at most {mean} of the probability, {max} at one token");
        out.line("not in the base file", &weight);
    }
    out.line("intervals", &intervals(summary, reference.unit()));
    if until.is_some_and(|until| until.relative_half_width.is_some()) {
        out.line("", "± is half of an interval");
    }
}

/// Where the rows were computed, how far they are from the model's own, and the encoding's own error
/// if it has one.
fn states(out: &mut Sheet, states: &StatesInfo) {
    if let Some(here) = &states.here {
        let (device, of) = (&here.device, states.state_type.name());
        let from = format!("computed on {device} from {of} states");
        out.line("reference rows", &from);
        let off = match here.is_exact {
            Some(true) => "to the bit as the model gave them".to_owned(),
            Some(false) => format!("off by {}", nats(here.error)),
            None => "not checked: it holds no row to check with".to_owned(),
        };
        out.line("", &off);
    }
    if states.error.max_kld > 0.0 {
        out.line("error of the encoding", &nats(states.error));
    }
}

fn nats(error: RowError) -> String {
    let [mean, max] = [error.mean_kld, error.max_kld].map(short_kld);
    format!("{mean} nats, {max} at most")
}

/// `3 of 9 windows`, or `3 windows` where their number is not known.
fn done_of(n: u64, of: Option<u64>, unit: &str) -> String {
    match of {
        Some(of) => format!("{} of {}", count(n), count_of(of, unit)),
        None => count_of(n, unit),
    }
}

/// Says how near the mean's interval came to what `--until` asks for.
fn until_line(until: &UntilInfo, report: &ModelReport, unit: &str) -> String {
    let (target, n) = (short_percent(until.target), report.summary.n_windows);
    let known = match until.relative_half_width {
        Some(width) => format!("the mean is known to ±{:.1} %", 100.0 * width),
        None => "the mean has no interval".to_owned(),
    };
    let is_block = report.summary.clusters.kind == ClusterKind::Block;
    let (there, min, most) = (count(n), MIN_WINDOWS_TO_PLAN, WINDOWS_FOR_MOST_BLOCKS);
    if until.reached {
        let done = done_of(n, until.of, unit);
        format!("{known}: stopped at --until {target}% after {done}")
    } else if report.interrupted.is_some() {
        format!("{known} so far; --until {target}%")
    } else if n < min {
        format!("--until needs at least {min} {unit}s, and there are {there}; {known}")
    } else if is_block && n < most {
        format!(
            "{known}: neighbouring {unit}s resemble each other, so --until needs at least \
             {most} {unit}s, and there are {there}"
        )
    } else {
        let all = count_of(n, unit);
        format!("{known}: --until {target}% is not reached after all {all}")
    }
}

/// The windows that the tokens are in, or the prompts.
fn windows(n: u64, reference: &ReferenceInfo) -> String {
    let (n, n_ctx) = (count_of(n, reference.unit()), count(reference.n_ctx.into()));
    let Some(prompts) = &reference.prompts else {
        let stride = reference.stride.map(|n| format!(", one every {n}"));
        return format!("{n} of {n_ctx}{}", stride.unwrap_or_default());
    };
    // How they were sampled is in a line of its own.
    let how = prompts.sampling.map_or(" greedily", |_| "");
    let most = prompts.generated;
    let generated = most.map(|n| format!(", at most {n} of them generated{how}"));
    format!("{n} of at most {n_ctx}{}", generated.unwrap_or_default())
}

/// Describes the intervals' level, and the clusters that they are computed from.
fn intervals(summary: &Summary, unit: &str) -> String {
    if summary.clusters.n < 2 {
        return format!("none: too few {unit}s");
    }
    let level = short_percent(summary.confidence.level());
    format!("at {level} %, {}", clusters_text(&summary.clusters, unit))
}

/// A model in one line: name, architecture, size, BPW.
fn describe(model: &ModelInfo) -> String {
    let mut text = model.name.as_ref().unwrap_or(&model.path).clone();
    if let Some(architecture) = &model.architecture {
        text += &format!(" ({architecture})");
    }
    if let (Some(size), Some(bpw)) = (model.shown_bytes(), model.bpw) {
        text += &format!(", {}, {bpw:.2} BPW", bytes(size));
    }
    text
}

/// The line of the `index`-th of `of` models, counted from 0: its mean KLD, how often its top token is
/// the reference's, and how long it took. Intervals are in the table that follows, which chooses their
/// clusters for all models at once. `unit` is the word for a window.
pub fn model_line(model: &ModelReport, (index, of): (usize, usize), unit: &str) -> String {
    let name = printable(&model.label);
    let start = format!("[{}/{of}] {name}", index + 1);
    let Some(mean) = model.mean_kld() else {
        return format!("{start}  no token with a finite KLD");
    };
    let mut line = format!("{start}  mean KLD {}", short_kld(mean.value));
    if let Some(share) = model.same_top() {
        line += &format!("  same top {}", percent(share));
    }
    // With --until, each model stops after a number of windows of its own.
    match &model.until {
        Some(until) if until.reached => {
            line += &format!("  {}", count_of(model.summary.n_windows, unit));
        }
        Some(_) => line += "  --until not reached",
        None => {}
    }
    match &model.timing {
        Some(timing) => format!("{line}  {}", duration(timing.wall_s)),
        None => line + "  done before",
    }
}

#[cfg(test)]
mod tests {
    use kl_stats::stats::UntilInfo;

    use super::*;
    use crate::testing::made_up::{plain, records, timing};

    #[test]
    fn a_line_has_the_whole_name_and_no_interval() {
        let of = |model: &ModelReport| model_line(model, (2, 10), "window");
        let with_until = |reached| {
            let mut model = plain("q4.gguf", &records(12, 80));
            model.result.until = Some(UntilInfo {
                target: 0.05,
                reached,
                relative_half_width: Some(0.05),
                of: Some(99),
            });
            model
        };
        let long = "Meta-Llama-3.1-8B-Instruct-Q4_K_M".repeat(3);
        let mut model = ModelReport {
            timing: Some(timing()),
            ..plain("q4.gguf", &records(12, 80))
        };
        model.result.label.clone_from(&long);
        assert_eq!(
            of(&model),
            format!("[3/10] {long}  mean KLD 0.0135  same top 90.00 %  3 min 20 s")
        );
        let start = "[3/10] q4  mean KLD 0.0135  same top 90.00 %";
        assert_eq!(
            of(&with_until(true)),
            format!("{start}  12 windows  done before")
        );
        assert_eq!(
            of(&with_until(false)),
            format!("{start}  --until not reached  done before")
        );
        let empty = of(&plain("q4.gguf", &[]));
        assert_eq!(empty, "[3/10] q4  no token with a finite KLD");
    }
}
