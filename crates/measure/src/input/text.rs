//! A text that was read, from a file or from `kl` itself.

use kl_formats::{TextIdentity, hex};
use sha2::{Digest, Sha256};

/// A text that was read, and what identifies it; `identity.n_tokens` is not known yet.
pub struct Text {
    pub text: String,
    pub identity: TextIdentity,
}

/// The identity of a text with this name, not tokenized yet.
pub fn identity_of(name: impl Into<String>, bytes: &[u8]) -> TextIdentity {
    let mut identity = TextIdentity::named(name);
    identity.bytes = Some(bytes.len() as u64);
    identity.sha256 = Some(hex(&Sha256::digest(bytes)));
    identity
}
