//! `kl convert`: a reference into one of another kind, without the model.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Parser;
use kl_formats::{
    Encoding, Header, KlPyHeader, KlPyWriter, LlamaCppWriter, NativeWriter, Reference, WindowHead,
    rows_per_piece,
};

use super::args::Format;
use super::conversion::{Conversion, check_kinds, headers};
use super::direct_file::DirectFile;
use super::heads::heads;
use super::output::{Existing, PartialFile};
use super::progress::Progress;
use super::settings::{UsageError, WriteKind};
use super::write::{check_free_space, commit, projected_bytes};
use super::{Warning, paths, stop, warn};
use crate::pipeline::{ReferenceRows, Step, Target, convert_reference};
use crate::report::number::{bytes, count, duration};

/// Converts a reference to another kind. Says first what the new file will lack; what it cannot
/// hold at all is an error.
#[derive(Parser, Debug)]
#[command(
    name = "kl convert",
    bin_name = "kl convert",
    max_term_width = 100,
    args_override_self = true
)]
pub struct ConvertArgs {
    /// A reference of kl, kl.py or llama-perplexity: recognised by its bytes
    #[arg(value_name = "IN")]
    pub input: PathBuf,

    /// The reference to write
    #[arg(value_name = "OUT")]
    pub output: PathBuf,

    /// Kind of reference to write
    #[arg(long, value_name = "KIND", value_enum)]
    pub format: Format,

    /// How kl's own kind stores a logit: u16 (half the size) or f32 (exact) [default: u16]
    #[arg(long, value_name = "u16|f32")]
    pub encoding: Option<Encoding>,

    /// From llama.cpp's base file: the token that its model puts in the place of each window's
    /// first, which the file does not say; none: it puts none there
    #[arg(long, value_name = "ID|none")]
    pub bos: Option<Bos>,

    /// Overwrite an existing output file
    #[arg(long)]
    pub force: bool,

    /// No progress, and nothing else on stderr but warnings and errors
    #[arg(short, long)]
    pub quiet: bool,
}

/// What the model of a base file decodes for the first token of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bos {
    /// The text's own token.
    None,
    /// This one.
    Token(u32),
}

impl ConvertArgs {
    /// The token that stands in the place of each window's first, if one is known to.
    fn bos_token(&self) -> Option<u32> {
        match self.bos {
            Some(Bos::Token(bos)) => Some(bos),
            Some(Bos::None) | None => None,
        }
    }
}

impl FromStr for Bos {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            id => id
                .parse()
                .map(Self::Token)
                .map_err(|_| "expected a token's number, or none".to_owned()),
        }
    }
}

/// Writes the new reference.
///
/// # Errors
/// What is wrong with the input, what the new kind cannot hold, and what the disk says.
pub fn run(args: &ConvertArgs) -> Result<()> {
    let started = Instant::now();
    let kind = kind(args)?;
    if args.output.as_os_str() == "-" {
        return Err(UsageError(
            "OUT needs a file: '-' is understood by -t and --json alone".to_owned(),
        )
        .into());
    }
    paths::distinct(
        std::slice::from_ref(&args.input),
        std::slice::from_ref(&args.output),
    )?;
    let output = PartialFile::create(&args.output, Existing::asked(args.force, None))?;
    let reference = Reference::open(&args.input)?;
    check_kinds(&reference, kind)?;
    let windows = windows(&reference, args)?;
    let mut conversion = Conversion::plan(&reference, windows, kind)?;
    if args.bos_token().is_some() {
        conversion.lose("the text's own first token of each window: BOS stands in its place");
    }
    for loss in &conversion.losses {
        warn(&Warning::Conversion(loss.clone()));
    }
    let size = projected_bytes(kind, &conversion.windows, reference.n_vocab());
    check_free_space(output.path(), &args.output, size)?;

    let n_windows = conversion.windows.len() as u64;
    let mut progress = Progress::new(
        "converting",
        Some(n_windows),
        Some(conversion.n_rows()),
        args.quiet,
    );
    let target = target(&reference, &conversion, kind, &output)?;
    let rows = ReferenceRows::new(reference, args.bos_token(), None);
    let done = convert_reference(&rows, &conversion.windows, target, |step| {
        match step {
            Step::Rows(n) => progress.rows(n),
            Step::Window(_) => progress.window(None),
        }
        stop::check()
    });
    progress.finish();
    let written = commit(done?, output)?;
    if !args.quiet {
        say!(
            "wrote {}: {}, {} rows in {}",
            args.output.display(),
            bytes(written),
            count(conversion.n_rows()),
            duration(started.elapsed().as_secs_f64())
        );
    }
    Ok(())
}

