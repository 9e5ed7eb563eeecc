//! One evaluation: rows are scored against the reference's, which gives a sidecar and a report.

mod held;
mod measures;
mod models;
mod sidecar;

pub use measures::Measures;
pub use models::{Evaluated, Queue, evaluate_each};
pub use sidecar::ClaimedSidecar;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use kl_formats::{About, Prompt, ReferenceSummary, SidecarHeader, TokenRecord, TokenTexts};

use super::context::writer;
use super::observer::Watch;
use super::parts::StoredEvaluation;
use super::report::Row;
use super::settings::{ResultSettings, Stats, Subject};
use crate::engine::Vocabulary;
use crate::pipeline::{self, Error, LogitSource, ReferenceRows, Sources, Step, Timing};
use crate::report::{
    DivergentToken, Interrupted, ModelReport, ModelResult, NotAvailable, PromptReport, TimingInfo,
    TokenColumns, Warning, doubts_of_model, judge,
};
use crate::score::RowPair;
use crate::stats::llama_perplexity::MIN_TOKENS;
use crate::stats::{KldSoFar, MostDivergent, PromptStats};
use measures::Measured;
use sidecar::{Earlier, TokenLog, texts_of};

/// One evaluation: whose rows are scored, against which reference, and how.
pub struct Evaluation<'e> {
    /// The model evaluated, or the file of stored rows.
    pub subject: &'e Subject,
    /// The reference.
    pub reference: &'e About,
    pub settings: &'e ResultSettings,
    pub watch: &'e Watch<'e>,
    /// The header of the sidecar. Its names and the number of its records are filled in.
    pub header: SidecarHeader,
    pub measures: Measures,
    /// The evaluated model's vocabulary, if there is a model.
    pub tokens: Option<&'e dyn Vocabulary>,
    /// Numbers that these rows cannot give.
    pub not_available: Vec<NotAvailable>,
    /// When loading began.
    pub started: Instant,
}

/// The header of a sidecar of `n_records` records, if their number is known, with what it records of
/// the reference.
pub fn header_against(
    reference: &About,
    summary: ReferenceSummary,
    n_records: Option<u64>,
) -> SidecarHeader {
    let mut header = SidecarHeader::new(summary, reference.n_ctx, reference.n_vocab, n_records);
    header.writer = Some(writer());
    header.first_scored = reference.first_scored.or(Some(0));
    if let Some(groups) = &reference.groups {
        header.groups = groups.names().to_vec();
    }
    if let Some(prompts) = &reference.prompts {
        header.prompts = true;
        header.spans.clone_from(&prompts.spans);
    }
    header
}

/// The results of the rows besides their records.
#[derive(Default)]
struct Outcome {
    /// One per record, if any were wanted.
    measured: Vec<Measured>,
    most_divergent: Option<MostDivergent<Vec<u32>>>,
    /// `None` where there was nothing left to do, or not all of it was done.
    timing: Option<Timing>,
    is_interrupted: bool,
}

