//! The format from before GGUF: the number of entries, the entries, then what the matrix was made of. An
//! entry is a name, the number of chunks that it was made of, and for each column the mean square times that
//! number. All numbers are 32 bits, little-endian, and a text follows its length.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use kl_formats::Found;

use super::{Contents, floats, not_an_imatrix};
use crate::engine::EngineError;
use crate::engine::gguf::{ModelError, open};

/// Longest name that is believed.
const MAX_NAME_BYTES: u64 = 1 << 10;

pub(super) fn read(path: &Path) -> Result<Contents, EngineError> {
    let (file, len) = open(path)?;
    let mut dat = Dat {
        stream: BufReader::new(file),
        path: path.to_owned(),
        left: len,
        len,
    };
    // Anything may look like a number of entries, but not like an entry too.
    let explain = |error| match Found::look(path) {
        Found::Imatrix => error,
        found => not_an_imatrix(path, &found.to_string()),
    };
    let n_entries = dat.number("the number of entries").map_err(explain)?;
    let mut values = HashMap::new();
    for i in 0..n_entries {
        let entry = match i {
            0 => dat.entry().map_err(explain),
            _ => dat.entry(),
        };
        let (name, means) = entry?;
        values.insert(name, means);
    }
    if values.is_empty() {
        return Err(explain(dat.corrupt("it has no entries")).into());
    }
    let mut contents = Contents {
        values,
        ..Contents::default()
    };
    // Early files end here.
    if dat.left > 0 {
        contents.n_chunks = dat.number("the number of chunks")?.into();
        let bytes = dat.length("the name of a text")?;
        let text = dat.bytes(bytes, "the name of a text")?;
        if !text.is_empty() {
            contents.datasets = vec![String::from_utf8_lossy(&text).into_owned()];
        }
    }
    Ok(contents)
}

/// Reads a file in order, and checks before each read how much is left.
struct Dat {
    stream: BufReader<File>,
    path: PathBuf,
    left: u64,
    len: u64,
}

impl Dat {
    fn entry(&mut self) -> Result<(String, Vec<f32>), ModelError> {
        let bytes = self.length("a name")?;
        if bytes > MAX_NAME_BYTES {
            return Err(self.corrupt(&format!("a name of {bytes} bytes")));
        }
        let name = self.bytes(bytes, "a name")?;
        let name = String::from_utf8_lossy(&name).into_owned();
        let n_calls = self.number("a count")?;
        let n_values = self.length("a number of columns")?;
        if n_values == 0 {
            return Err(self.corrupt(&format!("{name:?} has no columns")));
        }
        let mut means = floats(&self.bytes(4 * n_values, "an entry")?);
        if n_calls > 0 {
            means.iter_mut().for_each(|mean| *mean /= n_calls as f32);
        }
        Ok((name, means))
    }

    fn number(&mut self, what: &str) -> Result<i32, ModelError> {
        let bytes = self.bytes(4, what)?;
        let bytes = bytes.first_chunk().copied().unwrap_or_default();
        Ok(i32::from_le_bytes(bytes))
    }

    fn length(&mut self, what: &str) -> Result<u64, ModelError> {
        let n = self.number(what)?;
        u64::try_from(n).map_err(|_| self.corrupt(&format!("{what} of length {n}")))
    }

    fn bytes(&mut self, n: u64, what: &str) -> Result<Vec<u8>, ModelError> {
        if n > self.left {
            let left = self.left;
            let what = format!(
                "incomplete at byte {}: {what} takes {n} bytes but only {left} are left; download or make it again",
                self.len - left
            );
            return Err(ModelError::new(&self.path, what));
        }
        let mut bytes = vec![0; n as usize];
        let read = self.stream.read_exact(&mut bytes);
        read.map_err(|cause| ModelError::new(&self.path, format!("cannot read: {cause}")))?;
        self.left -= n;
        Ok(bytes)
    }

    fn corrupt(&self, what: &str) -> ModelError {
        let at = self.len - self.left;
        let what = format!("corrupt at byte {at}: {what}; download or make it again");
        ModelError::new(&self.path, what)
    }
}
