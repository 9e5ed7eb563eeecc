//! Files of every kind that were whole once: a flipped byte, a missing end, anything moved. Damage is
//! found where a kind has checksums, and never does harm. Writers whose disk is full return an error.

use std::io;
use std::sync::LazyLock;

use super::*;
use crate::{Kind, Result, map, npz, safetensors, sidecar};

const N_VOCAB: u32 = 5;

/// A whole file of a kind.
struct Sample {
    /// Its name, in the scratch folder.
    name: &'static str,
    bytes: Vec<u8>,
    /// True if checksums cover every byte.
    has_checksums: bool,
    /// Reads everything that the file holds.
    read: fn(&Path) -> Result<String>,
    /// Checks every byte that can be checked.
    verify: fn(&Path) -> Result<()>,
}

impl Sample {
    /// Writes these bytes in place of the file's, and returns the path to open.
    fn put(&self, scratch: &Scratch, bytes: &[u8]) -> PathBuf {
        let folder = scratch.path.parent().unwrap();
        std::fs::write(folder.join(self.name), bytes).unwrap();
        match self.name {
            "0.safetensors" => folder.to_owned(),
            name => folder.join(name),
        }
    }
}

/// Writes a reference of a kind.
fn reference<W: Write>(kind: Kind, out: W) -> Result<W> {
    let mut windows = [window(0, 6, 3, N_VOCAB), window(1, 6, 3, N_VOCAB)];
    for window in &mut windows {
        if kind == Kind::KlPy {
            window.spec.first_scored = 0;
        }
        // A base file has no row of a window's last token.
        window.spec.n_rows = 2;
        window.rows.truncate(2 * N_VOCAB as usize);
    }
    let target = Target::new(kind, None).unwrap();
    let about = about(kind, 6, N_VOCAB);
    let writer = Writer::create(out, Path::new("out"), target, &about, &specs(&windows))?;
    try_written(writer, &windows, 3)
}

/// The number of each window of a native file, its tokens, and its first scored position.
const COUNTS: [(u32, u32, u32); 3] = [(2, 6, 1), (0, 3, 3), (1, 4, 2)];

/// Writes a native file whose rows have every form, in several pieces.
fn rows<W: Write>(out: W) -> Result<W> {
    let mut windows = COUNTS.map(|(number, n, first)| window(number, n, first, N_VOCAB));
    windows[0].rows[7] = f32::NAN;
    windows[0].rows[10] = f32::NEG_INFINITY;
    windows[2].rows[4] = f32::INFINITY;
    let header = header(Encoding::U16, N_VOCAB, &windows);
    let writer = Writer::native(out, Path::new("out"), &header)?;
    try_written(writer, &windows, 3)
}

/// Writes a native file of hidden states.
fn hidden<W: Write>(out: W) -> Result<W> {
    let windows = COUNTS.map(|(number, n, first)| {
        let mut window = window(number, n, first, N_VOCAB);
        window.rows.truncate(3 * window.spec.n_rows as usize);
        window
    });
    let hidden = Hidden::new(Float::F16, N_VOCAB, windows.into());
    try_written(hidden.writer(out)?, &hidden.windows, 3)
}

static SAMPLES: LazyLock<Vec<Sample>> = LazyLock::new(samples);

fn samples() -> Vec<Sample> {
    let written_as = |kind| reference(kind, Vec::new()).unwrap();
    let logits: Vec<f32> = (0..10u8).map(f32::from).collect();
    let sample = |name, has_checksums, bytes| Sample {
        name,
        bytes,
        has_checksums,
        read: read_reference,
        verify: verify_reference,
    };
    let piped = |name, bytes| Sample {
        read: read_piped,
        verify: |path| read_piped(path).map(|_| ()),
        ..sample(name, false, bytes)
    };
    vec![
        sample("rows", true, rows(Vec::new()).unwrap()),
        sample("states", true, hidden(Vec::new()).unwrap()),
        sample("kl.py", false, written_as(Kind::KlPy)),
        sample("llama.cpp", false, written_as(Kind::LlamaCpp)),
        piped("kl.py-piped", written_as(Kind::KlPy)),
        piped("llama.cpp-piped", written_as(Kind::LlamaCpp)),
        sample("npz", false, npz::tests::sample(false)),
        sample("npz-deflated", false, npz::tests::sample(true)),
        sample("0.safetensors", false, safetensors::tests::sample(&logits)),
        Sample {
            read: |path| {
                let reader = SidecarReader::open(path)?;
                let texts = format!("{:?}", reader.texts()?);
                Ok(format!(
                    "{:?} {:?} {texts}",
                    reader.header.clone(),
                    reader.read_all()?
                ))
            },
            verify: |path| sidecar::verify(path).map(|_| ()),
            ..sample("sidecar", true, sidecar::tests::sample(Vec::new()).unwrap())
        },
        Sample {
            read: |path| {
                map::verify(path)?;
                Ok(format!("{:?}", SensitivityMap::read(path)?))
            },
            verify: |path| map::verify(path).map(|_| ()),
            ..sample("map", true, map::tests::sample())
        },
    ]
}

/// All that a reference holds that is read as from a pipe.
fn read_piped(path: &Path) -> Result<String> {
    let file = std::fs::File::open(path).unwrap();
    all_of(Reference::read_once(path, file)?)
}

