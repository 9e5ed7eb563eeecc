//! Writes a reference: a model runs over a text or prompts, and its logits are kept.

use std::time::Instant;

use anyhow::{Result, bail};
use kl_formats::{Header, NativeReader, Shard, Writer};
use serde::Serialize;

use super::context::{Precedent, backend_identity, check_offload, check_windows, context_options};
use super::input;
use super::observer::{Event, Observer, Watch};
use super::output::{Overwrite, PartialFile, check_free_space, folder_of, partial_path};
use super::resume;
use super::settings::WriteSettings;
use crate::engine::{Engine, Model};
use crate::input::{PreparedInput, Selection, n_rows, n_tokens};
use crate::pipeline::{self, Step, write_reference};
use crate::report::Warning;
use crate::report::number::{bytes, count, count_of, printable};

/// A reference that was written.
#[derive(Serialize, Debug, Default)]
pub struct Written {
    /// The file, as given.
    pub path: String,
    /// Whether the file was whole before this run, which then did nothing.
    pub was_whole: bool,
    pub file_bytes: u64,
    /// Rows that this run computed.
    pub n_rows: u64,
    /// Tokens that this run decoded.
    pub n_tokens: u64,
    /// Seconds in all, and where they went.
    pub wall_s: f64,
    pub decode_s: f64,
    pub encode_s: f64,
    pub write_s: f64,
    pub warnings: Vec<Warning>,
}

/// Writes a reference.
///
/// # Errors
/// What is wrong with the input, the model or the output. A native file that was cut off keeps its
/// whole windows, for `--resume`.
pub fn write<E: Engine>(
    settings: &WriteSettings,
    engine: &E,
    observer: &dyn Observer,
) -> Result<Written> {
    let watch = &Watch::new(observer);
    let started = Instant::now();
    let raw = input::read(&settings.input, watch)?;
    // Created before the model is loaded: a bad path fails now, not hours later.
    let whole = whole_already(settings);
    let can_resume = settings.target.can_resume();
    let overwrite = Overwrite {
        replace_target: settings.run.force || whole.is_some(),
        ..Overwrite::asked(settings.run.force, can_resume.then_some(settings.resume))
    };
    let mut output = PartialFile::create(&settings.output, overwrite)?;
    check_offload(engine, &settings.run, watch)?;
    let model = engine.load(&settings.model, &settings.run.model)?;
    let in_chunks = settings.target.is_base_file();
    let selection = Selection {
        max_rows: settings.run.max_rows,
        part: settings.part,
        n_first_rows: 0,
    };
    let input = input::prepare(raw, &model, &settings.run, in_chunks, &selection, watch)?;

    let windows = &input.plan.windows;
    let longest = input.longest_window;
    check_windows(longest, &model, watch)?;
    let precedent = Precedent::of(settings.target.assumed_backend().as_ref());
    let options = context_options(&settings.run, longest, model.n_vocab(), precedent);
    let backend = backend_identity(engine, &settings.run, &options)?;
    let (kind, path) = (settings.target.kind(), &settings.output);
    let about = input::describe(kind, path, &model, &settings.input, &input, backend);
    let begun = if can_resume {
        let header = Header::new(&about, settings.target.encoding(), windows);
        if let Some(whole) = whole {
            resume::check_same_reference(&whole, &header)?;
            return Ok(was_whole(settings, &whole, watch));
        }
        resume::begun(&output, &header, &input.plan)?
    } else {
        None
    };
    let (n_whole, length) = begun
        .as_ref()
        .map_or((0, 0), |begun| (begun.windows().len(), begun.windows_end()));

    let size = settings.target.projected_bytes(&about, windows);
    let size = size.saturating_add(input.prompt_bytes());
    announce(settings, &output, &model, &input, size, n_whole, watch);
    check_free_space(output.path(), &settings.output, size.saturating_sub(length))?;

    let mut decoder = model.decoder(&options)?;
    let file = output.direct_file(length)?;
    let writer = match &begun {
        Some(begun) => Writer::resume(file, output.path(), begun)?,
        None => {
            let specs = input.windows_of_the_text();
            Writer::create(file, output.path(), settings.target, &about, &specs)?
        }
    };
    if can_resume {
        output.keep_if_cut_off();
    }
    let missing = windows.get(n_whole..).unwrap_or_default();
    let phase = watch.begin("writing", Some(missing.len() as u64), Some(n_rows(missing)));
    let written = write_reference(&mut decoder, missing, writer, |step| {
        match step {
            Step::Rows(n) => phase.rows(n),
            Step::Window(_) => phase.window(None),
        }
        watch.check()
    });
    drop(phase);
    let pipeline::Written {
        output: file,
        timing,
        forms,
    } = match written {
        Ok(written) => written,
        Err(error) if can_resume => bail!("{error}{}", resume::keep(output, windows.len())),
        Err(error) => return Err(error.into()),
    };
    let file_bytes = output.commit_direct(file)?;
    if let Some(warning) = Warning::of_forms(forms) {
        watch.warn(warning);
    }
    drop(decoder);
    model.drop_last();
    Ok(Written {
        path: settings.output.display().to_string(),
        was_whole: false,
        file_bytes,
        n_rows: n_rows(missing),
        n_tokens: n_tokens(missing),
        wall_s: started.elapsed().as_secs_f64(),
        decode_s: timing.decode.as_secs_f64(),
        encode_s: timing.score.as_secs_f64(),
        write_s: timing.write.as_secs_f64(),
        warnings: watch.warnings(),
    })
}

