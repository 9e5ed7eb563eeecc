//! Write mode: a text and a model -> a reference.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use kl_formats::{
    Header, KlPyHeader, KlPyWriter, LlamaCppHeader, LlamaCppWriter, NativeReader, NativeWriter,
    WindowHead, rows_per_piece,
};

use super::direct_file::DirectFile;
use super::job::{Given, Job};
use super::output::{Existing, PartialFile, folder_of, partial_path};
use super::progress::Progress;
use super::settings::{WriteKind, WriteSettings};
use super::setup::{
    Precedent, backend_identity, context_options, start_backend, warn_long_window, writer,
};
use super::{resume, stop};
use crate::engine::{Backend, ContextOptions, Decoder, FlashAttention, Model};
use crate::pipeline::{self, Step, Target, Timing, write_reference};
use crate::report::number::{bytes, count, duration, printable};
use crate::windows::n_rows;

/// Writes a reference.
pub fn run(settings: &WriteSettings) -> Result<()> {
    let started = Instant::now();
    let given = Given::read(&settings.input)?;
    stop::check()?;
    // Made before the model is loaded: a bad path fails now, not hours later.
    let whole = whole_already(settings);
    let can_resume = matches!(settings.kind, WriteKind::Native(_));
    let existing = Existing {
        replace_target: settings.run.force || whole.is_some(),
        ..Existing::asked(settings.run.force, can_resume.then_some(settings.resume))
    };
    let mut output = PartialFile::create(&settings.target, existing)?;
    let backend = start_backend(&settings.run)?;
    let model = Model::load(&backend, &settings.model, &settings.run.model)?;
    let job = given.job(settings.kind, &settings.run, &model)?;
    let plan = &job.plan;

    warn_long_window(plan.longest_window(), &model);
    let precedent = Precedent {
        // As kl.py leaves it, and as its files are evaluated.
        flash_attn: matches!(settings.kind, WriteKind::KlPy).then_some(FlashAttention::Off),
        ..Precedent::default()
    };
    let options = context_options(
        &settings.run,
        plan.longest_window(),
        model.n_vocab(),
        precedent,
    );
    let header = match settings.kind {
        WriteKind::Native(_) => Some(header(settings, &backend, &model, &job, &options)),
        WriteKind::KlPy | WriteKind::LlamaCpp => None,
    };
    if let (Some(whole), Some(header)) = (whole, &header) {
        resume::check_same_run(&whole, header)?;
        say!("kl: {}: is whole already", settings.target.display());
        return Ok(());
    }
    let remains = match &header {
        Some(header) => resume::remains(&output, header, plan)?,
        None => None,
    };
    let (n_whole, length) = remains.as_ref().map_or((0, 0), |remains| {
        (remains.windows().len(), remains.windows_end())
    });

    let size = projected_bytes(settings.kind, &plan.windows, model.n_vocab());
    let size = size.saturating_add(job.prompt_bytes());
    announce(settings, &output, &model, &job, size, n_whole);
    let left = size.saturating_sub(length);
    check_free_space(output.path(), &settings.target, left)?;

    let mut decoder = model.decoder(&options)?;
    let file = output.direct_file(length)?;
    let target = match (settings.kind, header) {
        (WriteKind::Native(_), Some(header)) => {
            let writer = match &remains {
                Some(remains) => NativeWriter::resume(file, output.path(), remains),
                None => NativeWriter::create(file, output.path(), &header)?,
            };
            output.keep_if_cut_off();
            Target::Native(writer, header)
        }
        (WriteKind::LlamaCpp, _) => Target::LlamaCpp(LlamaCppWriter::create(
            file,
            output.path(),
            job.n_ctx,
            model.n_vocab(),
            &job.chunked,
        )?),
        (WriteKind::Native(_) | WriteKind::KlPy, _) => {
            let header = klpy_header(settings, &model, &options, &job);
            Target::KlPy(KlPyWriter::create(file, output.path(), &header)?, header)
        }
    };
    let windows = plan.windows.get(n_whole..).unwrap_or_default();
    let (file, timing) = match decode(&mut decoder, windows, target, settings.run.quiet) {
        Ok(done) => done,
        Err(error) if can_resume => bail!("{error}{}", resume::keep(output, plan.windows.len())),
        Err(error) => return Err(error.into()),
    };
    let written = commit(file, output)?;
    drop(decoder);
    model.drop_last();
    if !settings.run.quiet {
        let n_tokens: usize = windows.iter().map(|head| head.tokens.len()).sum();
        let wall = started.elapsed().as_secs_f64();
        say!(
            "wrote {}: {}, {} rows in {} (decode {}, encode {}, write {}), {:.0} tokens/s",
            settings.target.display(),
            bytes(written),
            count(n_rows(windows)),
            duration(wall),
            duration(timing.decode.as_secs_f64()),
            duration(timing.score.as_secs_f64()),
            duration(timing.write.as_secs_f64()),
            n_tokens as f64 / wall,
        );
    }
    Ok(())
}

/// Runs the model over `windows`, and shows how far it is.
fn decode(
    decoder: &mut Decoder<'_>,
    windows: &[WindowHead],
    target: Target<DirectFile>,
    quiet: bool,
) -> Result<(DirectFile, Timing), pipeline::Error> {
    let n_windows = windows.len() as u64;
    let mut progress = Progress::new("writing", Some(n_windows), Some(n_rows(windows)), quiet);
    let done = write_reference(decoder, windows, target, |step| {
        match step {
            Step::Rows(n) => progress.rows(n),
            Step::Window(_) => progress.window(None),
        }
        stop::check()
    });
    progress.finish();
    done
}

