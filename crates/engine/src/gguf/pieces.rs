//! Files that are not one whole GGUF: pieces that a file was cut into, and parts of a split model that were
//! joined byte by byte.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// The first bytes of a GGUF.
pub(super) const MAGIC: [u8; 4] = *b"GGUF";

/// A piece of a file that was cut byte by byte, as `split` cuts it, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The name of the whole file.
    pub whole: String,
    /// The rest of this one's name.
    suffix: String,
}

impl Piece {
    /// Reads a name such as `Q8_0.gguf.part1of2`, `Q8_0.gguf-split-a` or `Q8_0.gguf.aa`.
    pub fn of(path: &Path) -> Option<Self> {
        const GGUF: &str = ".gguf";
        let name = path.file_name()?.to_str()?;
        let at = name.to_ascii_lowercase().rfind(GGUF)?;
        let (whole, suffix) = name.split_at_checked(at + GGUF.len())?;
        let ending = suffix.to_ascii_lowercase();
        let is_mark = |c: char| matches!(c, '.' | '-' | '_');
        let counted = ending.strip_prefix(is_mark)?;
        let without_word = ["part", "split"].into_iter().find_map(|word| {
            let rest = counted.strip_prefix(word)?;
            Some(rest.strip_prefix(is_mark).unwrap_or(rest))
        });
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let (first, is_after_word) = (without_word.unwrap_or(counted), without_word.is_some());
        let is_letters =
            matches!(first.len(), 1 | 2) && first.bytes().all(|b| b.is_ascii_lowercase());
        let is_piece = match first.split_once("of") {
            Some((number, count)) => is_number(number) && is_number(count),
            None if is_after_word => is_number(first) || is_letters,
            // As `split` names them; other endings of two letters are those of packers.
            None => is_number(first) || first.len() == 2 && is_letters && first.starts_with('a'),
        };
        is_piece.then(|| Self {
            whole: whole.to_owned(),
            suffix: suffix.to_owned(),
        })
    }

    /// States what to do with a piece.
    pub fn advice(&self) -> String {
        let Self { whole, suffix } = self;
        let digits = |c: char| c.is_ascii_digit();
        let pieces = match suffix.to_ascii_lowercase().split_once("of") {
            // A pattern would put 10 before 2.
            Some((before, count)) if before.ends_with(digits) => {
                let word = suffix
                    .get(..before.len())
                    .unwrap_or(suffix)
                    .trim_end_matches(digits);
                let rest = if count == "2" { "" } else { " ..." };
                format!("{whole}{word}1of{count} {whole}{word}2of{count}{rest}")
            }
            _ => {
                let last = |c: char| c.is_ascii_alphanumeric();
                let end = suffix.trim_end_matches(last);
                let rest = suffix.get(end.len()..).unwrap_or_default();
                let word = ["part", "split"]
                    .into_iter()
                    .find(|word| rest.starts_with(word));
                format!("{whole}{end}{}*", word.unwrap_or_default())
            }
        };
        format!(
            "a piece of {whole}, which was cut up: join all pieces in their order (cat {pieces} >{whole}), and use that"
        )
    }
}

/// True if another GGUF begins where the data of a file ends, at one of these bytes: `cat` has joined the parts
/// of a split model.
pub(super) fn is_joined(path: &Path, ends: [u64; 2]) -> bool {
    let begins_at = |offset: u64| {
        let mut magic = [0; MAGIC.len()];
        let mut file = File::open(path).ok()?;
        file.seek(SeekFrom::Start(offset)).ok()?;
        file.read_exact(&mut magic).ok()?;
        Some(magic == MAGIC)
    };
    ends.into_iter().any(|end| begins_at(end) == Some(true))
}

/// The fault of parts that were joined, and the advice.
pub(super) const JOINED: &str = "continues with another GGUF after its last tensor: the parts of a split model were joined with cat, which no program reads: give the first part as it was downloaded, beside the others (-00001-of-), or join the parts with llama-gguf-split --merge";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_known_by_their_names() {
        for (name, command) in [
            (
                "m.Q8_0.gguf.part1of2",
                "cat m.Q8_0.gguf.part1of2 m.Q8_0.gguf.part2of2 >m.Q8_0.gguf)",
            ),
            (
                "m.gguf.part11of12",
                "cat m.gguf.part1of12 m.gguf.part2of12 ... >m.gguf)",
            ),
            ("m.gguf-split-b", "cat m.gguf-split-* >m.gguf)"),
            ("m.gguf.part-a", "cat m.gguf.part-* >m.gguf)"),
            ("m.gguf.part02", "cat m.gguf.part* >m.gguf)"),
            ("m.GGUF.001", "cat m.GGUF.* >m.GGUF)"),
            ("m.gguf.ab", "cat m.gguf.* >m.gguf)"),
        ] {
            let piece = Piece::of(Path::new(name)).unwrap();
            let advice = piece.advice();
            assert!(advice.contains(command), "{name}: {advice}");
        }
        for name in [
            "m.gguf",
            "m.gguf.part",
            "m.gguf.gz",
            "m.gguf.xz",
            "m.gguf.bak",
            "m.gguf.partial",
            "m-00001-of-00002.gguf",
            "aa",
            "m.gguf.sha256",
            "m.gguf-split-abc",
        ] {
            assert_eq!(Piece::of(Path::new(name)), None, "{name}");
        }
    }
}
