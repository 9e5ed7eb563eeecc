//! Models and references that do not belong together.

use std::fs;

use super::told;
use crate::session::{Session, fixture};

#[test]
fn swapped_files_are_noticed() {
    let session = Session::new();
    session.reference("");
    session.reference_of("@q2", "of-q2.gz", "");
    insta::assert_snapshot!(told(
        &session,
        &[
            "-m ref.gz -r @q4",
            "-m @q4 -r @f16",
            "-m @f16 -r of-q2.gz -q",
            "-m @f16 --ref-model @q2 -t short.txt -c 64 -q",
            "compare of-q2.gz ref.gz --no-sidecar -q",
        ]
    ));
}

#[test]
fn a_model_that_is_no_quant_of_the_reference_is_noticed() {
    let session = Session::new();
    session.reference("");
    let mut other = fs::read(fixture("f16")).unwrap();
    let length = other.len();
    // Other weights: in the second half of the file, half of the numbers have the other sign.
    for byte in other[length / 2..].iter_mut().skip(1).step_by(4) {
        *byte ^= 0x80;
    }
    session.write("fine-tune.gguf", other);
    session.reference_of("@gpt2", "gpt2.gz", "-c 32");
    // No snapshot: the digits of their KLDs depend on the CPU.
    let run = session.ok("-m fine-tune.gguf -r ref.gz -q");
    run.warns(&[
        "warning: fine-tune.gguf: the mean KLD is",
        "a quant of another model",
    ]);
    let run = session.ok("-m @architectures/phi2.gguf -r gpt2.gz -q");
    run.warns(&["the model's architecture is phi2, and gpt2 for the reference's"]);
}

#[test]
fn another_vocabulary_is_refused() {
    let session = Session::new();
    session.reference("");
    insta::assert_snapshot!(told(
        &session,
        &[
            "-m @hostile/other-vocab.gguf -r ref.gz -q",
            "-m @hostile/small-vocab.gguf -r ref.gz -q",
        ]
    ));
}
