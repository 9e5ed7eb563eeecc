//! `kl doctor`: the facts that a report of a problem should state, which `-v` prints first.

use std::env;
use std::fs;
use std::path::PathBuf;

use kl_engine::{Device, DeviceKind, Engine, memory};
use kl_report::Warning;
use kl_report::layout::hanging;
use kl_report::number::{bytes, count_of, printable};

use super::devices;

/// The width of the column of names.
const NAME_WIDTH: usize = 13;

/// The beginnings of the names of variables that change what is computed, where, or how fast.
const VARIABLES: &str = "GGML_ LLAMA_ CUDA_ NVIDIA_ HIP_ HSA_ ROCR_ VK_ OMP_ GOMP_ KMP_ OPENBLAS_ MKL_ \
                         RAYON_ LD_LIBRARY_PATH LD_PRELOAD";

/// Parts of names whose values nobody should publish.
const SECRETS: [&str; 4] = ["KEY", "TOKEN", "SECRET", "PASSWORD"];

/// The build of `kl`, and the machine that it runs on.
#[derive(Debug)]
pub struct Doctor {
    /// A name and a text per line, within 80 columns. A fact that the system does not give has no line.
    pub text: String,
    /// The number of faults to mend. Each has a line that states how.
    pub n_problems: usize,
}

/// Looks at everything, the devices of `servers` (`HOST:PORT`) too. `threads`: those that `kl` decodes
/// with by default.
pub fn doctor(servers: &[String], threads: u32, engine: &dyn Engine) -> Doctor {
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
        problems.push(Warning::slow_build().to_string());
    }
    let backend_kind = if kl_engine::LOADS_BACKENDS {
        "loaded from libraries"
    } else {
        "compiled in"
    };
    let compiled_for = format!(
        "{} {}, backends {backend_kind}",
        env::consts::ARCH,
        env::consts::OS
    );
    let mut lines = vec![
        ("kl", env!("CARGO_PKG_VERSION").to_owned()),
        ("llama.cpp", engine.version()),
        ("compiled for", compiled_for),
        ("backends", backends.join(", ")),
    ];
    lines.extend(devices.iter().flat_map(device_lines));
    lines.push(("CPU", cpu(threads)));
    lines.push(("memory", memory_text()));
    lines.extend(disks().map(|disk| ("disk", disk)));
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    lines.push(("limits", low_limits(&limits)));
    lines.extend(environment().map(|variable| ("environment", variable)));
    let n_problems = problems.len();
    lines.extend(problems.into_iter().map(|problem| ("PROBLEM", problem)));
    Doctor {
        text: laid_out(&lines),
        n_problems,
    }
}

/// Lays out the lines that have a text.
fn laid_out(lines: &[(&str, String)]) -> String {
    lines
        .iter()
        .filter(|(_, text)| !text.is_empty())
        .map(|(name, text)| {
            hanging(
                &format!("{name:<NAME_WIDTH$}"),
                NAME_WIDTH,
                &printable(text),
            )
        })
        .collect()
}

