//! The observer, to which a command reports its progress, and which can stop it.

use std::io::ErrorKind;
use std::sync::{Mutex, MutexGuard};

use anyhow::Error;
use kl_formats::Fault;
use kl_report::comparison::Comparison;
use kl_report::{Info, ModelReport, PromptText, ReferenceInfo, Report, Warning};
use kl_system::locked;

use super::output::partial_path;
use crate::input::Generated;
use crate::pipeline::{self, Step, Timing};

/// Receives what a command reports. A command prints nothing itself: it calls this.
pub trait Observer: Sync {
    /// Receives an event.
    fn on_event(&self, event: &Event<'_>);

    /// True if the command should stop. The command asks after each decode call, and keeps what it can.
    fn should_stop(&self) -> bool {
        false
    }
}

/// An observer that ignores every event.
impl Observer for () {
    fn on_event(&self, _event: &Event<'_>) {}
}

/// A report of a command at work.
#[derive(Debug)]
pub enum Event<'e> {
    /// Something that the user should know before trusting the result, which lists it too.
    Warning(&'e Warning),
    /// A line that a person may want to read: what is about to happen, or what was kept.
    Note(&'e str),
    /// A line of the description of what is about to be written: a name and a text.
    Plan(&'e str, &'e str),
    /// Work of known or unknown length begins.
    Begin {
        /// The work, as a verb or a file's name.
        label: &'e str,
        /// Windows to come, or other units of the work, if known.
        n_windows: Option<u64>,
        /// Rows to come, if known.
        n_rows: Option<u64>,
        /// Set if the time that the command takes follows from that of this work.
        outlook: Option<Outlook>,
    },
    /// So many windows and rows are left to do, as is known better than when the work began.
    Left {
        /// Windows.
        n_windows: u64,
        /// Rows.
        n_rows: u64,
    },
    /// This many more rows are done.
    Rows(usize),
    /// A window is done.
    Window {
        /// The mean KLD of all rows so far, in nats.
        mean_kld: Option<f64>,
    },
    /// Answers are generated: what there is of them.
    Generated(Generated),
    /// A file is being loaded or written, and `n_bytes` of it are there.
    File {
        work: FileWork,
        label: &'e str,
        n_bytes: u64,
        n_bytes_in_all: u64,
    },
    /// The work that began last has ended.
    End,
    /// A file was described, and may now be read whole.
    Described(&'e Info),
    /// The file that was described last was read.
    Verified(&'e Info),
    /// The prompts of the reference that was described last were read.
    Prompted(&'e [PromptText]),
    /// A model was evaluated.
    Evaluated {
        model: &'e ModelReport,
        reference: &'e ReferenceInfo,
        /// The index of the model in the run, from 0.
        index: usize,
        /// The number of models in the run.
        n_models: usize,
    },
    /// A file was written: its path.
    Wrote(&'e str),
    /// Of several models only these, by their labels, gave a warning.
    WarningOf(&'e Warning, &'e [String]),
    /// A model could not be evaluated, or an output not written, and the run continues: why, in one
    /// line.
    Failed(&'e str),
    /// The models of a run of several are compared, those that could be evaluated.
    Compared(&'e Comparison),
    /// The result so far: it grows with each model, and is worth saving each time.
    Report(&'e Report),
}

/// What is done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileWork {
    /// It is loaded from a hub.
    Load,
    /// A model is quantized into it, which cannot be asked to stop.
    Quantize,
}

/// What a command does besides the work that begins, a run over the rows of one model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outlook {
    /// The models that follow.
    pub n_after: u64,
    /// Their rows.
    pub n_rows_after: u64,
    /// The rows that `-n` would limit, those of all parts; 0 where it would be another run.
    pub n_limited: u64,
    /// True if a run may end before all rows are done.
    pub may_end_early: bool,
}

/// An observer, and the warnings that it received, which the result lists too.
pub struct Watch<'o> {
    observer: &'o dyn Observer,
    warnings: Mutex<Warnings>,
}

/// Warnings, and which models of a run gave them.
#[derive(Default)]
struct Warnings {
    /// The model that is evaluated now, by its index.
    model: Option<usize>,
    /// The models that are evaluated after it.
    n_after: u64,
    /// Each warning, and the models that gave it: `None` where it is about all of the run.
    given: Vec<(Warning, Option<Vec<usize>>)>,
}

impl<'o> Watch<'o> {
    /// Watches with `observer`.
    pub fn new(observer: &'o dyn Observer) -> Self {
        Self {
            observer,
            warnings: Mutex::default(),
        }
    }

    /// Reports an event.
    pub fn event(&self, event: &Event<'_>) {
        self.observer.on_event(event);
    }

    /// Reports a warning, and keeps it for the result. One that was given already is not repeated.
    pub fn warn(&self, warning: Warning) {
        let model = self.locked().model;
        self.give(&warning, model, |known| *known == warning);
    }

    /// Reports a warning about the reference for the first model alone: the others would repeat it
    /// with other digits.
    pub fn warn_once(&self, warning: Warning) {
        self.give(&warning, None, |known| known.kind() == warning.kind());
    }

    fn give(&self, warning: &Warning, model: Option<usize>, is_same: impl Fn(&Warning) -> bool) {
        let mut warnings = self.locked();
        let known_warning = warnings.given.iter_mut().find(|(known, _)| is_same(known));
        if let Some((_, models)) = known_warning {
            models.iter_mut().for_each(|models| models.extend(model));
            return;
        }
        let models = model.map(|model| vec![model]);
        warnings.given.push((warning.clone(), models));
        // The observer may take its time, or ask for the warnings.
        drop(warnings);
        self.event(&Event::Warning(warning));
    }

    /// Reports warnings in turn, as [`Watch::warn`] does.
    pub fn warn_all(&self, warnings: impl IntoIterator<Item = Warning>) {
        warnings.into_iter().for_each(|warning| self.warn(warning));
    }

    /// Warns of what slowed a run down. `is_writing`: true if it wrote a reference.
    pub fn warn_of_times(&self, timing: &Timing, is_writing: bool) {
        let message =
            "not enough memory for a second context: one is used (--contexts 1 silences this)";
        self.warn_all((timing.refused > 0).then(|| Warning::new("fewer_contexts", message)));
        let device = timing.device.as_ref();
        self.warn_all(device.and_then(|device| Warning::of_device(device, is_writing)));
    }

    /// Tells which model of the run is evaluated from now on, by its index, and how many follow; `None`: none is.
    pub fn set_model(&self, model: Option<usize>, n_after: u64) {
        let mut warnings = self.locked();
        (warnings.model, warnings.n_after) = (model, n_after);
    }

    /// The models that are evaluated after the one that is now.
    pub fn n_after(&self) -> u64 {
        self.locked().n_after
    }

    /// Reports the warnings that only some of these models gave, by their indices and labels, unless
    /// a warning itself names the model.
    pub fn warn_of_some(&self, models: &[(usize, String)]) {
        let warnings = self.locked().given.clone();
        for (warning, indices) in &warnings {
            let Some(indices) = indices.as_ref().filter(|_| !warning.names_model()) else {
                continue;
            };
            let labels: Vec<String> = models
                .iter()
                .filter(|(index, _)| indices.contains(index))
                .map(|(_, label)| label.clone())
                .collect();
            if !labels.is_empty() && labels.len() < models.len() {
                self.event(&Event::WarningOf(warning, &labels));
            }
        }
    }

    /// Reports a line that a person may want to read.
    pub fn note(&self, line: &str) {
        self.event(&Event::Note(line));
    }

    /// All warnings so far.
    pub fn warnings(&self) -> Vec<Warning> {
        self.locked()
            .given
            .iter()
            .map(|(warning, _)| warning.clone())
            .collect()
    }

    /// True if the command should stop.
    pub fn should_stop(&self) -> bool {
        self.observer.should_stop()
    }

    /// Returns an error if the command should stop.
    pub fn check(&self) -> Result<(), pipeline::Error> {
        if self.should_stop() {
            return Err(pipeline::Error::Interrupted);
        }
        Ok(())
    }

    /// Begins a piece of work whose progress is shown; what is counted as windows may be another unit.
    pub fn begin(&self, label: &str, n_windows: Option<u64>, n_rows: Option<u64>) -> Phase<'_> {
        self.begin_work(label, n_windows, n_rows, None)
    }

    /// Begins a run over the rows of one model.
    pub fn begin_run(
        &self,
        label: &str,
        n_windows: Option<u64>,
        n_rows: Option<u64>,
        outlook: Outlook,
    ) -> Phase<'_> {
        self.begin_work(label, n_windows, n_rows, Some(outlook))
    }

    fn begin_work(
        &self,
        label: &str,
        n_windows: Option<u64>,
        n_rows: Option<u64>,
        outlook: Option<Outlook>,
    ) -> Phase<'_> {
        self.event(&Event::Begin {
            label,
            n_windows,
            n_rows,
            outlook,
        });
        Phase { watch: self }
    }

    fn locked(&self) -> MutexGuard<'_, Warnings> {
        locked(&self.warnings)
    }
}

/// A piece of work under way; it ends when this is dropped.
pub struct Phase<'w> {
    watch: &'w Watch<'w>,
}

impl Phase<'_> {
    /// Reports that `n` more rows are done.
    pub fn rows(&self, n: usize) {
        self.watch.event(&Event::Rows(n));
    }

