//! Where models lie: on which devices, and how much of them; and what this CPU can compute.

use std::path::Path;

use anyhow::Result;
use kl_engine::{
    ContextOptions, Device, DeviceKind, Engine, GpuLayers, Model, ModelOptions, Room, SecondModel,
    copies_folder, mlock_has_failed,
};
use kl_report::Warning;
use kl_report::number::bytes;

use super::observer::{Event, Watch};
use super::output::check_free_space;
use super::settings::RunSettings;

/// Lists the devices that a model can be computed on, those of the servers (`HOST:PORT`) too, as llama.cpp's
/// tools list them, and below each what is special about it.
///
/// # Errors
/// A server that cannot be used, or if the engine cannot be started.
pub fn list_devices(servers: &[String], engine: &dyn Engine) -> Result<String> {
    const MIB: u64 = 1024 * 1024;
    engine.add_servers(servers)?;
    let mut text = String::from("Available devices:\n");
    for device in engine.devices()? {
        let (name, description) = (&device.name, &device.description);
        let [total, free] = [device.memory_total, device.memory_free].map(|bytes| bytes / MIB);
        text += &format!("  {name}: {description} ({total} MiB, {free} MiB free)\n");
        let peculiarity = match device.kind {
            DeviceKind::IntegratedGpu => "shares the CPU's memory",
            DeviceKind::Accelerator => "computes in the CPU's memory",
            DeviceKind::Cpu | DeviceKind::Gpu if !device.features.is_empty() => {
                &format!("compiled for {}", device.features.join(", "))
            }
            _ => continue,
        };
        text += &format!("    {peculiarity}\n");
    }
    Ok(text)
}

/// Connects to the servers of a run. Warns if its flags offload layers or place weights, and no device
/// can hold them, if ggml was compiled for much older CPUs than this one, and of more threads than can run
/// at once.
///
/// # Errors
/// A server that cannot be used, or if the engine cannot be started.
pub fn connect_devices(engine: &dyn Engine, run: &RunSettings, watch: &Watch<'_>) -> Result<()> {
    engine.add_servers(&run.model.rpc)?;
    warn_without_device(engine, "-ngl", run, run.model.placement(), watch)?;
    if is_slow_build(&engine.devices()?) {
        watch.warn(Warning::slow_build());
    }
    // Those of the CPU, or as many as its affinity and its container's quota allow.
    let available = num_cpus::get() as u32;
    if run.threads > available {
        let threads = run.threads;
        let message = format!(
            "--threads {threads}: this process may run only {available} at once, and at each step of the model all wait for those that are not running: it is slower than --threads {available}; lower it"
        );
        watch.warn(Warning::new("many_threads", message));
    }
    Ok(())
}

/// Warns of flags that offload layers, by `ngl`, or place weights, where no device can hold them.
///
/// # Errors
/// If the engine cannot be started.
pub fn warn_without_device(
    engine: &dyn Engine,
    ngl: &str,
    run: &RunSettings,
    placement: Vec<String>,
    watch: &Watch<'_>,
) -> Result<()> {
    let layers = match run.model.n_gpu_layers {
        GpuLayers::Count(0) => None,
        n => Some(format!("{ngl} {n}")),
    };
    let flags: Vec<String> = layers.into_iter().chain(placement).collect();
    if !flags.is_empty() && !engine.can_offload()? {
        let verb = if flags.len() == 1 { "has" } else { "have" };
        let message = format!(
            "{} {verb} no effect: this kl was built without an accelerator backend, or finds no device (kl --list-devices shows what it finds, docs/GPU.md how to build one)",
            flags.join(", ")
        );
        watch.warn(Warning::new("no_accelerator", message));
    }
    Ok(())
}

/// States what the copy of a model with dequantized weights takes.
///
/// # Errors
/// A model without any that is to be dequantized, or a copy that does not fit on its disk.
fn announce_copy(engine: &dyn Engine, path: &Path, watch: &Watch<'_>) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let text = match engine.dequantized_copy(path)? {
        None => format!("{name}: no weights are quantized: it runs as it is"),
        Some(copy) => {
            let folder = copies_folder();
            let [size, memory] = [copy.bytes, copy.largest_tensor].map(bytes);
            check_free_space(&folder.join(&*name), &folder, copy.bytes, |_| {
                format!("--dequantize copies {name} there; set TMPDIR to a folder on another disk")
            })?;
            format!(
                "{name}: a copy of {size} in {}, made with {memory} of memory",
                folder.display()
            )
        }
    };
    watch.event(&Event::Plan("dequantized", &text));
    Ok(())
}

/// Loads a model. If as much as fits is to be offloaded, `beside` gives the contexts and the second model
/// that must fit beside it, and the layers that fit are announced.
///
/// # Errors
/// Those of [`Engine::load`].
pub fn load<'e>(
    engine: &'e dyn Engine,
    path: &Path,
    run: &RunSettings,
    beside: impl FnOnce() -> (ContextOptions, Option<SecondModel>),
    watch: &Watch<'_>,
) -> Result<Box<dyn Model + 'e>> {
    if run.model.is_dequantized {
        announce_copy(engine, path, watch)?;
    }
    let is_fitted = run.model.n_gpu_layers == GpuLayers::Auto;
    let options = ModelOptions {
        room: is_fitted.then(|| {
            let (context, second_model) = beside();
            Box::new(Room {
                context,
                n_contexts: run.n_contexts(true),
                second_model,
            })
        }),
        ..run.model.clone()
    };
    let model = engine.load(path, &options)?;
    if is_fitted && engine.can_offload()? {
        let fitted = &model.facts().options;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let mut text = format!(
            "{name}: {} of {} fit on the devices",
            fitted.n_gpu_layers,
            model.facts().n_layers
        );
        if fitted.placement() != options.placement() {
            text = format!("{text}: {}", fitted.placement().join(" "));
        }
        watch.event(&Event::Plan("layers", &text));
    }
    if run.model.use_mlock && mlock_has_failed() {
        watch.warn(Warning::new(
            "not_locked",
            "--mlock has no effect: the system refuses to lock so much memory (ulimit -l shows and raises the limit)",
        ));
    }
    Ok(model)
}

/// True if ggml was compiled for older CPUs than this one: without AVX2, a decode takes many times as
/// long.
pub fn is_slow_build(devices: &[Device]) -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx2") && lacks_avx2(devices);
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// True if the CPU's backend states its instruction sets, and AVX2 is not among them.
fn lacks_avx2(devices: &[Device]) -> bool {
    devices
        .iter()
        .filter(|device| device.kind == DeviceKind::Cpu)
        .any(|cpu| !cpu.features.is_empty() && !cpu.has_feature("AVX2"))
}

#[cfg(test)]
mod tests {
    use kl_engine::{Engine, FakeEngine};

    use super::*;

    #[test]
    fn a_build_for_older_cpus_is_recognised() {
        let lacks = |compiled: &[&str]| {
            let mut devices = FakeEngine::default().devices().unwrap();
            devices[0].features = compiled.iter().map(ToString::to_string).collect();
            lacks_avx2(&devices)
        };
        assert!(lacks(&["SSE3"]));
        assert!(!lacks(&["SSE3", "AVX2"]));
        assert!(!lacks(&[]), "unknown");
        assert!(!lacks_avx2(&[]));
    }
}
