//! The device against this machine's CPU.

use crate::device::{Device, session};
use crate::numbers::number;

/// How far a device may be from the CPU: its kernels add in another order. The KLD of each row of
/// the f16 model, in nats, and the mean KLD of a q8_0, relative.
const ROW_BOUND: f64 = 1e-4;
const MEAN_BOUND: f64 = 0.05;

#[test]
fn a_device_computes_what_the_cpu_does() {
    let (session, device) = (session(), Device::new());
    session.ok("-m @f16 -t short.txt -c 64 -w ref.gz --encoding f32 -q");
    let cpu = session.result("-m @q8 -r ref.gz --force");
    for n in [2, 99] {
        let flags = format!("-r ref.gz --force {} -ngl {n}", device.flags);
        let same = session.result(&format!("-m @f16 {flags}"));
        let row = number(&same["kld"]["max"]);
        assert!(row < ROW_BOUND, "-ngl {n}: {row} nats");
        let q8 = session.result(&format!("-m @q8 {flags}"));
        let [here, there] = [&cpu, &q8].map(|result| number(&result["kld"]["mean"]["value"]));
        let moved = (there / here - 1.0).abs();
        assert!(moved < MEAN_BOUND, "-ngl {n}: {there}, not {here}");
        eprintln!("-ngl {n}: {row:e} nats at most, mean KLD of the q8_0 {moved:e} off");
    }
}
