//! What kl.py's file records about itself.

use super::{KIND, KlPyHeader, KlPyReader};
use crate::BackendIdentity;
use crate::reference::{About, Checks, Reference, Rows};

/// An open file as a reference. The file does not list its windows.
pub(super) fn reference(reader: KlPyReader) -> Reference {
    let about = about(&reader);
    Reference::new(about, None, Rows::Stream(Box::new(reader)))
}

fn about(reader: &KlPyReader) -> About {
    let KlPyHeader {
        n_ctx,
        n_vocab,
        n_windows,
        model,
        text_path,
        values,
        others,
    } = reader.header().clone();
    let mut about = About {
        file_bytes: reader.file_bytes(),
        n_ctx_is_padded: true,
        n_windows,
        values,
        numbers_are_of_the_text: false,
        others,
        checks: Checks::Gzip,
        ..About::new(KIND, reader.path(), n_ctx, n_vocab)
    };
    about.first_scored = Some(0);
    about.model_path = model;
    about.text_path = text_path;
    // kl.py leaves flash attention off, llama-cpp-python's default.
    about.backend = Some(BackendIdentity {
        flash_attn: Some("off".to_owned()),
        ..BackendIdentity::default()
    });
    about
}
