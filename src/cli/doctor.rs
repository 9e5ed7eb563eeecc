//! The text of `kl doctor`, which `-v` prints first, and of `--list-devices`.

use std::env;

use super::settings::default_threads;
use crate::commands::Doctor;
use crate::engine::{Device, DeviceKind};
use crate::report::layout::hanging;
use crate::report::number::{bytes, count_of, printable};

/// The width of the column of names.
const NAME_WIDTH: usize = 13;

/// Variables that change what is computed, where, or how fast.
const VARIABLES: [&str; 16] = [
    "GGML_",
    "LLAMA_",
    "CUDA_",
    "NVIDIA_",
    "HIP_",
    "HSA_",
    "ROCR_",
    "VK_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "OPENBLAS_",
    "MKL_",
    "RAYON_",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
];

/// Parts of names whose values nobody should publish.
const SECRETS: [&str; 4] = ["KEY", "TOKEN", "SECRET", "PASSWORD"];

/// Everything that was found, a name and a text per line, within 80 columns.
pub fn doctor_text(doctor: &Doctor) -> String {
    text_of(doctor, default_threads(), environment())
}

/// The text, with the number of threads that `kl` decodes with, and the environment.
fn text_of(doctor: &Doctor, threads: u32, environment: impl Iterator<Item = String>) -> String {
    let mut lines = vec![
        ("kl", env!("CARGO_PKG_VERSION").to_owned()),
        ("llama.cpp", doctor.engine.clone()),
        ("compiled for", compiled_for()),
        ("backends", doctor.backends.join(", ")),
    ];
    for device in &doctor.devices {
        lines.push(("device", device_line(device)));
        let compiled = device.features.join(", ");
        if !compiled.is_empty() {
            lines.push(("  uses", compiled));
        }
        if device.kind == DeviceKind::Cpu && !device.features.is_empty() {
            let unused = doctor.cpu_features.iter().copied();
            let unused: Vec<_> = unused.filter(|one| !device.has_feature(one)).collect();
            lines.push(("  unused", unused.join(", ")));
        }
    }
    lines.push(("CPU", cpu_line(doctor, threads)));
    lines.push(("memory", memory_line(doctor)));
    for disk in &doctor.disks {
        let (free, total) = (bytes(disk.free), bytes(disk.total));
        let text = format!("{free} free of {total}: {}", disk.folder.display());
        lines.push(("disk", text));
    }
    let limits = doctor.limits.iter().map(|&(name, value)| match name {
        "open files" => format!("{name} {value}"),
        _ => format!("{name} {}", bytes(value)),
    });
    lines.push(("limits", limits.collect::<Vec<_>>().join(", ")));
    lines.extend(environment.map(|variable| ("environment", variable)));
    lines.extend(doctor.problems.iter().map(|one| ("PROBLEM", one.clone())));
    let lines = lines.iter().filter(|(_, text)| !text.is_empty());
    let name_first = |name: &str| format!("{name:<NAME_WIDTH$}");
    let text = lines.map(|(name, text)| hanging(&name_first(name), NAME_WIDTH, &printable(text)));
    text.collect()
}

fn compiled_for() -> String {
    let backends = match cfg!(feature = "dynamic-backends") {
        true => "backends loaded from libraries",
        false => "backends compiled in",
    };
    format!("{} {}, {backends}", env::consts::ARCH, env::consts::OS)
}

fn device_line(device: &Device) -> String {
    let (name, what) = (&device.name, &device.description);
    let (free, total) = (bytes(device.memory_free), bytes(device.memory_total));
    match device.kind {
        // Its memory has a line of its own.
        DeviceKind::Cpu | DeviceKind::Accelerator => format!("{name}: {what}"),
        DeviceKind::IntegratedGpu => format!("{name}: {what}, shares the CPU's memory"),
        DeviceKind::Gpu | DeviceKind::Remote => format!("{name}: {what}, {free} free of {total}"),
    }
}

fn cpu_line(doctor: &Doctor, default_threads: u32) -> String {
    let cores = count_of(doctor.cores as u64, "core");
    let text = match doctor.threads < doctor.cores {
        true => format!("{cores}, of which this process may use {}", doctor.threads),
        false => format!("{cores}, {}", count_of(doctor.threads as u64, "thread")),
    };
    format!("{text}; kl decodes with {default_threads} unless --threads is given")
}

