//! One reference of all its parts: their members' bytes as they are, with a header and an index of
//! the whole.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use kl_formats::{NativeReader, Reference, Writer, native};

use crate::commands::observer::Watch;
use crate::commands::parts::{Opened, in_order, warnings};

/// Windows take turns. Returns how many rows there are. `path` is only used in messages.
pub fn merge<W: Write>(
    parts: &[PathBuf],
    out: W,
    path: &Path,
    watch: &Watch<'_>,
) -> Result<(u64, W)> {
    let mut opened = Vec::new();
    for path in parts {
        let header = open(path)?.header().clone();
        let whole = header.of_whole();
        let part = Opened::new(path, header, &whole);
        part.shard()?;
        opened.push(part);
    }
    let parts = in_order(opened)?;
    for warning in warnings(&parts) {
        watch.warn(warning);
    }
    let Some(first) = parts.first() else {
        bail!("no parts were given");
    };
    let header = first.header.of_whole();
    let readers = parts.iter().map(|part| open(&part.path));
    let readers = readers.collect::<Result<Vec<_>>>()?;
    let mut writer = Writer::native(out, path, &header)?;
    let phase = watch.begin(
        "merging",
        Some(header.n_windows.into()),
        Some(header.n_rows),
    );
    for window in 0..header.n_windows as usize {
        let turn = window % readers.len();
        if let Some(part) = readers.get(turn) {
            let index = window / readers.len();
            // Every part has all of its windows: its header counts them, and `shard` those of all.
            writer.copy_window(part, index)?;
            let n_rows = part.windows().nth(index).map_or(0, |window| window.n_rows);
            phase.rows(n_rows as usize);
            phase.window(None);
        }
        watch.check()?;
    }
    Ok((header.n_rows, writer.finish()?))
}

/// Opens a part, which must be a file of kl's own.
fn open(path: &Path) -> Result<NativeReader> {
    let kind = Reference::open(path)?.kind();
    if kind != native::KIND {
        bail!(
            "{}: is a file of kind {kind}, which has no parts: leave it out",
            path.display()
        );
    }
    Ok(NativeReader::open(path)?)
}
