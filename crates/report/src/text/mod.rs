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
use super::speed::speed_lines;

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
    if let Some(prompts) = report
        .prompts
        .as_ref()
        .filter(|prompts| !prompts.is_empty())
    {
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
        let difference = match reference.values {
            Values::FlooredLogProbabilities => {
                "the KLD above renormalises the entries that the base records, while this one uses \
                 them as stored and skips ln p <= -16"
            }
            _ => "from true log-probabilities, at the positions above that have a next token",
        };
        out.title(&format!(
            "As llama-perplexity prints it, ± one standard error; {difference}"
        ));
        out.text += &llama_perplexity_block(statistics);
    }
    out.text + view.more_hint()
}

/// Says what was evaluated against what, and what the numbers below cover.
fn heading(out: &mut Sheet, report: &ModelReport, reference: &ReferenceInfo) {
    let mut name = report.model.path.clone();
    if report.label != report.model.default_label() {
        name = format!("{} ({name})", report.label);
    }
    out.title(&format!("{name} against {}", reference.path));
    let coverage = "the numbers below cover only that part";
    if let Some(interrupted) = &report.interrupted {
        let done = done_of_all(interrupted.n_windows, interrupted.of, reference.unit());
        let event = match &interrupted.why {
            Some(why) => format!(
                "stopped after {done}, as {} {why}",
                printable(&report.label)
            ),
            None => format!("interrupted after {done}"),
        };
        out.line("PARTIAL", &format!("{event}: {coverage}"));
    }
    if let Some(shard) = &report.shard {
        let remedy = "kl merge joins the parts' sidecars";
        out.line("PART", &format!("{}: {coverage}; {remedy}", part(shard)));
    }
    out.line("model", &describe(&report.model));
    let weights = report
        .set_up
        .as_ref()
        .and_then(|set_up| set_up.weights.as_ref());
    if let Some(kind) = weights {
        out.line(
            "",
            &format!("its weights dequantized to {kind}: without rounding in kernels"),
        );
    }
    if report.is_noise_floor {
        out.line("", "the reference's own model: the noise floor");
    } else if report.is_reference_model && weights.is_none() {
        out.line("", "the reference's own model, another KV cache");
    }
    if let Some(memory) = &report.memory {
        let context = count_of(memory.context, "token");
        let [all, weights, cache] = [memory.bytes(), memory.weights, memory.kv_cache].map(bytes);
        let compute = memory.compute.map(bytes);
        let compute = compute.map_or(String::new(), |bytes| format!(", buffers {bytes}"));
        let parts = format!("weights {weights}, KV cache {cache}{compute}");
        out.line("memory", &format!("{all} for {context}: {parts}"));
    }
    if let Some(speed) = &report.speed {
        for (i, line) in speed_lines(speed).iter().enumerate() {
            out.line(if i == 0 { "speed" } else { "" }, line);
        }
    }
    out.known("reference model", reference.model.as_ref().map(describe));
    if let Some(states) = &reference.states {
        put_states(out, states);
    }
    put_coverage(out, report, reference);
    for missing in &report.not_available {
        let numbers = format!("{}: {}", missing.what, missing.why);
        out.line("not available", &numbers);
    }
}

/// Says which tokens and which entries of their rows were measured, and what the intervals are by.
fn put_coverage(out: &mut Sheet, report: &ModelReport, reference: &ReferenceInfo) {
    let summary = &report.summary;
    let windows = windows(summary.n_windows, reference);
    let mut tokens = format!("{} in {windows}", count(summary.n_tokens));
    if summary.n_excluded > 0 {
        tokens += &format!("; {} left out: not finite", count(summary.n_excluded));
    }
    out.line("tokens", &tokens);
    let sampling = reference
        .prompts
        .as_ref()
        .and_then(|prompts| prompts.sampling);
    out.known("answers", sampling.as_ref().map(sampled_answers));
    let until = report.until.as_ref();
    out.known(
        "until",
        until.map(|until| until_line(until, report, reference.unit())),
    );
    if report.n_resumed > 0 {
        let n = count(report.n_resumed);
        out.line("", &format!("{n} of these measured by an earlier run"));
    }
    if let Some(n_compared) = report.n_vocab_compared.filter(|n| *n != reference.n_vocab) {
        let [compared, all] = [n_compared, reference.n_vocab].map(|n| count(n.into()));
        let entries = format!("first {compared} of {all} entries, renormalised");
        out.line("vocabulary", &entries);
    }
    if let Some(unknown) = &summary.unknown_p {
        let [mean, max] = [unknown.mean, unknown.max].map(percent);
        let share = format!("at most {mean} of the probability, {max} at one token");
        out.line("not in the base file", &share);
    }
    out.line("intervals", &intervals(summary, reference.unit()));
    if until.is_some_and(|until| until.relative_half_width.is_some()) {
        out.line("", "± is half of an interval");
    }
}