fn memory_line(doctor: &Doctor) -> String {
    let parts = [
        (doctor.memory, ""),
        (doctor.memory_available, " available"),
        (doctor.swap, " of swap"),
        (doctor.memory_limit, " is the limit of this container"),
    ];
    let known = parts.iter().take_while(|_| doctor.memory.is_some());
    let known = known.filter_map(|(value, what)| Some(format!("{}{what}", bytes((*value)?))));
    known.collect::<Vec<_>>().join(", ")
}

/// The variables of the environment that matter here, sorted, without what is secret.
fn environment() -> impl Iterator<Item = String> {
    let all = env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    let is_shown = |name: &str| VARIABLES.iter().any(|start| name.starts_with(start));
    let mut shown: Vec<_> = all.filter(|(name, _)| is_shown(name)).collect();
    shown.sort();
    let is_secret = |name: &str| SECRETS.iter().any(|part| name.contains(part));
    let shown = shown.into_iter();
    shown.map(move |(name, value)| match is_secret(&name) {
        true => format!("{name} is set"),
        false => format!("{name}={}", value.to_string_lossy()),
    })
}

/// The devices as llama.cpp's tools list them, and below each what is special about it.
pub fn devices_text(devices: &[Device]) -> String {
    const MIB: u64 = 1024 * 1024;
    let mut text = String::from("Available devices:\n");
    for device in devices {
        let (name, what) = (&device.name, &device.description);
        let [total, free] = [device.memory_total, device.memory_free].map(|bytes| bytes / MIB);
        text.push_str(&format!(
            "  {name}: {what} ({total} MiB, {free} MiB free)\n"
        ));
        if let Some(note) = note(device) {
            text.push_str(&format!("    {note}\n"));
        }
    }
    text
}

fn note(device: &Device) -> Option<String> {
    match device.kind {
        DeviceKind::Cpu | DeviceKind::Gpu if !device.features.is_empty() => {
            Some(format!("compiled for {}", device.features.join(", ")))
        }
        DeviceKind::Cpu | DeviceKind::Gpu | DeviceKind::Remote => None,
        DeviceKind::IntegratedGpu => Some("shares the CPU's memory".to_owned()),
        DeviceKind::Accelerator => Some("computes in the CPU's memory".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::Disk;
    use crate::engine::{Engine, FakeEngine};
    use crate::report::layout::WIDTH;

    #[test]
    fn everything_is_listed_within_80_columns() {
        let mut devices = FakeEngine::default().devices().unwrap();
        devices.push(Device {
            name: "CUDA0".to_owned(),
            description: "NVIDIA H200".to_owned(),
            kind: DeviceKind::Gpu,
            memory_free: 100 << 30,
            memory_total: 139 << 30,
            features: vec!["ARCHS=900".to_owned(), "USE_GRAPHS".to_owned()],
        });
        let doctor = Doctor {
            engine: "fake 1".to_owned(),
            backends: vec!["CPU".to_owned(), "RPC".to_owned()],
            devices,
            cpu_features: vec!["AVX2", "FMA", "AVX512"],
            cores: 4,
            threads: 2,
            memory: Some(16 << 30),
            memory_available: Some(9 << 30),
            swap: Some(0),
            memory_limit: Some(8 << 30),
            limits: vec![("locked memory", 8 << 20), ("open files", 1024)],
            disks: vec![Disk {
                folder: "/home/ada".into(),
                free: 5 << 30,
                total: 100 << 30,
            }],
            problems: vec![
                "a problem that takes so many words that they do not fit on a line: mend it so"
                    .to_owned(),
            ],
        };
        let environment = ["CUDA_VISIBLE_DEVICES=0"].map(str::to_owned);
        let text = text_of(&doctor, 2, environment.into_iter());
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH));
        // How this program was built depends on who runs the test.
        let (start, rest) = text.split_once("\nbackends ").unwrap();
        assert_eq!(start.lines().count(), 3, "{start}");
        insta::assert_snapshot!(format!("backends {rest}"));
    }

    #[test]
    fn each_device_is_listed_with_its_memory() {
        let mut devices = FakeEngine::default().devices().unwrap();
        devices.push(Device {
            name: "Vulkan0".to_owned(),
            description: "Intel(R) Graphics (ADL GT2)".to_owned(),
            kind: DeviceKind::IntegratedGpu,
            memory_free: (7 << 30) + 1,
            memory_total: 15 << 30,
            features: Vec::new(),
        });
        let expected = "\
Available devices:
  FAKE: no device (4096 MiB, 3072 MiB free)
    compiled for AVX2, FMA
  Vulkan0: Intel(R) Graphics (ADL GT2) (15360 MiB, 7168 MiB free)
    shares the CPU's memory
";
        assert_eq!(devices_text(&devices), expected);
    }
}