/// All that a file holds, rows and states as bits.
fn read_reference(path: &Path) -> Result<String> {
    all_of(Reference::open(path)?)
}

fn all_of(reference: Reference) -> Result<String> {
    let mut all = format!("{:?}", reference.about());
    let windows = reference.windows().map(<[WindowEntry]>::to_vec);
    if let Rows::States(file, _) = reference.rows() {
        let mut head = Vec::new();
        let read = std::io::Read::read_to_end(&mut file.head(), &mut head);
        read.map_err(|error| error.downcast::<Error>().unwrap())?;
        all += &format!("{head:?} {:?}", file.check_rows()?);
        for (i, entry) in windows.unwrap().iter().enumerate() {
            let states = file.read_states(i, 0..entry.n_rows, &mut None)?;
            all += &format!("{:?} {states:?}", ReadBlocks::window(&**file, i)?);
        }
        return Ok(all);
    }
    for (window, blocks) in read_rows(reference)? {
        let rows: Vec<_> = blocks.iter().map(bits).collect();
        all += &format!("{window:?}{rows:?}");
    }
    Ok(all)
}

fn verify_reference(path: &Path) -> Result<()> {
    let reference = Reference::open(path)?;
    let windows = 0..reference.windows().map_or(0, <[WindowEntry]>::len);
    match reference.into_rows() {
        Rows::Blocks(blocks) => windows
            .into_iter()
            .try_for_each(|i| blocks.verify_window(i)),
        Rows::States(file, _) => {
            file.verify_head()?;
            windows.into_iter().try_for_each(|i| file.verify_window(i))
        }
        _ => read_reference(path).map(|_| ()),
    }
}

#[test]
fn every_flipped_byte_is_found_or_does_no_harm() {
    for sample in SAMPLES.iter() {
        let scratch = Scratch::new();
        let path = sample.put(&scratch, &sample.bytes);
        (sample.read)(&path).unwrap();
        (sample.verify)(&path).unwrap();
        for i in 0..sample.bytes.len() {
            let mut damaged = sample.bytes.clone();
            damaged[i] ^= 1 << (i % 8);
            sample.put(&scratch, &damaged);
            let (read, verified) = ((sample.read)(&path), (sample.verify)(&path));
            for error in [read.as_ref().err(), verified.as_ref().err()]
                .into_iter()
                .flatten()
            {
                check_message(error, &path);
            }
            if sample.has_checksums {
                let errors = [read.err(), verified.err()].map(|error| error.map(|e| e.to_string()));
                assert!(errors[0].is_some(), "{}: byte {i}", sample.name);
                assert_eq!(errors[0], errors[1], "{}: byte {i}", sample.name);
            }
        }
    }
}

#[test]
fn every_truncation_is_found() {
    for sample in SAMPLES.iter() {
        let scratch = Scratch::new();
        for n in 0..sample.bytes.len() {
            let path = sample.put(&scratch, &sample.bytes[..n]);
            let error = (sample.read)(&path).expect_err(&format!("{}: {n} bytes", sample.name));
            check_message(&error, &path);
            match error.fault {
                // Too short to be recognised.
                Fault::NotAReference(_) | Fault::NotASidecar(_) | Fault::NotAMap(_) if n < 512 => {}
                Fault::Truncated(at, _) if at.offset <= n as u64 || !sample.has_checksums => {}
                Fault::WriterEnded(at, _) if at.offset == n as u64 => {}
                _ => panic!(
                    "{}: {n} of {} bytes: {error}",
                    sample.name,
                    sample.bytes.len()
                ),
            }
        }
    }
}

/// A disk with limited room; the last write accepts what fits.
#[derive(Debug)]
struct Disk {
    room: usize,
    bytes: Vec<u8>,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(self.room);
        if n == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.room -= n;
        self.bytes.extend_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_disk_that_is_full_at_any_byte_is_an_error() {
    type Write = fn(Disk) -> Result<Disk>;
    let writers: [(&str, Write); 5] = [
        ("kl", rows),
        ("kl with hidden states", hidden),
        ("kl.py", |disk| reference(Kind::KlPy, disk)),
        ("llama.cpp", |disk| reference(Kind::LlamaCpp, disk)),
        ("sidecar", sidecar::tests::sample),
    ];
    for (name, write) in writers {
        let disk = |room| Disk {
            room,
            bytes: Vec::new(),
        };
        let whole = write(disk(usize::MAX)).unwrap().bytes;
        for room in 0..whole.len() {
            let error = write(disk(room)).unwrap_err().to_string();
            assert!(
                error.starts_with("out: cannot write: "),
                "{name}, {room}: {error}"
            );
            assert!(!error.contains('\n'));
        }
        assert_eq!(write(disk(whole.len())).unwrap().bytes, whole, "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn changed_files_give_errors_or_the_same(changes in prop::collection::vec(any_change(), 1..4)) {
        for sample in SAMPLES.iter() {
            let scratch = Scratch::new();
            let mut changed = sample.bytes.clone();
            changes.iter().for_each(|change| change.apply(&mut changed));
            let path = sample.put(&scratch, &changed);
            match (sample.read)(&path) {
                Ok(found) if sample.has_checksums => {
                    sample.put(&scratch, &sample.bytes);
                    prop_assert_eq!(found, (sample.read)(&path).unwrap());
                }
                Ok(_) => {}
                Err(error) => check_message(&error, &path),
            }
        }
    }
}
