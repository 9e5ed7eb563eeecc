//! The text of `--list-devices`.

use std::fmt::Write as _;

use crate::engine::{Device, DeviceKind};

/// The devices as llama.cpp's tools list them, and below each what is special about it.
pub fn devices_text(devices: &[Device]) -> String {
    const MIB: u64 = 1024 * 1024;
    let mut text = String::from("Available devices:\n");
    for device in devices {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "  {}: {} ({} MiB, {} MiB free)",
            device.name,
            device.description,
            device.memory_total / MIB,
            device.memory_free / MIB
        );
        if let Some(note) = note(device) {
            let _ = writeln!(text, "    {note}");
        }
    }
    text
}

fn note(device: &Device) -> Option<String> {
    match device.kind {
        DeviceKind::Cpu | DeviceKind::Gpu if device.features.is_empty() => None,
        DeviceKind::Cpu | DeviceKind::Gpu => {
            Some(format!("compiled for {}", device.features.join(", ")))
        }
        DeviceKind::IntegratedGpu => Some("shares the CPU's memory".to_owned()),
        DeviceKind::Accelerator => Some("computes in the CPU's memory".to_owned()),
        DeviceKind::Remote => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Engine, FakeEngine};

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
