//! Parts of a reference and of an evaluation, and what belongs together.

use super::*;
use crate::commands::{merge, stored_evaluations};
use crate::pipeline::Part;

impl Folder {
    /// Evaluates `model` against `ref` into the file `name`.
    fn evaluate_part(&self, model: &str, name: &str, part: Option<Part>) {
        let mut settings = self.evaluate_settings(&[model]);
        settings.results.part = part;
        settings.results.sidecar = Some(self.path(name));
        settings.results.existing = Existing::by_flags(false, Some(false));
        evaluated(&settings);
    }

    /// Evaluates in so many parts, into `<model>.0`, `<model>.1`, ...
    fn evaluate_parts(&self, model: &str, parts: usize) -> Vec<PathBuf> {
        let names = (0..parts).map(|index| {
            let name = format!("{model}.{index}");
            self.evaluate_part(model, &name, Some(part(index, parts)));
            self.path(&name)
        });
        names.collect()
    }
}

fn part(index: usize, count: usize) -> Part {
    format!("{index}/{count}").parse().unwrap()
}

#[test]
fn a_folder_of_many_evaluations_is_sorted_out() {
    let folder = Folder::new();
    folder.write("ref");
    let mut paths = folder.evaluate_parts("q4", 3);
    paths.extend(folder.evaluate_parts("f16", 2));
    folder.evaluate_part("f16", "whole", None);
    paths.push(folder.path("whole"));
    fs::write(folder.path("q2"), "another quant").unwrap();
    paths.extend(folder.evaluate_parts("q2", 3));
    // One part of `q2` is missing, `f16` has a whole file too, and a text is not a sidecar.
    let missing = paths.iter().position(|path| path.ends_with("q2.1"));
    paths.remove(missing.unwrap());
    paths.push(folder.path("text"));
    let (evaluations, unusable) = stored_evaluations(&paths);
    let found: Vec<usize> = evaluations.iter().map(|one| one.sidecars.len()).collect();
    assert_eq!(found, [3, 1]);
    for (name, what) in [
        ("text", "sidecar"),
        ("f16.0", "which holds all of it"),
        ("f16.1", "which holds all of it"),
        ("q2.0", "part 1 of 3 is missing"),
        ("q2.2", "part 1 of 3 is missing"),
    ] {
        let of = unusable.iter().find(|of| of.sidecar.ends_with(name));
        assert!(of.unwrap().why.contains(what), "{name}: {of:?}");
    }
    assert_eq!(unusable.len(), 5);

    let twice = [&paths[..3], &paths[1..2]].concat();
    let (evaluations, unusable) = stored_evaluations(&twice);
    assert!(evaluations.is_empty() && unusable.len() == 4);
    says(&unusable[0].why, &["both are part 1 of 3"]);
}

/// Three parts of an evaluation, and three of a reference, each with the name of the whole.
fn sidecars_and_references(folder: &Folder) -> [(Vec<PathBuf>, &'static str); 2] {
    folder.write("ref");
    let sidecars = folder.evaluate_parts("q4", 3);
    let references = (0..3).map(|index| {
        let name = format!("ref.{index}");
        let mut settings = folder.write_settings(&name);
        settings.part = Some(part(index, 3));
        written(&settings);
        folder.path(&name)
    });
    let references = references.collect();
    folder.evaluate_part("q4", "whole", None);
    [(sidecars, "whole"), (references, "ref")]
}

#[test]
fn an_interrupted_merge_leaves_nothing() {
    let folder = Folder::new();
    for (parts, whole) in sidecars_and_references(&folder) {
        let settings = folder.merge_settings(parts, false);
        let stopped = merge(&settings, &Recorder::stopping_after(2));
        assert!(stopped.unwrap_err().to_string().contains("interrupted"));
        assert!(!folder.path("joined").exists() && !folder.path("joined.partial").exists());
        let recorder = Recorder::default();
        let merged = merge(&settings, &recorder).unwrap();
        assert_eq!(merged.file_bytes, folder.bytes(whole).len() as u64);
        assert!(folder.bytes("joined") == folder.bytes(whole));
        assert_eq!(recorder.heard(), ["begin merging", "end"]);
        fs::remove_file(folder.path("joined")).unwrap();
    }
}

#[test]
fn a_merge_that_is_submitted_again_accepts_only_its_own_file() {
    let folder = Folder::new();
    for (parts, whole) in sidecars_and_references(&folder) {
        let whole = folder.bytes(whole);
        let settings = folder.merge_settings(parts, true);
        let partial = folder.path("joined.partial");
        // Another run left this, or another merge.
        let mut of_another = whole.clone();
        of_another[whole.len() / 4] ^= 1;
        for other in [b"other", &of_another[..]] {
            fs::write(&partial, other).unwrap();
            let error = merge(&settings, &()).unwrap_err();
            says(error, &["it is not of this merge"]);
            assert!(fs::read(&partial).unwrap() == other);
        }
        // A killed merge left this.
        for n in [0, 1, whole.len() / 2, whole.len()] {
            fs::write(&partial, &whole[..n]).unwrap();
            let merged = merge(&settings, &()).unwrap();
            assert!(!merged.was_whole && !partial.exists());
            assert!(folder.bytes("joined") == whole);
            fs::remove_file(folder.path("joined")).unwrap();
        }
        let merged = merge(&settings, &()).unwrap();
        assert!(!merged.was_whole);
        let again = merge(&settings, &()).unwrap();
        assert!(again.was_whole && folder.bytes("joined") == whole);
        assert_eq!(again.n_rows, merged.n_rows);
        assert_eq!(again.file_bytes, merged.file_bytes);

        let n = whole.len();
        let mut changed = whole.clone();
        changed[n / 2] ^= 1;
        let longer = [&whole[..], b"x"].concat();
        for other in [&changed[..], &whole[..n - 1], &longer, b""] {
            fs::write(folder.path("joined"), other).unwrap();
            let error = merge(&settings, &()).unwrap_err();
            says(error, &["is not what these parts make"]);
            assert!(folder.bytes("joined") == other);
        }
        // What is wrong with the parts is said as ever.
        let mut missing = settings;
        missing.parts.remove(1);
        says(merge(&missing, &()).unwrap_err(), &["part 1 of 3"]);
        fs::remove_file(folder.path("joined")).unwrap();
    }
}