/// Opens the file if `--resume` finds it whole: the earlier run was not cut off, or was resumed
/// already.
fn whole_already(settings: &WriteSettings) -> Option<NativeReader> {
    let is_cut_off = partial_path(&settings.output).exists();
    (settings.resume && !is_cut_off)
        .then(|| NativeReader::open(&settings.output).ok())
        .flatten()
}

fn was_whole(settings: &WriteSettings, whole: &NativeReader, watch: &Watch<'_>) -> Written {
    Written {
        path: settings.output.display().to_string(),
        was_whole: true,
        file_bytes: whole.file_bytes(),
        warnings: watch.warnings(),
        ..Written::default()
    }
}

/// Describes what is about to be written: model, input, windows, size.
fn announce<M: Model>(
    settings: &WriteSettings,
    output: &PartialFile,
    model: &M,
    input: &PreparedInput,
    size: u64,
    n_whole: usize,
    watch: &Watch<'_>,
) {
    let say = |name: &str, text: String| watch.event(&Event::Plan(name, &text));
    let identity = model.identity();
    let name = identity.name.or(identity.file_name).unwrap_or_default();
    let free =
        fs4::available_space(folder_of(output.path())).map_or_else(|_| "unknown".to_owned(), bytes);
    say(
        "model",
        format!(
            "{} ({}), {} entries in a row",
            printable(&name),
            bytes(identity.size_bytes.unwrap_or(0)),
            count(u64::from(model.n_vocab()))
        ),
    );
    let in_chunks = settings.target.is_base_file();
    for (name, text) in input::in_words(input, &settings.input, in_chunks) {
        say(name, text);
    }
    if let Some(shard) = input.shard {
        say("part", part_of(shard));
    }
    say(
        "file",
        format!(
            "{} ({}), at most {}; {free} free",
            settings.output.display(),
            settings.target,
            bytes(size)
        ),
    );
    if n_whole > 0 {
        let windows = count_of(n_whole as u64, "whole window");
        let path = output.path().display();
        say("resume", format!("after the {windows} of {path}"));
    }
}

/// Which part of the windows is written.
fn part_of(shard: Shard) -> String {
    let (index, parts) = (shard.index, count_of(shard.count.into(), "part"));
    format!(
        "{index} (from 0) of {parts} of {}",
        count_of(shard.n_windows.into(), "window")
    )
}
