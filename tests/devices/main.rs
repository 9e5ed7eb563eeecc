//! The whole job on a device. By default that is two servers of ggml's RPC backend on this machine,
//! with half of the model's layers each: the accelerator that every test machine has.
//!
//! With `KL_TEST_DEVICE_FLAGS` in the environment, such as `-dev Vulkan0`, it is another, and what
//! concerns servers alone is skipped. `KL_TEST_BIN` names the program to test, if it is not the one
//! that cargo has just built.

#[allow(dead_code, reason = "shared with the tests of the program")]
#[path = "../program/documents.rs"]
mod documents;
#[allow(
    dead_code,
    unused_imports,
    reason = "shared with the tests of the program"
)]
#[path = "../program/numbers.rs"]
mod numbers;
#[allow(dead_code, reason = "shared with the tests of the program")]
#[path = "../program/session.rs"]
mod session;

mod device;

mod dying;
mod exchange;
mod placement;
mod refused;
mod together;
mod whole_job;
