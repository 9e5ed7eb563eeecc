//! What a native file records about itself.

use super::states::StatesReader;
use super::{Header, KIND, NativeReader};
use crate::reference::{About, Checks, Prompts, Reference, Rows};

impl NativeReader {
    /// The open file as a reference, of rows or of hidden states.
    pub fn into_reference(self) -> Reference {
        let windows = self.windows().copied().collect();
        let about = about(&self);
        let rows = match self.header().states.clone() {
            None => Rows::Blocks(Box::new(self)),
            Some(states) => Rows::States(Box::new(StatesReader::new(self, states))),
        };
        Reference::new(about, Some(windows), rows)
    }
}

fn about(reader: &NativeReader) -> About {
    let Header {
        format_version: _,
        writer,
        model,
        tokenizer,
        n_ctx,
        n_vocab,
        add_bos,
        first_scored,
        n_windows,
        n_rows,
        encoding,
        states,
        rows_per_piece: _,
        text,
        texts,
        backend,
        seed,
        stride,
        log_probabilities: _,
        floored: _,
        prompts,
        chat_template,
        groups: _,
        window_groups: _,
        generated,
        shard,
    } = reader.header().clone();
    About {
        file_bytes: reader.file_bytes(),
        writer,
        n_windows: Some(n_windows),
        n_rows: Some(n_rows),
        encoding: encoding.name(),
        states,
        values: reader.header().values(),
        first_scored: Some(first_scored),
        add_bos,
        model,
        tokenizer,
        text,
        texts,
        backend,
        seed,
        stride,
        groups: reader.header().groups(),
        prompts: prompts.map(|list| Prompts {
            list,
            chat_template,
            generated,
        }),
        shard,
        checks: Checks::Checksums,
        ..About::new(KIND, reader.path(), n_ctx, n_vocab)
    }
}
