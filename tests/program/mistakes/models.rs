//! Models and references that do not belong together.

use std::fs;

use crate::session::{Session, fixture};

#[test]
fn swapped_files_are_noticed() {
    let session = Session::with_reference("");
    session.reference_of("@q2", "of-q2.gz", "");
    let cases = "
        ref.gz -r @q4 => it is a model, and -m ref.gz a reference: swap them
        @q4 -r @f16 => it is a model, not a reference | -t TEXT -w REF | --ref-model";
    session.fails_each(1, "-m", cases);
    for line in [
        "-m @f16 -r of-q2.gz",
        "-m @f16 --ref-model @q2 -t short.txt -c 64",
        "compare of-q2.gz ref.gz",
    ] {
        let run = session.ok(&format!("{line} --no-sidecar -q"));
        run.warns(&["3.43 bits per weight", "16.01", "were the two swapped?"]);
    }
}

#[test]
fn what_is_no_quant_of_the_reference_is_noticed() {
    let session = Session::with_reference("");
    let mut other = fs::read(fixture("f16")).unwrap();
    let length = other.len();
    // Other weights: in the second half of the file, half of the numbers have the other sign.
    for byte in other[length / 2..].iter_mut().skip(1).step_by(4) {
        *byte ^= 0x80;
    }
    session.write("fine-tune.gguf", other);
    session.reference_of("@gpt2", "gpt2.gz", "-c 32");
    let run = session.ok("-m fine-tune.gguf -r ref.gz -q");
    run.warns(&[
        "fine-tune.gguf: the mean KLD is",
        "a quant of another model",
    ]);
    let run = session.ok("-m @architectures/phi2.gguf -r gpt2.gz -q");
    run.warns(&["the model's architecture is phi2, and gpt2 for the reference's"]);
    let cases = "
        @hostile/other-vocab.gguf => other-vocab.gguf: its tokenizer | that of ref.gz | mean different tokens
        @hostile/small-vocab.gguf => small-vocab.gguf | of 512 | rows of 1024 | --vocab common";
    session.fails_each(1, "-r ref.gz -q -m", cases);
}
