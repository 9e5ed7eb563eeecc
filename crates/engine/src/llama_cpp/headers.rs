//! The headers of models. A run asks for that of a model before it is loaded, when it is, and for what it may be
//! quantized to; it is read once.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use kl_system::locked;

use crate::gguf::{self, Gguf};
use crate::{EngineError, ModelFiles};

/// Headers that are kept: those of an original and of the model that is compared with it. Vocabularies make each some
/// megabytes.
const MOST_KEPT: usize = 2;

/// The headers that were read last, the latest first.
static KEPT: Mutex<VecDeque<KeptHeader>> = Mutex::new(VecDeque::new());

struct KeptHeader {
    path: PathBuf,
    /// The model's files, as they were before the header was read.
    files: ModelFiles,
    header: Arc<Gguf>,
}

/// Reads the header of a GGUF, unless it is known and its files are those that they were, and checks that the file is
/// whole and holds a causal language model.
///
/// # Errors
/// A file that is not a whole GGUF, a later part of a split one, or a model that predicts no next
/// token.
pub(super) fn inspect(path: &Path) -> Result<Arc<Gguf>, EngineError> {
    let mut kept = locked(&KEPT);
    let known = kept.iter().find(|of| of.path == path);
    if let Some(known) = known.filter(|known| known.files.change().is_none()) {
        return Ok(Arc::clone(&known.header));
    }
    kept.retain(|of| of.path != path);
    let first_file = ModelFiles::look_at(&[path.to_owned()]);
    let header = Arc::new(gguf::read(path)?);
    if let Some(found) = header.not_a_model() {
        let path = path.to_owned();
        return Err(EngineError::NotAModel { path, found });
    }
    if let Some(fault) = header.fault() {
        return Err(EngineError::model(path, fault.what));
    }
    let files = ModelFiles::look_at(&header.files);
    // One that is written meanwhile is read again.
    if first_file.change().is_none() {
        kept.truncate(MOST_KEPT - 1);
        kept.push_front(KeptHeader {
            path: path.to_owned(),
            files,
            header: Arc::clone(&header),
        });
    }
    Ok(header)
}
