//! `kl convert`: rows and tokens arrive unchanged, as far as the new kind can hold them.

use crate::numbers::{close, log_softmax, max, number};
use crate::session::Session;

#[test]
fn kl_py_holds_every_bit_of_f32_rows() {
    let session = Session::with_reference("--encoding f32 --score all");
    let run = session.ok("convert ref.gz klpy.gz --format kl.py");
    assert_eq!(run.stdout, "");
    run.warns(&["loses", "checksums"]);
    session.ok("convert klpy.gz back.gz --format kl --encoding f32");
    assert_eq!(session.windows("ref.gz"), session.windows("back.gz"));
    // A model scores the same against all three, with kl.py's flash attention.
    let score = |reference: &str| {
        let line = format!("-m @q2 -fa off -r {reference}");
        session.result(&line)["kld"].take()
    };
    let back = score("back.gz");
    assert_eq!(back, score("klpy.gz"));
    assert_eq!(back, score("ref.gz"));
    let run = session.ok("-m @q2 -r back.gz");
    run.warns_not("was  when").prints_not("0 bytes");
    // Rounded to 16 bits, they are what a run writes.
    let run = session.ok("convert ref.gz u16.gz --format kl");
    run.warns(&["1/131,070"]);
    session.reference("--score all --force");
    assert_eq!(session.windows("u16.gz"), session.windows("ref.gz"));
}

#[test]
fn a_base_file_holds_half_of_each_window_to_its_step() {
    let session = Session::with_reference("--encoding f32");
    let run = session.ok("convert ref.gz base.kld --format llama.cpp");
    run.warns(&["floored at 16"]).warns(&["positions 32 to 62"]);
    run.warns(&["windows: those without 64 tokens"]);
    // Every window begins with BOS, so --bos is not needed.
    session.ok("convert base.kld back.gz --format kl --encoding f32");
    let (mut whole, back) = (session.windows("ref.gz"), session.windows("back.gz"));
    whole
        .pop()
        .expect("the short last window, which is left out");
    assert_eq!(back.len(), whole.len());
    for (window, back) in whole.iter().zip(&back) {
        assert_eq!(back.spec.tokens, window.spec.tokens);
        assert_eq!((back.spec.first_scored, back.spec.n_rows), (32, 31));
        let first = window.spec.first_scored as usize;
        let rows = &window.rows[32 - first..63 - first];
        for (row, back) in rows.iter().zip(&back.rows) {
            let expected = log_softmax(row);
            let floor = max(&expected) - 16.0;
            for (expected, &found) in expected.iter().zip(back) {
                // Half a step of 16/65535, and f32's rounding.
                close(found.into(), expected.max(floor), 1.3e-4, "ln p");
            }
        }
    }
}

#[test]
fn write_mode_gives_the_base_file_of_llama_perplexity() {
    let session = Session::new();
    let write = "-m @f16 -c 128 -w base.kld --format llama.cpp -q -t @peers/short.txt";
    session.ok(write).warns(&["last 5 token"]);
    let header = |name: &str| session.read(name)[..20].to_vec();
    assert_eq!(header("base.kld"), header("@base"));
    let (ours, theirs) = (session.windows("base.kld"), session.windows("@base"));
    for (ours, theirs) in ours.iter().zip(&theirs) {
        // The text's own tokens, the first of a window too.
        assert_eq!(ours.spec, theirs.spec);
        for (ours, theirs) in ours.rows.iter().zip(&theirs.rows) {
            for (x, y) in ours.iter().zip(theirs) {
                // To the bit on the kind of machine that wrote the fixture; another CPU sums in
                // another order.
                assert!((x - y).abs() < 0.05, "{x} {y}");
            }
        }
    }
}

#[test]
fn a_base_file_that_does_not_record_its_bos_needs_the_flag() {
    let session = Session::new();
    let to_kl = "convert @base a.gz --format kl -q";
    session.fails(to_kl, 1, &["--bos", "token 1"]);
    assert!(session.files().is_empty(), "nothing is left");
    session.ok(&format!("{to_kl} --bos 1"));
    // The base file itself gives the same: its BOS comes from the model.
    let score = |reference: &str| {
        let line = format!("-m @q4 -r {reference} --no-sidecar");
        number(&session.result(&line)["kld"]["mean"]["value"])
    };
    let converted = score("a.gz");
    assert!((converted - score("@base")).abs() < 1e-8);
    session.ok("convert @base b.gz --format kl -q --bos none");
    assert_ne!(score("b.gz"), converted);
}

#[test]
fn what_cannot_be_converted_is_an_error_and_leaves_nothing() {
    let session = Session::with_reference("--score 40");
    session.write("there", "precious");
    let cases = "
        ref.gz out --format kl.py => --score all | position 40
        ref.gz out --format llama.cpp => 32
        ref.gz out --format kl => already
        @klpy out --format kl.py => already
        @base out --format llama.cpp => already
        @base out --format kl.py --bos 1 => position 64
        @f16 out --format kl => model
        no-such-file out --format kl => no-such-file
        ref.gz there --format kl --encoding f32 => there | --force
        ref.gz ref.gz --format kl --force => exit 2 | input
        ref.gz => exit 2 | OUT | kl convert --help
        ref.gz a --format kl.py --encoding f32 => exit 2 | --encoding";
    session.fails_each(1, "convert", cases);
    assert_eq!(session.read("there"), b"precious");
    session.ok("convert ref.gz there --format kl --encoding f32 --force -q");
    session.ok("info there --verify -q");
}
