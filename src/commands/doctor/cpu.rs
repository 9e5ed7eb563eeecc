//! What the CPU can compute, by the names that ggml gives to what it was compiled for.

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
