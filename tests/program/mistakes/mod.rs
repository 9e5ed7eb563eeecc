//! The most common mistakes, and the line that each of them gets: what is wrong, where, and what to
//! do. Each snapshot holds calls with their stderr and their exit code.
//!
//! | mistake | test |
//! |---|---|
//! | something else than a model after `-m` | [`files::what_is_not_a_model_is_named`] |
//! | a URL, a name on Hugging Face, a pattern in quotes | [`files::what_is_not_a_file_of_this_machine_is_named`] |
//! | a LoRA adapter, an mmproj file, an importance matrix, a vocabulary | [`files::parts_of_models_are_named`] |
//! | an embedding or encoder model | `bad_input.rs` |
//! | a download that is not complete, a part of a split model | [`files::what_is_missing_of_a_model_is_named`] |
//! | something else than a reference after `-r`, than a sidecar after `report` | [`files::what_is_not_a_reference_is_named`] |
//! | `-m` and `-r` swapped, the original and the quant swapped | [`models::swapped_files_are_noticed`] |
//! | another fine-tune, another model | [`models::a_model_that_is_no_quant_of_the_reference_is_noticed`] |
//! | another tokenizer or vocabulary | [`models::another_vocabulary_is_refused`] |
//! | one of several models missing | `bad_input.rs` |
//! | what is not a text: UTF-16, binary, packed, a model, empty, missing | [`texts::what_is_not_a_text_is_named`] |
//! | a text for a model that was made for chats | [`texts::a_model_with_a_chat_template_is_pointed_out`] |
//! | a window of another size, longer than the text or the training | [`texts::windows_of_the_wrong_size_are_noticed`] |
//! | `-t` beside `-r`, a flag misspelt or of llama-perplexity | [`flags::what_is_refused_says_what_to_write`] |
//! | `-ngl` without a device | [`flags::layers_without_a_device_are_a_warning`] |
//! | a full disk | `outside.rs`, `resume.rs`, `formats/tests/full_disk.rs` |
//! | a reference that is cut off or still being written | [`files::what_is_not_a_reference_is_named`], `resume.rs` |

mod files;
mod flags;
mod models;
mod texts;

use crate::session::{Session, fixture};

/// Runs each call, and returns it with what it prints on stderr, and its exit code.
fn told(session: &Session, lines: &[&str]) -> String {
    let of_call = |line: &&str| {
        let run = session.kl(line);
        let folder = fixture("").display().to_string();
        let stderr = run.stderr.replace(&folder, "fixtures/");
        format!("$ kl {line}\n{stderr}exit code {}\n", run.code)
    };
    let calls: Vec<_> = lines.iter().map(of_call).collect();
    calls.join("\n")
}

/// ggml's numbers of types of values.
const U16: u32 = 2;
const STRING: u32 = 8;

/// A key of a GGUF, ggml's number of its value's type, and the value's bytes.
pub struct Pair(&'static str, u32, Vec<u8>);

impl Pair {
    pub fn text(key: &'static str, text: &str) -> Self {
        let length = (text.len() as u64).to_le_bytes();
        Self(key, STRING, [&length, text.as_bytes()].concat())
    }

    fn number(key: &'static str, number: u16) -> Self {
        Self(key, U16, number.to_le_bytes().to_vec())
    }

    fn bytes(&self) -> Vec<u8> {
        let Self(key, kind, value) = self;
        let length = (key.len() as u64).to_le_bytes();
        let kind = kind.to_le_bytes();
        [&length[..], key.as_bytes(), &kind, value].concat()
    }
}

/// A GGUF of these pairs, without tensors.
pub fn gguf(pairs: &[Pair]) -> Vec<u8> {
    let empty = [b"GGUF".as_slice(), &3u32.to_le_bytes(), &[0; 16]].concat();
    with_pairs(&empty, pairs)
}

/// A GGUF with more pairs in front of its own.
pub fn with_pairs(gguf: &[u8], pairs: &[Pair]) -> Vec<u8> {
    /// Where the pairs start: after the magic, the version, and the numbers of tensors and pairs.
    const START: usize = 24;
    /// Tensors lie at multiples of it, counted from the start of the file.
    const ALIGNMENT: usize = 32;
    let mut added: Vec<u8> = pairs.iter().flat_map(Pair::bytes).collect();
    let unfilled = added.len() + Pair::text("filler", "").bytes().len();
    let filler = " ".repeat(unfilled.next_multiple_of(ALIGNMENT) - unfilled);
    added.extend(Pair::text("filler", &filler).bytes());
    let n_pairs = u64::from_le_bytes(gguf[16..START].try_into().unwrap());
    let n_pairs = n_pairs + pairs.len() as u64 + 1;
    [&gguf[..16], &n_pairs.to_le_bytes(), &added, &gguf[START..]].concat()
}
