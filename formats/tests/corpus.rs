//! Every file of the fuzzer's corpus, read whole: see `fuzz/README.md`. With `KL_SEEDS=FOLDER`,
//! writes the files that a corpus begins with to that folder.

mod common;
#[path = "../../fuzz/src/framing.rs"]
mod framing;
#[path = "../../fuzz/src/memory.rs"]
mod memory;
#[path = "../../fuzz/src/on_disk.rs"]
mod on_disk;
#[path = "../../fuzz/src/readers.rs"]
mod readers;
#[path = "corpus/seeds.rs"]
mod seeds;

use std::path::Path;
use std::process::Command;

use on_disk::OnDisk;
use readers::Target;

/// One test for all: allocations are counted for the whole process.
#[test]
fn the_corpus_is_read_without_a_panic_or_a_bomb() {
    if let Some(folder) = std::env::var_os("KL_SEEDS") {
        seeds::write(Path::new(&folder));
    }
    let unpacked = tempfile::tempdir().unwrap();
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus.tar.gz");
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(archive).arg("-C").arg(unpacked.path());
    assert!(tar.status().unwrap().success());
    let corpus = unpacked.path().join("corpus");
    seeds::write(&corpus);
    let folder = tempfile::tempdir().unwrap();
    for target in readers::TARGETS {
        let (mut whole, mut faulty) = (0, 0);
        for entry in std::fs::read_dir(corpus.join(target.name)).unwrap() {
            let from = entry.unwrap().path();
            eprintln!("{}", from.display());
            let on_disk = (target.frame)(&std::fs::read(from).unwrap());
            match is_whole(&target, &on_disk, folder.path()) {
                true => whole += 1,
                false => faulty += 1,
            }
        }
        eprintln!("{}: {whole} whole, {faulty} faulty", target.name);
        // A corpus of an outdated format would test only the first checks.
        assert!(whole > 0 && faulty > 0, "{}", target.name);
    }
    for bomb in seeds::bombs() {
        is_whole(&readers::NPZ, &OnDisk::File(bomb), folder.path());
    }
}

/// Reads everything within the memory limit, and checks the message if that fails.
fn is_whole(target: &Target, on_disk: &OnDisk, folder: &Path) -> bool {
    let path = on_disk.put(folder).unwrap();
    let found = memory::limited(target.memory(on_disk.bytes()), || (target.read)(&path));
    if let Err(error) = &found {
        let message = error.to_string();
        assert!(!message.contains('\n'), "{message:?}");
        assert!(message.contains(path.to_str().unwrap()), "{message}");
    }
    found.is_ok()
}
