//! The one place where a checksum is compared.

/// Whether a checksum is as stated. A fuzzer, which cannot guess one, is let past (`cfg(fuzzing)`):
/// what lies behind would never be tried.
pub(crate) fn matches(computed: u32, stated: u32) -> bool {
    cfg!(fuzzing) || computed == stated
}
