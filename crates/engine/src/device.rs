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

/// The memory of the machine, and of the control groups that hold this process, as Linux reports it.
pub mod memory {
    use std::fs;
    use std::path::Path;

    /// Bytes of memory that this process could take now without swapping; `None` on other systems than
    /// Linux.
    pub fn available() -> Option<u64> {
        let groups = groups().into_iter();
        let free = groups.map(|group| group.limit.saturating_sub(group.used));
        free.chain(read("MemAvailable:")).min()
    }

    /// Bytes of all memory; `None` on other systems than Linux.
    pub fn total() -> Option<u64> {
        read("MemTotal:")
    }

    /// Bytes of swap space; `None` on other systems than Linux.
    pub fn swap() -> Option<u64> {
        read("SwapTotal:")
    }

    /// The lowest limit of the control groups that hold this process, if it is below all memory.
    pub fn limit() -> Option<u64> {
        let limits = groups().into_iter().map(|group| group.limit);
        limits.min().filter(|limit| Some(limit) < total().as_ref())
    }

    /// The memory of a control group, in bytes.
    #[derive(Debug, PartialEq, Eq)]
    pub(super) struct Group {
        pub(super) limit: u64,
        /// Bytes in use that are not a file's.
        pub(super) used: u64,
    }

    /// The control groups that hold this process.
    fn groups() -> Vec<Group> {
        let hierarchies = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        groups_in(Path::new("/sys/fs/cgroup"), &hierarchies)
    }

    /// The groups below `root` that limit memory. `hierarchies` has a line for each: `0::/PATH` for version 2,
    /// `NUMBER:memory:/PATH` for version 1 (cgroups(7)). A container may see its own group as the root.
    pub(super) fn groups_in(root: &Path, hierarchies: &str) -> Vec<Group> {
        let mut groups = Vec::new();
        for line in hierarchies.lines() {
            let Some((kind, path)) = line
                .split_once(':')
                .and_then(|(_, rest)| rest.split_once(":/"))
            else {
                continue;
            };
            let (folder, limit, used) = match kind {
                "" => ("", "memory.max", "anon "),
                "memory" => ("memory", "memory.limit_in_bytes", "total_rss "),
                _ => continue,
            };
            groups.extend(Path::new(path).ancestors().filter_map(|group| {
                let group = root.join(folder).join(group);
                let statistics = fs::read_to_string(group.join("memory.stat")).ok()?;
                let used = statistics
                    .lines()
                    .find_map(|line| line.strip_prefix(used))?;
                let limit = fs::read_to_string(group.join(limit)).ok()?;
                Some(Group {
                    limit: limit.trim().parse().ok()?,
                    used: used.parse().ok()?,
                })
            }));
        }
        groups
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
    use std::fs;

    use super::memory::{Group, groups_in, in_meminfo};

    #[test]
    fn memory_is_counted_in_kilobytes() {
        let text = "MemTotal:       16384 kB\nMemFree: 5 kB\nMemAvailable:   22000000 kB\n";
        assert_eq!(in_meminfo(text, "MemTotal:"), Some(16 << 20));
        assert_eq!(in_meminfo(text, "MemAvailable:"), Some(22_000_000 * 1024));
        for (text, name) in [(text, "SwapTotal:"), ("MemTotal: many", "MemTotal:")] {
            assert_eq!(in_meminfo(text, name), None);
        }
    }

    #[test]
    fn all_groups_that_hold_the_process_limit_its_memory() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (group, limit, anon) in [("user/job", "max", "9"), ("user", "4096", "1000")] {
            write(&format!("{group}/memory.max"), limit);
            write(
                &format!("{group}/memory.stat"),
                &format!("anon {anon}\nfile 3000\n"),
            );
        }
        write("memory/memory.limit_in_bytes", "2048\n");
        write("memory/memory.stat", "rss 5\ntotal_rss 48\n");
        let group = |limit, used| Group { limit, used };
        let groups = |own| groups_in(folder.path(), own);
        assert_eq!(groups("0::/user/job\n"), [group(4096, 1000)]);
        // A container of version 1 sees its own group as the root.
        assert_eq!(groups("5:memory:/docker/1f\n4:cpu:/\n"), [group(2048, 48)]);
        assert_eq!(groups("0::/\nnonsense\n"), []);
    }
}
