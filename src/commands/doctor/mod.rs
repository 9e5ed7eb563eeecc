//! `kl doctor`: what a report of a problem should state. How `kl` was built, and the machine that it
//! runs on.

mod system;

use std::path::PathBuf;

pub use system::{Limit, System};

use super::cpu;
use crate::engine::{Device, Engine};
use crate::report::Warning;

/// A description of this `kl` and of the machine. What the system does not tell is `None` or empty.
#[derive(Debug)]
pub struct Doctor {
    /// The engine's name and version.
    pub engine: String,
    /// The names of its backends.
    pub backends: Vec<String>,
    pub devices: Vec<Device>,
    /// The CPU's instructions that ggml can use.
    pub cpu_features: Vec<&'static str>,
    pub system: System,
    /// Disks by a folder on each.
    pub disks: Vec<Disk>,
    /// The problems, each with its remedy.
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
    if cpu::is_slow_build(&devices) {
        problems.push(Warning::SlowBuild.to_string());
    }
    Doctor {
        engine: engine.version(),
        backends,
        devices,
        cpu_features: cpu::features(),
        system: System::look(),
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
}
