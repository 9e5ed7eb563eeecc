//! Reads whole files that a person names: never more bytes than such a file can have, because a device may give
//! bytes for ever, and a pipe none.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use kl_report::number::bytes;

/// Most bytes that are read of anything but a regular file, whose length is not known before its end: a text of
/// this length has about a hundred million tokens.
const MAX_STREAM_BYTES: u64 = 512 << 20;

/// Bytes that are read at once.
const PIECE_BYTES: u64 = 1 << 20;

/// Reads a text of at most `max_bytes` bytes, or of at most 512 MiB of a pipe or a device. A byte of 0 is in no text: what
/// follows the piece that has one is not read, and the caller refuses it. `too_long`: what to do about a longer one.
///
/// # Errors
/// A folder, a longer text, a named pipe that nothing writes to, or what the system says; one line that names the file.
pub fn read_text(path: &Path, max_bytes: u64, too_long: &str) -> Result<Vec<u8>> {
    let shown_path = path.display();
    let unreadable = || format!("{shown_path}: cannot be read");
    let metadata = fs::metadata(path).with_context(unreadable)?;
    if metadata.is_dir() {
        bail!("{shown_path}: is a folder: name a file in it");
    }
    if metadata.is_file() {
        let text = File::open(path)
            .and_then(|file| read_at_most(file, max_bytes))
            .with_context(unreadable)?;
        return text.with_context(|| {
            format!(
                "{shown_path}: is longer than {}{too_long}",
                bytes(max_bytes)
            )
        });
    }
    read_stream(
        open_stream(path, &metadata)?,
        &shown_path.to_string(),
        max_bytes,
    )
}

/// Reads a text of a stream called `name`, of at most `max_bytes` bytes and 512 MiB, as [`read_text`] does.
///
/// # Errors
/// A longer text, or what the system says.
pub fn read_stream(stream: impl Read, name: &str, max_bytes: u64) -> Result<Vec<u8>> {
    let max_bytes = max_bytes.min(MAX_STREAM_BYTES);
    let text =
        read_at_most(stream, max_bytes).with_context(|| format!("{name}: cannot be read"))?;
    text.with_context(|| {
        format!(
            "{name}: gives more than {}, perhaps without an end: save what is to be read in a file",
            bytes(max_bytes)
        )
    })
}

/// Reads a document that `kl` has written; `command` is the one that writes it, as in `kl report --json`.
///
/// # Errors
/// A file that cannot be read, or that is not JSON: where, and what is wrong there.
pub fn read_json(path: &Path, command: &str) -> Result<Value> {
    /// A document of a hundred models has one megabyte, and takes up to sixteen times its length in memory.
    const MAX_BYTES: u64 = 32 << 20;
    let shown_path = path.display();
    let json = read_text(path, MAX_BYTES, ", more than kl writes as JSON")?;
    if json.is_empty() {
        bail!("{shown_path}: is empty: write it again with {command}");
    }
    serde_json::from_slice(&json).map_err(|error| {
        anyhow!("{shown_path}: is not whole JSON ({error}): write it again with {command}")
    })
}

/// Reads up to the end, or to the piece that has a byte of 0; `None` if there are more than `max_bytes` bytes.
fn read_at_most(mut stream: impl Read, max_bytes: u64) -> io::Result<Option<Vec<u8>>> {
    let mut text = Vec::new();
    loop {
        let length_before = text.len();
        let n_read = stream.by_ref().take(PIECE_BYTES).read_to_end(&mut text)?;
        let has_zero = text.iter().skip(length_before).any(|&byte| byte == 0);
        if text.len() as u64 > max_bytes {
            return Ok(None);
        }
        if n_read == 0 || has_zero {
            return Ok(Some(text));
        }
    }
}

#[cfg(not(unix))]
fn open_stream(path: &Path, _: &fs::Metadata) -> Result<File> {
    File::open(path).with_context(|| format!("{}: cannot be read", path.display()))
}

/// Opens a device, or a pipe that something writes to: opening any other would wait for ever.
#[cfg(unix)]
fn open_stream(path: &Path, metadata: &fs::Metadata) -> Result<impl Read + use<>> {
    use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    /// The time that a program beside this one has to open the other end.
    const PATIENCE: Duration = Duration::from_secs(5);
    const STEP: Duration = Duration::from_millis(10);

    let shown_path = path.display();
    let unreadable = || format!("{shown_path}: cannot be read");
    let mut options = File::options();
    options.read(true);
    if !metadata.file_type().is_fifo() {
        let file = options.open(path).with_context(unreadable)?;
        return Ok(io::Cursor::new([0]).take(0).chain(file));
    }
    let nonblocking = OFlags::NONBLOCK;
    options.custom_flags(nonblocking.bits().cast_signed());
    let mut pipe = options.open(path).with_context(unreadable)?;
    let (mut first_byte, began) = ([0], Instant::now());
    let n_read = loop {
        match pipe.read(&mut first_byte) {
            // Without a writer a pipe is at its end, and one that is there but silent would block.
            Ok(0) if began.elapsed() < PATIENCE => sleep(STEP),
            Ok(0) => bail!(
                "{shown_path}: is a pipe that nothing writes to: start the program that does, or name a file"
            ),
            Ok(n_read) => break n_read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break 0,
            Err(error) => return Err(error).with_context(unreadable),
        }
    };
    let flags = fcntl_getfl(&pipe)
        .map_err(io::Error::from)
        .with_context(unreadable)?;
    fcntl_setfl(&pipe, flags & !nonblocking)
        .map_err(io::Error::from)
        .with_context(unreadable)?;
    Ok(io::Cursor::new(first_byte).take(n_read as u64).chain(pipe))
}
