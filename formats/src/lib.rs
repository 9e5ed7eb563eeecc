//! Bytes to values and back: the files that `kl` reads and writes.
