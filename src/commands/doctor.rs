//! `kl doctor`: the facts that a report of a problem should state.

use std::fs;
use std::path::{Path, PathBuf};

use super::devices;
use crate::engine::{Device, Engine, memory};
use crate::report::Warning;

/// The build of `kl`, and the machine that it runs on. What the system does not tell is `None` or
/// empty.
#[derive(Debug)]
pub struct Doctor {
    /// The engine's name and version.
    pub engine: String,
    /// The names of its backends.
    pub backends: Vec<String>,
    pub devices: Vec<Device>,
    /// The instruction sets of the CPU that ggml can use.
    pub cpu_features: Vec<&'static str>,
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
    /// The process's limits that are low enough to matter, by the system's names: bytes, or open
    /// files.
    pub limits: Vec<(&'static str, u64)>,
    /// Disks by a folder on each.
    pub disks: Vec<Disk>,
    /// Faults to mend, each with how.
    pub problems: Vec<String>,
}

/// The space on the disk that holds a folder.
#[derive(Debug)]
pub struct Disk {
    pub folder: PathBuf,
    pub free: u64,
    pub total: u64,
}

/// Looks at everything, the devices of `servers` (`HOST:PORT`) too. What fails becomes a problem in
/// the result.
pub fn doctor(servers: &[String], engine: &impl Engine) -> Doctor {
    let mut problems = Vec::new();
    for server in servers {
        if let Err(error) = engine.add_servers(std::slice::from_ref(server)) {
            problems.push(error.to_string());
        }
    }
    let (backends, devices) = match (engine.backends(), engine.devices()) {
        (Ok(backends), Ok(devices)) => (backends, devices),
        (Err(error), _) | (_, Err(error)) => {
            problems.push(error.to_string());
            Default::default()
        }
    };
    if devices::is_slow_build(&devices) {
        problems.push(Warning::SlowBuild.to_string());
    }
    let total = memory::total();
    Doctor {
        engine: engine.version(),
        backends,
        devices,
        cpu_features: devices::features(),
        cores: num_cpus::get_physical(),
        threads: num_cpus::get(),
        memory: total,
        memory_available: memory::available(),
        swap: memory::swap(),
        // Without a limit, version 1 gives a number beyond any machine.
        memory_limit: memory_limit().filter(|limit| Some(*limit) < total),
        limits: read("/proc/self/limits").map_or_else(Vec::new, |text| limits(&text)),
        disks: disks(),
        problems,
    }
}

/// The disks of the current folder and of the one for temporary files.
fn disks() -> Vec<Disk> {
    let mut folders = Vec::from_iter(std::env::current_dir());
    folders.push(std::env::temp_dir());
    folders.dedup();
    folders
        .into_iter()
        .filter_map(|folder| {
            Some(Disk {
                free: fs4::available_space(&folder).ok()?,
                total: fs4::total_space(&folder).ok()?,
                folder,
            })
        })
        .collect()
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
fn limits(text: &str) -> Vec<(&'static str, u64)> {
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
        Some((name, value))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::FakeEngine;

    #[test]
    fn it_looks_at_the_engine_and_the_disks() {
        let doctor = doctor(&[], &FakeEngine::default());
        assert_eq!(doctor.engine, "fake 1");
        assert_eq!(doctor.devices[0].name, "FAKE");
        assert!(doctor.disks.iter().all(|disk| disk.free <= disk.total));
        assert!(!doctor.disks.is_empty());
    }

    #[test]
    fn limits_that_are_numbers_are_listed() {
        let text = "\
Limit                     Soft Limit           Hard Limit           Units
Max file size             unlimited            unlimited            bytes
Max open files            1024                 524288               files
Max locked memory         8388608              8388608              bytes
";
        assert_eq!(
            limits(text),
            [("locked memory", 8 << 20), ("open files", 1024)]
        );
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn linux_tells_its_memory_and_its_threads() {
        let doctor = doctor(&[], &FakeEngine::default());
        assert!(doctor.memory_available <= doctor.memory && doctor.memory > Some(0));
        assert!(doctor.threads > 0);
    }
}
