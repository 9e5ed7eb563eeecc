//! The differences between two set-ups: what one is of, and how it moves rows.

use super::{Aspect, Difference, Effect};
use crate::calls::Calls;
use crate::provenance::BackendIdentity;

/// A setting of a set-up, on which rows depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The version of llama.cpp.
    LlamaCpp,
    /// The devices that compute.
    Devices,
    /// The threads that decode.
    Threads,
    /// The use of flash attention.
    FlashAttention,
    /// The type of cached keys.
    KeyType,
    /// The type of cached values.
    ValueType,
    /// The number of layers that a device computes.
    GpuLayers,
    /// The flags that move weights or work between devices.
    Placement,
    /// The windows that a call decodes.
    WindowsInCall,
    /// The calls into which a window is split.
    Batch,
    /// The physical batches into which a call is split.
    PhysicalBatch,
    /// The type of weights in memory.
    Weights,
}

impl Setting {
    /// All of them.
    const ALL: [Self; 12] = [
        Self::LlamaCpp,
        Self::Devices,
        Self::Threads,
        Self::FlashAttention,
        Self::KeyType,
        Self::ValueType,
        Self::GpuLayers,
        Self::Placement,
        Self::WindowsInCall,
        Self::Weights,
        Self::Batch,
        Self::PhysicalBatch,
    ];

    /// The name that messages use.
    pub fn name(self) -> &'static str {
        match self {
            Self::LlamaCpp => "llama.cpp",
            Self::Devices => "the set of devices",
            Self::Threads => "the number of threads",
            Self::FlashAttention => "flash attention",
            Self::KeyType => "the type of cached keys",
            Self::ValueType => "the type of cached values",
            Self::GpuLayers => "the number of offloaded layers",
            Self::Placement => "the placement",
            Self::WindowsInCall => "the number of windows in a call",
            Self::Batch => "the batch",
            Self::PhysicalBatch => "the physical batch",
            Self::Weights => "the type of dequantized weights",
        }
    }

    /// True for a setting that a model without attention does not have.
    pub fn is_of_attention(self) -> bool {
        matches!(self, Self::FlashAttention | Self::KeyType | Self::ValueType)
    }

    /// What a difference in it does: caches and weights of other types hold other numbers.
    fn effect(self) -> Effect {
        match self {
            Self::KeyType | Self::ValueType | Self::Weights => Effect::Numbers,
            _ => Effect::Machine,
        }
    }

    /// Its value as a file records it; `None` where it does not.
    fn recorded(self, of: &BackendIdentity) -> Option<String> {
        match self {
            Self::LlamaCpp => of.llama_cpp.clone(),
            Self::Devices => of.devices.as_ref().map(|devices| devices.join(", ")),
            Self::Threads => of.threads.map(|n| n.to_string()),
            Self::FlashAttention => of.flash_attn.clone(),
            Self::KeyType => of.type_k.clone(),
            Self::ValueType => of.type_v.clone(),
            Self::GpuLayers => of.n_gpu_layers.map(|n| n.to_string()),
            // Files that record none were written with llama.cpp's own placement.
            Self::Placement => of.n_gpu_layers.map(|_| placement(of, |_| true)),
            Self::WindowsInCall => of.n_batch.map(|_| of.n_seq.unwrap_or(1).to_string()),
            Self::Batch => of.calls().map(|calls| match calls.is_equal {
                true => format!("{} in equal calls", calls.n_batch),
                false => calls.n_batch.to_string(),
            }),
            Self::PhysicalBatch => of.n_ubatch.map(|n| n.to_string()),
            Self::Weights => Some(of.weights.as_deref().unwrap_or("none").to_owned()),
        }
    }

    /// Its value as it acts, in windows of at most `n_ctx` tokens; equal values act alike.
    fn acting(self, of: &BackendIdentity) -> Option<String> {
        match self {
            // llama.cpp turns `auto` into `on` where it places the fused operation on the layer's own device
            // (`llama_context::resolve_fused_ops`), as it always does on the CPU. For offloaded layers it depends
            // on the accelerator.
            Self::FlashAttention if of.n_gpu_layers == Some(0) => {
                let recorded = of.flash_attn.as_deref();
                recorded.map(|value| value.replace("auto", "on"))
            }
            Self::Placement if of.n_gpu_layers == Some(0) => Some("none".to_owned()),
            Self::Placement => {
                let matters = |flag: &str| split_matters(of) || !flag.starts_with("-ts ");
                of.n_gpu_layers.map(|_| placement(of, matters))
            }
            _ => self.recorded(of),
        }
    }

    fn difference(self, here: String, there: String, effect: Effect) -> Difference {
        Difference {
            what: Aspect::SetUp(self),
            here,
            there,
            effect,
        }
    }
}

