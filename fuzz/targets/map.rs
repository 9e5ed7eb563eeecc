#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kl_fuzz::run(&kl_fuzz::readers::MAP, input));
