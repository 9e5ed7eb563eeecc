//! Flags that are misspelt, those of llama-perplexity, and those without effect.

use crate::session::Session;

#[test]
fn layers_without_a_device_are_a_warning() {
    let session = Session::with_reference("");
    let listed = session.ok("--list-devices").stdout;
    let devices = listed.lines().filter(|line| line.ends_with(" MiB free)"));
    if devices.count() > 1 {
        println!("skipped: this kl has a device besides the CPU");
        return;
    }
    let run = session.ok("-m @q8 -r ref.gz -ngl 99 -q --no-sidecar");
    run.warns(&["-ngl 99 has no effect", "docs/GPU.md"]);
    let other = "-m @q8 -r ref.gz -dev CUDA0 -q";
    session.fails(other, 1, &["no device 'CUDA0'", "'none'", "--list-devices"]);
}
