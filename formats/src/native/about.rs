//! What a native file records about itself.

use super::{KIND, NativeReader};
use crate::reference::{About, Checks, Prompts, Reference, Rows};

impl NativeReader {
    /// The open file as a reference, of rows or of hidden states.
    pub fn into_reference(self) -> Reference {
        let windows = self.windows().copied().collect();
        let about = about(&self);
        let rows = match self.header().states.clone() {
            None => Rows::Blocks(Box::new(self)),
            Some(states) => Rows::States(Box::new(self), states),
        };
        Reference::new(about, Some(windows), rows)
    }
}

fn about(reader: &NativeReader) -> About {
    let header = reader.header();
    About {
        provenance: header.provenance.clone(),
        file_bytes: reader.file_bytes(),
        n_windows: Some(header.n_windows),
        n_rows: Some(header.n_rows),
        encoding: header.encoding.name(),
        states: header.states.clone(),
        values: header.values(),
        groups: header.groups(),
        prompts: header.prompts.clone().map(|list| Prompts {
            list,
            chat_template: header.chat_template.clone(),
            generated: header.generated,
        }),
        checks: Checks::Checksums,
        ..About::new(KIND, reader.path(), header.n_ctx, header.n_vocab)
    }
}
