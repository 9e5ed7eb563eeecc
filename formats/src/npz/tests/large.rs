//! An array longer than 2^32 bytes, and one after it.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};

use super::*;

/// Leaves holes in a file where zeros are written: nothing else comes in such long pieces.
struct WithHoles(File);

impl Write for WithHoles {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() < 1 << 16 {
            return self.0.write(bytes);
        }
        self.0.seek(SeekFrom::Current(bytes.len() as i64))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[test]
fn an_array_beyond_4_gib_is_read_where_it_is() {
    const N_ROWS: u64 = (1 << 32) / ((4 * 5) << 20) + 1;
    // Rows of 5 Mi entries, so that there are few of them to skip.
    const N_VOCAB: u64 = 5 << 20;
    let scratch = Scratch::new();
    let file = WithHoles(File::create(&scratch.path).unwrap());
    let mut archive = ZipArchiveWriter::new(file);
    let zeros = vec![0; 1 << 20];
    for (name, n_rows, last) in [("arr_0.npy", N_ROWS, 0.0f32), ("arr_1.npy", 2, -2.5)] {
        let file = archive
            .new_file(name)
            .compression_method(CompressionMethod::STORE);
        let (mut entry, config) = file.start().unwrap();
        let mut writer = config.wrap(&mut entry);
        let header = npy("<f4", &format!("({n_rows}, {N_VOCAB})"), &[]);
        writer.write_all(&header).unwrap();
        for _ in 0..(n_rows * N_VOCAB * 4) / (1 << 20) - 1 {
            writer.write_all(&zeros).unwrap();
        }
        writer.write_all(&zeros[4..]).unwrap();
        writer.write_all(&last.to_le_bytes()).unwrap();
        let (_, descriptor) = writer.finish().unwrap();
        entry.finish(descriptor).unwrap();
    }
    // The last bytes are zeros, too.
    let WithHoles(mut file) = archive.finish().unwrap();
    let end = file.stream_position().unwrap();
    file.set_len(end).unwrap();

    let mut reader = NpzReader::open(&scratch.path).unwrap();
    assert!(end > 1 << 32);
    assert_eq!(reader.next_window().unwrap().unwrap().n_rows, N_ROWS as u32);
    assert_eq!(reader.next_rows(1).unwrap().unwrap().row(0).get(1), 0.0);
    assert_eq!(reader.next_window().unwrap().unwrap().n_rows, 2);
    let rows = reader.next_rows(2).unwrap().unwrap();
    assert_eq!(rows.row(1).get(N_VOCAB as usize - 1), -2.5);
    assert!(
        reader.next_rows(1).unwrap().is_none(),
        "and the checksum is right"
    );
}
