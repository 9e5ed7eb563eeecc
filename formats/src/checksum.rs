//! The one place where a checksum is compared.

/// Returns true if a checksum is as stated. Always true for a fuzzer (`cfg(fuzzing)`): it cannot
/// guess a checksum, and would never reach the code that follows.
pub(crate) fn matches(computed: u32, stated: u32) -> bool {
    cfg!(fuzzing) || computed == stated
}
