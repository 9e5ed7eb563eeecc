//! Flags that are misspelt, those of llama-perplexity, and those without effect.

use crate::session::Session;

#[test]
fn what_is_refused_says_what_to_write() {
    let cases = "
        -r ref.gz -t wiki.txt => '--read-path <PATH>' cannot be used with '--text-path | omit --text-path
        -r ref.gz --prompts p.jsonl => '--read-path <PATH>' cannot be used with '--prompts | omit --prompts
        -r => a value is required for '--read-path
        => nothing to do: give -t TEXT -w REF | -r REF
        -t a => -w REF
        -w a => -t
        -t a -w b -c 0 => --n-ctx
        -t a -w b -c 1 => --n-ctx
        ref.gz => unexpected argument 'ref.gz' | its own -m
        -r ref.gz --n-gpu-layer 99 => '--n-gpu-layer' | '--n-gpu-layers'
        -r ref.gz -ngl many => 'many' | --n-gpu-layers | all or auto
        -r ref.gz -c 5O0 => '5O0' | --n-ctx | whole number
        -r ref.gz --confidence 95 => --confidence
        -f wiki.txt --kl-divergence-base ref.kld => instead of -f: | -t TEXT | -w REF writes
        --kl-divergence-base ref.kld --kl-divergence => -w REF writes | -r REF evaluates
        -t wiki.txt -w ref.gz --chunks 10 => --max-windows N
        -r ref.gz --rpc 192.168.1.2 => '192.168.1.2' | HOST:PORT
        -r ref.gz -dev CUDA0,none => --device: 'none'";
    let session = Session::new();
    session.fails_each(2, "-m q4.gguf", cases);
    session.fails("-r ref.gz", 2, &["--model <PATH>"]);
    // A flag of llama.cpp, in two dashes, is known.
    let known = "-m q4.gguf -r ref.gz --ngl 99";
    session.fails(known, 1, &["ref.gz: cannot open"]);
}

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
