//! Write mode: a text and a model -> a reference.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use kl_formats::{
    Header, KlPyHeader, KlPyWriter, LlamaCppHeader, LlamaCppWriter, NativeWriter, TextIdentity,
    WindowHead, rows_per_piece,
};

use super::direct_file::DirectFile;
use super::output::{Existing, PartialFile, folder_of};
use super::progress::Progress;
use super::settings::{WriteKind, WriteSettings};
use super::setup::{
    Precedent, backend_identity, context_options, start_backend, warn_long_window, writer,
};
use super::{Warning, stop, text, warn};
use crate::engine::{Backend, ContextOptions, FlashAttention, Model};
use crate::pipeline::{Step, Target, write_reference};
use crate::report::number::{bytes, count, duration, printable};
use crate::windows::{Plan, Windowing, with_bos};

/// Writes a reference.
pub fn run(settings: &WriteSettings) -> Result<()> {
    let started = Instant::now();
    let (text, mut text_identity) = text::read(&settings.text)?;
    stop::check()?;
    // Made before the model is loaded: a bad path fails now, not hours later.
    let output = PartialFile::create(&settings.target, Existing::forced(settings.run.force))?;
    let backend = start_backend(&settings.run)?;
    let model = Model::load(&backend, &settings.model, &settings.run.model)?;

    let tokens = model.tokenize(&text, settings.parse_special)?;
    if tokens.len() < 2 {
        bail!(
            "{}: gives {} token(s): give a text of at least two",
            settings.text.display(),
            tokens.len()
        );
    }
    text_identity.n_tokens = tokens.len() as u64;
    let windowing = &settings.windowing;
    let chunked = match settings.kind {
        WriteKind::LlamaCpp => with_bos(&tokens, model.bos()),
        WriteKind::Native(_) | WriteKind::KlPy => Vec::new(),
    };
    let plan = match settings.kind {
        WriteKind::LlamaCpp => Plan::chunks(&chunked, windowing.n_ctx, model.bos()),
        WriteKind::Native(_) | WriteKind::KlPy => {
            check_stride(windowing, model.bos())?;
            Plan::cut(&tokens, windowing, model.bos()).limited(settings.run.max_rows)
        }
    };
    check_plan(settings, &plan, tokens.len())?;
    if plan.n_unscored > 0 {
        warn(&Warning::Unscored(plan.n_unscored));
    }
    let chunked = whole_windows(chunked, &plan);

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
    let size = projected_bytes(settings.kind, &plan.windows, model.n_vocab());
    announce(settings, &output, &model, &tokens, &plan, size);
    check_free_space(output.path(), &settings.target, size)?;

    let mut decoder = model.decoder(&options)?;
    let file = DirectFile::new(output.file()?);
    let target = match settings.kind {
        WriteKind::Native(_) => {
            let header = header(settings, &backend, &model, &plan, text_identity, &options);
            Target::Native(NativeWriter::create(file, output.path(), &header)?, header)
        }
        WriteKind::KlPy => {
            let header = klpy_header(settings, &model, &options, plan.windows.len() as u32);
            Target::KlPy(KlPyWriter::create(file, output.path(), &header)?, header)
        }
        WriteKind::LlamaCpp => Target::LlamaCpp(LlamaCppWriter::create(
            file,
            output.path(),
            settings.windowing.n_ctx,
            model.n_vocab(),
            &chunked,
        )?),
    };
    let n_windows = plan.windows.len() as u64;
    let mut progress = Progress::new(
        "writing",
        Some(n_windows),
        Some(plan.n_rows()),
        settings.run.quiet,
    );
    let done = write_reference(&mut decoder, &plan.windows, target, |step| {
        match step {
            Step::Rows(n) => progress.rows(n),
            Step::Window(_) => progress.window(None),
        }
        stop::check()
    });
    progress.finish();
    let (file, timing) = done?;
    let written = commit(file, output)?;
    drop(decoder);
    model.drop_last();

    if settings.run.quiet {
        return Ok(());
    }
    let wall = started.elapsed().as_secs_f64();
    say!(
        "wrote {}: {}, {} rows in {} (decode {}, encode {}, write {}), {:.0} tokens/s",
        settings.target.display(),
        bytes(written),
        count(plan.n_rows()),
        duration(wall),
        duration(timing.decode.as_secs_f64()),
        duration(timing.score.as_secs_f64()),
        duration(timing.write.as_secs_f64()),
        plan.n_tokens() as f64 / wall,
    );
    Ok(())
}

