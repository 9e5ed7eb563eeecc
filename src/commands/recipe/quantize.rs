//! Writes the file of a recipe with llama.cpp's quantizer.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use kl_formats::Mixture;

use crate::commands::observer::{Event, Observer, Watch};
use crate::commands::output::{Existing, PartialFile};
use crate::commands::settings::RecipeSettings;
use crate::engine::{Engine, Imatrix, Quantization};
use crate::report::number::count;
use crate::report::recipe::RecipeReport;

/// Writes the file of a recipe, and checks that it is what the recipe states.
///
/// # Errors
/// Why the quantizer refuses, a file that cannot be written, or one that is not as stated.
pub fn quantize<E: Engine>(
    settings: &RecipeSettings,
    report: &RecipeReport,
    engine: &E,
    observer: &dyn Observer,
) -> Result<()> {
    let (Some(path), Some(target)) = (&settings.model, &settings.quantize) else {
        return Ok(());
    };
    let watch = &Watch::new(observer);
    let imatrix = settings.imatrix.as_deref().map(Imatrix::read).transpose()?;
    let tensors = report.tensors.iter();
    let mixture: Mixture = tensors.map(|of| (of.name.clone(), of.kind)).collect();
    let output = PartialFile::create(target, settings.force, Existing::Replace)?;
    watch.event(&Event::Plan("quantize", &target.display().to_string()));
    engine.quantize(&Quantization {
        input: path,
        output: output.path(),
        mixture: &mixture,
        imatrix: imatrix.as_ref(),
        threads: settings.run.threads,
    })?;
    check(engine, output.path(), target, report, &mixture)?;
    output.commit()?;
    watch.event(&Event::Wrote(&target.display().to_string()));
    Ok(())
}

/// Checks the size of a file and the types of its tensors.
fn check<E: Engine>(
    engine: &E,
    written: &Path,
    target: &Path,
    report: &RecipeReport,
    mixture: &Mixture,
) -> Result<()> {
    let shown = target.display();
    let metadata = fs::metadata(written);
    let bytes = metadata.with_context(|| format!("{shown}: cannot be read again"))?;
    let (bytes, stated) = (bytes.len(), report.size_bytes);
    if bytes != stated {
        bail!(
            "{shown}: has {} bytes, and the recipe states {}: it was not kept; please report this",
            count(bytes),
            count(stated)
        );
    }
    let tensors = engine.blueprint(written, None)?.tensors;
    let other = tensors.iter().find_map(|tensor| {
        let wanted = mixture.get(&tensor.name)?;
        (*wanted != tensor.kind).then_some((tensor, wanted))
    });
    match other {
        Some((tensor, wanted)) => bail!(
            "{shown}: {} has type {}, and {wanted} in the recipe: it was not kept; please report this",
            tensor.name,
            tensor.kind
        ),
        None => Ok(()),
    }
}
