//! The header of an array: a magic, a version, and a Python dict literal.

use std::io::{self, Read};

use py_literal::Value;

use crate::numbers::{Float, Integer};
use crate::python_literal;

const MAGIC: [u8; 6] = *b"\x93NUMPY";

/// Most bytes of the dict; numpy itself refuses to parse more than 10,000.
const MAX_DICT_BYTES: u32 = 64 << 10;

/// The type of an array's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryType {
    Float(Float),
    Integer(Integer),
    /// Bytes: mlx-kld's `meta_json`.
    Bytes,
}

/// An array's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) entry: EntryType,
    pub(super) shape: Vec<u64>,
    /// Bytes before the first entry.
    pub(super) bytes: u64,
}

/// Reads a header. An array of another kind than those read here is an error of
/// [`io::ErrorKind::Unsupported`].
pub(super) fn read(array: &mut impl Read) -> io::Result<Header> {
    let mut start = [0; 8];
    array.read_exact(&mut start)?;
    let [magic @ .., version, _] = &start;
    if *magic != MAGIC {
        return Err(unsupported("is not a numpy array"));
    }
    let (length, before) = match version {
        1 => {
            let mut length = [0; 2];
            array.read_exact(&mut length)?;
            (u16::from_le_bytes(length).into(), 10)
        }
        2 | 3 => {
            let mut length = [0; 4];
            array.read_exact(&mut length)?;
            (u32::from_le_bytes(length), 12)
        }
        other => {
            return Err(unsupported(&format!(
                "has version {other} of numpy's format; 1 to 3 can be read"
            )));
        }
    };
    if length > MAX_DICT_BYTES {
        return Err(unsupported(&format!("has a header of {length} bytes")));
    }
    let mut dict = vec![0; length as usize];
    array.read_exact(&mut dict)?;
    let (entry, shape) = parse(&dict)?;
    Ok(Header {
        entry,
        shape,
        bytes: before + u64::from(length),
    })
}

fn parse(dict: &[u8]) -> io::Result<(EntryType, Vec<u64>)> {
    let text = str::from_utf8(dict).ok();
    let entries = text
        .and_then(|text| python_literal::dict(text).ok()?)
        .ok_or_else(|| unsupported("has a header that is not a Python dict"))?;
    let entry = |wanted: &str| {
        let is_wanted = |key: &Value| matches!(key, Value::String(key) if key == wanted);
        let found = entries.iter().find(|(key, _)| is_wanted(key));
        found.map(|(_, value)| value)
    };
    let entry_type = match entry("descr") {
        Some(Value::String(descr)) => entry_type(descr)?,
        _ => return Err(unsupported("holds records, not numbers")),
    };
    match entry("fortran_order") {
        Some(Value::Boolean(false)) => {}
        _ => {
            return Err(unsupported(
                "is in Fortran order: save numpy.ascontiguousarray of it",
            ));
        }
    }
    let Some(Value::Tuple(shape) | Value::List(shape)) = entry("shape") else {
        return Err(unsupported("has a header without a shape"));
    };
    let size = |value: &Value| match value {
        Value::Integer(n) => n.try_into().ok(),
        _ => None,
    };
    let shape: Option<Vec<u64>> = shape.iter().map(size).collect();
    let shape = shape.ok_or_else(|| unsupported("has a shape that is not a list of sizes"))?;
    Ok((entry_type, shape))
}

/// The meaning of `descr`: byte order, type and bytes of an entry.
fn entry_type(descr: &str) -> io::Result<EntryType> {
    Ok(match descr {
        "<f2" => EntryType::Float(Float::F16),
        "<f4" => EntryType::Float(Float::F32),
        "<f8" => EntryType::Float(Float::F64),
        "<i4" => EntryType::Integer(Integer::I32),
        "<i8" => EntryType::Integer(Integer::I64),
        "<u4" => EntryType::Integer(Integer::U32),
        "<u8" => EntryType::Integer(Integer::U64),
        "|u1" => EntryType::Bytes,
        _ if descr.starts_with('>') => {
            return Err(unsupported(
                "is big-endian: save it as a little-endian type, as '<f4'",
            ));
        }
        _ if descr.starts_with("|O") => {
            return Err(unsupported(
                "holds Python objects, which are not read: save numbers",
            ));
        }
        _ => {
            return Err(unsupported(&format!(
                "is of type {descr:?}: rows must be float16, float32 or float64, token ids int32, \
                 int64, uint32 or uint64"
            )));
        }
    })
}

fn unsupported(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(version: u8, dict: &str) -> Vec<u8> {
        let length = dict.len();
        let length = match version {
            1 => (length as u16).to_le_bytes().to_vec(),
            _ => (length as u32).to_le_bytes().to_vec(),
        };
        [&MAGIC[..], &[version, 0], &length, dict.as_bytes()].concat()
    }

    #[test]
    fn headers_of_all_versions_are_read() {
        let dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }   \n";
        for (version, before) in [(1, 10), (2, 12), (3, 12)] {
            let bytes = header(version, dict);
            let got = read(&mut &bytes[..]).unwrap();
            assert_eq!(
                (got.entry, got.shape),
                (EntryType::Float(Float::F32), vec![3, 4])
            );
            assert_eq!(got.bytes, before + dict.len() as u64);
            for cut in 0..bytes.len() {
                let error = read(&mut &bytes[..cut]).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{cut}");
            }
        }
    }

    #[test]
    fn an_error_states_why_an_array_is_refused() {
        let good = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)}";
        for (from, to, what) in [
            ("<f4", ">f4", "big-endian"),
            ("<f4", "|O", "Python objects"),
            ("<f4", "<c8", "\"<c8\""),
            ("'<f4'", "[('a', '<f4')]", "records"),
            ("False", "True", "Fortran"),
            ("'fortran_order': False, ", "", "Fortran"),
            ("(3, 4)", "(3, -4)", "shape"),
            ("(3, 4)", "('a', 4)", "shape"),
            ("(3, 4)", "(36893488147419103232, 4)", "shape"),
            ("(3, 4)", "((((((((3,),),),),),),),)", "not a Python dict"),
            ("'shape'", "'form'", "without a shape"),
        ] {
            let dict = good.replace(from, to);
            let error = read(&mut &header(1, &dict)[..]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{dict}");
            assert!(error.to_string().contains(what), "{dict}: {error}");
        }
        let huge = header(2, &" ".repeat(1 << 20));
        assert!(
            read(&mut &huge[..])
                .unwrap_err()
                .to_string()
                .contains("1048576")
        );
        let newer = header(4, good);
        assert!(
            read(&mut &newer[..])
                .unwrap_err()
                .to_string()
                .contains("version 4")
        );
        assert!(read(&mut &b"\x93NUMPX\x01\0\0\0"[..]).is_err());
    }
}
