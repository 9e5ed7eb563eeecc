//! Compares stored rows with stored rows, without a model. Rows of hidden states are computed on
//! the CPU.

mod pairs;

use std::collections::HashMap;
use std::io::Read;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};
use kl_engine::Engine;
use kl_formats::{
    About, ModelIdentity, Reference, ReferenceSummary, SidecarHeader, States, WindowSpec,
};
use kl_report::{NotAvailable, ReferenceInfo, Report};

use super::Shelf;
use super::context::check_models;
use super::evaluation::{
    ClaimedSidecar, Evaluated, Evaluation, Measures, Queue, evaluate_each, header_against,
};
use super::observer::{Observer, Watch};
use super::pipe::{self, is_pipe};
use super::reference::{
    EvaluatedEntries, check_vocabulary, open_again, open_rows, read_windows, warn_of_overlap,
};
use super::settings::{CompareSettings, Subject};
use crate::pipeline::{FileRows, Sources};
use pairs::{Side, WindowPair, pair};

/// Compares every file with the reference.
///
/// # Errors
/// What is wrong with the reference. A file that cannot be compared is listed in the report.
pub fn compare(
    settings: &CompareSettings,
    engine: &dyn Engine,
    observer: &dyn Observer,
) -> Result<Report> {
    let watch = &Watch::new(observer);
    let paths = [&settings.reference].into_iter().chain(&settings.others);
    pipe::refuse_same_pipe(paths.map(PathBuf::as_path))?;
    let is_read_once = is_pipe(&settings.reference);
    if is_read_once && settings.others.len() > 1 {
        bail!(
            "{}: is a pipe, which can be read once: compare one file with it",
            settings.reference.display()
        );
    }
    let reference = pipe::open(&settings.reference, watch)?;
    warn_of_overlap(&reference, watch);
    let info = ReferenceInfo::new(reference.about());
    let windows = read_windows(&reference, watch)?;
    let summary = ReferenceSummary::of(&reference)?;
    let mut header = header_against(reference.about(), summary, None);
    header.stored = true;
    let mut open_pipe = is_read_once.then_some(reference);
    let subjects: Vec<Subject> = settings
        .others
        .iter()
        .map(|path| Subject::new(path))
        .collect();
    let shelf = Shelf::default();
    let mut queue = Queue::new(watch, &subjects, &shelf);
    queue.look_ahead(|subject| {
        let sidecar = ClaimedSidecar::claim(&settings.results, subject)?;
        let finished = sidecar.and_then(|sidecar| sidecar.finished);
        if is_pipe(&subject.path) {
            // Its rows are known at its end, after hours perhaps.
            return match finished {
                Some(finished) => finished.refuse_pipe(&subject.path),
                None => Ok(()),
            };
        }
        let mut expected = header.clone();
        expected.model = Some(identity(Reference::open(&subject.path)?.about()));
        if let Some(finished) = finished {
            finished.check(&expected, true)?;
        }
        Ok(())
    });
    Ok(evaluate_each(info, queue, &settings.results, |subject| {
        // Opened anew for each file: a stream can only be read from its start.
        let reference = match open_pipe.take() {
            Some(pipe) => pipe,
            None => open_again(&settings.reference, &header.reference)?,
        };
        compare_one(
            settings,
            engine,
            watch,
            subject,
            reference,
            &windows,
            header.clone(),
        )
    }))
}

/// Compares one file with the `reference`, which has these `windows`. Sidecars get `header`, completed by the
/// file's own facts. `engine` computes rows of hidden states.
fn compare_one(
    settings: &CompareSettings,
    engine: &dyn Engine,
    watch: &Watch<'_>,
    subject: &Subject,
    reference: Reference,
    windows: &[WindowSpec],
    mut header: SidecarHeader,
) -> Result<Evaluated> {
    let started = Instant::now();
    let sidecar = ClaimedSidecar::claim(&settings.results, subject)?;
    let other = pipe::open(&subject.path, watch)?;
    let (about, other_about) = (reference.about().clone(), other.about().clone());
    let n_compared = check_entries(settings, &about, &other_about, watch)?;
    let model = identity(&other_about);
    check_models(about.model.as_ref(), &model, watch);
    header.model = Some(model);
    header.n_vocab_compared = Some(n_compared);
    header.backend.clone_from(&other_about.backend);
    let other_windows = read_windows(&other, watch)?;
    let pairs = pair(
        Side {
            file: &reference,
            windows,
        },
        Side {
            file: &other,
            windows: &other_windows,
        },
        settings.max_rows,
        watch,
    )?;
    let load_head = |states: &States, section: &mut dyn Read| {
        engine.load_head(states, section, settings.threads)
    };
    let reference_rows = open_rows(reference, load_head, watch)?;
    let has_tokens = pairs.iter().any(|pair| !pair.window.tokens.is_empty());
    let evaluation = Evaluation {
        subject,
        reference: &about,
        settings: &settings.results,
        watch,
        header,
        measures: Measures::new(&settings.results.stats, &about, Some(&other_about)),
        vocabulary: None,
        check_models: &|| Ok(()),
        early: None,
        not_available: Vec::from_iter((!has_tokens).then_some(NotAvailable::WITHOUT_TOKEN_IDS)),
        input_time: None,
        started,
    };
    let indices = |index: fn(&WindowPair) -> usize| pairs.iter().map(index).collect::<Vec<_>>();
    let windows = pairs.iter().map(|pair| pair.window.clone()).collect();
    let mut rows =
        reference_rows.with_windows(indices(|pair| pair.index), windows, settings.max_rows);
    rows.n_entries = n_compared as usize;
    let other_windows_by_number: HashMap<u32, WindowSpec> = pairs
        .iter()
        .map(|pair| (pair.window.window, pair.other.clone()))
        .collect();
    let other_rows =
        open_rows(other, load_head, watch)?.with_order(indices(|pair| pair.other_index));
    let source = FileRows::new(&other_rows, other_windows_by_number);
    evaluation.run(sidecar, rows, Sources::ready(source))
}

/// Returns how many entries of each row can be compared.
fn check_entries(
    settings: &CompareSettings,
    reference: &About,
    other: &About,
    watch: &Watch<'_>,
) -> Result<u32> {
    let entries = EvaluatedEntries {
        path: &other.path,
        n_vocab: other.n_vocab,
        tokenizer: other.tokenizer.as_ref(),
        n_used: None,
    };
    check_vocabulary(reference, &entries, settings.vocabulary, watch)
}

/// The model of a file; where the file does not name it, the file's own name.
fn identity(about: &About) -> ModelIdentity {
    about.model.clone().unwrap_or_else(|| {
        let file_name = about.path.file_name().unwrap_or_default();
        ModelIdentity::named(file_name.to_string_lossy())
    })
}