/// Where the rows were computed, how far they are from the model's own, and the encoding's own error
/// if it has one.
fn put_states(out: &mut Sheet, states: &StatesInfo) {
    if let Some(rows) = &states.here {
        let (device, state_type) = (&rows.device, states.state_type.name());
        let origin = format!("computed on {device} from {state_type} states");
        out.line("reference rows", &origin);
        let distance = match rows.is_exact {
            Some(true) => "to the bit as the model gave them".to_owned(),
            Some(false) => format!("off by {}", error_text(rows.error)),
            None => "not checked: it holds no row to check with".to_owned(),
        };
        out.line("", &distance);
    }
    if states.error.max_kld > 0.0 {
        out.line("error of the encoding", &error_text(states.error));
    }
}

fn error_text(error: RowError) -> String {
    let [mean, max] = [error.mean_kld, error.max_kld].map(short_kld);
    format!("{mean} nats, {max} at most")
}

/// `3 of 9 windows`, or `3 windows` where their number is not known.
pub(crate) fn done_of_all(n: u64, n_all: Option<u64>, unit: &str) -> String {
    match n_all {
        Some(n_all) => format!("{} of {}", count(n), count_of(n_all, unit)),
        None => count_of(n, unit),
    }
}

/// Says how near the mean's interval came to what `--until` asks for.
fn until_line(until: &UntilInfo, report: &ModelReport, unit: &str) -> String {
    let (target, n) = (short_percent(until.target), report.summary.n_windows);
    let precision = match until.relative_half_width {
        Some(width) => format!("the mean is known to ±{:.1} %", 100.0 * width),
        None => "the mean has no interval".to_owned(),
    };
    let is_block = report.summary.clusters.kind == ClusterKind::Block;
    let n_text = count(n);
    if until.reached {
        let done = done_of_all(n, until.of, unit);
        format!("{precision}: stopped at --until {target}% after {done}")
    } else if report.interrupted.is_some() {
        format!("{precision} so far; --until {target}%")
    } else if n < MIN_WINDOWS_TO_PLAN {
        format!(
            "--until needs at least {MIN_WINDOWS_TO_PLAN} {unit}s, and there are {n_text}; {precision}"
        )
    } else if is_block && n < WINDOWS_FOR_MOST_BLOCKS {
        format!(
            "{precision}: neighbouring {unit}s resemble each other, so --until needs at least \
             {WINDOWS_FOR_MOST_BLOCKS} {unit}s, and there are {n_text}"
        )
    } else {
        let windows = count_of(n, unit);
        format!("{precision}: --until {target}% is not reached after all {windows}")
    }
}

/// The windows that the tokens are in, or the prompts.
fn windows(n: u64, reference: &ReferenceInfo) -> String {
    let windows = count_of(n, reference.unit());
    let n_ctx = count(reference.n_ctx.into());
    let Some(prompts) = &reference.prompts else {
        let stride = reference.stride.map(|n| format!(", one every {n}"));
        return format!("{windows} of {n_ctx}{}", stride.unwrap_or_default());
    };
    // How they were sampled is in a line of its own.
    let manner = prompts.sampling.map_or(" greedily", |_| "");
    let generated = prompts
        .generated
        .map(|n| format!(", at most {n} of them generated{manner}"));
    format!(
        "{windows} of at most {n_ctx}{}",
        generated.unwrap_or_default()
    )
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

/// The line of the `index`-th of `n_models` models, counted from 0: its mean KLD, how often its top token is
/// the reference's, and how long it took. Intervals are in the table that follows, which chooses their
/// clusters for all models at once. `unit` is the word for a window.
pub fn model_line(model: &ModelReport, (index, n_models): (usize, usize), unit: &str) -> String {
    let name = printable(&model.label);
    let start = format!("[{}/{n_models}] {name}", index + 1);
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
    if let Some(interrupted) = &model.interrupted {
        line += &format!("  stopped after {}", count_of(interrupted.n_windows, unit));
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
        let line = |model: &ModelReport| model_line(model, (2, 10), "window");
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
            line(&model),
            format!("[3/10] {long}  mean KLD 0.0135  same top 90.00 %  3 min 20 s")
        );
        let start = "[3/10] q4  mean KLD 0.0135  same top 90.00 %";
        assert_eq!(
            line(&with_until(true)),
            format!("{start}  12 windows  done before")
        );
        assert_eq!(
            line(&with_until(false)),
            format!("{start}  --until not reached  done before")
        );
        let empty = line(&plain("q4.gguf", &[]));
        assert_eq!(empty, "[3/10] q4  no token with a finite KLD");
    }
}
