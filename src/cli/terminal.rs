//! The terminal as an observer: what a command reports becomes lines, a progress bar and files.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use kl_system::locked;
use terminal_size::{Width, terminal_size_of};

use super::progress::{FileProgress, Progress};
use super::results::Results;
use super::{say_wrote, stop};
use crate::commands::settings::{ResultSettings, Stats};
use crate::commands::{Event, FileWork, Observer, one_line};
use crate::report::comparison::Comparison;
use crate::report::layout::{UNBOUNDED, View, WIDTH};
use crate::report::{
    ModelReport, ReferenceInfo, Verdict, Warning, info_text, model_line, prompts_text, text_report,
    verified_text,
};

/// Prints what a command reports: results to stdout, everything else to stderr.
pub struct Terminal<'s> {
    quiet: bool,
    /// True if each of several models is shown in a line, in place of its report.
    brief: bool,
    view: View,
    /// True once a run has begun whose time shows that of the command.
    is_forecast: AtomicBool,
    progress: Mutex<Option<Progress>>,
    file: Mutex<Option<FileProgress>>,
    results: Mutex<Results<'s>>,
}

impl<'s> Terminal<'s> {
    /// A terminal that shows of each model what `view` asks for, or if `brief` a line.
    pub fn new(quiet: bool, brief: bool, view: View, results: Results<'s>) -> Self {
        Self {
            quiet,
            brief,
            view,
            is_forecast: AtomicBool::new(false),
            progress: Mutex::default(),
            file: Mutex::default(),
            results: Mutex::new(results),
        }
    }

    /// The results, once the command is done.
    pub fn into_results(self) -> Results<'s> {
        let results = self.results.into_inner();
        results.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Terminal<'_> {
    /// Shows how much of a file is there.
    fn show_file(&self, label: &str, n_bytes: u64, n_bytes_in_all: u64) {
        if !self.quiet {
            let mut file = locked(&self.file);
            let begin = || FileProgress::new(label, n_bytes, n_bytes_in_all);
            file.get_or_insert_with(begin).update(n_bytes);
        }
    }

    /// True if a warning is about intervals that a model's line does not show: the table's have
    /// clusters of their own.
    fn leaves_to_table(&self, warning: &Warning) -> bool {
        self.brief && warning.is_about_intervals()
    }

    /// Prints the report of one of several models, or a line where a table follows, and its conditions.
    fn show_model(&self, model: &ModelReport, reference: &ReferenceInfo, place: (usize, usize)) {
        // One that was cut off is not in the table that follows: its report has its numbers.
        if !self.brief || model.was_cut_off() {
            let text = text_report(model, reference, self.view);
            locked(&self.results).show(&text);
        } else if !self.quiet {
            say!("{}", model_line(model, place, reference.unit()));
        }
        // An interrupted evaluation's numbers are not those that were asked about.
        if model.interrupted.is_none() {
            let quiet = self.quiet || self.brief;
            show_conditions(&model.model.path, &model.conditions, quiet);
        }
    }

    /// Prints the comparison of several models; if only one is left, its report.
    fn show_comparison(&self, comparison: &Comparison) {
        let warnings = comparison.warnings.iter();
        for warning in warnings.filter(|warning| self.leaves_to_table(warning)) {
            say!("kl: warning: {warning}");
        }
        let text = match comparison.only_report(self.view) {
            Some(_) if !self.brief => return,
            Some(report) => report,
            None => comparison.text(self.view),
        };
        locked(&self.results).show(&text);
    }
}

