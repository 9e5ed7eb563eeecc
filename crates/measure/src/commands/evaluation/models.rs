//! Several evaluations against one reference, one after another: what is done stays done.

use anyhow::{Error, Result, anyhow};
use kl_engine::EngineError;
use kl_report::comparison::{Comparison, DEFAULT_NEAR};
use kl_report::{Failure, ModelReport, ReferenceInfo, Report, RowsHere, faulty_rows};

use crate::commands::Shelf;
use crate::commands::observer::{Event, Watch, one_line};
use crate::commands::output::Existing;
use crate::commands::report::{Comparer, MeasuredEvaluation};
use crate::commands::settings::{ResultSettings, Subject};

/// An evaluation that came to an end.
pub struct Evaluated {
    pub report: ModelReport,
    /// Its row in the table of several.
    pub row: MeasuredEvaluation,
    /// True if its sidecar was written: it may have been whole already.
    pub wrote_sidecar: bool,
    /// Why its sidecar could not be written, if it could not.
    pub sidecar_error: Option<Error>,
    /// Where the reference's rows were computed; `None` where they are stored.
    pub reference_rows: Option<RowsHere>,
}

/// The evaluations of a run that can be done, and why the others cannot.
pub struct Queue<'q> {
    watch: &'q Watch<'q>,
    /// Those that can, each with its index among all.
    usable: Vec<(usize, &'q Subject)>,
    /// The number of all.
    n_subjects: usize,
    /// The models of a hub, among which a pattern may have chosen files that are not models by themselves.
    shelf: &'q Shelf,
    /// Those that were skipped for that.
    skipped: Vec<Failure>,
    /// The report so far.
    report: Report,
}

impl<'q> Queue<'q> {
    /// All evaluations of a run.
    pub fn new(watch: &'q Watch<'q>, subjects: &'q [Subject], shelf: &'q Shelf) -> Self {
        Self {
            watch,
            shelf,
            skipped: Vec::new(),
            usable: subjects.iter().enumerate().collect(),
            n_subjects: subjects.len(),
            report: Report::default(),
        }
    }

    /// Checks the evaluations before hours are spent on others, or on the reference: those that cannot
    /// be done are reported, and leave the queue.
    pub fn look_ahead(&mut self, check: impl Fn(&Subject) -> Result<()>) {
        for (index, subject) in std::mem::take(&mut self.usable) {
            match check(subject) {
                Ok(()) => self.usable.push((index, subject)),
                Err(error) => self.fail(subject, &error),
            }
        }
    }

    /// The evaluations that can be done.
    pub fn subjects(&self) -> impl Iterator<Item = &'q Subject> {
        self.usable.iter().map(|(_, subject)| *subject)
    }

    /// True if no evaluation can be done.
    pub fn is_empty(&self) -> bool {
        self.usable.is_empty()
    }

    /// Notes that an evaluation could not be done, and reports it where others follow. A file that is no model
    /// by itself is skipped if nobody has asked for it by its name.
    fn fail(&mut self, subject: &Subject, error: &Error) {
        if let Some(EngineError::NotAModel { path, found }) = error.downcast_ref()
            && self.shelf.has_by_pattern(&subject.path)
        {
            let shown_path = path.display();
            self.watch.note(&format!(
                "{shown_path}: skipped: {}",
                found.in_place_of_a_model()
            ));
            self.skipped.push(Failure {
                path: shown_path.to_string(),
                error: one_line(error),
            });
            return;
        }
        let suffix = subject.suffix().map(|suffix| format!("{suffix}: "));
        let error = suffix.unwrap_or_default() + &one_line(error);
        if self.n_subjects > 1 {
            self.watch.event(&Event::Failed(&error));
        }
        self.report.failed.push(Failure {
            path: subject.path.display().to_string(),
            error,
        });
    }

    /// Adds an evaluation to the report, tells the observer, and returns its row.
    fn add(&mut self, subject: &Subject, index: usize, evaluated: Evaluated) -> MeasuredEvaluation {
        let (watch, model) = (self.watch, evaluated.report);
        if let (Some(states), Some(rows)) =
            (&mut self.report.reference.states, evaluated.reference_rows)
        {
            states.here = Some(rows);
        }
        if let Some(error) = evaluated.sidecar_error {
            let error = one_line(&error);
            watch.event(&Event::Failed(&error));
            self.report.unwritten.push(error);
        }
        watch.event(&Event::Evaluated {
            model: &model,
            reference: &self.report.reference,
            index,
            n_models: self.n_subjects,
        });
        if model.summary.n_tokens == 0 && model.interrupted.is_none() {
            let path = subject.path.display();
            let why = faulty_rows(model.summary.all_excluded());
            self.fail(subject, &anyhow!("{path}: no token could be scored: {why}"));
        }
        if let Some(sidecar) = model.sidecar.as_ref().filter(|_| evaluated.wrote_sidecar) {
            watch.event(&Event::Wrote(sidecar));
        }
        self.report.models.push(model);
        evaluated.row
    }

    /// Tells the observer the report so far.
    fn publish(&mut self) {
        self.report.warnings = self.watch.warnings();
        self.watch.event(&Event::Report(&self.report));
    }
}

