//! The models of a folder, and the names of evaluations and of their sidecars.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Component, Path, PathBuf, absolute};

use anyhow::{Context, Result, bail};
use kl_engine::gguf::{self, Piece};
use kl_formats::split_gguf_name;
use kl_report::number::count_of;
use kl_report::without_part;

use super::output::folder_of;

/// Lists the models that `-m FOLDER` stands for: every GGUF in the order of the names, but only the first part
/// of a split one. One that cannot be read is listed too: running it reports why. Those that are no language
/// model by themselves are `skipped`, and pieces of a file that was cut up: each with what it is.
///
/// # Errors
/// A folder that cannot be read, or holds no model.
pub fn models_of_folder(
    folder: &Path,
    skipped: &mut Vec<(PathBuf, String)>,
) -> Result<Vec<PathBuf>> {
    let shown_folder = folder.display();
    let unreadable = || format!("{shown_folder}: cannot be read");
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).with_context(unreadable)? {
        entries.push(entry.with_context(unreadable)?.path());
    }
    entries.sort();
    let (mut models, mut not_models) = (Vec::new(), Vec::new());
    let mut model_files = Vec::new();
    let mut cut_up_files = HashSet::new();
    for path in &entries {
        let new_piece = Piece::of(path).filter(|piece| cut_up_files.insert(piece.whole.clone()));
        if let Some(piece) = new_piece {
            not_models.push((path.clone(), piece.advice()));
        } else if is_model_file(path) {
            model_files.push(path.clone());
        }
    }
    for path in model_files {
        match gguf::read(&path)
            .ok()
            .and_then(|header| header.not_a_model())
        {
            Some(kind) => not_models.push((path, kind.in_place_of_a_model())),
            None => models.push(path),
        }
    }
    if models.is_empty() {
        bail!(
            "{shown_folder}: {}",
            instead_of_models(&entries, &not_models)
        );
    }
    skipped.extend(not_models);
    Ok(models)
}

/// True if a file is named as a model, and not as a later part of one.
fn is_model_file(path: &Path) -> bool {
    // A link to nothing is a model that cannot be read.
    let is_file = fs::metadata(path).map_or(true, |metadata| metadata.is_file());
    is_gguf(path) && !is_later_part(path) && is_file
}

/// Describes a folder without models, with these entries, of which some are files that are `not_models`.
fn instead_of_models(entries: &[PathBuf], not_models: &[(PathBuf, String)]) -> String {
    let has_safetensors = || {
        entries
            .iter()
            .filter_map(|path| path.extension())
            .any(|extension| extension == "safetensors")
    };
    if let Some((path, kind)) = not_models.first() {
        let name = path.file_name().unwrap_or_default().display();
        let more = match not_models.len() - 1 {
            0 => String::new(),
            n => format!(" (and {})", count_of(n as u64, "such file")),
        };
        return format!(
            "holds no model: {name} is {kind}{more}: -m needs a GGUF, or a folder with some"
        );
    }
    let folders = folders_with_models(entries);
    if let Some(first) = folders.first() {
        let more = match folders.len() - 1 {
            0 => String::new(),
            n => format!(", or one of {} more", count_of(n as u64, "folder")),
        };
        return format!(
            "holds no GGUF itself, only folders that do: give {}{more}",
            first.display()
        );
    }
    let advice = if has_safetensors() {
        "it holds safetensors; make a GGUF of them with llama.cpp's convert_hf_to_gguf.py"
    } else {
        "-m needs a GGUF, or a folder with some"
    };
    format!("holds no GGUF: {advice}")
}

/// The folders below these entries that hold GGUFs, at most as deep as the cache of a hub has them:
/// `models--USER--REPO/snapshots/COMMIT/Q4_K_M`.
fn folders_with_models(folder_entries: &[PathBuf]) -> Vec<PathBuf> {
    const MAX_DEPTH: usize = 3;
    const MAX_FOLDERS: usize = 1000;
    let (mut with_models, mut n_searched) = (Vec::new(), 0);
    let folders_among = |paths: &[PathBuf]| -> Vec<PathBuf> {
        paths.iter().filter(|path| path.is_dir()).cloned().collect()
    };
    let mut level = folders_among(folder_entries);
    for _ in 0..MAX_DEPTH {
        let mut next_level = Vec::new();
        for folder in level {
            n_searched += 1;
            if n_searched > MAX_FOLDERS {
                return with_models;
            }
            let mut entries: Vec<PathBuf> = entries(&folder).collect();
            entries.sort();
            if entries.iter().any(|path| is_model_file(path)) {
                with_models.push(folder);
            } else {
                next_level.extend(folders_among(&entries));
            }
        }
        level = next_level;
    }
    with_models
}

