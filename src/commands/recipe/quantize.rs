//! Writes the file of a recipe with llama.cpp's quantizer.

use std::fs;

use anyhow::{Context as _, Result, bail};

use crate::commands::observer::{Event, Observer, Watch};
use crate::commands::output::{Existing, PartialFile};
use crate::commands::settings::RecipeSettings;
use crate::engine::{Engine, Imatrix, Quantization};
use crate::recipe::Recipe;
use crate::report::number::count;

/// Writes the file of a recipe, and checks that it has the size and the types that the recipe states.
///
/// # Errors
/// Why the quantizer refuses, a file that cannot be written, or one that is not as stated.
pub fn quantize<E: Engine>(
    settings: &RecipeSettings,
    recipe: &Recipe,
    imatrix: Option<&Imatrix>,
    engine: &E,
    observer: &dyn Observer,
) -> Result<()> {
    let (Some(path), Some(target)) = (&settings.model, &settings.quantize) else {
        return Ok(());
    };
    let (watch, shown) = (&Watch::new(observer), target.display());
    let mixture = recipe.mixture();
    let output = PartialFile::create(target, settings.force, Existing::Replace)?;
    watch.event(&Event::Plan("quantize", &shown.to_string()));
    engine.quantize(&Quantization {
        input: path,
        output: output.path(),
        mixture: &mixture,
        imatrix,
        threads: settings.run.threads,
    })?;
    let metadata = fs::metadata(output.path());
    let bytes = metadata.with_context(|| format!("{shown}: cannot be read again"))?;
    if bytes.len() != recipe.size_bytes {
        bail!(
            "{shown}: has {} bytes, and the recipe states {}: it was not kept; please report this",
            count(bytes.len()),
            count(recipe.size_bytes)
        );
    }
    for tensor in engine.blueprint(output.path(), None)?.tensors {
        let wanted = mixture.get(&tensor.name).copied();
        if let Some(wanted) = wanted.filter(|wanted| *wanted != tensor.kind) {
            bail!(
                "{shown}: {} has type {}, and {wanted} in the recipe: it was not kept; please report this",
                tensor.name,
                tensor.kind
            );
        }
    }
    output.commit()?;
    watch.event(&Event::Wrote(&shown.to_string()));
    Ok(())
}
