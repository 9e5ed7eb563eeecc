//! The files of a pick: which are quants, which one is the original, and which are neither.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use kl_engine::gguf;
use kl_hub::{HubFile, Precision, Repository};
use kl_report::number::bytes;
use kl_report::pick::LeftOut;

use crate::commands::output::folder_of;
use crate::commands::shelf::Shelf;

/// The quants to choose among, and the original.
#[derive(Debug, Clone, Default)]
pub struct Candidates {
    /// The GGUFs of the quants; of split ones the first part.
    pub quants: Vec<PathBuf>,
    /// The GGUF of the original, if one is named; otherwise one is chosen among the files.
    pub original: Option<PathBuf>,
    /// Files that are not quants, and why.
    pub left_out: Vec<LeftOut>,
}

/// The model that the quants are measured against.
#[derive(Debug, Clone)]
pub struct Original {
    /// Its GGUF.
    pub path: PathBuf,
    /// True if it holds floats; false if it is the largest quant.
    pub is_unquantized: bool,
}

impl Candidates {
    /// The files that these paths stand for: a folder for the models in it and in its folders whose quant matches one
    /// of the patterns, by the rules for the names of a repository; and for its original, unless one is given.
    ///
    /// # Errors
    /// A folder without models, or a pattern that matches none.
    pub fn new(
        paths: Vec<PathBuf>,
        original: Option<PathBuf>,
        patterns: &[String],
    ) -> Result<Self> {
        let (mut quants, mut left_out, mut in_folder) = (Vec::new(), Vec::new(), None);
        for path in paths {
            if !path.is_dir() {
                quants.push(path);
                continue;
            }
            let repository = Repository::of_folder(&path);
            let models = if patterns.is_empty() {
                let all = repository.quants(&["*".to_owned()]);
                all.map_err(|_| anyhow!("{}: holds no model (GGUF)", path.display()))?
            } else {
                repository.quants(patterns)?
            };
            let first_of = |parts: Vec<HubFile>| Some(path.join(&parts.first()?.path));
            for model in models.into_iter().filter_map(first_of) {
                let header = gguf::read(&model).ok();
                match header.and_then(|header| header.not_a_model()) {
                    Some(kind) => {
                        left_out.push(LeftOut::new(&model, &kind.in_place_of_a_model()));
                    }
                    None => quants.push(model),
                }
            }
            in_folder = in_folder.or(repository.original()?.and_then(first_of));
        }
        Ok(Self {
            quants,
            original: original.or(in_folder),
            left_out,
        })
    }

    /// Chooses the original: the one that is named, else the unquantized file, else the largest quant, which is then
    /// none of the quants. Unquantized files are left out of the quants.
    ///
    /// # Errors
    /// If there is nothing to compare, or a file is not there.
    pub fn choose_original(&mut self, shelf: &Shelf) -> Result<Original> {
        for path in self.quants.iter().chain(&self.original) {
            if !shelf.awaits(path) {
                let unreadable = || format!("{}: cannot be read", path.display());
                fs::metadata(path).with_context(unreadable)?;
            }
        }
        let precision = |path: &Path| precision(path, shelf);
        // bf16 is what most models are trained in, and f32 takes twice the room.
        let exact = self.quants.iter().filter(|path| precision(path).is_float());
        let exact = exact.min_by_key(|path| precision(path));
        let largest = self.quants.iter().max_by_key(|path| size(path, shelf));
        let chosen = self.original.as_ref().or(exact).or(largest).cloned();
        let path = chosen.context("no quants: give a folder, files, or hf:USER/REPO")?;
        let original = Original {
            is_unquantized: precision(&path).is_float(),
            path,
        };
        let mut left_out_here = Vec::new();
        self.quants.retain(|path| {
            let why = if *path != original.path {
                precision(path).is_float().then_some("is not quantized")
            } else if original.is_unquantized || self.original.is_some() {
                return false;
            } else {
                Some("is the largest quant, and so what the others are measured against")
            };
            left_out_here.extend(why.map(|why| LeftOut::new(path, why)));
            why.is_none()
        });
        self.left_out.append(&mut left_out_here);
        if self.quants.is_empty() {
            bail!(
                "{}: there is no other quant to measure: give a folder, files, or hf:USER/REPO with several",
                original.path.display()
            );
        }
        Ok(original)
    }

    /// Leaves out quants whose weights alone take more than the memory.
    pub fn leave_out_too_large(&mut self, shelf: &Shelf, limit: Option<u64>) {
        let Some(limit) = limit else {
            return;
        };
        let all_are = self
            .quants
            .iter()
            .all(|path| size(path, shelf) > Some(limit));
        let smallest = self
            .quants
            .iter()
            .min_by_key(|path| size(path, shelf))
            .cloned();
        let mut too_large = Vec::new();
        self.quants.retain(|path| match size(path, shelf) {
            // One is measured, so that its memory can be said.
            Some(size) if size > limit && !(all_are && Some(path) == smallest.as_ref()) => {
                let why = format!(
                    "its weights alone take {}, more than {}: not measured",
                    bytes(size),
                    bytes(limit)
                );
                too_large.push(LeftOut::new(path, &why));
                false
            }
            _ => true,
        });
        self.left_out.append(&mut too_large);
    }
}

/// The precision of a file: by its tensors where it is on this machine, else by its name.
fn precision(path: &Path, shelf: &Shelf) -> Precision {
    let named = || {
        let folder = folder_of(path).file_name().unwrap_or_default();
        let name = Path::new(folder).join(path.file_name().unwrap_or_default());
        Precision::of_name(&name.to_string_lossy())
    };
    if shelf.awaits(path) {
        return named();
    }
    match gguf::read(path) {
        Ok(header) if header.tensors.iter().any(|tensor| tensor.kind.block > 1) => {
            Precision::Quantized
        }
        // A float of any kind; the name tells which.
        Ok(_) => match named() {
            Precision::Quantized => Precision::F32,
            named => named,
        },
        Err(_) => Precision::Quantized,
    }
}

/// Bytes of a model, of all its parts; `None` where that is not known.
pub fn size(path: &Path, shelf: &Shelf) -> Option<u64> {
    shelf.size(path).or_else(|| {
        let header = gguf::read(path).ok();
        let bytes = header.map(|header| header.file_bytes);
        bytes.or_else(|| Some(fs::metadata(path).ok()?.len()))
    })
}