/// Evaluates models, or files with their rows. The observer gets the report so far after each, and at
/// the end a comparison of several. One that cannot be evaluated does not stop the others.
pub fn evaluate_each(
    reference: ReferenceInfo,
    mut queue: Queue<'_>,
    settings: &ResultSettings,
    mut evaluate: impl FnMut(&Subject) -> Result<Evaluated>,
) -> Report {
    let (watch, is_of_several) = (queue.watch, queue.n_subjects > 1);
    let mut labels = Vec::new();
    let mut comparer = Comparer::new(settings.confidence, settings.clusters, DEFAULT_NEAR);
    comparer.for_context = settings.for_context;
    let mut waiting = std::mem::take(&mut queue.usable).into_iter();
    queue.report.reference = reference;
    queue.report.complete = waiting.len() == 0;
    queue.publish();
    while let Some((index, subject)) = waiting.next().filter(|_| !watch.should_stop()) {
        let n_after = waiting
            .as_slice()
            .iter()
            .filter(|(_, next)| !is_done(settings, next))
            .count();
        watch.set_model(is_of_several.then_some(index), n_after as u64);
        match evaluate(subject) {
            Ok(evaluated) => {
                let was_cut_off = evaluated.report.was_cut_off();
                let is_whole = evaluated.report.interrupted.is_none();
                labels.push((index, evaluated.report.label.clone()));
                let row = queue.add(subject, index, evaluated);
                if is_of_several && is_whole {
                    comparer.rows.push(row);
                }
                if was_cut_off {
                    queue.publish();
                    break;
                }
            }
            Err(_) if watch.should_stop() => break,
            Err(error) => queue.fail(subject, &error),
        }
        queue.report.complete = waiting.len() == 0;
        queue.publish();
    }
    watch.set_model(None, 0);
    let mut report = queue.report;
    if report.models.is_empty() && report.failed.is_empty() {
        report.failed = queue.skipped;
    }
    if !comparer.rows.is_empty() {
        let comparison = compare(settings, comparer, &report.models, watch);
        watch.event(&Event::Compared(&comparison));
    }
    watch.warn_of_some(&labels);
    report.warnings = watch.warnings();
    report
}

/// True if an earlier run that this one resumes has finished an evaluation, as far as names show it.
fn is_done(settings: &ResultSettings, subject: &Subject) -> bool {
    let path = || settings.sidecar_path(subject);
    settings.existing == Existing::Resume && path().is_some_and(|path| path.exists())
}

/// Compares the models of a run. Without sidecars, or if the models were evaluated on different
/// tokens, there are no ratios, and the table says why.
fn compare(
    settings: &ResultSettings,
    mut comparer: Comparer,
    models: &[ModelReport],
    watch: &Watch<'_>,
) -> Comparison {
    let lacks_sidecar =
        |model: &ModelReport| model.interrupted.is_none() && model.sidecar.is_none();
    let no_sidecar = "not every model has left a sidecar";
    let reason = if watch.should_stop() {
        "the run was interrupted"
    } else if settings.no_sidecar {
        "--no-sidecar leaves nothing to compare the models by, token by token"
    } else if settings.part.is_some() {
        "these are parts: kl report compares them once all are there"
    } else if models.iter().any(lacks_sidecar) {
        no_sidecar
    } else {
        match comparer.compare(watch) {
            Ok(comparison) if comparison.not_compared.is_empty() => return comparison,
            Ok(_) => "the models were not evaluated on the same tokens (--until, -n)",
            Err(_) => no_sidecar,
        }
    };
    comparer.without_pairs(reason)
}
