//! How models were run, where they were not all run alike.

use kl_formats::BackendIdentity;

use super::Comparison;

/// One thing about a set-up, if it is known.
type Part = fn(&BackendIdentity) -> Option<String>;

/// What can differ, and how it is called.
const COLUMNS: [(&str, Part); 7] = [
    ("KV cache", kv_types),
    ("devices", |set_up| {
        Some(set_up.devices.as_ref()?.join(", "))
    }),
    ("-ngl", |set_up| Some(set_up.n_gpu_layers?.to_string())),
    ("placement", placement),
    ("batch", batch),
    ("-fa", |set_up| set_up.flash_attn.clone()),
    ("llama.cpp", |set_up| set_up.llama_cpp.clone()),
];

/// The columns in which models differ, each with its title and a cell for each model: empty where
/// nothing is known. Empty if all were run alike.
pub fn differing(comparison: &Comparison) -> Vec<(&'static str, Vec<String>)> {
    let columns = COLUMNS.iter().map(|(title, of)| {
        let cells = comparison.models.iter().map(|model| of(&model.set_up));
        (*title, cells.map(Option::unwrap_or_default).collect())
    });
    columns
        .filter(|(_, cells): &(_, Vec<String>)| {
            // What is not known may be the same.
            let mut known = cells.iter().filter(|cell| !cell.is_empty());
            let first = known.next();
            known.any(|cell| Some(cell) != first)
        })
        .collect()
}

fn kv_types(set_up: &BackendIdentity) -> Option<String> {
    let (k, v) = (set_up.type_k.as_ref()?, set_up.type_v.as_ref()?);
    Some(match k == v {
        true => k.clone(),
        false => format!("K {k}, V {v}"),
    })
}

/// The flags that placed weights, where layers were offloaded.
fn placement(set_up: &BackendIdentity) -> Option<String> {
    let is_offloaded = set_up.n_gpu_layers? > 0;
    let flags = set_up.placement.as_ref().filter(|_| is_offloaded);
    Some(flags.map_or_else(|| "default".to_owned(), |flags| flags.join(" ")))
}

fn batch(set_up: &BackendIdentity) -> Option<String> {
    let batch = match (set_up.n_batch?, set_up.n_ubatch) {
        (batch, _) if set_up.equal_calls == Some(true) => format!("{batch} in equal calls"),
        (batch, Some(ubatch)) if ubatch != batch => format!("{batch}/{ubatch}"),
        (batch, _) => batch.to_string(),
    };
    Some(match set_up.n_seq {
        Some(n) if n > 1 => format!("{batch} of {n} windows"),
        _ => batch,
    })
}
