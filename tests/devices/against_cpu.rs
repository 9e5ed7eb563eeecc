//! The device against this machine's CPU.

use crate::device::{Device, bounds, session};
use crate::numbers::number;

#[test]
fn a_device_computes_what_the_cpu_does() {
    let (session, device) = (session(), Device::new());
    let bounds = bounds();
    // Without -dev none, llama.cpp computes large batches on a GPU.
    session.ok("-m @f16 -t short.txt -c 64 -w ref.gz --encoding f32 -q -dev none");
    let cpu = session.result("-m @q8 -r ref.gz --force -dev none");
    for n in [2, 99] {
        let flags = format!("-r ref.gz --force {} -ngl {n}", device.flags);
        let same = session.result(&format!("-m @f16 {flags}"));
        let row = number(&same["kld"]["max"]);
        assert!(row < bounds.row, "-ngl {n}: {row} nats");
        let q8 = session.result(&format!("-m @q8 {flags}"));
        let [here, there] = [&cpu, &q8].map(|result| number(&result["kld"]["mean"]["value"]));
        let moved = (there - here).abs();
        assert!(moved < bounds.mean, "-ngl {n}: {there}, not {here}");
        eprintln!("-ngl {n}: {row:e} nats at most, the q8_0's mean {here:e} becomes {there:e}");
    }
}