/// What `--resume` finds to be whole: the run was not cut off, or has been gone on with already.
fn whole_already(settings: &WriteSettings) -> Option<NativeReader> {
    let is_cut_off = partial_path(&settings.target).exists();
    (settings.resume && !is_cut_off)
        .then(|| NativeReader::open(&settings.target).ok())
        .flatten()
}

/// Ends what was written through `file` and gives it its name. Gives its bytes.
pub fn commit(file: DirectFile, output: PartialFile) -> Result<u64> {
    let written = file
        .finish()
        .with_context(|| format!("{}: cannot be written", output.path().display()))?;
    output.commit()?;
    Ok(written)
}

fn header(
    settings: &WriteSettings,
    backend: &Backend,
    model: &Model<'_>,
    job: &Job,
    options: &ContextOptions,
) -> Header {
    let encoding = settings.kind.encoding();
    Header {
        format_version: kl_formats::native::FORMAT_VERSION,
        writer: writer(),
        model: model.identity(),
        tokenizer: model.tokenizer().cloned(),
        n_ctx: job.n_ctx,
        n_vocab: model.n_vocab(),
        add_bos: job.add_bos,
        first_scored: job.first_scored,
        n_windows: job.plan.windows.len() as u32,
        n_rows: job.plan.n_rows(),
        encoding,
        rows_per_piece: rows_per_piece(encoding, model.n_vocab()),
        text: job.text.clone(),
        backend: backend_identity(backend, &settings.run, options),
        seed: job.plan.seed,
        stride: job.stride,
        log_probabilities: false,
        prompts: job.prompts.clone(),
        chat_template: job.chat_template.clone(),
        generated: job.generated,
    }
}

fn announce(
    settings: &WriteSettings,
    output: &PartialFile,
    model: &Model<'_>,
    job: &Job,
    size: u64,
    n_whole: usize,
) {
    if settings.run.quiet {
        return;
    }
    let identity = model.identity();
    let kind = match settings.kind {
        WriteKind::Native(encoding) => format!("native {encoding}"),
        WriteKind::KlPy => "kl.py".to_owned(),
        WriteKind::LlamaCpp => "llama.cpp".to_owned(),
    };
    let free =
        fs4::available_space(folder_of(output.path())).map_or_else(|_| "unknown".to_owned(), bytes);
    say!(
        "model    {} ({}), {} entries in a row",
        printable(&identity.name.unwrap_or(identity.file_name)),
        bytes(identity.size_bytes),
        count(u64::from(model.n_vocab()))
    );
    for (name, text) in job.describe(&settings.input, settings.kind) {
        say!("{name:<8} {text}");
    }
    say!(
        "file     {} ({kind}), at most {}; {free} free",
        settings.target.display(),
        bytes(size)
    );
    if n_whole > 0 {
        say!(
            "resume   behind the {} windows that {} has whole",
            count(n_whole as u64),
            output.path().display()
        );
    }
}

/// What the file can take: rows as they are stored, without what deflate saves.
pub(super) fn projected_bytes(kind: WriteKind, windows: &[WindowHead], n_vocab: u32) -> u64 {
    /// Header, index and end.
    const FILE_OVERHEAD: u64 = 64 << 10;
    /// Of a gzip member: its header, extra field and trailer, and its line in the index.
    const MEMBER_OVERHEAD: u64 = 128;
    if kind == WriteKind::LlamaCpp {
        let header = LlamaCppHeader {
            n_ctx: windows.first().map_or(0, |head| head.tokens.len() as u32),
            n_vocab,
            n_windows: windows.len() as u32,
        };
        return header.file_bytes().unwrap_or(u64::MAX);
    }
    let n_rows = n_rows(windows);
    let n_tokens: u64 = windows.iter().map(|head| head.tokens.len() as u64).sum();
    let encoding = kind.encoding();
    let row_bytes = encoding.row_bytes(n_vocab as usize).unwrap_or(usize::MAX) as u64;
    let row_data = n_rows.saturating_mul(row_bytes);
    let pieces = n_rows / u64::from(rows_per_piece(encoding, n_vocab));
    let members = pieces + 2 * windows.len() as u64;
    // Stored deflate blocks of 64 KiB cost 5 bytes each: less than a thousandth.
    row_data
        .saturating_add(row_data / 1000 + 4 * n_tokens)
        .saturating_add(FILE_OVERHEAD + MEMBER_OVERHEAD * members)
}

pub(super) fn check_free_space(partial: &Path, target: &Path, size: u64) -> Result<()> {
    // A file system that does not tell is found out by writing.
    let Ok(free) = fs4::available_space(folder_of(partial)) else {
        return Ok(());
    };
    if size > free {
        bail!(
            "{}: the reference may take {} and the disk has {} free: choose another disk, or take less of the text",
            target.display(),
            bytes(size),
            bytes(free)
        );
    }
    Ok(())
}

fn klpy_header(
    settings: &WriteSettings,
    model: &Model<'_>,
    options: &ContextOptions,
    job: &Job,
) -> KlPyHeader {
    KlPyHeader {
        n_ctx: job.n_ctx,
        n_vocab: model.n_vocab(),
        n_windows: Some(job.plan.windows.len() as u32),
        model: Some(settings.model.display().to_string()),
        text_path: Some(settings.input.path().display().to_string()),
        others: vec![("n_batch".to_owned(), options.n_batch.to_string())],
    }
}
