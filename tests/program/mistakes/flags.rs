//! Flags that are misspelt, those of llama-perplexity, and those without effect.

use super::told;
use crate::session::Session;

#[test]
fn what_is_refused_says_what_to_write() {
    let session = Session::new();
    insta::assert_snapshot!(told(
        &session,
        &[
            "-m q4.gguf -r ref.gz -t wiki.txt",
            "-m q4.gguf -r ref.gz --prompts p.jsonl",
            "-m q4.gguf -r",
            "-r ref.gz",
            "-m q4.gguf",
            "-m q4.gguf ref.gz",
            "-m q4.gguf -r ref.gz --n-gpu-layer 99",
            "-m q4.gguf -r ref.gz --ngl 99",
            "-m q4.gguf -r ref.gz -nlg 99",
            "-m q4.gguf -r ref.gz -ngl many",
            "-m q4.gguf -r ref.gz -c 5O0",
            "-m q4.gguf -f wiki.txt --kl-divergence-base ref.kld",
            "-m q4.gguf --kl-divergence-base ref.kld --kl-divergence",
            "-m q4.gguf -t wiki.txt -w ref.gz --chunks 10",
            "-m q4.gguf -r ref.gz --rpc 192.168.1.2",
            "-m q4.gguf -r ref.gz -dev CUDA0,none",
        ]
    ));
}

#[test]
fn layers_without_a_device_are_a_warning() {
    let session = Session::new();
    session.reference("");
    let listed = session.ok("--list-devices").stdout;
    let devices = listed.lines().filter(|line| line.ends_with(" MiB free)"));
    if devices.count() > 1 {
        println!("skipped: this kl has a device besides the CPU");
        return;
    }
    insta::assert_snapshot!(told(
        &session,
        &[
            "-m @q8 -r ref.gz -ngl 99 -q",
            "-m @q8 -r ref.gz -dev CUDA0 -q"
        ]
    ));
}
