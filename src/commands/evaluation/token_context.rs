//! What a sidecar records of tokens besides their scores: groups, special tokens, texts.

use std::collections::BTreeSet;

use kl_formats::{Groups, TokenRecord, TokenTexts};

use crate::engine::Tokens;

/// Adds to a record what its rows do not show: the group of its window, and whether its next token
/// is a special one.
pub fn in_context(
    mut record: TokenRecord,
    groups: Option<&Groups>,
    vocabulary: Option<&dyn Tokens>,
) -> TokenRecord {
    if let Some(groups) = groups {
        record.group = groups.of_window(record.window);
    }
    let next = vocabulary.zip(record.next_token());
    if next.is_some_and(|(vocabulary, next)| vocabulary.is_special(next)) {
        record.flags |= TokenRecord::NEXT_IS_SPECIAL;
    }
    record
}

/// The texts of all tokens that records name; none without a vocabulary.
pub fn texts_of(records: &[TokenRecord], vocabulary: Option<&dyn Tokens>) -> TokenTexts {
    let Some(vocabulary) = vocabulary else {
        return TokenTexts::default();
    };
    let named = |record: &TokenRecord| [record.token, record.ref_top, record.eval_top];
    let tokens: BTreeSet<u32> = records.iter().flat_map(named).collect();
    let text = |token| Some((token, vocabulary.token_bytes(token)?));
    tokens.into_iter().filter_map(text).collect()
}
