//! One evaluation: rows are scored against the reference's, which gives a sidecar and a report.

mod early;
mod existing;
mod measures;
mod models;
mod sidecar;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use kl_engine::Model;
use kl_formats::{About, Prompt, ReferenceSummary, SidecarHeader, TokenRecord, TokenTexts};
use kl_report::{
    DivergentToken, Interrupted, ModelReport, ModelResult, NotAvailable, PromptReport, TimingInfo,
    TokenColumns, Warning, doubts_of_model, judge,
};
use kl_stats::score::RowPair;
use kl_stats::stats::llama_perplexity::MIN_TOKENS;
use kl_stats::stats::{KldSoFar, MostDivergent, PromptStats, TokenTable};

use super::context::writer;
use super::observer::{Outlook, Watch};
use super::output::with_kept;
use super::parts::{Sidecar, StoredEvaluation};
use super::report::MeasuredEvaluation;
use super::settings::{ResultSettings, Stats, Subject};
use crate::pipeline::{self, Error, InputTime, ReferenceRows, Sources, Step, Timing};
pub use early::EarlyStop;
pub use measures::Measures;
use measures::PositionMeasures;
pub use models::{Evaluated, Queue, evaluate_each};
use sidecar::texts_of;
pub use sidecar::{ClaimedSidecar, TokenLog};

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
    /// The evaluated model, whose vocabulary names tokens, if there is one.
    pub vocabulary: Option<&'e dyn Model>,
    /// Checks, after the last row, that the models are those that were loaded.
    pub check_models: &'e dyn Fn() -> Result<(), Error>,
    /// The rule by which it ends before its last window, where it has one.
    pub early: Option<&'e EarlyStop>,
    /// Numbers that these rows cannot give.
    pub not_available: Vec<NotAvailable>,
    /// How long it took to prepare the reference's windows; `None` where they come from a file.
    pub input_time: Option<InputTime>,
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

/// How a run ended.
#[derive(Default)]
enum End {
    /// All that was wanted is measured.
    #[default]
    Whole,
    /// The observer asked to stop.
    Interrupted,
    /// The rest is not worth measuring: why.
    Stopped(String),
}

/// What is measured of an evaluation whose model is not on this machine.
pub struct Recalled {
    log: TokenLog,
    outcome: RunOutcome,
}

/// The results of a run besides its records.
#[derive(Default)]
struct RunOutcome {
    /// One per record, if any were wanted.
    measured: Vec<PositionMeasures>,
    most_divergent: Option<MostDivergent<Vec<u32>>>,
    /// `None` where there was nothing left to do, or not all of it was done.
    timing: Option<Timing>,
    end: End,
    /// The number of windows that were to be evaluated, if known.
    n_windows: Option<u64>,
}

