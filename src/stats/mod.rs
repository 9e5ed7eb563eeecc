//! Samples in, estimates with intervals out: pure functions.