    /// Reports how many windows and rows are left to do.
    pub fn expect(&self, n_windows: u64, n_rows: u64) {
        self.watch.event(&Event::Left { n_windows, n_rows });
    }

    /// Reports that a window is done.
    pub fn window(&self, mean_kld: Option<f64>) {
        self.watch.event(&Event::Window { mean_kld });
    }

    /// Reports what has been generated.
    pub fn generated(&self, so_far: Generated) {
        self.watch.event(&Event::Generated(so_far));
    }

    /// Reports a step of writing.
    ///
    /// # Errors
    /// [`pipeline::Error::Interrupted`] if the observer wants to stop.
    pub fn step<W>(&self, step: Step<W>) -> Result<(), pipeline::Error> {
        match step {
            Step::Rows(n) => self.rows(n),
            Step::Window(_) => self.window(None),
        }
        self.watch.check()
    }
}

impl Drop for Phase<'_> {
    fn drop(&mut self) {
        self.watch.event(&Event::End);
    }
}

/// An error and its causes, in one line. If an interrupted run has left a file unfinished, the line states
/// how to finish it.
pub fn one_line(error: &Error) -> String {
    let line = format!("{error:#}").replace('\n', " ");
    match error.downcast_ref().and_then(how_to_finish) {
        Some(advice) => format!(
            "{}; {advice}",
            line.trim_end_matches("; copy or write it again")
        ),
        None => line,
    }
}

