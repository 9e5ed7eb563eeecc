//! Settings in which this run differs from the one that wrote the reference, if they change rows.

use clap::ValueEnum as _;
use kl_engine::CacheType;
use kl_formats::{BackendIdentity, Calls};
use kl_report::Warning;
use kl_report::set_up::{devices, gpu_layers};

use super::context::Split;
use super::observer::Watch;

/// The settings whose values are compared: the key in a header, the name in a message, and the flag that sets
/// it.
const SETTINGS: [(&str, &str, &str); 9] = [
    ("llama_cpp", "llama.cpp", ""),
    ("devices", "the set of devices", ""),
    ("threads", "the number of threads", "--threads "),
    (FLASH_ATTN, "flash attention", "--flash-attn "),
    ("type_k", "the type of cached keys", "--cache-type-k "),
    ("type_v", "the type of cached values", "--cache-type-v "),
    ("n_gpu_layers", "the number of offloaded layers", "-ngl "),
    ("placement", "the placement", PLACEMENT),
    (N_SEQ, "the number of windows in a call", PARALLEL),
];

const FLASH_ATTN: &str = "flash_attn";
const N_SEQ: &str = "n_seq";
const PARALLEL: &str = "--parallel ";

/// The value of a setting as text; `None` where it is not recorded. No more layers count as offloaded than
/// the model has.
fn value(key: &str, of: &BackendIdentity) -> Option<String> {
    match key {
        "llama_cpp" => of.llama_cpp.clone(),
        "devices" => devices(of),
        "threads" => of.threads.map(|n| n.to_string()),
        FLASH_ATTN => of.flash_attn.clone(),
        "type_k" => of.type_k.clone(),
        "type_v" => of.type_v.clone(),
        "n_gpu_layers" => gpu_layers(of),
        "placement" => placement(of),
        _ => of.n_batch.map(|_| of.n_seq.unwrap_or(1).to_string()),
    }
}

/// Stands for the placement's flag: the value of a placement consists of flags.
const PLACEMENT: &str = "-";

/// The settings that a model without attention does not have.
const OF_ATTENTION: [&str; 3] = [FLASH_ATTN, "type_k", "type_v"];

const BATCH: &str = "the batch";
const PHYSICAL_BATCH: &str = "the physical batch";

/// The name that messages use for a key of a header, such as `backend.type_k`.
pub fn shown_key(key: &str) -> &str {
    let name = key.strip_prefix("backend.").unwrap_or_default();
    let settings = SETTINGS.map(|(known, what, ..)| (known, what));
    let batches = [("n_batch", BATCH), ("n_ubatch", PHYSICAL_BATCH)];
    let mut known = settings.into_iter().chain(batches);
    known
        .find(|(known, _)| *known == name)
        .map_or(key, |(_, what)| what)
}

/// The flags that move weights or work between devices, where some device has layers. Files that record none
/// were written with llama.cpp's own placement.
fn placement(set_up: &BackendIdentity) -> Option<String> {
    let n_gpu_layers = set_up.n_gpu_layers?;
    let recorded = set_up.placement.iter().flatten().map(String::as_str);
    let matters = |flag: &&str| split_matters(set_up) || !flag.starts_with("-ts ");
    let flags: Vec<&str> = recorded.filter(matters).collect();
    let is_default = n_gpu_layers == 0 || flags.is_empty();
    Some(if is_default {
        "none".to_owned()
    } else {
        flags.join(" ")
    })
}

/// The use of flash attention, if it is known. llama.cpp turns `auto` into `on` where it places the fused
/// operation on the layer's own device (`llama_context::resolve_fused_ops`), as it always does on the CPU.
/// For offloaded layers it depends on the accelerator.
fn flash_attention(set_up: &BackendIdentity) -> Option<&str> {
    match set_up.flash_attn.as_deref() {
        Some("auto") if set_up.n_gpu_layers == Some(0) => Some("on"),
        recorded => recorded,
    }
}

/// The set-ups of two runs, to be compared.
#[derive(Debug, Clone, Copy)]
pub struct SetUps<'b> {
    /// The set-up of this run.
    pub here: &'b BackendIdentity,
    /// The set-up of the reference's rows.
    pub there: &'b BackendIdentity,
    /// Tokens of the longest window.
    pub n_ctx: u32,
    /// True if the model has attention: one without has no KV cache.
    pub has_attention: bool,
}

/// A setting that differs: its name, its values here and there, and the flags that make them equal.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    pub what: &'static str,
    pub here: String,
    pub there: String,
    flags: String,
}

