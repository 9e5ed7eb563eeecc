//! Tokenizes texts with llama.cpp, and gives it the stack that it needs.
//!
//! llama.cpp splits a text into words before it merges their characters into tokens. For many vocabularies it does that
//! with the regular expressions of the C++ library, and GCC's match by a recursion over the characters of a word: 60,000
//! equal letters, or as many blank lines, need more stack than a thread has.

use std::ops::Range;
use std::thread;

use llama_cpp_2::model::LlamaModel;

use super::runs::{Run, Splitter};
use super::seams::Seams;
use super::vocab::Vocab;
use crate::EngineError;
use crate::gguf::Gguf;
use kl_system::threads::{self, NoThread};

/// Bytes of stack for each character of a word: twice what the matcher uses (322 with GCC 13 on x86-64, whichever the
/// expression).
const STACK_PER_CHARACTER: usize = 640;

/// Bytes of stack for everything else that tokenizes.
const STACK: usize = 256 << 10;

/// The longest word that is tokenized on the caller's own stack, in characters.
const SHORT: usize = 400;

/// The longest word that is tokenized, in characters: it uses 340 MB of stack.
const LONGEST: usize = 1 << 20;

/// The bytes of a piece of a text: fewer give no time back, and a vocabulary's special tokens are looked for in
/// each.
const PIECE_BYTES: usize = 64 << 10;

/// Tokenizes a text, without adding BOS or EOS.
///
/// # Errors
/// A text or a word in it that is too long, no thread with the stack that it needs, or why llama.cpp cannot tokenize
/// it.
pub(super) fn tokenize(
    model: &LlamaModel,
    header: &Gguf,
    text: &str,
    parse_special: bool,
) -> Result<Vec<u32>, EngineError> {
    let (tokens, _) = tokenize_start(model, header, text, parse_special, usize::MAX)?;
    Ok(tokens)
}

/// Tokenizes a text up to its first `n_tokens` tokens or somewhat more. Returns also whether that is all of it.
///
/// # Errors
/// Those of [`tokenize`], about what it tokenizes.
pub(super) fn tokenize_start(
    model: &LlamaModel,
    header: &Gguf,
    text: &str,
    parse_special: bool,
    n_tokens: usize,
) -> Result<(Vec<u32>, bool), EngineError> {
    let vocab = Vocab::new(model);
    let pieces = Pieces {
        seams: (text.len() > 2 * PIECE_BYTES)
            .then(|| Seams::new(header, &vocab, parse_special))
            .flatten(),
        n_bytes: PIECE_BYTES,
    };
    let splitter = Splitter::new(header);
    pieces.tokenize(text, n_tokens, |piece| {
        tokenize_piece(&vocab, splitter, text, piece, parse_special)
    })
}

/// A way to cut texts.
struct Pieces<'v> {
    /// Where a text may be cut; `None`: nowhere.
    seams: Option<Seams<'v>>,
    /// The fewest bytes of a piece, but for the last one.
    n_bytes: usize,
}

impl Pieces<'_> {
    /// Tokenizes a text piece by piece, until it has as many tokens as are wanted. Returns also whether it came to the
    /// end.
    fn tokenize(
        &self,
        text: &str,
        n_tokens: usize,
        tokenize: impl Fn(Range<usize>) -> Result<Vec<u32>, EngineError>,
    ) -> Result<(Vec<u32>, bool), EngineError> {
        let (mut tokens, mut start) = (Vec::new(), 0);
        while start < text.len() && tokens.len() < n_tokens {
            let seams = self.seams.as_ref();
            let seam = seams.and_then(|seams| seams.first_from(text, start + self.n_bytes));
            let end = seam.map_or(text.len(), |seam| seam.end);
            tokens.append(&mut tokenize(start..end)?);
            start = seam.map_or(text.len(), |seam| seam.next);
        }
        Ok((tokens, start >= text.len()))
    }
}

/// Tokenizes a piece of `text` with the stack that its longest word needs.
fn tokenize_piece(
    vocab: &Vocab,
    splitter: Splitter,
    text: &str,
    piece: Range<usize>,
    parse_special: bool,
) -> Result<Vec<u32>, EngineError> {
    let start = piece.start;
    let in_text = |run: Run| Run {
        start: start + run.start,
        ..run
    };
    let piece = &text[piece];
    // llama.cpp counts the bytes of a text in 31 bits.
    if i32::try_from(piece.len()).is_err() {
        return Err(EngineError::Setup(format!(
            "the text has {} bytes, but llama.cpp tokenizes at most {} at once: split the file",
            text.len(),
            i32::MAX
        )));
    }
    let longest = in_text(splitter.longest_word(piece).unwrap_or_default());
    if longest.n_characters > LONGEST {
        return Err(too_long(text, longest, "without a break", LONGEST));
    }
    if let Some(slow) = splitter.slow {
        let run = in_text(slow.longest_run(piece));
        if run.n_characters > slow.longest() {
            return Err(too_long(text, run, slow.in_words(), slow.longest()));
        }
    }
    let tokenized = if longest.n_characters <= SHORT {
        vocab.tokenize(piece, parse_special)
    } else {
        let stack = STACK + STACK_PER_CHARACTER * longest.n_characters;
        thread::scope(|scope| {
            let work = || vocab.tokenize(piece, parse_special);
            let thread = threads::spawn_scoped(scope, Some(stack), work);
            match thread.map(|thread| thread.join()) {
                Ok(Ok(tokenized)) => tokenized,
                // A panic, which is printed.
                Ok(Err(_)) => Err("its thread has ended".to_owned()),
                Err(cause) => Err(no_stack(text, longest, stack, &cause)),
            }
        })
    };
    tokenized.map_err(|what| {
        EngineError::Setup(format!(
            "llama.cpp cannot tokenize the text: {}",
            explained(&what)
        ))
    })
}

/// The meaning of an exception's message, where it names only the container that threw it.
fn explained(what: &str) -> String {
    if what.to_lowercase().contains("map") || what.contains("range_check") {
        return format!(
            "its vocabulary has no token for a byte of it ({what}): convert the model again, or use another text"
        );
    }
    what.to_owned()
}

/// Refuses a run of characters that is too long.
fn too_long(text: &str, run: Run, kind: &str, most: usize) -> EngineError {
    let n = run.n_characters;
    EngineError::Setup(format!(
        "{} has {n} characters {kind}, and llama.cpp splits at most {most} with this vocabulary: break or shorten them",
        place(text, run)
    ))
}

fn no_stack(text: &str, run: Run, stack: usize, cause: &NoThread) -> String {
    format!(
        "{} has {} characters without a break, which need a thread with a stack of {} MiB: {cause}; or break them",
        place(text, run),
        run.n_characters,
        stack.div_ceil(1 << 20)
    )
}

/// The line of a text in which a run begins, and its byte.
fn place(text: &str, run: Run) -> String {
    let before = text.as_bytes().get(..run.start).unwrap_or_default();
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    format!("line {line} (from byte {})", run.start)
}

#[cfg(test)]
mod tests;
