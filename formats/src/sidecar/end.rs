//! The end of a sidecar, after the records: the texts of tokens, so that its contents can be shown
//! in context without a model; and the trailer, which shows that nothing is missing.

use std::collections::BTreeMap;

use bytemuck::{Pod, Zeroable};

use super::crc_of;

/// The texts of some tokens, by their ids, as the bytes that the model's tokenizer gives for each: one
/// token may be part of a character. At most 65,535 bytes a token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenTexts(BTreeMap<u32, Box<[u8]>>);

impl TokenTexts {
    /// The bytes of a token, if they are known.
    pub fn get(&self, id: u32) -> Option<&[u8]> {
        self.0.get(&id).map(|bytes| &**bytes)
    }

    /// The text of tokens in sequence. What is not UTF-8 becomes U+FFFD, and a token without a text
    /// its id in angle brackets.
    pub fn text(&self, tokens: &[u32]) -> String {
        let mut joined = Vec::new();
        for &token in tokens {
            match self.get(token) {
                Some(bytes) => joined.extend_from_slice(bytes),
                None => joined.extend(format!("<{token}>").into_bytes()),
            }
        }
        String::from_utf8_lossy(&joined).into_owned()
    }

    /// Each token's id and bytes, by ascending id.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.0.iter().map(|(&id, bytes)| (id, &**bytes))
    }

    /// True if no text is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes of a file's section: for each token its id (u32), the number of its bytes (u16), and
    /// the bytes.
    pub(super) fn to_section(&self) -> Vec<u8> {
        let mut section = Vec::new();
        for (id, bytes) in self.iter() {
            section.extend(id.to_le_bytes());
            section.extend((bytes.len() as u16).to_le_bytes()); // no text is longer
            section.extend(bytes);
        }
        section
    }

    /// Reads a file's section; `None` if it ends within a text, or if the ids do not ascend.
    pub(super) fn from_section(mut section: &[u8]) -> Option<Self> {
        let mut texts = BTreeMap::new();
        while !section.is_empty() {
            let (id, after_id) = section.split_first_chunk()?;
            let (len, after_len) = after_id.split_first_chunk()?;
            let (bytes, rest) = after_len.split_at_checked(u16::from_le_bytes(*len).into())?;
            let id = u32::from_le_bytes(*id);
            if texts.last_key_value().is_some_and(|(last, _)| *last >= id) {
                return None;
            }
            texts.insert(id, bytes.into());
            section = rest;
        }
        Some(Self(texts))
    }
}

/// In any order; of one token's texts the last is kept. A longer text than a file can hold is cut.
impl<B: AsRef<[u8]>> FromIterator<(u32, B)> for TokenTexts {
    fn from_iter<I: IntoIterator<Item = (u32, B)>>(texts: I) -> Self {
        let cut = |bytes: &[u8]| bytes.get(..u16::MAX.into()).unwrap_or(bytes).into();
        let texts = texts.into_iter();
        Self(texts.map(|(id, bytes)| (id, cut(bytes.as_ref()))).collect())
    }
}

/// Bytes of the trailer.
pub const TRAILER_BYTES: usize = size_of::<Trailer>();

/// The start of the trailer. A record would have to belong to window 1,600,351,339 to start so.
const END_MARK: [u8; 8] = *b"kls_end\n";

/// A file's last bytes.
#[derive(Pod, Zeroable, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Trailer {
    /// [`END_MARK`].
    mark: [u8; 8],
    /// Records in the file.
    pub n_records: u64,
    /// Bytes of the section of texts.
    pub texts_bytes: u64,
    /// CRC-32 of these bytes.
    pub texts_crc: u32,
    /// CRC-32 of the fields before it.
    pub crc: u32,
}

impl Trailer {
    /// The trailer of a file with this section of texts.
    pub fn new(n_records: u64, texts: &[u8], header_crc: u32) -> Self {
        let mut trailer = Self {
            mark: END_MARK,
            n_records,
            texts_bytes: texts.len() as u64,
            texts_crc: crc32fast::hash(texts),
            crc: 0,
        };
        trailer.crc = trailer.computed_crc(header_crc);
        trailer
    }

    /// The checksum of its fields.
    pub fn computed_crc(&self, header_crc: u32) -> u32 {
        let fields = bytemuck::bytes_of(self).split_last_chunk::<4>();
        fields.map_or(0, |(fields, _)| crc_of(header_crc, &[fields]))
    }

    /// Reads the last bytes of a file; `None` if they are not a trailer, so that the file was cut off.
    pub fn read(bytes: &[u8; TRAILER_BYTES]) -> Option<Self> {
        let trailer: Self = bytemuck::pod_read_unaligned(bytes);
        (trailer.mark == END_MARK).then_some(trailer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts() -> TokenTexts {
        let pieces: [(u32, &[u8]); 4] = [(7, b" caf\xc3"), (2, b"<s>"), (9, b""), (8, b"\xa9")];
        pieces.into_iter().collect()
    }

    #[test]
    fn a_character_of_two_tokens_is_whole() {
        let texts = texts();
        assert_eq!(texts.text(&[2, 7, 8, 9]), "<s> caf\u{e9}");
        assert_eq!(texts.text(&[8, 3]), "\u{fffd}<3>");
        assert_eq!(texts.get(9), Some(&[][..]));
        assert_eq!(texts.get(3), None);
        assert!(!texts.is_empty() && TokenTexts::default().is_empty());
    }

    #[test]
    fn a_section_spelled_out() {
        #[rustfmt::skip]
        let section = [
            2, 0, 0, 0, 3, 0, b'<', b's', b'>', // id, length, text
            7, 0, 0, 0, 5, 0, b' ', b'c', b'a', b'f', 0xc3,
            8, 0, 0, 0, 1, 0, 0xa9,
            9, 0, 0, 0, 0, 0,
        ];
        assert_eq!(texts().to_section(), section);
        assert_eq!(TokenTexts::from_section(&section), Some(texts()));
        assert_eq!(TokenTexts::from_section(&[]), Some(TokenTexts::default()));
        let whole = [9, 20, 27, 33];
        for n in 1..section.len() {
            let read = TokenTexts::from_section(&section[..n]);
            assert_eq!(read.is_some(), whole.contains(&n), "{n}");
        }
        for doubled in [&section[..9], &section[20..27]] {
            assert_eq!(
                TokenTexts::from_section(&[&section[..], doubled].concat()),
                None
            );
        }
    }

    #[test]
    fn a_text_that_no_file_can_hold_is_cut() {
        let texts: TokenTexts = [(1, vec![b'a'; 70_000]), (2, vec![b'b'])]
            .into_iter()
            .collect();
        assert_eq!(texts.get(1).unwrap().len(), 65_535);
        assert_eq!(TokenTexts::from_section(&texts.to_section()), Some(texts));
    }
}