/// A device, and the instruction sets that its backend uses.
fn device_lines(device: &Device) -> [(&'static str, String); 2] {
    let (name, description) = (&device.name, &device.description);
    let (free, total) = (bytes(device.memory_free), bytes(device.memory_total));
    let memory = match device.kind {
        // It has a line of its own.
        DeviceKind::Cpu | DeviceKind::Accelerator => String::new(),
        DeviceKind::IntegratedGpu => ", shares the CPU's memory".to_owned(),
        DeviceKind::Gpu | DeviceKind::Remote => format!(", {free} free of {total}"),
    };
    [
        ("device", format!("{name}: {description}{memory}")),
        ("  uses", device.features.join(", ")),
    ]
}

/// The physical cores, and the threads that this process may run at once: several for each core with
/// hyper-threading, and fewer in some containers.
fn cpu(default_threads: u32) -> String {
    let (n_cores, n_threads) = (num_cpus::get_physical(), num_cpus::get());
    let cores = count_of(n_cores as u64, "core");
    let threads = if n_threads < n_cores {
        format!("of which this process may use {n_threads}")
    } else {
        count_of(n_threads as u64, "thread")
    };
    format!("{cores}, {threads}; kl decodes with {default_threads} unless --threads is given")
}

fn memory_text() -> String {
    let known_sizes: Vec<String> = [
        (memory::total(), ""),
        (memory::available(), " available"),
        (memory::swap(), " of swap"),
        (memory::limit(), " is the limit of this container"),
    ]
    .into_iter()
    .filter_map(|(size, meaning)| Some(bytes(size?) + meaning))
    .collect();
    known_sizes.join(", ")
}

/// The space on the disks of the current folder and of the one for temporary files.
fn disks() -> impl Iterator<Item = String> {
    let mut folders: Vec<PathBuf> = env::current_dir().into_iter().collect();
    folders.push(env::temp_dir());
    folders.dedup();
    folders.into_iter().filter_map(|folder| {
        let free = bytes(fs4::available_space(&folder).ok()?);
        let total = bytes(fs4::total_space(&folder).ok()?);
        Some(format!("{free} free of {total}: {}", folder.display()))
    })
}

/// The limits in `/proc/self/limits` that are low enough to stop a run: columns of a name, the soft limit
/// and the hard one.
fn low_limits(text: &str) -> String {
    let names = ["locked memory", "file size", "address space", "open files"];
    let limits: Vec<String> = names
        .iter()
        .filter_map(|name| {
            let columns = text
                .lines()
                .filter_map(|line| line.strip_prefix("Max "))
                .find_map(|line| line.strip_prefix(name))?;
            let limit: u64 = columns.split_whitespace().next()?.parse().ok()?;
            Some(match *name {
                "open files" => format!("{name} {limit}"),
                _ => format!("{name} {}", bytes(limit)),
            })
        })
        .collect();
    limits.join(", ")
}

/// The variables of the environment that matter here, sorted, without what is secret.
fn environment() -> impl Iterator<Item = String> {
    let is_shown = |name: &str| VARIABLES.split(' ').any(|start| name.starts_with(start));
    let is_secret = |name: &str| SECRETS.iter().any(|part| name.contains(part));
    let mut variables: Vec<_> = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, _)| is_shown(name))
        .collect();
    variables.sort();
    variables.into_iter().map(move |(name, value)| {
        if is_secret(&name) {
            format!("{name} is set")
        } else {
            format!("{name}={}", value.to_string_lossy())
        }
    })
}

#[cfg(test)]
mod tests {
    use kl_engine::FakeEngine;
    use kl_report::layout::WIDTH;

    use super::*;

    #[test]
    fn everything_is_listed_within_80_columns() {
        let Doctor { text, n_problems } = doctor(&[], 2, &FakeEngine::default());
        assert!(text.contains("llama.cpp    fake 1\n"), "{text}");
        assert!(text.contains("device       FAKE: no device\n  uses       AVX2, FMA\n"));
        assert!(text.contains("\ndisk "), "{text}");
        assert_eq!(text.matches("\nPROBLEM ").count(), n_problems);
        let long = "many words that do not fit on a line, ".repeat(4);
        for text in [text, laid_out(&[("PROBLEM", long)])] {
            // A folder's name cannot be broken.
            let mut lines = text.lines().filter(|line| !line.contains('/'));
            assert!(lines.all(|line| line.chars().count() <= WIDTH), "{text}");
        }
    }

    #[test]
    fn limits_that_are_numbers_are_listed() {
        let text = "\
Limit                     Soft Limit           Hard Limit           Units
Max file size             unlimited            unlimited            bytes
Max open files            1024                 524288               files
Max locked memory         8388608              8388608              bytes
";
        assert_eq!(low_limits(text), "locked memory 8.00 MiB, open files 1024");
    }
}