/// A file, and the other parts if its name is that of a part of a split model.
pub fn parts_of(file: &Path) -> Vec<PathBuf> {
    let whole_of = |path: &Path| part_name(path).map(|(name, _, count)| (name.to_owned(), count));
    let mut files = vec![file.to_owned()];
    if let Some(whole) = whole_of(file) {
        files.extend(
            entries(folder_of(file)).filter(|path| whole_of(path).as_ref() == Some(&whole)),
        );
    }
    files
}

/// The entries of a folder. One that cannot be read is reported where it is opened.
pub fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
}

/// True if a file's name is that of a GGUF.
pub fn is_gguf(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// True if the file is a later part of a split GGUF: llama.cpp loads those itself.
fn is_later_part(path: &Path) -> bool {
    part_name(path).is_some_and(|(_, number, _)| number != 1)
}

/// The name of the whole, the part's number and the number of parts, if a file is named as a part.
fn part_name(path: &Path) -> Option<(&str, u32, u32)> {
    split_gguf_name(path.file_stem()?.to_str()?)
}

/// The name of a file without its folder, its extension and, if the model is split, the number of its
/// part. A folder's name has no extension.
pub fn stem(path: &Path) -> String {
    let name = if path.is_dir() {
        path.file_name()
    } else {
        path.file_stem()
    };
    let name = name.unwrap_or_default().to_string_lossy();
    without_part(&name).unwrap_or(&name).to_owned()
}

/// Labels for the files whose name another one has too: the name after that of the folder, or of as
/// many folders as it takes to tell them apart, as in `A-Q4_K_M`. Files that differ only in their
/// extension keep it. No label is the name of another file, or starts with the dot of a
/// hidden folder: shells leave hidden files out of `*`.
///
/// A file that is given twice gets none.
pub fn labels_of_namesakes(paths: &[PathBuf]) -> BTreeMap<PathBuf, String> {
    let mut by_name: BTreeMap<String, Vec<&PathBuf>> = BTreeMap::new();
    for path in paths {
        by_name.entry(stem(path)).or_default().push(path);
    }
    let mut taken: HashSet<String> = by_name.keys().cloned().collect();
    let mut labels = BTreeMap::new();
    for (name, paths) in by_name.into_iter().filter(|(_, paths)| paths.len() > 1) {
        taken.remove(&name);
        let labelled_paths = distinct_labels(&paths, &taken);
        taken.insert(name);
        taken.extend(labelled_paths.iter().map(|(_, label)| label.clone()));
        labels.extend(labelled_paths);
    }
    labels
}

/// The shortest labels that tell these paths apart, and from what is `taken`, if any do.
fn distinct_labels(paths: &[&PathBuf], taken: &HashSet<String>) -> Vec<(PathBuf, String)> {
    let label = |path: &Path, has_extension: bool, n_folders: usize| {
        let mut parts = folder_names(path);
        parts.drain(..parts.len().saturating_sub(n_folders));
        let name = match path.file_name() {
            Some(name) if has_extension => name.to_string_lossy().into_owned(),
            _ => stem(path),
        };
        parts.push(name);
        parts.join("-").trim_start_matches('.').to_owned()
    };
    let max_folders = paths.iter().map(|path| folder_names(path).len()).max();
    for has_extension in [false, true] {
        for n_folders in 0..=max_folders.unwrap_or(0) {
            let labels: Vec<String> = paths
                .iter()
                .map(|path| label(path, has_extension, n_folders))
                .collect();
            let different: HashSet<String> = labels.iter().cloned().collect();
            if different.len() == labels.len() && different.is_disjoint(taken) {
                let paths = paths.iter().map(|path| (*path).clone());
                return paths.zip(labels).collect();
            }
        }
    }
    Vec::new()
}

/// The names of the folders that a path leads through, from the root on. In the cache of models by name,
/// `models--USER--REPO/snapshots/COMMIT` is `USER` and `REPO`.
fn folder_names(path: &Path) -> Vec<String> {
    let path = absolute(path).unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().unwrap_or(&path);
    let mut names: Vec<String> = folder
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            _ => None,
        })
        .collect();
    let repository_folder = names.iter().enumerate().find_map(|(start, name)| {
        let (user, repository) = kl_hub::repository_of_folder(name)?;
        Some((start, [user.to_owned(), repository.to_owned()]))
    });
    if let Some((start, user_and_repository)) = repository_folder {
        // Its folder, `snapshots`, and that of the commit.
        let end = names.len().min(start + 3);
        names.splice(start..end, user_and_repository);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_listed_by_name_and_one_without_models_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let listed = |path: &Path| models_of_folder(path, &mut Vec::new());
        let refused = listed(path).unwrap_err().to_string();
        assert!(refused.contains("holds no GGUF"), "{refused}");
        for name in ["b.gguf", "a.GGUF", "a.txt", "a-00002-of-00002.gguf"] {
            fs::write(path.join(name), name).unwrap();
        }
        fs::create_dir(path.join("c.gguf")).unwrap();
        let expected = [path.join("a.GGUF"), path.join("b.gguf")];
        assert_eq!(listed(path).unwrap(), expected);
        assert!(listed(&path.join("none")).is_err());
    }

    #[test]
    fn a_name_has_no_folder_and_no_extension() {
        for (path, name) in [
            ("models/q4.gguf", "q4"),
            ("q4-00001-of-00003.gguf", "q4"),
            ("Llama-3.1-Q4_K_M.gguf", "Llama-3.1-Q4_K_M"),
            ("ref.logits.gz", "ref.logits"),
            ("other", "other"),
        ] {
            assert_eq!(stem(Path::new(path)), name);
        }
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("Llama-3.1");
        std::fs::create_dir(&folder).unwrap();
        assert_eq!(stem(&folder), "Llama-3.1");
    }

    #[test]
    fn namesakes_are_told_apart_by_as_many_folders_as_it_takes() {
        let labels = |paths: &[&str]| {
            let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
            let labels = labels_of_namesakes(&paths);
            let of_each = paths.iter().map(|path| labels.get(path).cloned());
            of_each.map(Option::unwrap_or_default).collect::<Vec<_>>()
        };
        let two = labels(&["/m/A/Q4_K_M.gguf", "/m/q8.gguf", "/m/B/Q4_K_M.gguf"]);
        assert_eq!(two, ["A-Q4_K_M", "", "B-Q4_K_M"]);
        assert_eq!(
            labels(&["/m/A/gguf/q4.gguf", "/m/B/gguf/q4.gguf"]),
            ["A-gguf-q4", "B-gguf-q4"]
        );
        assert_eq!(labels(&["/q4.gguf", "/A/q4.gguf"]), ["q4", "A-q4"]);
        // Relative paths have folders too.
        let [here, there] = &labels(&["q4.gguf", "A/q4.gguf"])[..] else {
            panic!("two labels");
        };
        assert_eq!(there, "A-q4");
        assert!(here.ends_with("-q4"), "{here}");
        assert_eq!(labels(&["a/q4.npz", "a/q4.gz"]), ["q4.npz", "q4.gz"]);
        assert_eq!(labels(&["q4.gguf", "q4.gguf"]), ["", ""]);
        assert_eq!(labels(&["/m/.c/q4", "/m/A/q4"]), ["c-q4", "A-q4"]);
        assert_eq!(
            labels(&["/m/.c/q4", "/m/c/q4"]),
            ["m-.c-q4", "m-c-q4"],
            "a dot inside"
        );
        // Of repositories, without the commit.
        let cached = |user: &str| format!("/c/models--{user}--Q/snapshots/0a1b/q4");
        assert_eq!(labels(&[&cached("a"), &cached("b")]), ["a-Q-q4", "b-Q-q4"]);
        // Another file's name, and another's label.
        assert_eq!(
            labels(&["/m/A-q4", "/m/A/q4", "/m/B/q4"]),
            ["", "m-A-q4", "m-B-q4"]
        );
        assert_eq!(
            labels(&["/a/b-q4", "/c/b-q4", "/m/a/b/q4", "/m/d/b/q4"]),
            ["a-b-q4", "c-b-q4", "m-a-b-q4", "m-d-b-q4"]
        );
    }
}
