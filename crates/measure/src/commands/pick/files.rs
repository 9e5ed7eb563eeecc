//! The files of a pick: which are quants, which one is the original, and which are neither.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use kl_engine::gguf;
use kl_hub::{HubFile, Precision, Repository};
use kl_report::number::bytes;
use kl_report::pick::LeftOut;

use crate::commands::output::folder_of;
use crate::commands::shelf::Shelf;

/// The files to choose among, and the original.
#[derive(Debug, Clone, Default)]
pub struct Candidates {
    /// The GGUFs of the quants; of split ones the first part. The original may be among them.
    pub quants: Vec<PathBuf>,
    /// The GGUF of the original, if one is named; otherwise one is chosen among the files.
    pub original: Option<PathBuf>,
    /// Files that are not quants, and why.
    pub left_out: Vec<LeftOut>,
}

/// A model to measure, or to measure against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFile {
    /// Its GGUF; of a split model the first part.
    pub path: PathBuf,
    /// Bytes of all its parts.
    pub bytes: u64,
    /// How its weights are stored: by its tensors where it is on this machine, else by its name.
    pub precision: Precision,
}

/// The quants to measure, and what they are measured against.
#[derive(Debug)]
pub struct Chosen {
    pub quants: Vec<ModelFile>,
    pub original: ModelFile,
    /// Files that are not among the quants, and why.
    pub left_out: Vec<LeftOut>,
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
            let models = repository.quants_or_all(patterns)?;
            let first_of = |parts: Vec<HubFile>| Some(path.join(&parts.first()?.path));
            for model in models.into_iter().filter_map(first_of) {
                // Such as a link to nothing.
                if let Err(error) = fs::metadata(&model) {
                    left_out.push(LeftOut::new(&model, &format!("cannot be read: {error}")));
                    continue;
                }
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
        let mut known = BTreeSet::new();
        quants.retain(|path| known.insert(path.clone()));
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
    pub fn choose(&self, shelf: &Shelf) -> Result<Chosen> {
        let inspected = |path: &PathBuf| ModelFile::inspect(path, shelf);
        let files: Vec<ModelFile> = self.quants.iter().map(inspected).collect::<Result<_>>()?;
        let named = self.original.as_ref().map(inspected).transpose()?;
        let is_named = named.is_some();
        // bf16 is what most models are trained in, and f32 takes twice the room.
        let exact = files.iter().filter(|file| file.precision.is_float());
        let exact = exact.min_by_key(|file| file.precision);
        let largest = files.iter().max_by_key(|file| file.bytes);
        let chosen = named.or_else(|| exact.or(largest).cloned());
        let original = chosen.context("no quants: give a folder, files, or hf:USER/REPO")?;
        let (mut quants, mut left_out) = (Vec::new(), self.left_out.clone());
        for file in files {
            let why = if file.path != original.path {
                file.precision.is_float().then_some("is not quantized")
            } else if original.precision.is_float() || is_named {
                continue;
            } else {
                Some("is the largest quant, and so what the others are measured against")
            };
            match why {
                Some(why) => left_out.push(LeftOut::new(&file.path, why)),
                None => quants.push(file),
            }
        }
        if quants.is_empty() {
            bail!(
                "{}: there is no other quant to measure: give a folder, files, or hf:USER/REPO with several",
                original.path.display()
            );
        }
        Ok(Chosen {
            quants,
            original,
            left_out,
        })
    }
}

impl Chosen {
    /// Leaves out quants whose weights alone take more than the memory. Of none that fit, the smallest stays, so that
    /// its memory can be said.
    pub fn leave_out_too_large(&mut self, limit: u64) {
        let smallest = self.quants.iter().map(|file| file.bytes).min();
        let most = limit.max(smallest.unwrap_or(0));
        let too_large = self.quants.extract_if(.., |file| file.bytes > most);
        self.left_out.extend(too_large.map(|file| {
            let [weights, limit] = [file.bytes, limit].map(bytes);
            let why = format!("its weights alone take {weights}, more than {limit}: not measured");
            LeftOut::new(&file.path, &why)
        }));
    }
}

impl ModelFile {
    /// Reads a file's header where it is on this machine, and otherwise goes by its name. A file that holds no model
    /// counts as a quant: its evaluation says what is wrong.
    fn inspect(path: &Path, shelf: &Shelf) -> Result<Self> {
        let named = || {
            let folder = folder_of(path).file_name().unwrap_or_default();
            let name = Path::new(folder).join(path.file_name().unwrap_or_default());
            Precision::of_name(&name.to_string_lossy())
        };
        let (on_hub, path) = (shelf.size(path), path.to_owned());
        if let Some(bytes) = on_hub.filter(|_| shelf.awaits(&path)) {
            let precision = named();
            return Ok(Self {
                path,
                bytes,
                precision,
            });
        }
        let unreadable = || format!("{}: cannot be read", path.display());
        let length = fs::metadata(&path).with_context(unreadable)?.len();
        let header = gguf::read(&path).ok();
        let is_float = header
            .as_ref()
            .is_some_and(|header| header.tensors.iter().all(|tensor| tensor.kind.block <= 1));
        let precision = match named() {
            _ if !is_float => Precision::Quantized,
            // A float of any kind; the name tells which.
            Precision::Quantized => Precision::F32,
            named => named,
        };
        let in_header = header.map(|header| header.file_bytes);
        Ok(Self {
            bytes: on_hub.or(in_header).unwrap_or(length),
            path,
            precision,
        })
    }
}
