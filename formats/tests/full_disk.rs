//! Writers whose disk is full after any number of bytes return an error, and never succeed.

mod common;

use std::io::{self, Write};
use std::path::Path;

use kl_formats::{
    Encoding, Float, Header, Kind, ReferenceSummary, Result, SidecarHeader, SidecarWriter, Target,
    TokenRecord, WindowSpec, Writer,
};

const N_VOCAB: u32 = 3;

/// A disk with limited room; the last write accepts what fits.
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

/// Two windows of a file of a kind.
fn windows(kind: Kind) -> [WindowSpec; 2] {
    [0, 1].map(|window| WindowSpec {
        window,
        tokens: vec![0, 1, 2, 1],
        first_scored: if kind == Kind::LlamaCpp { 2 } else { 0 },
        n_rows: if kind == Kind::LlamaCpp { 1 } else { 4 },
    })
}

/// Writes these windows; in a native file the rows of each make two pieces.
fn reference(kind: Kind, disk: Disk) -> Result<Disk> {
    let (path, windows) = (Path::new("out"), windows(kind));
    let target = Target::new(kind, None).unwrap();
    let about = common::about(kind, 4, N_VOCAB);
    let mut writer = if kind == Kind::Kl {
        let mut header = Header::new(&about, target.encoding(), &windows);
        header.rows_per_piece = 2;
        Writer::native(disk, path, &header)?
    } else {
        Writer::create(disk, path, target, &about, &windows)?
    };
    for window in &windows {
        let rows = (0..window.n_rows).map(|i| [0.5, i as f32, -1.0]);
        writer.write_window(window, rows)?;
    }
    writer.finish()
}

/// Windows of hidden states of one number, after an f32 head.
fn hidden(disk: Disk) -> Result<Disk> {
    let (path, windows) = (Path::new("out"), windows(Kind::Kl));
    let tensor = [0x3f; 4 * N_VOCAB as usize];
    let mut about = common::about(Kind::Kl, 4, N_VOCAB);
    about.states = Some(common::states(1, Float::Bf16, 0, &tensor));
    let target = Target::new(Kind::Kl, Some(Encoding::Hidden)).unwrap();
    let mut writer = Writer::create(disk, path, target, &about, &windows)?;
    writer.write_head(&tensor[..], &[vec![0.5; N_VOCAB as usize]])?;
    for window in &windows {
        writer.write_window(window, (0..window.n_rows).map(|i| [i as f32]))?;
    }
    writer.finish()
}

fn sidecar(disk: Disk) -> Result<Disk> {
    let mut header = SidecarHeader::new(ReferenceSummary::default(), 4, N_VOCAB, Some(3));
    header.model = Some(common::model());
    let mut writer = SidecarWriter::create(disk, Path::new("out"), &header)?;
    for position in 0..3 {
        writer.push(&TokenRecord {
            position,
            ..common::record()
        })?;
    }
    writer.finish(&[(1, b"a")].into_iter().collect())
}

#[test]
fn a_disk_that_is_full_at_any_byte_is_an_error() {
    for (name, write) in [
        (
            "kl",
            (|disk| reference(Kind::Kl, disk)) as fn(Disk) -> Result<Disk>,
        ),
        ("kl with hidden states", hidden),
        ("kl.py", |disk| reference(Kind::KlPy, disk)),
        ("llama.cpp", |disk| reference(Kind::LlamaCpp, disk)),
        ("sidecar", sidecar),
    ] {
        let disk = |room| Disk {
            room,
            bytes: Vec::new(),
        };
        let whole = write(disk(usize::MAX)).unwrap().bytes;
        for room in 0..whole.len() {
            let error = write(disk(room)).map(|_| ()).unwrap_err().to_string();
            assert!(
                error.starts_with("out: cannot write: "),
                "{name}, {room}: {error}"
            );
            assert!(!error.contains('\n'));
        }
        assert_eq!(write(disk(whole.len())).unwrap().bytes, whole, "{name}");
    }
}
