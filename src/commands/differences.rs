//! Settings in which this run differs from the one that wrote the reference, if they change rows.

use clap::ValueEnum as _;
use kl_formats::{BackendIdentity, Calls};

use super::observer::Watch;
use crate::engine::{CacheType, FlashAttention};
use crate::report::Warning;
use crate::report::set_up::setting;

/// The settings whose values are compared as they are: their names in a set-up and in a warning, and
/// the flags that set them. The layers offloaded are at most those that the model has.
const SETTINGS: [(&str, &str, &str); 7] = [
    ("llama.cpp", "llama.cpp", ""),
    ("devices", "the set of devices", ""),
    ("threads", "the number of threads", "--threads"),
    ("flash attention", "flash attention", "--flash-attn"),
    ("K cache", "the type of cached keys", "--cache-type-k"),
    ("V cache", "the type of cached values", "--cache-type-v"),
    ("GPU layers", "the number of offloaded layers", "-ngl"),
];

/// Those of them that a model without attention does not have.
const OF_ATTENTION: [&str; 3] = ["flash attention", "K cache", "V cache"];

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

/// A setting that differs: what it is, its value here and there, and the flags that make it equal.
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
        for different in self.differences() {
            let Difference {
                what,
                here,
                there,
                flags,
            } = different;
            let effect = if is_quantized_cache(&here) || is_quantized_cache(&there) {
                "the KLD includes what that loses, which may be more than the weights lose"
            } else {
                "this changes the results a little"
            };
            let mut message =
                format!("{what} is {here} here and {there} for the reference: {effect}");
            if !flags.is_empty() {
                message += &format!(" (pass {flags} to match)");
            }
            watch.warn(Warning::new("set_up_differs", message));
        }
    }

    /// The settings that differ and change results.
    pub fn differences(self) -> Vec<Difference> {
        let settings = SETTINGS.iter();
        let settings = settings.filter(|of| self.has_attention || !OF_ATTENTION.contains(&of.0));
        let differ = settings.filter_map(|&(name, what, flag)| {
            let (here, there) = (setting(self.here, name)?, setting(self.there, name)?);
            let is_same_attention = name == "flash attention"
                && flash_attention(self.here) == flash_attention(self.there);
            (here != there && !is_same_attention).then(|| Difference {
                what,
                flags: match flag {
                    "" => String::new(),
                    flag => format!("{flag} {there}"),
                },
                here,
                there,
            })
        });
        differ
            .chain(self.placement())
            .chain(self.batch())
            .chain(self.together())
            .collect()
    }

    /// The difference of the flags that move weights or work between devices, where some device has
    /// layers. Files that record none were written with llama.cpp's own placement.
    fn placement(self) -> Option<Difference> {
        let flags = |backend: &BackendIdentity| {
            let is_offloaded = backend.n_gpu_layers? > 0;
            let flags = backend.placement.clone().filter(|_| is_offloaded);
            let mut flags = flags.unwrap_or_default();
            if !split_matters(backend) {
                flags.retain(|flag| !flag.starts_with("-ts "));
            }
            Some(flags.join(" "))
        };
        let (here, there) = (flags(self.here)?, flags(self.there)?);
        let or_none = |flags: &String| match flags.is_empty() {
            true => "none".to_owned(),
            false => flags.clone(),
        };
        (here != there).then(|| Difference {
            what: "the placement",
            here: or_none(&here),
            there: or_none(&there),
            flags: there,
        })
    }

    /// The difference of the batches, if they split a window in different places.
    ///
    /// A row depends on which tokens are computed at once with its own. Those are the physical
    /// batch's, within a decode call of the logical one: a larger logical batch of which the
    /// physical one is still the same part changes nothing.
    fn batch(self) -> Option<Difference> {
        let (here, there) = (self.here.calls()?, self.there.calls()?);
        // A batch of several windows holds no more of any than all of it.
        let here = Calls {
            n_batch: here.n_batch.min(self.n_ctx),
            n_ubatch: here.n_ubatch.min(self.n_ctx),
            ..here
        };
        let there = Calls {
            n_batch: there.n_batch.min(self.n_ctx),
            // If the reference does not record it, it counts as this run's.
            n_ubatch: match self.there.n_ubatch {
                Some(n_ubatch) => n_ubatch.min(there.n_batch).min(self.n_ctx),
                None => here.n_ubatch.min(there.n_batch),
            },
            ..there
        };
        let n_tokens = self.n_ctx.into();
        // Equal calls split shorter windows differently too.
        if here.is_equal == there.is_equal
            && here.batches(0, n_tokens).eq(there.batches(0, n_tokens))
        {
            return None;
        }
        let mut flags = Vec::new();
        // A reference of equal calls is evaluated in these, unless a batch is set.
        if !there.is_equal {
            if here.n_batch != there.n_batch || here.is_equal {
                flags.push(format!("--n-batch {}", there.n_batch));
            }
            if here.n_ubatch != there.n_ubatch || here.is_equal {
                flags.push(format!("--n-ubatch {}", there.n_ubatch));
            }
        }
        let is_physical = here.is_equal == there.is_equal && here.n_batch == there.n_batch;
        let (what, size): (_, fn(Calls) -> u32) = match is_physical {
            true => ("the physical batch", |calls| calls.n_ubatch),
            false => ("the batch", |calls| calls.n_batch),
        };
        let shown = |calls: Calls| match calls.is_equal {
            true => format!("{} in equal calls", size(calls)),
            false => size(calls).to_string(),
        };
        Some(Difference {
            what,
            here: shown(here),
            there: shown(there),
            flags: flags.join(" "),
        })
    }

    /// The difference of the windows that are decoded in a call.
    fn together(self) -> Option<Difference> {
        let (here, there) = (n_seq(self.here)?, n_seq(self.there)?);
        let batch = match self.there.n_batch {
            // They must fit into it.
            Some(n_batch) if there > 1 => format!(" --n-batch {n_batch}"),
            _ => String::new(),
        };
        (here != there).then(|| Difference {
            what: "the number of windows in a call",
            here: here.to_string(),
            there: there.to_string(),
            flags: format!("--parallel {there}{batch}"),
        })
    }
}