/// Ends what was written through `file` and gives it its name. Gives its bytes.
pub fn commit(file: DirectFile, output: PartialFile) -> Result<u64> {
    let written = file
        .finish()
        .with_context(|| format!("{}: cannot be written", output.path().display()))?;
    output.commit()?;
    Ok(written)
}

/// A stride must not leave tokens out.
fn check_stride(windowing: &Windowing, bos: Option<u32>) -> Result<()> {
    let longest = windowing.longest_stride(bos);
    match windowing.stride {
        Some(stride) if stride > longest => bail!(
            "--stride {stride} leaves tokens out: windows of {} hold {longest} of the text{}",
            windowing.n_ctx,
            if bos.is_some() { " and a BOS" } else { "" }
        ),
        _ => Ok(()),
    }
}

/// Refuses a text without a scored position.
fn check_plan(settings: &WriteSettings, plan: &Plan, n_tokens: usize) -> Result<()> {
    let text = settings.text.display();
    match settings.kind {
        _ if plan.n_rows() > 0 => Ok(()),
        WriteKind::LlamaCpp => bail!(
            "{text}: gives {n_tokens} tokens, too few for a whole window of {}: lower --n-ctx",
            settings.windowing.n_ctx
        ),
        WriteKind::Native(_) | WriteKind::KlPy => bail!(
            "{text}: gives {n_tokens} tokens, too few for a scored position with --score {}",
            settings.windowing.score
        ),
    }
}

/// The tokens of the windows of `plan`, as the text has them. Says how many come behind the last.
fn whole_windows(mut chunked: Vec<u32>, plan: &Plan) -> Vec<u32> {
    let n_whole = plan.n_tokens() as usize;
    if chunked.len() > n_whole {
        warn(&Warning::NoWholeWindow((chunked.len() - n_whole) as u64));
    }
    chunked.truncate(n_whole);
    chunked
}

fn header(
    settings: &WriteSettings,
    backend: &Backend,
    model: &Model<'_>,
    plan: &Plan,
    text: TextIdentity,
    options: &ContextOptions,
) -> Header {
    let encoding = settings.kind.encoding();
    Header {
        format_version: kl_formats::native::FORMAT_VERSION,
        writer: writer(),
        model: model.identity(),
        tokenizer: model.tokenizer().cloned(),
        n_ctx: settings.windowing.n_ctx,
        n_vocab: model.n_vocab(),
        add_bos: model.bos().is_some(),
        first_scored: settings.windowing.score.first(settings.windowing.n_ctx),
        n_windows: plan.windows.len() as u32,
        n_rows: plan.n_rows(),
        encoding,
        rows_per_piece: rows_per_piece(encoding, model.n_vocab()),
        text,
        backend: backend_identity(backend, &settings.run, options),
        seed: plan.seed,
        stride: settings.windowing.stride,
        log_probabilities: false,
    }
}

fn announce(
    settings: &WriteSettings,
    output: &PartialFile,
    model: &Model<'_>,
    tokens: &[u32],
    plan: &Plan,
    size: u64,
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
    say!(
        "text     {}, {} tokens",
        settings.text.display(),
        count(tokens.len() as u64)
    );
    say!(
        "windows  {} of {} tokens{}{}, {} scored positions",
        count(plan.windows.len() as u64),
        settings.windowing.n_ctx,
        settings
            .windowing
            .stride
            .map_or(String::new(), |stride| format!(", one every {stride}")),
        match (model.bos(), settings.kind) {
            (None, _) => "",
            (Some(_), WriteKind::LlamaCpp) => ", each with a BOS for its first token",
            (Some(_), _) => ", each with a BOS",
        },
        count(plan.n_rows())
    );
    say!(
        "file     {} ({kind}), at most {}; {free} free",
        settings.target.display(),
        bytes(size)
    );
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
    let n_rows: u64 = windows.iter().map(|head| u64::from(head.n_rows)).sum();
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
    n_windows: u32,
) -> KlPyHeader {
    KlPyHeader {
        n_ctx: settings.windowing.n_ctx,
        n_vocab: model.n_vocab(),
        n_windows: Some(n_windows),
        model: Some(settings.model.display().to_string()),
        text_path: Some(settings.text.display().to_string()),
        others: vec![("n_batch".to_owned(), options.n_batch.to_string())],
    }
}
