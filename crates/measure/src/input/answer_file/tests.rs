//! A file of answers that is cut off anywhere.

use super::*;

fn run() -> AnswerRun {
    AnswerRun {
        backend: BackendIdentity::default(),
        generated: Some(8),
        model: ModelIdentity::named("m.gguf"),
        n_ctx: None,
        sampling: None,
        writer: "kl".to_owned(),
    }
}

#[test]
fn whole_lines_are_kept_and_others_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    assert!(AnswerFile::read(&path).unwrap().is_none());
    let mut file = AnswerFile::new(path.clone(), run());
    assert!(!path.exists());
    file.keep(4, &[1, 2], &[3]).unwrap();
    file.keep(5, &[1], &[4, 5]).unwrap();
    let whole = fs::read(&path).unwrap();
    for cut in 0..=whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        let read = AnswerFile::read(&path).unwrap();
        let ends: Vec<usize> = (0..cut).filter(|&i| whole[i] == b'\n').collect();
        assert_eq!(read.is_some(), !ends.is_empty());
        let Some(mut read) = read else { continue };
        assert_eq!(
            (read.n_answers, read.run.model.shown_name()),
            (ends.len() - 1, Some("m.gguf"))
        );
        let known = (read.answer(4, &[1, 2]), read.answer(5, &[1]));
        let expected = (Some(&[3][..]), Some(&[4, 5][..]));
        assert_eq!(known.0, expected.0.filter(|_| ends.len() > 1));
        assert_eq!(known.1, expected.1.filter(|_| ends.len() > 2));
        // Another prompt in the same window is not the one that was answered.
        assert_eq!(read.answer(4, &[1, 3]), None);
        read.keep(4, &[1, 2], &[3]).unwrap();
        read.keep(5, &[1], &[4, 5]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), whole, "{cut}");
    }
    AnswerFile::read(&path).unwrap().unwrap().remove().unwrap();
    assert!(!path.exists());
    // Version 0.1.0 wrote lines without checksums.
    fs::write(&path, "{\"model\":\"m\"}\n").unwrap();
    let refused = AnswerFile::read(&path).unwrap_err().to_string();
    assert!(refused.contains("no checksums"), "{refused}");
    for other in ["my notes\n", "3\nmore", "\n"] {
        fs::write(&path, other).unwrap();
        let refused = AnswerFile::read(&path).unwrap_err().to_string();
        assert!(refused.contains("no list of answers"), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), other.as_bytes());
    }
}

/// Whatever bit changes, an answer is the one that was kept, or is not known.
#[test]
fn no_changed_bit_gives_another_answer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let mut file = AnswerFile::new(path.clone(), run());
    file.keep(4, &[1, 2], &[3, 70]).unwrap();
    file.keep(5, &[1], &[4, 5]).unwrap();
    let whole = fs::read(&path).unwrap();
    for i in 0..whole.len() {
        for bit in 0..8 {
            let mut damaged = whole.clone();
            damaged[i] ^= 1 << bit;
            fs::write(&path, &damaged).unwrap();
            let Ok(Some(read)) = AnswerFile::read(&path) else {
                continue;
            };
            assert_eq!(read.run, run());
            let known = [read.answer(4, &[1, 2]), read.answer(5, &[1])];
            let written = [&[3, 70][..], &[4, 5]];
            assert!(
                known
                    .iter()
                    .zip(written)
                    .all(|(known, written)| known.is_none_or(|known| known == written))
            );
            assert!(known.iter().any(Option::is_none), "byte {i}, bit {bit}");
            // The last line feed: that line was cut off.
            assert_eq!(
                read.n_damaged > 0,
                i + 1 < whole.len(),
                "byte {i}, bit {bit}"
            );
        }
    }
}
