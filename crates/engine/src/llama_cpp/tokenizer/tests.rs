//! Texts that are tokenized in pieces, against the same texts tokenized at once.

use std::env;
use std::fs;
use std::path::PathBuf;

use super::*;
use crate::Model as _;
use crate::llama_cpp::LlamaCppModel;
use crate::llama_cpp::tests::{fixture, load};

/// Prose, and what tokenizers treat in a way of their own.
fn text() -> String {
    let eval = fs::read_to_string(fixture("eval.txt")).unwrap();
    let odd = [
        "\n\n\n  indented\n\tby a tab\r\nand CR LF \r\n\r\n",
        "1234567 89 0.5e-10 it's they'LL don't\nwe've",
        "naïve café Ünïcode слово слово\n中文字符 中文\n日本語 テキスト",
        "<s> </s> <|im_start|>user\n<unk> a <s>b</s> c",
        "    \n     \n  x = [a  for a   in b]  # end  \n",
        "emoji 😀 family 👨‍👩‍👧 e\u{301}te\u{301} \u{a0}nbsp\u{3000}wide",
        "a a a a aa aaa aaaa aaaaa bb ab ba abab  a",
    ];
    odd.map(|odd| format!("{eval}{odd}")).concat()
}

/// Checks that a text has the same tokens in pieces of these sizes, from its start. Returns the number of pieces.
#[track_caller]
fn check(model: &LlamaCppModel<'_>, text: &str, sizes: &[usize]) -> Vec<usize> {
    let vocab = Vocab::new(&model.inner);
    let mut n_pieces = Vec::new();
    for parse_special in [false, true] {
        let whole = vocab.tokenize(text, parse_special).unwrap();
        for &n_bytes in sizes {
            let pieces = Pieces {
                seams: Seams::new(&model.header, &vocab, parse_special),
                n_bytes,
            };
            let n = std::cell::Cell::new(0);
            let tokenize = |piece: Range<usize>| {
                n.set(n.get() + 1);
                Ok(vocab.tokenize(&text[piece], parse_special).unwrap())
            };
            let (tokens, is_all) = pieces.tokenize(text, usize::MAX, tokenize).unwrap();
            assert!(tokens == whole && is_all, "{n_bytes} bytes");
            n_pieces.push(n.get());
            for wanted in [1, whole.len() / 3, whole.len() - 1] {
                let (tokens, is_all) = pieces.tokenize(text, wanted, tokenize).unwrap();
                assert!(tokens.len() >= wanted && tokens == whole[..tokens.len()]);
                assert_eq!(is_all, tokens.len() == whole.len());
            }
        }
    }
    n_pieces
}

#[test]
fn pieces_have_the_tokens_of_the_whole() {
    let text = text();
    for name in ["tiny-f16.gguf", "architectures/qwen2.gguf"] {
        let model = load(&fixture(name));
        let n_pieces = check(&model, &text, &[1, 50, 1_000, 20_000]);
        // They are cut: nearly everywhere between words, and about where it is asked for.
        assert!(n_pieces[0] > 10_000, "{name}: {n_pieces:?}");
        assert!(n_pieces[2] > text.len() / 1_100, "{name}: {n_pieces:?}");
        let (start, is_all) = model.tokenize_start(&text.repeat(4), false, 10).unwrap();
        let whole = model.tokenize(&text.repeat(4), false).unwrap();
        assert!(!is_all && start == whole[..start.len()]);
    }
}

/// The same for a model and a text of your own: `KL_MODEL=m.gguf KL_TEXT=t.txt cargo test ... -- --ignored`.
#[test]
#[ignore = "needs KL_MODEL and KL_TEXT"]
fn pieces_of_a_text_of_your_own_have_the_tokens_of_the_whole() {
    let [model, text] =
        ["KL_MODEL", "KL_TEXT"].map(|name| PathBuf::from(env::var_os(name).unwrap()));
    let text = fs::read_to_string(text).unwrap();
    let n_pieces = check(&load(&model), &text, &[64, 1_000, PIECE_BYTES]);
    println!("{n_pieces:?} pieces of {} bytes", text.len());
}