impl Evaluation<'_> {
    /// Scores all rows that an earlier run has not scored, and makes the sidecar and the report.
    /// `sources` make the evaluated rows.
    ///
    /// A sidecar that cannot be written does not lose the numbers, and an interrupted run reports
    /// on what it has.
    pub fn run<S: LogitSource>(
        mut self,
        sidecar: Option<ClaimedSidecar>,
        mut rows: ReferenceRows<'_>,
        sources: Sources<impl Fn() -> Result<S, Error> + Sync>,
    ) -> Result<Evaluated> {
        let loaded = self.started.elapsed();
        self.header.model_path = Some(self.subject.path.display().to_string());
        self.header.label = self.settings.label_of(self.subject);
        self.header.n_records = rows.n_scored();
        let n_windows = rows.n_windows;
        let mut log = match sidecar {
            Some(sidecar) => self.open_log(sidecar, &mut rows)?,
            None => TokenLog::default(),
        };
        let was_whole = log.is_whole();
        let outcome = match self.score(&rows, &mut log, sources) {
            Ok(outcome) => outcome,
            // A model that failed may succeed another time, so its records are kept; a bad
            // reference stays bad.
            Err(error @ (Error::Engine(_) | Error::Interrupted)) => match log.keep() {
                Some(kept) => bail!("{error}; {kept}"),
                None => return Err(error.into()),
            },
            Err(error) => {
                log.discard();
                return Err(error.into());
            }
        };
        let texts = texts_of(&log.records, self.tokens);
        let finished = if outcome.is_interrupted {
            log.keep().iter().for_each(|kept| self.watch.note(kept));
            Ok(None)
        } else {
            log.finish(&texts)
        };
        let (sidecar, unwritten) = match finished {
            Ok(path) => (path, None),
            Err(error) => (None, Some(error)),
        };
        let (header, records) = (self.header.clone(), &log.records);
        let stored = StoredEvaluation::whole(header, sidecar.clone(), records.len() as u64);
        let (confidence, rule) = (self.settings.confidence, self.settings.clusters);
        let mut row = Row::measure(stored, confidence, rule, None, |_, each| {
            let mut windows = records.chunk_by(|one, next| one.window == next.window);
            windows.try_for_each(each)?;
            Ok(texts)
        })?;
        if let Some(until) = &mut row.model.until {
            until.of = n_windows;
        }
        let timing = outcome.timing.as_ref();
        let timing = timing.map(|timing| self.timing(timing, loaded, &log));
        let result = row.model.result.clone();
        let mut report = self.report(outcome, timing, &log, result, n_windows);
        report.sidecar = sidecar.map(|path| path.display().to_string());
        Ok(Evaluated {
            wrote: report.sidecar.is_some() && !was_whole,
            report,
            row,
            unwritten,
            here: rows.here,
        })
    }

    /// Opens the log of records. Windows that an earlier run has measured are removed from `rows`,
    /// unless this run needs more than their records.
    fn open_log(
        &self,
        mut sidecar: ClaimedSidecar,
        rows: &mut ReferenceRows<'_>,
    ) -> Result<TokenLog> {
        let mut header = self.header.clone();
        if let Some(finished) = &sidecar.finished {
            finished.check(&header)?;
            if header.until.is_some() {
                finished.check_end(self.no_klds(), rows.n_rows.is_some())?;
            }
        }
        if sidecar.is_stale {
            let (model, path) = (self.subject.path.display(), sidecar.path.display());
            self.watch.note(&format!(
                "{model}: is newer than what {path} holds of it: it is evaluated from the start"
            ));
        }
        let mut earlier = sidecar.earlier(&mut header, self.no_klds())?;
        let needs_more = self.settings.top_k.is_some() || self.measures.any();
        if needs_more && !earlier.records.is_empty() {
            earlier = Earlier::default();
            let message = format!(
                "{} lacks the numbers for --top-k, --stats logits, or --stats llama-perplexity against a base file: the model is evaluated from the start",
                sidecar.path.display()
            );
            self.watch.warn(Warning::new("measured_anew", message));
        }
        TokenLog::open(sidecar, earlier, &header, rows)
    }

    /// The KLDs of no windows yet, which show when the end that `--until` sets is reached.
    fn no_klds(&self) -> KldSoFar {
        let (confidence, rule) = (self.settings.confidence, self.settings.clusters);
        KldSoFar::new(self.header.until, confidence, rule)
    }

    /// Scores rows until they end, `--until` is reached, or the observer asks to stop.
    fn score<S: LogitSource>(
        &self,
        rows: &ReferenceRows<'_>,
        log: &mut TokenLog,
        sources: Sources<impl Fn() -> Result<S, Error> + Sync>,
    ) -> Result<Outcome, Error> {
        let measures = self.measures;
        let mut outcome = Outcome {
            most_divergent: self.settings.top_k.map(|n| MostDivergent::new(n as usize)),
            ..Outcome::default()
        };
        let mut klds = self.no_klds();
        klds.replay(&log.records);
        if log.is_whole() || klds.is_reached() {
            return Ok(outcome);
        }
        let model = self.header.model.as_ref();
        let file_name = || model.and_then(|model| model.file_name.as_deref());
        // The cells of a sweep have the name of one file.
        let label = self.header.label.as_deref().or_else(file_name);
        let label = label.unwrap_or_default();
        let phase = self.watch.begin(label, rows.n_windows, rows.n_rows);
        let of_rows = |pair: &RowPair<'_>| measures.of(pair);
        let timing = pipeline::evaluate(sources, rows, of_rows, |step| {
            match step {
                Step::Rows(n) => phase.rows(n),
                Step::Window(mut window) => {
                    self.mark(&mut window.records, window.tokens.len());
                    if let Some(most_divergent) = &mut outcome.most_divergent {
                        for record in &window.records {
                            let (tokens, position) = (&window.tokens, record.position);
                            let context = || DivergentToken::context_of(tokens, position);
                            most_divergent.push(record, context);
                        }
                    }
                    if measures.any() {
                        outcome.measured.append(&mut window.measured);
                    }
                    let is_enough = klds.push(log.push(window.records));
                    phase.window(klds.mean());
                    if is_enough {
                        return Err(Error::Enough);
                    }
                }
            }
            self.watch.check()
        });
        match timing {
            Ok(timing) => {
                self.watch.warn_of_times(&timing, false);
                outcome.timing = Some(timing);
            }
            Err(Error::Interrupted) if !log.records.is_empty() => outcome.is_interrupted = true,
            Err(error) => return Err(error),
        }
        Ok(outcome)
    }

    /// Marks the records of a window of `n_tokens` with what its rows do not show: its group, and the
    /// span of each next token, and if that is special, was chosen greedily or ends an answer.
    fn mark(&self, records: &mut [TokenRecord], n_tokens: usize) {
        let Some(window) = records.first().map(|record| record.window) else {
            return;
        };
        let groups = self.reference.groups.as_ref();
        let group = groups.map_or(0, |of| of.of_window(window));
        let prompts = self.reference.prompts.as_ref();
        let prompt = prompts.and_then(|of| of.list.get(window as usize));
        let spans = prompt.into_iter().flat_map(Prompt::span_of_each);
        let spans: Vec<u32> = spans.take(n_tokens).collect();
        let is_special = |token| self.tokens.is_some_and(|of| of.is_special(token));
        let greedy = prompts.and_then(|of| of.greedy(window, n_tokens as u32));
        let (greedy, most) = greedy.unwrap_or_default();
        for record in records {
            let next = record.position + 1;
            record.group = group;
            record.span = spans.get(next as usize).copied().unwrap_or(0);
            if greedy.contains(&next) {
                record.flags |= TokenRecord::NEXT_IS_GREEDY;
                let is_last = next + 1 == greedy.end;
                // Without a vocabulary: there was room for more.
                let has_room = greedy.len() < most as usize && greedy.end < self.reference.n_ctx;
                let ends = match (self.tokens, record.next_token()) {
                    (Some(of), Some(token)) => of.is_end_of_generation(token),
                    _ => is_last && has_room,
                };
                if ends {
                    record.flags |= TokenRecord::NEXT_ENDS_ANSWER;
                }
            }
            if record.next_token().is_some_and(is_special) {
                record.flags |= TokenRecord::NEXT_IS_SPECIAL;
            }
        }
    }

    /// Makes the report of a result. `n_windows`: how many windows were to be evaluated, if known.
    fn report(
        &self,
        outcome: Outcome,
        timing: Option<TimingInfo>,
        log: &TokenLog,
        result: ModelResult,
        n_windows: Option<u64>,
    ) -> ModelReport {
        let (header, records, measured) = (&self.header, &log.records, &outcome.measured);
        let (confidence, clusters) = (self.settings.confidence, self.settings.clusters);
        for doubt in doubts_of_model(&result, header.prompts, header.shard.is_some()) {
            if doubt.is_about_reference() {
                self.watch.warn_once(doubt);
            } else {
                self.watch.warn(doubt);
            }
        }
        let text = |tokens: &[u32]| match self.tokens {
            Some(vocabulary) => vocabulary.text(tokens),
            None => TokenTexts::default().text(tokens),
        };
        let llama_perplexity = self.measures.llama_perplexity(records, measured);
        if self.settings.stats.contains(&Stats::LlamaPerplexity) && llama_perplexity.is_none() {
            let message = format!(
                "llama-perplexity computes no statistics from fewer than {MIN_TOKENS} tokens with a next one, and kl none from infinite scores: --stats llama-perplexity has no effect"
            );
            self.watch
                .warn(Warning::new("no_llama_perplexity", message));
        }
        let summary = &result.summary;
        let max_token = summary.kld.as_ref().and_then(|kld| kld.max_at.token);
        let mut report = ModelReport {
            timing,
            set_up: header.backend.clone(),
            max_at_text: max_token.and_then(|token| Some(self.tokens?.text(&[token]))),
            interrupted: outcome.is_interrupted.then_some(Interrupted {
                n_windows: summary.n_windows,
                of: n_windows,
            }),
            shard: header.shard,
            n_resumed: log.n_resumed as u64,
            llama_perplexity,
            logits: self
                .measures
                .logits(records, measured, confidence, clusters),
            not_available: self.not_available.clone(),
            result,
            ..ModelReport::default()
        };
        // Conditions are about the numbers above.
        let settings = self.settings;
        report.conditions = judge(&settings.conditions, &report, settings.allow_excluded);
        report.prompts = self.reference.prompts.as_ref().map(|prompts| {
            let metrics = self.measures.logit_metrics(measured);
            let of_each = PromptStats::of_each(records, metrics.as_deref());
            PromptReport::of_each(&prompts.labels(), of_each)
        });
        report.top = outcome.most_divergent.map(|tokens| {
            let tokens = tokens.into_sorted().into_iter();
            tokens
                .map(|(record, context)| DivergentToken::new(&record, &context, text))
                .collect()
        });
        let has_tokens = settings.json_tokens;
        report.tokens = has_tokens.then(|| TokenColumns::of(records, text));
        report
    }

    fn timing(&self, timing: &Timing, loaded: Duration, log: &TokenLog) -> TimingInfo {
        let timing = Timing {
            write: log.in_writing,
            ..*timing
        };
        let load_s = (loaded + timing.load).as_secs_f64();
        let wall_s = self.started.elapsed().as_secs_f64();
        let n_rows = (log.records.len() - log.n_resumed) as u64;
        TimingInfo::new(&timing, load_s, wall_s, n_rows)
    }
}
