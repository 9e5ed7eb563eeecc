//! A model's vocabulary, as llama.cpp's own functions read it, which may throw.

use std::ffi::c_char;

use llama_cpp_2::model::LlamaModel;
use llama_cpp_sys_2 as sys;

use super::guard::{calls, guarded};
use super::handle::as_ptr;

/// A vocabulary, which no thread changes.
pub(super) struct Vocab(*const sys::llama_vocab);

// SAFETY: tokenizing only reads it.
unsafe impl Sync for Vocab {}

impl Vocab {
    /// The vocabulary of a model, which it must not outlive.
    pub(super) fn new(model: &LlamaModel) -> Self {
        // SAFETY: the model is valid.
        Self(unsafe { sys::llama_model_get_vocab(as_ptr(model)) })
    }

    /// The bytes of a token's text; `None` where llama.cpp throws, or the token is outside the vocabulary.
    pub(super) fn piece(&self, token: sys::llama_token) -> Option<Vec<u8>> {
        let into = |bytes: &mut [u8]| {
            let (to, size) = (bytes.as_mut_ptr().cast::<c_char>(), bytes.len() as i32);
            // SAFETY: the vocabulary is valid, and `to` has room for `size` bytes.
            guarded(|| unsafe { calls::llama_token_to_piece(self.0, token, to, size, 0, true) })
                .ok()
        };
        let mut bytes = vec![0; 32];
        let mut n = into(&mut bytes)?;
        // Too little room: its negative size.
        if n < 0 {
            bytes = vec![0; n.unsigned_abs() as usize];
            n = into(&mut bytes)?;
        }
        bytes.truncate(usize::try_from(n).ok()?);
        Some(bytes)
    }

    /// Tokenizes a text at once; in words, why llama.cpp cannot.
    pub(super) fn tokenize(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, String> {
        // Rarely more tokens than this: then llama.cpp returns how many there are.
        let mut tokens = vec![0; text.len() / 2 + 8];
        let mut n = self.tokenize_into(&mut tokens, text, parse_special)?;
        if n < 0 && n != i32::MIN {
            tokens = vec![0; n.unsigned_abs() as usize];
            n = self.tokenize_into(&mut tokens, text, parse_special)?;
        }
        let n = usize::try_from(n).map_err(|_| "it gives too many tokens".to_owned())?;
        tokens.truncate(n);
        Ok(tokens.into_iter().map(|token| token as u32).collect())
    }

    /// Writes the tokens if there is room for them, and returns their number; else their negative number.
    fn tokenize_into(
        &self,
        tokens: &mut [sys::llama_token],
        text: &str,
        parse_special: bool,
    ) -> Result<i32, String> {
        let (bytes, n_bytes) = (text.as_ptr().cast::<c_char>(), text.len() as i32);
        let (to, room) = (tokens.as_mut_ptr(), tokens.len() as i32);
        // SAFETY: the vocabulary is valid, the text has n_bytes bytes, and there is room for `room` tokens.
        guarded(|| unsafe {
            calls::llama_tokenize(self.0, bytes, n_bytes, to, room, false, parse_special)
        })
    }
}
