//! Gzip members one after another, read as one stream.

use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

use crate::gzip::GZIP_MAGIC;

/// The contents of all members. Unlike [`flate2::bufread::MultiGzDecoder`], it distinguishes bytes
/// after the last member, which fail with [`io::ErrorKind::InvalidData`], from a member that is cut
/// short.
#[derive(Debug)]
pub(super) struct Members<R> {
    /// The member being read; `None` after the last one.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> Members<R> {
    pub(super) fn new(stream: R) -> Self {
        Self {
            member: Some(GzDecoder::new(stream)),
        }
    }
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        while let Some(member) = &mut self.member {
            let n = member.read(into)?;
            if n > 0 {
                return Ok(n);
            }
            // This may be a single byte: the buffer may end there.
            let next = member.get_mut().fill_buf()?;
            if !next.iter().zip(&GZIP_MAGIC).all(|(a, b)| a == b) {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "trailing bytes: what follows the gzip stream is not gzip",
                ));
            }
            let is_end = next.is_empty();
            self.member = self
                .member
                .take()
                .filter(|_| !is_end)
                .map(|member| GzDecoder::new(member.into_inner()));
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gzip::gzip;

    fn read(bytes: &[u8], buffer_bytes: usize) -> io::Result<Vec<u8>> {
        let mut plain = Vec::new();
        Members::new(io::BufReader::with_capacity(buffer_bytes, bytes)).read_to_end(&mut plain)?;
        Ok(plain)
    }

    #[test]
    fn members_are_joined_and_trailing_bytes_are_not_a_cut_member() {
        let two = [gzip(b"one, "), gzip(b""), gzip(b"two")].concat();
        // Wherever the buffer ends.
        for buffer_bytes in 1..=two.len() {
            assert_eq!(read(&two, buffer_bytes).unwrap(), b"one, two");
            for trailing in [&b"\0"[..], b"no gzip at all"] {
                let error = read(&[&two[..], trailing].concat(), buffer_bytes).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{trailing:?}");
            }
            let cut = [&two[..], &two[..9]].concat();
            let error = read(&cut, buffer_bytes).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
