//! The settings of a set-up, as tables, warnings, labels and the page show them.

use kl_formats::BackendIdentity;

use super::number::bytes;

/// A setting as text; `None` where it is not recorded.
pub type SettingValue = fn(&BackendIdentity) -> Option<String>;

/// The settings, each by its name.
pub const SETTINGS: [(&str, SettingValue); 14] = [
    ("weights", |s| s.weights.clone()),
    ("K cache", |s| s.type_k.clone()),
    ("V cache", |s| s.type_v.clone()),
    ("KV cache size", |s| s.kv_cache_bytes.map(bytes)),
    ("devices", devices),
    ("GPU layers", gpu_layers),
    ("batch", |s| s.n_batch.map(|n| n.to_string())),
    ("physical batch", |s| s.n_ubatch.map(|n| n.to_string())),
    ("equal calls", |s| {
        s.equal_calls.map(|is_equal| is_equal.to_string())
    }),
    ("windows in a call", |s| s.n_seq.map(|n| n.to_string())),
    ("placement", |s| Some(s.placement.as_ref()?.join(" "))),
    ("flash attention", |s| s.flash_attn.clone()),
    ("threads", |s| s.threads.map(|n| n.to_string())),
    ("llama.cpp", |s| s.llama_cpp.clone()),
];

/// The title of the column with the types of the KV cache.
pub const KV_CACHE: &str = "KV cache";

/// The columns of a table of what differs, where settings that belong together share one.
const COLUMNS: [(&str, SettingValue); 8] = [
    ("weights", |s| Some(weights(s).to_owned())),
    (KV_CACHE, kv_types),
    ("devices", devices),
    ("-ngl", gpu_layers),
    ("placement", placement),
    ("batch", whole_batch),
    ("-fa", |s| s.flash_attn.clone()),
    ("llama.cpp", |s| s.llama_cpp.clone()),
];

/// The settings that can distinguish evaluations of the same name, the most telling first.
pub const DISTINCTIONS: [SettingValue; 5] = [
    |s| Some(format!("weights {}", weights(s))),
    |s| match (&s.type_k, kv_types(s)?) {
        (Some(k), types) if *k == types => Some(format!("KV {k}")),
        (_, types) => Some(types),
    },
    devices,
    |s| Some(format!("batch {}", batch(s)?)),
    |s| Some(format!("-fa {}", s.flash_attn.as_ref()?)),
];

/// The columns in which set-ups differ, each with its title. Empty if all are alike.
pub fn differing(set_ups: &[&BackendIdentity]) -> Vec<(&'static str, SettingValue)> {
    let mut columns = COLUMNS.to_vec();
    columns.retain(|(_, value)| {
        // A setting that is not recorded may be the same.
        let mut known_values = set_ups
            .iter()
            .filter_map(|set_up| value(set_up))
            .filter(|cell| !cell.is_empty());
        let first = known_values.next();
        known_values.any(|cell| Some(cell) != first)
    });
    columns
}

/// The weights: as in the file, or the type to which they were dequantized.
fn weights(set_up: &BackendIdentity) -> &str {
    set_up.weights.as_deref().unwrap_or("file")
}

/// The devices, with commas between them.
fn devices(set_up: &BackendIdentity) -> Option<String> {
    Some(set_up.devices.as_ref()?.join(", "))
}

/// The number of offloaded layers.
fn gpu_layers(set_up: &BackendIdentity) -> Option<String> {
    set_up.n_gpu_layers.map(|n| n.to_string())
}

/// All settings that are recorded, each after its name. Commas separate settings, not devices.
pub fn described(set_up: &BackendIdentity) -> String {
    let settings = SETTINGS.iter().filter_map(|(name, value)| {
        let value = value(set_up)?.replace(", ", " ");
        Some(format!("{name} {value}"))
    });
    Vec::from_iter(settings).join(", ")
}

/// The flags that placed weights, where layers were offloaded.
fn placement(set_up: &BackendIdentity) -> Option<String> {
    let is_offloaded = set_up.n_gpu_layers? > 0;
    let flags = set_up.placement.as_ref().filter(|_| is_offloaded);
    Some(flags.map_or_else(|| "default".to_owned(), |flags| flags.join(" ")))
}

fn kv_types(set_up: &BackendIdentity) -> Option<String> {
    match (set_up.type_k.as_ref()?, set_up.type_v.as_ref()?) {
        (k, v) if k == v => Some(k.clone()),
        (k, v) => Some(format!("K {k}, V {v}")),
    }
}

fn batch(set_up: &BackendIdentity) -> Option<String> {
    Some(match (set_up.n_batch?, set_up.n_ubatch) {
        (batch, Some(ubatch)) if ubatch != batch => format!("{batch}/{ubatch}"),
        (batch, _) => batch.to_string(),
    })
}

/// The batch, and how windows were divided among decode calls.
fn whole_batch(set_up: &BackendIdentity) -> Option<String> {
    let batch = match set_up.equal_calls {
        Some(true) => format!("{} in equal calls", set_up.n_batch?),
        _ => batch(set_up)?,
    };
    Some(match set_up.n_seq {
        Some(n) if n > 1 => format!("{batch} of {n} windows"),
        _ => batch,
    })
}
