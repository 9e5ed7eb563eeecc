//! All windows of a file before any of its rows: their tokens are what is in memory.

use anyhow::{Result, bail};
use kl_formats::{Reference, WindowHead};

use super::stop;

/// The windows in the order of the file, with their tokens as they were decoded. `bos`: what stands
/// in the place of the first token of a base file's windows.
///
/// # Errors
/// What is wrong with the file; being asked to stop.
pub fn heads(reference: &Reference, bos: Option<u32>, quiet: bool) -> Result<Vec<WindowHead>> {
    let mut windows = Vec::new();
    match reference {
        Reference::Native(reader) => {
            for place in 0..reader.windows().len() {
                windows.push(reader.head(place)?);
                stop::check()?;
            }
        }
        Reference::LlamaCpp(reader) => {
            for place in 0..reader.n_windows() {
                windows.push(reader.head(place, bos)?);
                stop::check()?;
            }
        }
        Reference::Safetensors(reader) => {
            windows.extend((0..reader.n_windows()).map(|place| reader.head(place)));
        }
        Reference::Npz(reader) => {
            windows.extend((0..reader.n_windows()).map(|place| reader.head(place)));
        }
        // A stream: its rows are passed over now, and read again later.
        Reference::KlPy(reader) => {
            let path = reader.path();
            let Reference::KlPy(mut reader) = Reference::open(path)? else {
                bail!("{}: has changed", path.display());
            };
            if !quiet {
                say!("reading {} for its windows", path.display());
            }
            while let Some(head) = reader.next_window()? {
                windows.push(head);
                stop::check()?;
            }
        }
    }
    Ok(windows)
}
