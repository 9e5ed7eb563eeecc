//! How good recipes are that were made of few tokens, and how far a map's predictions can be
//! believed: the tables of docs/RECIPES.md.
//!
//!     maps MODEL TEXT CELLS [--imatrix FILE] [MAP.jsonl...] LIKE.gguf...
//!
//! Every tensor of MODEL is measured alone at every type, all of them together at every type, and the
//! quants LIKE, on all windows of TEXT. Maps are then drawn from these cells, each of a few windows at
//! random, and their recipes are as large as the quants. CELLS keeps what was measured, so that a
//! second run measures only what is new.
//!
//! With maps of another text, made by `kl sensitivity`, only their recipes are measured on TEXT.

mod bench;
mod facts;
mod recipes;
mod unseen;

use std::path::Path;
use std::process::ExitCode;

use kl::engine::{Engine as _, Imatrix, LlamaCpp, ModelOptions, follow_log, gguf};
use kl_formats::{GgmlType, Mixture};

use bench::Bench;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The types of a recipe by falling bits; those from iq3_xxs on, but for q2_K, need an importance matrix.
const TYPES: [&str; 19] = [
    "q8_0", "q6_K", "q5_1", "q5_K", "q5_0", "q4_1", "q4_K", "q4_0", "iq4_nl", "iq4_xs", "q3_K",
    "iq3_s", "iq3_xxs", "q2_K", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s",
];

/// The type at which maps measure, and the one for rows that are no whole blocks of it.
const MEASURED: [&str; 2] = ["q3_K", "q4_0"];

/// A quant to be as large as.
struct Like {
    name: String,
    bytes: u64,
    mixture: Mixture,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("maps: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<()> {
    let [model, text, cells, likes @ ..] = args else {
        return Err(
            "usage: maps MODEL TEXT CELLS [--imatrix FILE] [MAP.jsonl...] LIKE.gguf...".into(),
        );
    };
    follow_log(false);
    let engine = LlamaCpp::default();
    let options = ModelOptions {
        is_exchangeable: true,
        ..ModelOptions::default()
    };
    let path = Path::new(model);
    let (imatrix, likes) = match likes {
        [flag, file, likes @ ..] if flag == "--imatrix" => {
            (Some(Imatrix::read(Path::new(file))?), likes)
        }
        _ => (None, likes),
    };
    let blueprint = engine.blueprint(path, imatrix.as_ref())?;
    let model = engine.load(path, &options)?;
    let text = std::fs::read_to_string(text)?;
    let mut bench = Bench::new(&*model, &text, blueprint, Path::new(cells), imatrix)?;
    let (likes, maps): (Vec<String>, Vec<String>) = likes
        .iter()
        .cloned()
        .partition(|path| path.ends_with(".gguf"));
    let likes: Vec<Like> = likes
        .iter()
        .map(|path| like(path, &bench))
        .collect::<Result<_>>()?;
    if !maps.is_empty() {
        return unseen::tables(&mut bench, &maps, &likes);
    }
    facts::tables(&mut bench, &likes)?;
    recipes::table(&mut bench, &likes)
}

/// Reads the mixture of a quant.
fn like(path: &str, bench: &Bench<'_>) -> Result<Like> {
    let header = gguf::read(Path::new(path))?;
    let names = bench.tensors.iter().map(|tensor| tensor.name.clone());
    let typed = names.filter_map(|name| {
        let kind = header.tensor(&name)?.kind;
        Some((name, kind))
    });
    let name = Path::new(path)
        .file_stem()
        .map(|name| name.to_string_lossy());
    Ok(Like {
        name: name.unwrap_or_default().into_owned(),
        bytes: std::fs::metadata(path)?.len(),
        mixture: typed.collect(),
    })
}

/// A type by its name.
fn kind(name: &str) -> GgmlType {
    name.parse().expect("a type of ggml")
}