impl Evaluation<'_> {
    /// Scores all rows that an earlier run has not scored, and makes the sidecar and the report.
    /// `sources` make the evaluated rows.
    ///
    /// A sidecar that cannot be written does not lose the numbers, and an interrupted run reports
    /// on what it has.
    pub fn run(
        mut self,
        sidecar: Option<ClaimedSidecar>,
        mut rows: ReferenceRows<'_>,
        sources: Sources<'_>,
    ) -> Result<Evaluated> {
        let loaded = self.started.elapsed();
        self.header.model_path = Some(self.subject.path.display().to_string());
        self.header.label = self.settings.label_of(self.subject);
        self.header.n_records = rows.n_scored();
        let (mut log, n_windows) = (TokenLog::default(), rows.n_windows);
        if let Some(sidecar) = sidecar {
            log = self.open_log(sidecar, &mut rows)?;
        }
        let mut outcome = match self.score(&rows, &mut log, sources) {
            Ok(outcome) => outcome,
            // A bad reference stays bad, and another model would continue what one has begun; all else may
            // succeed another time.
            Err(error) if error.is_of_bad_reference() || error.is_of_changed_model() => {
                log.discard();
                return Err(error.into());
            }
            Err(error) => return Err(with_kept(error.into(), log.keep())),
        };
        outcome.n_windows = n_windows;
        if let Some(timing) = &mut outcome.timing {
            timing.load += loaded;
        }
        let texts = texts_of(&log.records, self.vocabulary);
        Ok(Evaluated {
            reference_rows: rows.rows_here,
            ..self.conclude(log, outcome, texts)?
        })
    }

    /// Ends the log, and makes the report of its records. `texts`: those of their tokens.
    fn conclude(
        &self,
        mut log: TokenLog,
        mut outcome: RunOutcome,
        texts: TokenTexts,
    ) -> Result<Evaluated> {
        let was_whole = log.is_whole();
        let finished = match outcome.end {
            End::Whole => log.finish(&texts),
            End::Interrupted => {
                if let Some(kept) = log.keep() {
                    self.watch.note(&kept);
                }
                Ok(None)
            }
            // It is kept for other limits; this one's would only stop it again.
            End::Stopped(_) => {
                log.keep();
                Ok(None)
            }
        };
        if let (Some(early), End::Whole) = (self.early, &outcome.end) {
            early.add(&self.header, &log.records);
        }
        let (path, sidecar_error) =
            finished.map_or_else(|error| (None, Some(error)), |path| (path, None));
        let row = self.row(&log, path.clone(), texts, outcome.n_windows)?;
        let timing = outcome.timing.take().map(|mut timing| {
            timing.write = log.writing_time;
            timing.input = self.input_time;
            let n_rows = log.records.len() - log.n_resumed;
            timing.info(self.started.elapsed(), n_rows as u64)
        });
        Ok(Evaluated {
            wrote_sidecar: path.is_some() && !was_whole,
            report: ModelReport {
                sidecar: path.map(|path| path.display().to_string()),
                ..self.report(outcome, timing, &log, &row)
            },
            row,
            sidecar_error,
            reference_rows: None,
        })
    }

    /// The evaluation as an earlier run has finished it, or stopped it early, of a model whose path names the same bytes
    /// for ever, as in a hub's cache; `None` where there is none, or this run needs more than records.
    pub fn recall(&mut self, mut sidecar: ClaimedSidecar) -> Option<Recalled> {
        if self.needs_more() {
            return None;
        }
        let path = self.subject.path.display().to_string();
        let is_of_path =
            |header: &SidecarHeader| header.model_path.as_deref() == Some(path.as_str());
        self.header.label = self.settings.label_of(self.subject);
        let Some(finished) = &sidecar.finished else {
            let begun = sidecar
                .cut_off
                .take()
                .filter(|begun| is_of_path(&begun.header))?;
            self.header = begun.header;
            let why = self.early?.why_not(&self.header, &begun.records)?;
            return Some(Recalled {
                log: TokenLog::of_stopped(begun.records),
                outcome: RunOutcome {
                    end: End::Stopped(why),
                    ..RunOutcome::default()
                },
            });
        };
        if !is_of_path(&finished.header) {
            return None;
        }
        self.header.n_records = self.header.n_records.or(finished.header.n_records);
        let records = sidecar.finished_records(&self.header, self.new_klds())?;
        self.header = finished.header.clone();
        if let Some(early) = self.early {
            early.add(&self.header, &records);
        }
        Some(Recalled {
            log: TokenLog::of_finished(records, sidecar.path),
            outcome: RunOutcome::default(),
        })
    }

    /// The evaluation of records that an earlier run has left, without their model.
    ///
    /// # Errors
    /// If their sidecar can no longer be read.
    pub fn conclude_recalled(&self, recalled: Recalled) -> Result<Evaluated> {
        let texts = recalled.log.finished_texts()?;
        self.conclude(recalled.log, recalled.outcome, texts)
    }

    /// Opens the log of records. Windows that an earlier run has measured are removed from `rows`,
    /// unless this run needs more than their records.
    fn open_log(&self, sidecar: ClaimedSidecar, rows: &mut ReferenceRows<'_>) -> Result<TokenLog> {
        if let Some(finished) = &sidecar.finished {
            finished.check(&self.header, false)?;
            if self.header.until.is_some() {
                finished.check_end(self.new_klds(), rows.n_rows.is_some())?;
            }
        }
        let path = sidecar.path.display().to_string();
        if sidecar.is_stale {
            let model = self.subject.path.display();
            self.watch.note(&format!(
                "{model}: is newer than what {path} holds of it: it is evaluated from the start"
            ));
        }
        let needs_more = self.needs_more();
        let (header, until) = (self.header.clone(), self.new_klds());
        sidecar.open(header, until, rows, |records, rows| {
            let message = format!(
                "{path} lacks the numbers for --top-k, --stats logits, or --stats llama-perplexity against a base file: the model is evaluated from the start"
            );
            let warning = Warning::new("measured_anew", message);
            self.watch.warn_all(needs_more.then_some(warning));
            // What may stop early is compared with others in one order.
            Ok(needs_more || self.early.is_some() && !rows.begin_like(records)?)
        })
    }

    /// True if the run needs more than the records of tokens.
    fn needs_more(&self) -> bool {
        self.settings.top_k.is_some() || self.measures.any()
    }

    /// The KLDs of no windows yet; with those that are added, they show when `--until` is reached.
    fn new_klds(&self) -> KldSoFar {
        let (confidence, rule) = (self.settings.confidence, self.settings.clusters);
        KldSoFar::new(self.header.until, confidence, rule)
    }

    /// Scores rows until they end, `--until` is reached, or the observer asks to stop.
    fn score(
        &self,
        rows: &ReferenceRows<'_>,
        log: &mut TokenLog,
        sources: Sources<'_>,
    ) -> Result<RunOutcome, Error> {
        let measures = self.measures;
        let mut outcome = RunOutcome {
            most_divergent: self.settings.top_k.map(|n| MostDivergent::new(n as usize)),
            ..RunOutcome::default()
        };
        let mut klds = self.new_klds();
        klds.replay(&log.records);
        if log.is_whole() || klds.is_reached() {
            return Ok(outcome);
        }
        let why_not = |log: &TokenLog| self.early?.why_not(&self.header, &log.records);
        if let Some(why) = why_not(log) {
            outcome.end = End::Stopped(why);
            return Ok(outcome);
        }
        let mut n_windows = log.n_windows();
        let mut stopped = None;
        let model = self.header.model.as_ref();
        let file_name = model.and_then(|model| model.file_name.as_deref());
        // The cells of a sweep have the name of one file.
        let label = self.header.label.as_deref().or(file_name);
        let phase = self.watch.begin_run(
            label.unwrap_or_default(),
            rows.n_windows,
            rows.n_rows,
            self.outlook(rows, log),
        );
        let measure = |pair: &RowPair<'_>| measures.measure(pair);
        let timing = pipeline::evaluate(sources, rows, measure, |step| {
            match step {
                Step::Rows(n) => phase.rows(n),
                Step::Window(mut window) => {
                    self.annotate(&mut window.records, window.tokens.len());
                    if let Some(most_divergent) = &mut outcome.most_divergent {
                        for record in &window.records {
                            most_divergent.push(record, || {
                                DivergentToken::context_of(&window.tokens, record.position)
                            });
                        }
                    }
                    if measures.any() {
                        outcome.measured.append(&mut window.measured);
                    }
                    let is_enough = klds.push(log.push(window.records));
                    phase.window(klds.mean());
                    n_windows += 1;
                    if self.early.is_some_and(|early| early.looks_after(n_windows)) {
                        stopped = why_not(log);
                    }
                    if is_enough || stopped.is_some() {
                        return Err(Error::Enough);
                    }
                }
            }
            self.watch.check()
        });
        if matches!(timing, Ok(_) | Err(Error::Interrupted)) {
            (self.check_models)()?;
        }
        match timing {
            Ok(timing) => {
                self.watch.warn_of_times(&timing, false);
                outcome.timing = Some(timing);
                outcome.end = stopped.map_or(End::Whole, End::Stopped);
            }
            Err(Error::Interrupted) if !log.records.is_empty() => outcome.end = End::Interrupted,
            Err(error) => return Err(error),
        }
        Ok(outcome)
    }

    /// What the command does besides this evaluation.
    fn outlook(&self, rows: &ReferenceRows<'_>, log: &TokenLog) -> Outlook {
        let n_after = self.watch.n_after();
        // Of a run that goes on, some rows are done.
        let n_rows = self.header.n_records.or(rows.n_rows).unwrap_or(0);
        let n_rows_of_all = self.header.shard.map_or(n_rows, |shard| shard.n_rows);
        Outlook {
            n_after,
            n_rows_after: n_after * n_rows,
            n_limited: if log.n_resumed == 0 { n_rows_of_all } else { 0 },
            may_end_early: self.header.until.is_some()
                || self.early.is_some_and(EarlyStop::may_stop),
        }
    }

    /// Adds to the records of a window of `n_tokens` what its rows do not show: the group, the span of each
    /// next token, and whether that token is special, was chosen greedily, or ends an answer.
    fn annotate(&self, records: &mut [TokenRecord], n_tokens: usize) {
        let Some(window) = records.first().map(|record| record.window) else {
            return;
        };
        let groups = self.reference.groups.as_ref();
        let group = groups.map_or(0, |groups| groups.of_window(window));
        let prompts = self.reference.prompts.as_ref();
        let prompt = prompts.and_then(|prompts| prompts.list.get(window as usize));
        let spans: Vec<u32> = prompt
            .into_iter()
            .flat_map(Prompt::span_of_each)
            .take(n_tokens)
            .collect();
        let is_special = |token| {
            self.vocabulary
                .is_some_and(|vocabulary| vocabulary.is_special(token))
        };
        let (greedy_positions, max_generated) = prompts
            .and_then(|prompts| prompts.greedy(window, n_tokens as u32))
            .unwrap_or_default();
        for record in records {
            let next = record.position + 1;
            record.group = group;
            record.span = spans.get(next as usize).copied().unwrap_or(0);
            if greedy_positions.contains(&next) {
                record.flags |= TokenRecord::NEXT_IS_GREEDY;
                let is_last = next + 1 == greedy_positions.end;
                // Without a vocabulary, an answer that stopped with room left has ended itself.
                let has_room = greedy_positions.len() < max_generated as usize
                    && greedy_positions.end < self.reference.n_ctx;
                let ends_answer = match (self.vocabulary, record.next_token()) {
                    (Some(vocabulary), Some(token)) => vocabulary.is_end_of_generation(token),
                    _ => is_last && has_room,
                };
                if ends_answer {
                    record.flags |= TokenRecord::NEXT_ENDS_ANSWER;
                }
            }
            if record.next_token().is_some_and(is_special) {
                record.flags |= TokenRecord::NEXT_IS_SPECIAL;
            }
        }
    }

    /// Summarises the records, as `kl report` does those of a sidecar.
    fn row(
        &self,
        log: &TokenLog,
        sidecar: Option<PathBuf>,
        texts: TokenTexts,
        n_windows: Option<u64>,
    ) -> Result<MeasuredEvaluation> {
        let records = &log.records;
        let stored = StoredEvaluation {
            header: self.header.clone(),
            sidecars: sidecar.into_iter().map(Sidecar::at).collect(),
            n_records: records.len() as u64,
        };
        let (confidence, rule) = (self.settings.confidence, self.settings.clusters);
        let mut row = MeasuredEvaluation::measure(
            stored,
            confidence,
            rule,
            None,
            &mut TokenTable::default(),
            |_, on_window| {
                TokenRecord::windows(records).try_for_each(on_window)?;
                Ok(texts)
            },
        )?;
        if let Some(until) = &mut row.result.until {
            until.of = n_windows;
        }
        if let Some(n) = self.settings.for_context {
            row.add_memory(n);
        }
        Ok(row)
    }

    /// What the files lack for numbers that would be in the report of `result`.
    fn not_available(&self, result: &ModelResult) -> Vec<NotAvailable> {
        let lacks_memory = self.settings.for_context.is_some() && result.memory.is_none();
        let memory = lacks_memory.then_some(NotAvailable::WITHOUT_CACHE_SIZES);
        self.not_available.iter().cloned().chain(memory).collect()
    }

    /// Makes the report of a result, whose conditions are about its numbers.
    fn report(
        &self,
        outcome: RunOutcome,
        timing: Option<TimingInfo>,
        log: &TokenLog,
        row: &MeasuredEvaluation,
    ) -> ModelReport {
        let (settings, header, records) = (self.settings, &self.header, &log.records);
        let (result, measured) = (row.result.clone(), &outcome.measured);
        let text = |tokens: &[u32]| match self.vocabulary {
            Some(vocabulary) => vocabulary.text(tokens),
            None => TokenTexts::default().text(tokens),
        };
        let max_token = result.summary.kld.as_ref().and_then(|kld| kld.max_at.token);
        let logits = self.measures.logit_metrics(measured);
        let interrupted = |why| Interrupted {
            n_windows: result.summary.n_windows,
            of: outcome.n_windows,
            why,
        };
        let interrupted = match outcome.end {
            End::Whole => None,
            End::Interrupted => Some(interrupted(None)),
            End::Stopped(why) => Some(interrupted(Some(why))),
        };
        let mut report = ModelReport {
            timing,
            set_up: header.backend.clone(),
            max_at_text: max_token.and_then(|token| Some(self.vocabulary?.text(&[token]))),
            interrupted,
            shard: header.shard,
            n_resumed: log.n_resumed as u64,
            llama_perplexity: self.measures.llama_perplexity(records, measured),
            logits: logits.as_ref().map(|metrics| {
                let (confidence, rule) = (settings.confidence, settings.clusters);
                self.measures.summarise(records, metrics, confidence, rule)
            }),
            not_available: self.not_available(&result),
            result,
            ..ModelReport::default()
        };
        self.warn_of_doubts(&report);
        report.conditions = judge(&settings.conditions, &report, settings.allow_excluded);
        report.prompts = self.reference.prompts.as_ref().map(|prompts| {
            let stats = PromptStats::of_each(records, logits.as_deref());
            PromptReport::of_each(&prompts.labels(), stats)
        });
        report.top = outcome.most_divergent.map(|tokens| {
            tokens
                .into_sorted()
                .into_iter()
                .map(|(record, context)| DivergentToken::new(&record, &context, text))
                .collect()
        });
        report.tokens = (settings.json_tokens).then(|| TokenColumns::of(records, text));
        report
    }

    /// Warns of what to know before the numbers are trusted, and of statistics that could not be computed.
    fn warn_of_doubts(&self, report: &ModelReport) {
        let header = &self.header;
        for doubt in doubts_of_model(&report.result, header.prompts, header.shard.is_some()) {
            if doubt.is_about_reference() {
                self.watch.warn_once(doubt);
            } else {
                self.watch.warn(doubt);
            }
        }
        let is_wanted = self.settings.stats.contains(&Stats::LlamaPerplexity);
        if is_wanted && report.llama_perplexity.is_none() {
            let message = format!(
                "llama-perplexity computes no statistics from fewer than {MIN_TOKENS} tokens with a next one, and kl none from infinite scores: --stats llama-perplexity has no effect"
            );
            self.watch
                .warn(Warning::new("no_llama_perplexity", message));
        }
    }
}
