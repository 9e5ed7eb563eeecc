//! Finds where a text can be cut so that its pieces, tokenized apart, give the tokens of the whole.
//!
//! llama.cpp takes time that grows with the square of a text's length where it holds many special tokens, as every
//! line break is one for Gemma: it counts through the list of what it has found so far for each
//! (`tokenizer_st_partition` in `llama-vocab.cpp`). And if only the first windows of a text are wanted, the rest of it
//! need not be tokenized at all.
//!
//! A seam lies between a letter and the white space after it, where no token of the vocabulary holds the two side by
//! side. SentencePiece and byte-level BPE only merge neighbours into tokens of the vocabulary, and llama.cpp cuts out
//! special tokens, which are in the vocabulary too: nothing spans a seam. BPE splits a text into words first, and all
//! expressions for that end a word at the white space after a letter, whatever follows, but for those in
//! [`WITH_LONG_WORDS`]. What is left depends on a few characters around the seam, which are tokenized together and
//! apart.

use super::vocab::Vocab;
use crate::gguf::Gguf;

/// The pre-tokenizers whose words can hold white space.
const WITH_LONG_WORDS: [&str; 5] = ["exaone-moe", "superbpe", "gemma4", "sarvam-moe", "mmbert"];

/// White space that can follow a seam.
const BLANKS: [u8; 2] = [b' ', b'\n'];

/// Bytes on either side of a seam that are tokenized together and apart.
const CONTEXT: usize = 64;

/// The seams that are tried from one position on before the rest of a text is left whole.
const MAX_TRIES: usize = 16;

/// A place to cut a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seam {
    /// The byte at which the piece before it ends.
    pub(super) end: usize,
    /// The byte at which the piece after it starts: one later where llama.cpp puts a space before each text.
    pub(super) next: usize,
}

/// Finds the seams of texts for one vocabulary.
pub(super) struct Seams<'v> {
    vocab: &'v Vocab,
    parse_special: bool,
    /// For each of [`BLANKS`], the bytes that come before it in a token.
    joined: [[bool; 256]; 2],
}

impl<'v> Seams<'v> {
    /// Looks through the vocabulary; `None` if its tokenizer is of another kind.
    pub(super) fn new(header: &Gguf, vocab: &'v Vocab, parse_special: bool) -> Option<Self> {
        let tokenizer = header.tokenizer.as_ref()?;
        let is_known = match &*tokenizer.model {
            "llama" => true,
            "gpt2" => {
                let pre = header.pre_tokenizer().unwrap_or("default");
                !WITH_LONG_WORDS.contains(&pre)
            }
            _ => false,
        };
        if !is_known {
            return None;
        }
        let mut joined = [[false; 256]; 2];
        for token in 0..tokenizer.n_tokens {
            let bytes = vocab.piece(token as i32).unwrap_or_default();
            for pair in bytes.windows(2) {
                for (joined, blank) in joined.iter_mut().zip(BLANKS) {
                    joined[usize::from(pair[0])] |= pair[1] == blank;
                }
            }
        }
        Some(Self {
            vocab,
            parse_special,
            joined,
        })
    }

    /// The first seam of the text at this byte or later.
    pub(super) fn first_from(&self, text: &str, at: usize) -> Option<Seam> {
        let bytes = text.as_bytes().get(at..)?;
        let blanks = (at..).zip(bytes);
        let candidates = blanks.filter(|(at, byte)| self.is_candidate(text, *at, **byte));
        candidates
            .take(MAX_TRIES)
            .find_map(|(at, _)| self.tried(text, at))
    }

    /// True if no token spans the place between this white space and the letter before it.
    fn is_candidate(&self, text: &str, at: usize, byte: u8) -> bool {
        let Some(blank) = BLANKS.iter().position(|blank| *blank == byte) else {
            return false;
        };
        let before = &text[..at];
        let is_letter = before.chars().next_back().is_some_and(char::is_alphabetic);
        let last = before.as_bytes().last();
        is_letter && last.is_some_and(|byte| !self.joined[blank][usize::from(*byte)])
    }

    /// The seam at this byte, if the text around it has the tokens of its two halves.
    fn tried(&self, text: &str, at: usize) -> Option<Seam> {
        let start = text.floor_char_boundary(at.saturating_sub(CONTEXT));
        let end = text.ceil_char_boundary((at + CONTEXT).min(text.len()));
        let tokens = |text: &str| self.vocab.tokenize(text, self.parse_special).ok();
        let whole = tokens(&text[start..end])?;
        let before = tokens(&text[start..at])?;
        let is_space = text.as_bytes().get(at) == Some(&b' ');
        let starts = [Some(at), is_space.then_some(at + 1)];
        starts.into_iter().flatten().find_map(|next| {
            let after = tokens(&text[next..end])?;
            let is_exact = whole.strip_prefix(&before[..]) == Some(&after[..]);
            is_exact.then_some(Seam { end: at, next })
        })
    }
}
