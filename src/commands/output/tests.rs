use super::*;
use std::io::Write;

const NEW: (bool, Existing) = (false, Existing::Refuse("--force"));
const FORCED: (bool, Existing) = (true, Existing::Replace);
const RESUMED: (bool, Existing) = (false, Existing::Resume);

fn create(target: &Path, (may_replace, begun): (bool, Existing)) -> Result<PartialFile> {
    PartialFile::create(target, may_replace, begun)
}

fn refused(target: &Path, rules: (bool, Existing)) -> String {
    create(target, rules).unwrap_err().to_string()
}

#[test]
fn what_was_written_is_replaced_as_a_whole_and_stays_locked() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("a");
    let mut output = create(&target, NEW).unwrap();
    output.file().unwrap().write_all(b"in some order").unwrap();
    output.replace(b"in order").unwrap();
    assert_eq!(fs::read(output.path()).unwrap(), b"in order");
    let other = refused(&target, RESUMED);
    assert!(other.contains("being written by another run"), "{other}");
    output.commit().unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"in order");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_file_appears_when_it_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("a");
    let output = create(&target, NEW).unwrap();
    output.file().unwrap().write_all(b"whole").unwrap();
    assert!(!target.exists());
    output.commit().unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"whole");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_run_that_fails_leaves_the_old_file_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("a");
    fs::write(&target, b"old").unwrap();
    assert!(refused(&target, NEW).contains("--force"));
    let output = create(&target, FORCED).unwrap();
    output.file().unwrap().write_all(b"ha").unwrap();
    drop(output);
    assert_eq!(fs::read(&target).unwrap(), b"old");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_partial_file_is_named_and_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("a");
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
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("a");
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
fn two_runs_never_write_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("a");
    let first = create(&target, FORCED).unwrap();
    assert!(refused(&target, FORCED).contains("another run"));
    first.file().unwrap().write_all(b"first").unwrap();
    first.commit().unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"first");
}

#[test]
fn a_name_taken_meanwhile_is_respected_and_the_work_kept() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("a");
    let output = create(&target, NEW).unwrap();
    output.file().unwrap().write_all(b"work").unwrap();
    fs::write(&target, b"precious").unwrap();
    let message = output.commit().unwrap_err().to_string();
    assert!(message.contains("a.partial"), "{message}");
    assert_eq!(fs::read(&target).unwrap(), b"precious");
    assert_eq!(fs::read(folder.path().join("a.partial")).unwrap(), b"work");
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
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("a");
    let output = create(&target, FORCED).unwrap();
    output.file().unwrap().write_all(b"work").unwrap();
    fs::create_dir(&target).unwrap();
    let message = output.commit().unwrap_err().to_string();
    assert!(message.contains("whole, in"), "{message}");
    assert_eq!(fs::read(folder.path().join("a.partial")).unwrap(), b"work");
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
    let output = create(&link, FORCED).unwrap();
    output.file().unwrap().write_all(b"new").unwrap();
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