impl BackendIdentity {
    /// The settings in which this set-up differs from the one `there`. Those that act alike in windows of at most
    /// `n_ctx` tokens are only recorded. What either does not record is not compared.
    pub fn diff(&self, there: &Self, n_ctx: u32) -> Vec<Difference> {
        let batch = batch_difference(self, there, n_ctx);
        let is_batch = |setting| matches!(setting, Setting::Batch | Setting::PhysicalBatch);
        let differ = Setting::ALL.into_iter().filter_map(|setting| {
            let values = |value: fn(Setting, &Self) -> Option<String>| {
                Some((value(setting, self)?, value(setting, there)?))
            };
            let (here, there) = values(Setting::recorded)?;
            if here == there || is_batch(setting) && batch.is_some() {
                return None;
            }
            let (acting, acting_there) = values(Setting::acting)?;
            Some(if acting == acting_there || is_batch(setting) {
                setting.difference(here, there, Effect::Recorded)
            } else {
                setting.difference(here, there, setting.effect())
            })
        });
        differ.chain(batch.clone()).collect()
    }

    /// The calls of this set-up and of the one `there`, in windows of at most `n_ctx` tokens; `None` if either does
    /// not record them. Where the other does not record its physical batch, it counts as this one's.
    pub fn calls_beside(&self, there: &Self, n_ctx: u32) -> Option<(Calls, Calls)> {
        let (here_calls, mut there_calls) = (self.calls()?, there.calls()?);
        there_calls.n_ubatch = there.n_ubatch.unwrap_or(here_calls.n_ubatch);
        Some((here_calls.within(n_ctx), there_calls.within(n_ctx)))
    }
}

/// The flags that move weights or work between devices, of those that matter; `none` without any.
fn placement(set_up: &BackendIdentity, matters: impl Fn(&str) -> bool) -> String {
    let recorded = set_up.placement.iter().flatten().map(String::as_str);
    let flags: Vec<&str> = recorded.filter(|flag| matters(flag)).collect();
    if flags.is_empty() {
        "none".to_owned()
    } else {
        flags.join(" ")
    }
}

/// True if results depend on which device has how many layers: only where devices differ, or a
/// layer itself is split.
fn split_matters(set_up: &BackendIdentity) -> bool {
    let flags = set_up.placement.iter().flatten();
    let mut modes = flags.filter(|flag| flag.starts_with("-sm "));
    let devices = set_up.devices.iter().flatten();
    // `CUDA0 (NVIDIA H200)`; the CPU has no share.
    let mut kinds = devices
        .filter(|device| !device.starts_with("CPU "))
        .map(|device| device.split_once(' ').map(|(_, kind)| kind));
    let first = kinds.next();
    modes.any(|mode| mode != "-sm layer" && mode != "-sm none")
        || first.is_none()
        || kinds.any(|kind| Some(kind) != first)
}

/// The difference of the batches, if they split a window in different places.
///
/// A row depends on which tokens are computed at once with its own. Those are the tokens of the
/// physical batch, within one decode call of the logical batch: a larger logical batch that is cut
/// into the same physical ones changes nothing.
fn batch_difference(
    here: &BackendIdentity,
    there: &BackendIdentity,
    n_ctx: u32,
) -> Option<Difference> {
    let (here, there) = here.calls_beside(there, n_ctx)?;
    // Equal calls split shorter windows differently too.
    let are_alike = here.is_equal == there.is_equal;
    let n_tokens = n_ctx.into();
    if are_alike && here.batches(0, n_tokens).eq(there.batches(0, n_tokens)) {
        return None;
    }
    let is_physical = are_alike && here.n_batch == there.n_batch;
    let shown = |calls: Calls| match (is_physical, calls.is_equal) {
        (_, true) => format!("{} in equal calls", calls.n_batch),
        (true, false) => calls.n_ubatch.to_string(),
        (false, false) => calls.n_batch.to_string(),
    };
    let setting = if is_physical {
        Setting::PhysicalBatch
    } else {
        Setting::Batch
    };
    Some(setting.difference(shown(here), shown(there), setting.effect()))
}
