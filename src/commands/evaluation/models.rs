//! Several evaluations against one reference, one after another: what is done stays done.

use anyhow::{Error, Result, anyhow};

use crate::commands::observer::{Event, Watch, one_line};
use crate::commands::report::{Comparer, Row};
use crate::commands::settings::ResultSettings;
use crate::commands::subject::Subject;
use crate::pipeline::RowsHere;
use crate::report::comparison::{Comparison, NEAR};
use crate::report::{Failure, ModelReport, ReferenceInfo, Report};

/// An evaluation that came to an end.
pub struct Evaluated {
    pub report: ModelReport,
    /// Its row in the table of several.
    pub row: Row,
    /// True if its sidecar was written: it may have been whole already.
    pub wrote: bool,
    /// Why its sidecar could not be written, if it could not.
    pub unwritten: Option<Error>,
    /// Where the reference's rows were computed; `None` where they are stored.
    pub here: Option<RowsHere>,
}

/// The evaluations of a run that can be done, and why the others cannot.
pub struct Queue<'q> {
    watch: &'q Watch<'q>,
    /// Those that can, each with its index among all.
    usable: Vec<(usize, &'q Subject)>,
    failed: Vec<Failure>,
    n: usize,
}

impl<'q> Queue<'q> {
    /// All evaluations of a run.
    pub fn new(watch: &'q Watch<'q>, subjects: &'q [Subject]) -> Self {
        Self {
            watch,
            usable: subjects.iter().enumerate().collect(),
            failed: Vec::new(),
            n: subjects.len(),
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

    /// Whether no evaluation can be done.
    pub fn is_empty(&self) -> bool {
        self.usable.is_empty()
    }

    /// Whether the run has more than one evaluation.
    fn has_several(&self) -> bool {
        self.n > 1
    }

    /// Notes that an evaluation could not be done, and reports it where others follow.
    fn fail(&mut self, subject: &Subject, error: &Error) {
        let error = one_line(error);
        let error = match &subject.cell {
            Some(cell) => format!("{cell}: {error}"),
            None => error,
        };
        if self.has_several() {
            self.watch.event(&Event::Failed(&error));
        }
        self.failed.push(Failure {
            path: subject.path.display().to_string(),
            error,
        });
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
    let watch = queue.watch;
    let mut report = Report {
        reference,
        ..Report::default()
    };
    let several = queue.has_several();
    let mut evaluated_models = Vec::new();
    let mut comparer = Comparer::new(settings.confidence, settings.clusters, NEAR);
    let usable = std::mem::take(&mut queue.usable);
    report.complete = usable.is_empty();
    publish(&queue, &mut report);
    for (i, (index, subject)) in usable.iter().copied().enumerate() {
        if watch.should_stop() {
            break;
        }
        watch.evaluates(several.then_some(index));
        match evaluate(subject) {
            Ok(evaluated) => {
                if let Some(states) = &mut report.reference.states {
                    states.here = evaluated.here;
                }
                if let Some(error) = evaluated.unwritten {
                    let error = one_line(&error);
                    watch.event(&Event::Failed(&error));
                    report.unwritten.push(error);
                }
                let model = evaluated.report;
                let is_interrupted = model.interrupted.is_some();
                if several && !is_interrupted {
                    comparer.push(index, evaluated.row);
                }
                evaluated_models.push((index, model.label.clone()));
                let written = model.sidecar.clone().filter(|_| evaluated.wrote);
                watch.event(&Event::Evaluated {
                    model: &model,
                    reference: &report.reference,
                    index,
                    of: queue.n,
                });
                if model.summary.n_tokens == 0 && !is_interrupted {
                    let path = subject.path.display();
                    queue.fail(subject, &anyhow!("{path}: no token could be scored"));
                }
                report.models.push(model);
                if let Some(sidecar) = written {
                    watch.event(&Event::Wrote(&sidecar));
                }
                if is_interrupted {
                    publish(&queue, &mut report);
                    break;
                }
            }
            Err(_) if watch.should_stop() => break,
            Err(error) => queue.fail(subject, &error),
        }
        report.complete = i + 1 == usable.len();
        publish(&queue, &mut report);
    }
    watch.evaluates(None);
    if comparer.n_rows() > 0 {
        let comparison = compare(settings, comparer, &report.models, watch);
        watch.event(&Event::Compared(&comparison));
    }
    watch.warn_of_some(&evaluated_models);
    report.warnings = watch.warnings();
    report.failed = queue.failed;
    report
}

fn publish(queue: &Queue<'_>, report: &mut Report) {
    report.warnings = queue.watch.warnings();
    report.failed.clone_from(&queue.failed);
    queue.watch.event(&Event::Report(report));
}

/// Compares the models of a run. Without sidecars, or if the models were evaluated on different
/// tokens, there are no ratios, and the table says why.
fn compare(
    settings: &ResultSettings,
    comparer: Comparer,
    models: &[ModelReport],
    watch: &Watch<'_>,
) -> Comparison {
    let is_unwritten = |model: &ModelReport| model.interrupted.is_none() && model.sidecar.is_none();
    let no_sidecar = "not every model has left a sidecar";
    let why = match () {
        () if watch.should_stop() => "the run was interrupted",
        () if !settings.has_sidecar() => {
            "--no-sidecar leaves nothing to compare the models by, token by token"
        }
        () if settings.part.is_some() => {
            "these are parts: kl report compares them once all are there"
        }
        () if models.iter().any(is_unwritten) => no_sidecar,
        () => match comparer.compare(watch) {
            Ok(comparison) if comparison.not_compared.is_empty() => return comparison,
            Ok(_) => "the models were not evaluated on the same tokens (--until, -n)",
            Err(_) => no_sidecar,
        },
    };
    comparer.without_pairs(why)
}
