//! Where a tensor's data lies, so that it can be read as it stands in the file.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::cursor::open;
use super::error::{GgufError, Result};
use super::split::part_paths;
use super::{read_header, tensors};

/// Where a tensor's data lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPlace {
    /// The file, of a split model the part, that holds it.
    pub path: PathBuf,
    /// Elements in each dimension, the innermost first.
    pub shape: Vec<u64>,
    /// ggml's number of its type.
    pub type_id: u32,
    /// Its first byte.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
}

impl TensorPlace {
    /// Opens the file, to read the tensor's bytes.
    ///
    /// # Errors
    /// [`GgufError::Io`].
    pub fn open(&self) -> Result<impl Read + use<>> {
        let (mut file, _) = open(&self.path)?;
        file.seek(SeekFrom::Start(self.offset))
            .map_err(|cause| GgufError::io(&self.path, "read", cause))?;
        Ok(file.take(self.bytes))
    }
}

/// Finds a tensor by its name in a model of `n_parts` files, of which `path` is the first; `None`
/// if there is none of this name.
///
/// # Errors
/// Those of [`super::read_whole`].
pub fn find_tensor(path: &Path, n_parts: u16, name: &str) -> Result<Option<TensorPlace>> {
    let paths = match n_parts {
        0 | 1 => vec![path.to_owned()],
        _ => part_paths(path, n_parts)?,
    };
    for path in paths {
        let mut place = None;
        let on_info = |info: &tensors::Info<'_>| {
            if info.name == name {
                place = Some(TensorPlace {
                    path: path.clone(),
                    shape: info.shape.to_vec(),
                    type_id: info.type_id,
                    offset: info.offset,
                    bytes: info.bytes,
                });
            }
        };
        let (.., start) = read_header(&path, on_info)?;
        if let Some(mut place) = place {
            // Within the file, as all tensors are.
            place.offset = place.offset.saturating_add(start);
            return Ok(Some(place));
        }
    }
    Ok(None)
}
