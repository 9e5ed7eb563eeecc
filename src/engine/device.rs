//! The devices that a model can be computed on, and the machine's memory.

use std::fmt;

/// A device of one of the engine's backends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name, by which `--device` chooses it: `CUDA0`.
    pub name: String,
    /// Its description: `NVIDIA H200`.
    pub description: String,
    pub kind: DeviceKind,
    /// Bytes of its memory that are free.
    pub memory_free: u64,
    /// Bytes of its memory.
    pub memory_total: u64,
    /// The instructions that its backend was compiled to use, such as `AVX2`; empty if the backend
    /// does not list them.
    pub features: Vec<String>,
}

impl Device {
    /// Checks whether its backend was compiled to use this instruction set, such as `AVX2`.
    pub fn has_feature(&self, name: &str) -> bool {
        self.features.iter().any(|feature| feature == name)
    }
}

/// The kind of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    Cpu,
    /// A GPU with memory of its own.
    Gpu,
    /// A GPU that shares the CPU's memory.
    IntegratedGpu,
    /// A library that computes on the CPU's memory, such as a BLAS.
    Accelerator,
    /// A device of a server, described by the server's address.
    Remote,
}

impl DeviceKind {
    /// True if layers can be offloaded to such a device.
    pub fn is_gpu(self) -> bool {
        matches!(self, Self::Gpu | Self::IntegratedGpu | Self::Remote)
    }
}

/// The name and the description, as headers record them: `CUDA0 (NVIDIA H200)`. A server's address is
/// left out: it would be published with the file, and may change before the run is resumed.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            DeviceKind::Remote => "RPC server",
            _ => &self.description,
        };
        write!(f, "{} ({what})", self.name)
    }
}

/// The machine's memory, as Linux reports it.
pub mod memory {
    use std::fs;

    /// Bytes of memory that a program could take now without swapping; `None` on other systems than
    /// Linux.
    pub fn available() -> Option<u64> {
        read("MemAvailable:")
    }

    /// Bytes of all memory; `None` on other systems than Linux.
    pub fn total() -> Option<u64> {
        read("MemTotal:")
    }

    /// Bytes of swap space; `None` on other systems than Linux.
    pub fn swap() -> Option<u64> {
        read("SwapTotal:")
    }

    fn read(name: &str) -> Option<u64> {
        in_meminfo(&fs::read_to_string("/proc/meminfo").ok()?, name)
    }

    /// The bytes of a line such as `MemTotal:  16384 kB`.
    pub(super) fn in_meminfo(text: &str, name: &str) -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kilobytes.checked_mul(1024)
    }
}

#[cfg(test)]
mod tests {
    use super::memory::in_meminfo;

    #[test]
    fn memory_is_counted_in_kilobytes() {
        let text = "MemTotal:       16384 kB\nMemFree: 5 kB\nMemAvailable:   22000000 kB\n";
        assert_eq!(in_meminfo(text, "MemTotal:"), Some(16 << 20));
        assert_eq!(in_meminfo(text, "MemAvailable:"), Some(22_000_000 * 1024));
        for (text, name) in [(text, "SwapTotal:"), ("MemTotal: many", "MemTotal:")] {
            assert_eq!(in_meminfo(text, name), None);
        }
    }
}
