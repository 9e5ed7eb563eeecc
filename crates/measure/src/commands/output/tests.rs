use super::*;
use std::io::Write;

const NEW: (bool, Existing) = (false, Existing::Refuse("--force"));
const FORCED: (bool, Existing) = (true, Existing::Replace);
const RESUMED: (bool, Existing) = (false, Existing::Resume);

fn create(target: &Path, (may_replace, begun): (bool, Existing)) -> Result<PartialFile> {
    PartialFile::create(target, may_replace, begun)
}

/// A file that was created, and has these bytes.
fn begun(target: &Path, rules: (bool, Existing), bytes: &[u8]) -> PartialFile {
    let output = create(target, rules).unwrap();
    output.file().unwrap().write_all(bytes).unwrap();
    output
}

/// An empty folder, and the path of a file in it.
fn target() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("a");
    (folder, target)
}

fn refused(target: &Path, rules: (bool, Existing)) -> String {
    create(target, rules).unwrap_err().to_string()
}

#[test]
fn what_was_written_is_replaced_as_a_whole_and_stays_locked() {
    let (folder, target) = target();
    let mut output = begun(&target, NEW, b"in some order");
    output.replace(b"in order").unwrap();
    assert_eq!(fs::read(output.path()).unwrap(), b"in order");
    let other = refused(&target, RESUMED);
    assert!(other.contains("being written by another run"), "{other}");
    output.commit().unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"in order");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[cfg(unix)]
#[test]
fn what_replaces_it_does_not_follow_a_link() {
    let (folder, target) = target();
    let mut output = begun(&target, NEW, b"in some order");
    let precious = folder.path().join("precious");
    fs::write(&precious, b"precious").unwrap();
    let new = folder.path().join("a.partial.new");
    std::os::unix::fs::symlink(&precious, new).unwrap();
    output.replace(b"in order").unwrap();
    assert_eq!(fs::read(output.path()).unwrap(), b"in order");
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
}

#[test]
fn a_file_appears_when_it_is_whole_and_only_one_run_writes_it() {
    let (folder, target) = target();
    let output = begun(&target, FORCED, b"whole");
    assert!(!target.exists());
    assert!(refused(&target, FORCED).contains("another run"));
    output.commit().unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"whole");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_run_that_fails_leaves_the_old_file_and_nothing_else() {
    let (folder, target) = target();
    fs::write(&target, b"old").unwrap();
    assert!(refused(&target, NEW).contains("--force"));
    let output = begun(&target, FORCED, b"ha");
    drop(output);
    assert_eq!(fs::read(&target).unwrap(), b"old");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_partial_file_is_named_and_not_touched() {
    let (folder, target) = target();
    let partial = folder.path().join("a.partial");
    fs::write(&partial, b"left").unwrap();
    let message = refused(&target, NEW);
    assert!(
        message.contains("a.partial") && message.contains("left over"),
        "{message}"
    );
    assert_eq!(fs::read(&partial).unwrap(), b"left");
    create(&target, FORCED).unwrap().commit().unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"", "nothing of what was left");
}

#[test]
fn what_is_worth_keeping_is_kept_and_resumed() {
    let (folder, target) = target();
    let mut output = create(&target, RESUMED).unwrap();
    assert!(!output.is_resumed);
    output.file().unwrap().write_all(b"half").unwrap();
    output.keep_if_cut_off();
    drop(output);
    let output = create(&target, RESUMED).unwrap();
    assert!(output.is_resumed);
    assert_eq!(fs::read(output.path()).unwrap(), b"half");
    // Nothing was done with it: it is still there.
    drop(output);
    let output = create(&target, RESUMED).unwrap();
    output.commit().unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"half");
    let mut output = create(&folder.path().join("b"), NEW).unwrap();
    output.keep_if_cut_off();
    output.discard();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_partial_name_that_stays_is_told_from_a_name_that_cannot_be_given() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("a.partial"), folder.path().join("a"));
    fs::write(&from, b"work").unwrap();
    let unlink = |_: &Path| Err(io::ErrorKind::PermissionDenied.into());
    let why = rename_new(&from, &to, unlink).unwrap_err();
    assert!(why.starts_with("was created, but"), "{why}");
    assert_eq!(fs::read(&to).unwrap(), b"work");
}

#[test]
fn a_name_that_cannot_be_given_loses_nothing() {
    let is_taken: fn(&Path) = |target| fs::write(target, b"precious").unwrap();
    let is_folder: fn(&Path) = |target| fs::create_dir(target).unwrap();
    for (rules, meanwhile) in [(NEW, is_taken), (FORCED, is_folder)] {
        let (folder, target) = target();
        let output = begun(&target, rules, b"work");
        meanwhile(&target);
        let message = output.commit().unwrap_err().to_string();
        let is_named = message.contains("whole, in") && message.contains("a.partial");
        assert!(is_named, "{message}");
        assert!(target.is_dir() || fs::read(&target).unwrap() == b"precious");
        assert_eq!(fs::read(folder.path().join("a.partial")).unwrap(), b"work");
    }
}

#[test]
fn folders_and_missing_folders_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    assert!(refused(&folder.path().join("no/a"), NEW).contains("cannot be created"));
    assert!(refused(folder.path(), FORCED).contains("folder"));
}

#[cfg(unix)]
#[test]
fn a_link_is_followed_and_a_device_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (real, link) = (folder.path().join("real"), folder.path().join("link"));
    fs::write(&real, b"old").unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let output = begun(&link, FORCED, b"new");
    output.commit().unwrap();
    assert_eq!(fs::read(&real).unwrap(), b"new");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());

    // A link to a file that does not exist yet, perhaps on a larger disk.
    let (far, dangling) = (folder.path().join("far"), folder.path().join("dangling"));
    std::os::unix::fs::symlink("far", &dangling).unwrap();
    let output = create(&dangling, NEW).unwrap();
    output.commit().unwrap();
    assert!(far.is_file() && fs::symlink_metadata(&dangling).unwrap().is_symlink());

    let device = folder.path().join("device");
    std::os::unix::fs::symlink("/dev/null", &device).unwrap();
    assert!(refused(&device, FORCED).contains("regular"));
}

/// What only its owner could read stays so, also while it is written and when the bytes are replaced in one piece.
#[cfg(unix)]
#[test]
fn a_file_that_is_replaced_keeps_its_mode() {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let (folder, target) = target();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&target, &link).unwrap();
    for wanted in [0o600, 0o640, 0o444, 0o664] {
        for path in [&target, &link] {
            let _ = fs::remove_file(&target);
            fs::write(&target, b"old").unwrap();
            fs::set_permissions(&target, fs::Permissions::from_mode(wanted)).unwrap();
            let mut output = begun(path, FORCED, b"new");
            assert_eq!(mode(output.path()), wanted | 0o600);
            output.replace(b"newer").unwrap();
            assert_eq!(mode(output.path()), wanted | 0o600);
            output.commit().unwrap();
            assert_eq!(
                (mode(&target), fs::read(&target).unwrap()),
                (wanted, b"newer".to_vec())
            );
        }
    }
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
}
