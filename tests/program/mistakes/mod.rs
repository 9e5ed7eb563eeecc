//! The most common mistakes, and the line that each of them gets: what is wrong, where, and what to do.
//!
//! | mistake | test |
//! |---|---|
//! | something else than a model after `-m` | [`files::what_is_not_a_model_is_named`] |
//! | a URL, a name on Hugging Face, a pattern in quotes | [`files::what_is_not_a_file_of_this_machine_is_named`] |
//! | a LoRA adapter, an mmproj file, an encoder model, a model in parts | [`files::what_is_not_a_whole_causal_model_is_named`] |
//! | something else than a reference after `-r`, than a sidecar after `report` | [`files::what_is_not_a_reference_is_named`] |
//! | a folder instead of a file | [`files::folders_where_files_are_needed_are_named`] |
//! | `-m` and `-r` swapped, the original and the quant swapped | [`models::swapped_files_are_noticed`] |
//! | another fine-tune, another model, another vocabulary | [`models::what_is_no_quant_of_the_reference_is_noticed`] |
//! | one of several models missing | `folders.rs` |
//! | what is not a text: UTF-16, binary, packed, a model, empty, missing | [`texts::what_is_not_a_text_is_named`] |
//! | what is not a prompt | `prompts.rs` |
//! | a text for a model that was made for chats | [`texts::a_model_with_a_chat_template_is_pointed_out`] |
//! | a window of another size, longer than the text or the training | [`texts::windows_of_the_wrong_size_are_noticed`] |
//! | `-t` beside `-r`, a flag misspelt or of llama-perplexity | [`flags::what_is_refused_says_what_to_write`] |
//! | `-ngl` without a device | [`flags::layers_without_a_device_are_a_warning`] |
//! | a full disk | `outside.rs`, `resume.rs`, `formats/tests/full_disk.rs` |
//! | a reference that is cut off or still being written | [`files::what_a_run_that_was_cut_off_has_left_is_named`], `resume.rs` |

mod files;
mod flags;
mod models;
mod texts;
