//! The program as a person runs it, in one test binary: llama.cpp is linked once, and all tests
//! share one pool of threads.

mod documents;
mod gguf;
mod numbers;
mod session;

mod answers;
mod architectures;
mod bad_input;
mod base_files;
#[cfg(unix)]
mod changed_model;
mod chat_templates;
mod check;
mod compare;
mod contained_templates;
mod conversations;
mod convert;
mod dequantize;
mod devices;
#[cfg(unix)]
mod docs;
mod evaluate;
#[cfg(unix)]
mod few_threads;
mod flags;
mod folders;
mod foreign_files;
mod gate;
mod generate;
mod groups;
mod hidden;
#[path = "../../crates/hub/src/fake/mod.rs"]
mod hub;
mod identical_output;
mod infinite;
mod info;
mod inputs_kept;
mod licences;
mod links;
mod llama_perplexity;
mod long_runs;
mod maps;
mod mistakes;
mod oracle;
mod outside;
mod page;
mod peers;
mod pick;
#[cfg(unix)]
mod pipes;
mod prompts;
mod python;
mod recipe;
mod reference;
mod releases;
mod report;
#[cfg(unix)]
mod resume;
mod sensitivity;
mod set_up;
mod several;
mod shards;
#[cfg(unix)]
mod shelf;
mod sidecars;
mod starter;
mod sweep;
mod uneven;
mod until;
mod verify_model;
mod vocabulary;
mod wheel;
mod windows;