impl SetUps<'_> {
    /// Warns of each setting that differs and changes results.
    pub fn warn(self, watch: &Watch<'_>) {
        let is_quantized =
            |value: &str| CacheType::from_str(value, false).is_ok_and(CacheType::is_quantized);
        for found in self.differences() {
            let (what, here, there) = (found.what, found.here, found.there);
            let effect = if is_quantized(&here) || is_quantized(&there) {
                "the KLD includes what that loses, which may be more than the weights lose"
            } else {
                "this can move the mean KLD, of an unquantized model by 1e-4 at most, of a quantized one by 4e-3"
            };
            let mut message =
                format!("{what} is {here} here and {there} for the reference: {effect}");
            if !found.flags.is_empty() {
                message += &format!(" (pass {} to match)", found.flags);
            }
            watch.warn(Warning::new("set_up_differs", message));
        }
    }

    /// The settings that differ and change results.
    pub fn differences(self) -> Vec<Difference> {
        let all = SETTINGS.iter();
        let used = all.filter(|of| self.has_attention || !OF_ATTENTION.contains(&of.0));
        // A model that is larger than the memory computes as many windows at once as there is room for.
        let [split, other] = [self.here, self.there].map(|of| Split::of_reference(of, self.n_ctx));
        let compared = used.filter(|of| of.0 != N_SEQ || split != other);
        let differ = compared.filter_map(|&(key, what, flag)| {
            let (here, there) = (value(key, self.here)?, value(key, self.there)?);
            let flags = match (flag, there.as_str(), self.there.n_batch) {
                ("", ..) | (PLACEMENT, "none", _) => String::new(),
                (PLACEMENT, flags, _) => flags.to_owned(),
                // The windows must fit into the batch.
                (PARALLEL, n, Some(n_batch)) if n != "1" => {
                    format!("{flag}{n} --n-batch {n_batch}")
                }
                _ => format!("{flag}{there}"),
            };
            let is_same_attention =
                key == FLASH_ATTN && flash_attention(self.here) == flash_attention(self.there);
            (here != there && !is_same_attention).then_some(Difference {
                what,
                here,
                there,
                flags,
            })
        });
        differ.chain(self.batch()).collect()
    }

    /// The difference of the batches, if they split a window in different places.
    ///
    /// A row depends on which tokens are computed at once with its own. Those are the tokens of the
    /// physical batch, within one decode call of the logical batch: a larger logical batch that is cut
    /// into the same physical ones changes nothing.
    fn batch(self) -> Option<Difference> {
        let (calls, other_calls) = (self.here.calls()?, self.there.calls()?);
        // A batch never holds more tokens of one window than the window has.
        let cut = |calls: Calls, n_ubatch: u32| Calls {
            n_batch: calls.n_batch.min(self.n_ctx),
            n_ubatch: n_ubatch.min(calls.n_batch).min(self.n_ctx),
            ..calls
        };
        // If the reference does not record its physical batch, it counts as this run's.
        let n_ubatch = self.there.n_ubatch.unwrap_or(calls.n_ubatch);
        let (here, there) = (cut(calls, calls.n_ubatch), cut(other_calls, n_ubatch));
        let n_tokens = self.n_ctx.into();
        // Equal calls split shorter windows differently too.
        let are_alike = here.is_equal == there.is_equal;
        if are_alike && here.batches(0, n_tokens).eq(there.batches(0, n_tokens)) {
            return None;
        }
        let is_physical = are_alike && here.n_batch == there.n_batch;
        let mut flags = Vec::new();
        // A reference of equal calls is evaluated in these, unless a batch is set.
        if !there.is_equal && !is_physical {
            flags.push(format!("--n-batch {}", there.n_batch));
        }
        if !there.is_equal && (here.n_ubatch != there.n_ubatch || here.is_equal) {
            flags.push(format!("--n-ubatch {}", there.n_ubatch));
        }
        let shown = |calls: Calls| match (is_physical, calls.is_equal) {
            (_, true) => format!("{} in equal calls", calls.n_batch),
            (true, false) => calls.n_ubatch.to_string(),
            (false, false) => calls.n_batch.to_string(),
        };
        Some(Difference {
            what: if is_physical { PHYSICAL_BATCH } else { BATCH },
            here: shown(here),
            there: shown(there),
            flags: flags.join(" "),
        })
    }
}

/// True if results depend on which device has how many layers: only where devices differ, or a
/// layer itself is split.
fn split_matters(backend: &BackendIdentity) -> bool {
    let flags = backend.placement.iter().flatten();
    let mut modes = flags.filter(|flag| flag.starts_with("-sm "));
    let devices = backend.devices.iter().flatten();
    // `CUDA0 (NVIDIA H200)`; the CPU has no share.
    let mut kinds = devices
        .filter(|device| !device.starts_with("CPU "))
        .map(|device| device.split_once(' ').map(|(_, kind)| kind));
    let first = kinds.next();
    modes.any(|mode| mode != "-sm layer" && mode != "-sm none")
        || first.is_none()
        || kinds.any(|kind| Some(kind) != first)
}

#[cfg(test)]
mod tests;