impl Observer for Terminal<'_> {
    fn on_event(&self, event: &Event<'_>) {
        let results = || locked(&self.results);
        let progress = || locked(&self.progress);
        match *event {
            Event::Warning(warning) | Event::WarningOf(warning, _)
                if self.leaves_to_table(warning) => {}
            Event::Warning(warning) => say!("kl: warning: {warning}"),
            Event::WarningOf(warning, labels) => {
                say!("kl: warning: of {} only: {warning}", labels.join(", "));
            }
            Event::Note(line) => say!("kl: {line}"),
            Event::Plan(name, text) if !self.quiet => say!("{name:<8} {text}"),
            Event::Plan(..) => {}
            Event::Begin {
                label,
                n_windows,
                n_rows,
                outlook,
            } => {
                stop::begin();
                // The first run's forecast is that of the command.
                let is_first = outlook.is_some() && !self.is_forecast.swap(true, Ordering::Relaxed);
                let outlook = outlook.filter(|_| is_first);
                let shown = || Progress::new(label, n_windows, n_rows, outlook);
                *progress() = (!self.quiet).then(shown);
            }
            Event::Left { n_windows, n_rows } => {
                progress()
                    .iter_mut()
                    .for_each(|of| of.left(n_windows, n_rows));
            }
            Event::Rows(n) => progress().iter_mut().for_each(|of| of.rows(n)),
            Event::Generated(so_far) => progress().iter_mut().for_each(|of| of.generated(so_far)),
            Event::Window { mean_kld } => progress().iter_mut().for_each(|of| of.window(mean_kld)),
            Event::File {
                work,
                label,
                n_bytes,
                n_bytes_in_all,
            } => {
                let verb = match work {
                    FileWork::Load => {
                        stop::begin_loading();
                        "loading"
                    }
                    FileWork::Quantize => {
                        stop::begin_without_asking();
                        "quantizing"
                    }
                };
                self.show_file(&format!("{verb} {label}"), n_bytes, n_bytes_in_all);
            }
            Event::End => {
                stop::end();
                *locked(&self.file) = None;
                *progress() = None;
            }
            Event::Described(info) => results().show(&info_text(info)),
            Event::Verified(info) => results().print_text(&verified_text(info)),
            Event::Prompted(texts) => results().print_text(&prompts_text(texts)),
            Event::Evaluated {
                model,
                reference,
                index,
                n_models,
            } => self.show_model(model, reference, (index, n_models)),
            Event::Wrote(path) => say_wrote(path, self.quiet),
            Event::Compared(comparison) => self.show_comparison(comparison),
            Event::Failed(error) => say!("kl: {error}"),
            Event::Report(report) => {
                let mut results = results();
                if let Err(error) = results.save(|_| Ok(report.json()?)) {
                    say!("kl: {}", one_line(&error));
                    results.has_failed = true;
                }
            }
        }
    }

    fn should_stop(&self) -> bool {
        stop::asked()
    }
}

/// The amount of a report that is shown.
#[derive(Debug, Clone, Copy, Default)]
pub struct Detail {
    /// True if every number is shown, not only those that most people decide by.
    pub full: bool,
    /// True if tables show where the KLD comes from.
    pub breakdown: bool,
}

impl Detail {
    /// What a text on stdout shows.
    pub fn view(self) -> View {
        View {
            width: stdout_width(),
            full: self.full,
            breakdown: self.breakdown,
        }
    }

    /// True if each of `n` models is shown in a line, and all of them in a table. Only whole reports show
    /// what is asked for besides the numbers of the table.
    pub fn is_brief(self, n: usize, results: &ResultSettings) -> bool {
        let breaks_down = self.breakdown || results.top_k.is_some();
        let more = breaks_down || results.stats.iter().any(|stats| *stats != Stats::Kl);
        n > 1 && !self.full && !more
    }
}

/// The widest line of a table on stdout: the terminal's width, or none where nobody folds lines.
pub fn stdout_width() -> usize {
    let stdout = io::stdout();
    if !stdout.is_terminal() {
        return UNBOUNDED;
    }
    terminal_size_of(stdout).map_or(WIDTH, |(Width(columns), _)| columns.into())
}

/// Prints the outcome of each condition on what is at `path`; with `quiet`, as with `-q` or where each
/// model has a line, only of those that failed.
pub fn show_conditions(path: &str, verdicts: &[Verdict], quiet: bool) {
    for verdict in verdicts.iter().filter(|verdict| verdict.failed || !quiet) {
        say!("kl: {path}: {verdict}");
    }
}
