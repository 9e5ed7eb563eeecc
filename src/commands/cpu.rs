//! The instruction sets of this CPU, by the names that ggml has for them.

use crate::engine::{Device, DeviceKind};

/// True if ggml was compiled for older CPUs than this one: without AVX2, a decode takes many times as
/// long.
pub fn is_slow_build(devices: &[Device]) -> bool {
    lacks_avx2(devices, &features())
}

fn lacks_avx2(devices: &[Device], here: &[&str]) -> bool {
    const WANTED: &str = "AVX2";
    let mut cpus = devices
        .iter()
        .filter(|device| device.kind == DeviceKind::Cpu);
    here.contains(&WANTED) && cpus.any(|cpu| !cpu.features.is_empty() && !cpu.has_feature(WANTED))
}

/// The instruction sets of this CPU that ggml has kernels for; empty where `kl` cannot tell.
#[cfg(target_arch = "x86_64")]
pub fn features() -> Vec<&'static str> {
    use std::arch::is_x86_feature_detected as has;
    let all = [
        ("SSE3", has!("sse3")),
        ("SSSE3", has!("ssse3")),
        ("AVX", has!("avx")),
        ("AVX_VNNI", has!("avxvnni")),
        ("AVX2", has!("avx2")),
        ("F16C", has!("f16c")),
        ("FMA", has!("fma")),
        ("BMI2", has!("bmi2")),
        ("AVX512", has!("avx512f")),
        ("AVX512_VBMI", has!("avx512vbmi")),
        ("AVX512_VNNI", has!("avx512vnni")),
        ("AVX512_BF16", has!("avx512bf16")),
    ];
    present(&all)
}

/// The instruction sets of this CPU that ggml has kernels for; empty where `kl` cannot tell.
#[cfg(target_arch = "aarch64")]
pub fn features() -> Vec<&'static str> {
    use std::arch::is_aarch64_feature_detected as has;
    let all = [
        ("NEON", has!("neon")),
        ("FP16_VA", has!("fp16")),
        ("DOTPROD", has!("dotprod")),
        ("MATMUL_INT8", has!("i8mm")),
        ("SVE", has!("sve")),
    ];
    present(&all)
}

/// The instruction sets of this CPU that ggml has kernels for; empty where `kl` cannot tell.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn features() -> Vec<&'static str> {
    Vec::new()
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn present(all: &[(&'static str, bool)]) -> Vec<&'static str> {
    let present = all.iter().filter(|(_, is_here)| *is_here);
    present.map(|(name, _)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Engine, FakeEngine};

    #[test]
    fn a_build_for_older_cpus_is_recognised() {
        let lacks = |compiled: &[&str], here: &[&str]| {
            let mut devices = FakeEngine::default().devices().unwrap();
            devices[0].features = compiled.iter().map(ToString::to_string).collect();
            lacks_avx2(&devices, here)
        };
        let here = ["SSE3", "AVX2"];
        assert!(lacks(&["SSE3"], &here));
        assert!(!lacks(&["SSE3"], &["SSE3"]));
        assert!(!lacks(&["SSE3", "AVX2"], &here));
        assert!(!lacks(&[], &here), "unknown");
        assert!(!lacks_avx2(&[], &here));
    }
}
