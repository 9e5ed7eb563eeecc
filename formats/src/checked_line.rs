//! A checksum in each line of a text of JSON objects, so that a line of a file that is continued or
//! recalled stands for itself: `{"key":1}` is written as `{"key":1,"crc32":2790448741}`.

use crate::gzip::checksum_matches;

/// The start of the key that holds the checksum. The quotes of a JSON string are escaped, so that these bytes
/// are found only where a key begins.
const KEY: &[u8] = b",\"crc32\":";

/// The state of a line's checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineChecksum {
    /// It is that of the line's other bytes.
    Matches,
    /// It is not: the line has changed since it was written.
    Differs,
    /// There is none.
    Missing,
}

/// Makes a line of a JSON object that has a key at least: adds as its last key, `crc32`, the CRC-32 of all
/// bytes before that key's comma, and a line feed. Returns `None` for anything but such an object.
#[must_use]
pub fn with_checksum(json: &[u8]) -> Option<Vec<u8>> {
    let start = json.strip_suffix(b"}")?;
    let mut line = start.to_vec();
    line.extend_from_slice(KEY);
    line.extend_from_slice(crc32fast::hash(start).to_string().as_bytes());
    line.extend_from_slice(b"}\n");
    Some(line)
}

impl LineChecksum {
    /// Looks at a line, with its line feed.
    #[must_use]
    pub fn of(line: &[u8]) -> Self {
        let key = line.windows(KEY.len()).rposition(|bytes| bytes == KEY);
        let Some((start, rest)) = key.and_then(|at| line.split_at_checked(at)) else {
            return Self::Missing;
        };
        let digits = rest.strip_prefix(KEY);
        let digits = digits.and_then(|rest| rest.strip_suffix(b"}\n"));
        let stated = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let number = stated.and_then(|stated| stated.parse::<u32>().ok());
        // "+1" and "01" are numbers to a parser, but nothing that is written.
        match number.filter(|number| stated == Some(number.to_string().as_str())) {
            Some(number) if checksum_matches(crc32fast::hash(start), number) => Self::Matches,
            _ => Self::Differs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_spelled_out() {
        let line = with_checksum(b"{\"key\":1}").unwrap();
        assert_eq!(line, b"{\"key\":1,\"crc32\":2790448741}\n");
        assert_eq!(LineChecksum::of(&line), LineChecksum::Matches);
        assert_eq!(LineChecksum::of(b"{\"key\":1}\n"), LineChecksum::Missing);
        // A string that looks like the key is escaped.
        let line = with_checksum(br#"{"key":"\",\"crc32\":1}"}"#).unwrap();
        assert_eq!(LineChecksum::of(&line), LineChecksum::Matches);
        assert_eq!(with_checksum(b"[1]"), None);
    }

    #[test]
    fn no_changed_bit_and_no_missing_byte_matches() {
        let line = with_checksum(b"{\"window\":4,\"answer\":[1,20,300]}").unwrap();
        for i in 0..line.len() {
            assert_ne!(LineChecksum::of(&line[..i]), LineChecksum::Matches, "{i}");
            for bit in 0..8 {
                let mut damaged = line.clone();
                damaged[i] ^= 1 << bit;
                assert_ne!(LineChecksum::of(&damaged), LineChecksum::Matches, "{i}");
            }
        }
    }
}
