//! The models of a folder.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kl_formats::split_gguf_name;

use super::output::folder_of;
use crate::engine::gguf;

/// The models that `-m FOLDER` stands for.
#[derive(Debug, Default)]
pub struct ModelsOfFolder {
    /// Every GGUF in the order of the names; of a split one only the first part.
    pub models: Vec<PathBuf>,
    /// GGUFs that hold no language model, and what they hold: `clip`, say, for the vision part that
    /// `mmproj` files are.
    pub skipped: Vec<(PathBuf, String)>,
}

/// Lists the models of a folder. A GGUF that cannot be read is among them: running it reports why.
///
/// # Errors
/// A folder that cannot be read, or holds no model.
pub fn models_of_folder(folder: &Path) -> Result<ModelsOfFolder> {
    let shown = folder.display();
    let unreadable = || format!("{shown}: cannot be read");
    let (mut paths, mut has_safetensors) = (Vec::new(), false);
    for entry in fs::read_dir(folder).with_context(unreadable)? {
        let path = entry.with_context(unreadable)?.path();
        has_safetensors |= path.extension().is_some_and(|name| name == "safetensors");
        // A link to nothing is a model that cannot be read.
        let is_file = fs::metadata(&path).map_or(true, |about| about.is_file());
        if is_gguf(&path) && !is_later_part(&path) && is_file {
            paths.push(path);
        }
    }
    paths.sort();
    let mut found = ModelsOfFolder::default();
    for path in paths {
        match gguf::read(&path) {
            Ok(header) if header.tokenizer.is_none() => {
                let what = header.architecture().unwrap_or("no architecture");
                found.skipped.push((path, what.to_owned()));
            }
            _ => found.models.push(path),
        }
    }
    if found.models.is_empty() {
        let advice = match has_safetensors {
            true => {
                "it holds safetensors; make a GGUF of them with llama.cpp's convert_hf_to_gguf.py"
            }
            false => "-m needs a GGUF, or a folder with some",
        };
        bail!("{shown}: holds no GGUF: {advice}");
    }
    Ok(found)
}

/// A file, and if it is a part of a split model by its name, the other parts.
pub fn parts_of(file: &Path) -> Vec<PathBuf> {
    let part = |path: &Path| {
        let (name, _, count) = split_gguf_name(path.file_stem()?.to_str()?)?;
        Some((name.to_owned(), count))
    };
    let mut files = vec![file.to_owned()];
    if let Some(of) = part(file) {
        files.extend(entries(folder_of(file)).filter(|path| part(path).as_ref() == Some(&of)));
    }
    files
}

/// The entries of a folder. One that cannot be read is reported where it is opened.
pub fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.flatten().map(|entry| entry.path())
}

/// Returns true if a file's name is that of a GGUF.
pub fn is_gguf(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// Returns true if the file is a later part of a split GGUF: llama.cpp loads those itself.
fn is_later_part(path: &Path) -> bool {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    let part = stem.and_then(kl_formats::split_gguf_name);
    part.is_some_and(|(_, number, _)| number != 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_parts_are_known_by_their_names() {
        for (name, expected) in [
            ("a-00002-of-00003.gguf", true),
            ("a-00003-of-00003.gguf", true),
            ("a-00001-of-00003.gguf", false),
            ("a.gguf", false),
        ] {
            assert_eq!(is_later_part(Path::new(name)), expected, "{name}");
        }
    }

    #[test]
    fn a_folder_is_listed_by_name_and_one_without_models_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let refused = models_of_folder(path).unwrap_err().to_string();
        assert!(refused.contains("holds no GGUF"), "{refused}");
        for name in ["b.gguf", "a.GGUF", "a.txt", "a-00002-of-00002.gguf"] {
            fs::write(path.join(name), name).unwrap();
        }
        fs::create_dir(path.join("c.gguf")).unwrap();
        let found = models_of_folder(path).unwrap();
        assert_eq!(found.models, [path.join("a.GGUF"), path.join("b.gguf")]);
        assert_eq!(found.skipped, []);
        assert!(models_of_folder(&path.join("none")).is_err());
    }
}