/// Returns true if a setting is a quantized type of the KV cache.
fn is_quantized_cache(value: &str) -> bool {
    CacheType::from_str(value, false).is_ok_and(CacheType::is_quantized)
}

/// Returns true if it matters which device has how many layers: only where devices differ, or a
/// layer is split itself.
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

/// Most windows that a call decoded; `None` if that is not recorded.
fn n_seq(backend: &BackendIdentity) -> Option<u32> {
    backend.n_batch?;
    Some(backend.n_seq.unwrap_or(1))
}

/// Flash attention as it is computed. llama.cpp turns `auto` into `on` where it places the fused
/// operation on the layer's own device (`llama_context::resolve_fused_ops`), which the CPU always
/// is. What it does with offloaded layers depends on the accelerator, and stays `auto` here.
fn flash_attention(backend: &BackendIdentity) -> Option<FlashAttention> {
    let setting = FlashAttention::from_str(backend.flash_attn.as_ref()?, false).ok()?;
    Some(match (setting, backend.n_gpu_layers) {
        (FlashAttention::Auto, Some(0)) => FlashAttention::On,
        _ => setting,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend(n_batch: u32, n_ubatch: u32, flash_attn: &str) -> BackendIdentity {
        let mut backend = BackendIdentity::default();
        backend.n_batch = Some(n_batch);
        backend.n_ubatch = Some(n_ubatch);
        backend.flash_attn = Some(flash_attn.to_owned());
        backend.n_gpu_layers = Some(0);
        backend.type_k = Some("f16".to_owned());
        backend
    }

    /// Lists the settings that differ, with the flags to match.
    fn differences(
        here: &BackendIdentity,
        there: &BackendIdentity,
        attention: bool,
    ) -> Vec<[String; 2]> {
        let run = SetUps {
            here,
            there,
            n_ctx: 64,
            has_attention: attention,
        };
        let differences = run.differences().into_iter();
        differences
            .map(|difference| [difference.what.to_owned(), difference.flags])
            .collect()
    }

    #[test]
    fn batches_differ_where_they_split_a_window_in_other_places() {
        let there = backend(32, 16, "auto");
        for (n_batch, n_ubatch, expected) in [
            (32, 16, None),
            (64, 16, None),
            (16, 16, None),
            (48, 16, None),
            (40, 16, Some(["the batch", "--n-batch 32"])),
            (32, 8, Some(["the physical batch", "--n-ubatch 16"])),
            (8, 8, Some(["the batch", "--n-batch 32 --n-ubatch 16"])),
        ] {
            let found = differences(&backend(n_batch, n_ubatch, "auto"), &there, true);
            let expected = expected.map(|both| both.map(str::to_owned));
            assert_eq!(found, Vec::from_iter(expected), "{n_batch} {n_ubatch}");
        }
        // A reference of equal calls is evaluated in these unless a batch is set.
        let mut equal = backend(32, 32, "auto");
        equal.equal_calls = Some(true);
        assert!(differences(&equal, &equal, true).is_empty());
        let steps = ["the batch", ""].map(str::to_owned);
        assert_eq!(differences(&backend(32, 32, "auto"), &equal, true), [steps]);
        let flags = ["the batch", "--n-batch 32 --n-ubatch 16"].map(str::to_owned);
        assert_eq!(differences(&equal, &there, true), [flags]);
        // Several windows in a call.
        let with = |n_batch, n_seq| {
            let mut backend = backend(n_batch, 32, "auto");
            backend.n_seq = Some(n_seq).filter(|&n| n > 1);
            backend
        };
        let flags = |flags: &str| ["the number of windows in a call", flags].map(str::to_owned);
        let four = with(256, 4);
        assert!(differences(&four, &four, true).is_empty());
        let alone = with(64, 1);
        let to_match = flags("--parallel 4 --n-batch 256");
        assert_eq!(differences(&alone, &four, true), [to_match]);
        assert_eq!(differences(&four, &alone, true), [flags("--parallel 1")]);
        let mut unknown = BackendIdentity::default();
        unknown.n_gpu_layers = Some(0);
        assert!(differences(&four, &unknown, true).is_empty());
        // A window holds less than either batch.
        let larger = backend(512, 512, "auto");
        assert!(differences(&backend(64, 64, "auto"), &larger, true).is_empty());
    }

    #[test]
    fn automatic_flash_attention_is_on_where_the_cpu_computes_all_layers() {
        let auto = backend(32, 16, "auto");
        assert!(differences(&backend(32, 16, "on"), &auto, true).is_empty());
        let off = [["flash attention", "--flash-attn auto"].map(str::to_owned)];
        assert_eq!(differences(&backend(32, 16, "off"), &auto, true), off);
        let mut offloaded = backend(32, 16, "on");
        offloaded.n_gpu_layers = Some(9);
        let mut there = auto.clone();
        there.n_gpu_layers = Some(9);
        assert_eq!(differences(&offloaded, &there, true).len(), 1);
    }

    #[test]
    fn layers_and_where_they_are_placed_differ() {
        let with = |n_gpu_layers: u32, placement: &[&str]| {
            let mut backend = backend(32, 16, "on");
            backend.n_gpu_layers = Some(n_gpu_layers);
            let flags = placement.iter().map(ToString::to_string).collect();
            backend.placement = Some(flags).filter(|flags: &Vec<_>| !flags.is_empty());
            backend
        };
        let all = with(33, &[]);
        let layers = ["the number of offloaded layers", "-ngl 20"].map(str::to_owned);
        assert_eq!(differences(&all, &with(20, &[]), true), [layers]);
        let split = with(33, &["-ts 3,1", "-nkvo"]);
        let placed = |flags: &str| ["the placement", flags].map(str::to_owned);
        assert_eq!(differences(&all, &split, true), [placed("-ts 3,1 -nkvo")]);
        assert_eq!(differences(&split, &all, true), [placed("")]);
        // Of equal devices, each computes a layer alike.
        let of_equal = |placement: &[&str]| {
            let mut backend = with(33, placement);
            let devices = ["CPU (a)", "CUDA0 (b)", "CUDA1 (b)"];
            backend.devices = Some(devices.map(str::to_owned).to_vec());
            backend
        };
        assert!(differences(&of_equal(&["-ts 3,1"]), &of_equal(&[]), true).is_empty());
        let rows = of_equal(&["-sm row", "-ts 3,1"]);
        assert_eq!(
            differences(&rows, &of_equal(&["-sm row"]), true),
            [placed("-sm row")]
        );
        // On the CPU, it has no effect.
        assert!(differences(&with(0, &["-nkvo"]), &with(0, &[]), true).is_empty());
    }

    #[test]
    fn a_model_without_attention_has_no_settings_of_it() {
        let there = backend(32, 16, "auto");
        let mut here = backend(32, 16, "off");
        here.type_k = Some("q8_0".to_owned());
        assert_eq!(differences(&here, &there, true).len(), 2);
        assert!(differences(&here, &there, false).is_empty());
    }
}
