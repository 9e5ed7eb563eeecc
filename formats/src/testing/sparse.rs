//! Files above 4 GiB that take next to no room: holes between a few bytes. The tests of `kl` include
//! this file too.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

/// Makes a file of `len` bytes: zeros, but for these bytes at these offsets.
pub(crate) fn sparse(path: &Path, len: u64, parts: &[(u64, &[u8])]) {
    let mut file = File::create(path).unwrap();
    for (offset, bytes) in parts {
        file.seek(SeekFrom::Start(*offset)).unwrap();
        file.write_all(bytes).unwrap();
    }
    file.set_len(len).unwrap();
}
