//! Made-up results, the same on every machine, and what checks documents and pages: for the tests of this crate and of
//! those above it.

pub mod made_up;
pub mod page;
pub mod sample;
pub mod schema;