/// Advice about a file that an interrupted run has not finished.
fn how_to_finish(error: &kl_formats::Error) -> Option<String> {
    const ADVICE: &str =
        "if no kl is writing it, the command that began it finishes it with --resume";
    let (path, partial) = (&error.path, partial_path(&error.path));
    let is_partial = path.extension().is_some_and(|ending| ending == "partial");
    match &error.fault {
        Fault::Truncated { .. } | Fault::Corrupt { .. } if is_partial => Some(ADVICE.to_owned()),
        Fault::Io { cause, .. } if cause.kind() == ErrorKind::NotFound && partial.exists() => {
            Some(format!("{} is not finished: {ADVICE}", partial.display()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Stays in its callback until it is released.
    struct Slow {
        called: mpsc::SyncSender<()>,
        released: Mutex<mpsc::Receiver<()>>,
    }

    impl Observer for Slow {
        fn on_event(&self, _event: &Event<'_>) {
            self.called.send(()).unwrap();
            let released = self.released.lock().unwrap();
            released.recv_timeout(Duration::from_secs(5)).unwrap();
        }
    }

    #[test]
    fn warnings_can_be_listed_while_the_observer_is_told_of_one() {
        let (called, is_called) = mpsc::sync_channel(1);
        let (release, released) = mpsc::channel();
        let released = Mutex::new(released);
        let observer = Slow { called, released };
        let watch = &Watch::new(&observer);
        thread::scope(|scope| {
            scope.spawn(|| watch.warn(Warning::new("crlf", "")));
            is_called.recv().unwrap();
            assert_eq!(watch.warnings(), [Warning::new("crlf", "")]);
            release.send(()).unwrap();
        });
    }
}