fn kind(args: &ConvertArgs) -> Result<WriteKind, UsageError> {
    match (args.format, args.encoding) {
        (Format::Kl, encoding) => Ok(WriteKind::Native(encoding.unwrap_or(Encoding::U16))),
        (_, Some(_)) => Err(UsageError(
            "--encoding belongs to --format kl: the other kinds have one of their own".to_owned(),
        )),
        (Format::KlPy, None) => Ok(WriteKind::KlPy),
        (Format::LlamaCpp, None) => Ok(WriteKind::LlamaCpp),
    }
}

/// The windows of the file, with their tokens as they were decoded.
fn windows(reference: &Reference, args: &ConvertArgs) -> Result<Vec<WindowHead>> {
    if args.bos.is_some() && !matches!(reference, Reference::LlamaCpp(_)) {
        bail!("--bos belongs to llama.cpp's base files: leave it out");
    }
    let windows = heads(reference, args.bos_token(), args.quiet)?;
    if let Reference::LlamaCpp(reader) = reference {
        match args.bos {
            None => check_first_tokens(&args.input, &windows)?,
            Some(Bos::Token(bos)) => {
                let first = reader
                    .head(0, None)
                    .ok()
                    .and_then(|head| head.tokens.first().copied());
                if let Some(first) = first.filter(|&first| first != bos) {
                    warn(&Warning::OtherBos { bos, first });
                }
            }
            Some(Bos::None) => {}
        }
    }
    Ok(windows)
}

/// Where all windows begin alike, a BOS is there already, or there is only one to begin a text.
fn check_first_tokens(path: &Path, windows: &[WindowHead]) -> Result<()> {
    let firsts = || windows.iter().filter_map(|head| head.tokens.first());
    let first = firsts().next();
    if firsts().all(|token| Some(token) == first) {
        return Ok(());
    }
    bail!(
        "{}: does not say whether its model puts a BOS in the place of each window's first token: \
         give --bos and the BOS (its text begins with token {}, which is the BOS if there is one), \
         or --bos none",
        path.display(),
        first.copied().unwrap_or_default()
    )
}

fn target(
    reference: &Reference,
    conversion: &Conversion,
    kind: WriteKind,
    output: &PartialFile,
) -> Result<Target<DirectFile>> {
    let file = output.direct_file(0)?;
    let path = output.path();
    let (n_vocab, windows) = (reference.n_vocab(), &conversion.windows);
    Ok(match kind {
        WriteKind::Native(encoding) => {
            let header = Header {
                encoding,
                rows_per_piece: rows_per_piece(encoding, n_vocab),
                ..headers::native(reference, windows)
            };
            Target::Native(NativeWriter::create(file, path, &header)?, header)
        }
        WriteKind::KlPy => {
            let header: KlPyHeader = headers::kl_py(reference, windows);
            Target::KlPy(KlPyWriter::create(file, path, &header)?, header)
        }
        WriteKind::LlamaCpp => {
            let tokens: Vec<u32> = windows
                .iter()
                .flat_map(|head| head.tokens.iter().copied())
                .collect();
            Target::LlamaCpp(LlamaCppWriter::create(
                file,
                path,
                conversion.n_ctx(),
                n_vocab,
                &tokens,
            )?)
        }
    })
}
