//! The device against this machine's CPU.

use crate::device::{Device, has_servers, session};
use crate::numbers::number;

/// How far a device may be from the CPU: the KLD of a row of the f16 model, and the change of a
/// q8_0's mean KLD, in nats.
struct Bounds {
    row: f64,
    mean: f64,
}

/// Servers here run the CPU's own kernels, which add in another order.
const SERVERS: Bounds = Bounds {
    row: 1e-4,
    mean: 2e-6,
};

/// A GPU may compute in half precision: Mesa's driver moves a row by up to 1.1e-3, a mean by 6e-5.
const GPU: Bounds = Bounds {
    row: 1e-2,
    mean: 1e-3,
};

#[test]
fn a_device_computes_what_the_cpu_does() {
    let (session, device) = (session(), Device::new());
    let bounds = if has_servers() { SERVERS } else { GPU };
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
