//! The operating system's facts about the machine. Where it gives none, a value is `None`.

use std::fs;
use std::path::Path;

use crate::commands::cpu;
use crate::engine::memory;

/// The machine, without its devices.
#[derive(Debug, Default, PartialEq)]
pub struct System {
    /// Physical cores.
    pub cores: usize,
    /// Threads that this process may run at once: several for each core with hyper-threading, and
    /// fewer in some containers.
    pub threads: usize,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Bytes of memory that a program could take now.
    pub memory_available: Option<u64>,
    /// Bytes of swap space.
    pub swap: Option<u64>,
    /// Bytes of memory that the container may use.
    pub memory_limit: Option<u64>,
    /// The process's limits that are low enough to matter.
    pub limits: Vec<Limit>,
}

/// A limit of the process, by the system's name.
#[derive(Debug, PartialEq, Eq)]
pub struct Limit {
    pub name: &'static str,
    /// Bytes, or open files.
    pub value: u64,
}

impl System {
    /// Looks at this machine.
    pub fn look() -> Self {
        let total = memory::total();
        Self {
            cores: num_cpus::get_physical(),
            threads: cpu::threads(),
            memory: total,
            memory_available: memory::available(),
            swap: memory::swap(),
            // Without a limit, version 1 gives a number beyond any machine.
            memory_limit: memory_limit().filter(|limit| Some(*limit) < total),
            limits: read("/proc/self/limits").map_or_else(Vec::new, |text| limits(&text)),
        }
    }
}

/// A file of the system's; `None` on others.
fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// The lowest memory limit of the control groups that hold this process, of version 2 or 1.
fn memory_limit() -> Option<u64> {
    let groups = read("/proc/self/cgroup")?;
    let mut limits = Vec::new();
    for line in groups.lines() {
        // ID:CONTROLLERS:PATH, where version 2 names no controller.
        let mut fields = line.splitn(3, ':').skip(1);
        let (root, file) = match fields.next()? {
            "" => ("/sys/fs/cgroup", "memory.max"),
            "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        // A container may see its own group as the root. The groups above limit it too.
        let path = Path::new(fields.next()?.trim_start_matches('/'));
        for group in path.ancestors() {
            let limit = read(Path::new(root).join(group).join(file));
            limits.extend(limit.and_then(|text| text.trim().parse::<u64>().ok()));
        }
    }
    limits.into_iter().min()
}

/// The limits in `/proc/self/limits` that can stop a run: columns of a name, the soft limit and the
/// hard one.
fn limits(text: &str) -> Vec<Limit> {
    [
        ("Max locked memory", "locked memory"),
        ("Max file size", "file size"),
        ("Max address space", "address space"),
        ("Max open files", "open files"),
    ]
    .into_iter()
    .filter_map(|(prefix, name)| {
        let line = text.lines().find_map(|line| line.strip_prefix(prefix))?;
        let value = line.split_whitespace().next()?.parse().ok()?;
        Some(Limit { name, value })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_are_numbers_are_listed() {
        let text = "\
Limit                     Soft Limit           Hard Limit           Units
Max file size             unlimited            unlimited            bytes
Max open files            1024                 524288               files
Max locked memory         8388608              8388608              bytes
";
        let limit = |name, value| Limit { name, value };
        assert_eq!(
            limits(text),
            [limit("locked memory", 8 << 20), limit("open files", 1024)]
        );
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn linux_tells_its_memory_and_its_threads() {
        let system = System::look();
        assert!(system.memory_available <= system.memory && system.memory > Some(0));
        assert!(system.threads > 0);
    }
}
