//! What a recipe is made of: the map, the importance matrix and the original, which must belong together.

use std::path::Path;

use anyhow::{Result, bail};
use kl_formats::{GgmlType, MapHeader, MapTensor, SensitivityMap, TextIdentity};

use crate::commands::observer::Watch;
use crate::commands::settings::RecipeSettings;
use crate::engine::{Engine, Imatrix};
use crate::recipe::Sensitivities;
use crate::report::Warning;
use crate::report::number::{count_of, part};

/// Reads the map, as far as it was written.
pub fn read_map(path: &Path, watch: &Watch<'_>) -> Result<SensitivityMap> {
    let map = SensitivityMap::read(path)?;
    let shown = path.display();
    if let Some(shard) = map.header.shard {
        bail!(
            "{shown}: is {}: join all parts with kl merge first",
            part(&shard)
        );
    }
    if map.is_cut_off {
        let message = format!(
            "{shown}: the map is not finished: only its whole lines are used; kl sensitivity --resume continues it"
        );
        watch.warn(Warning::new("map_cut_off", message));
    }
    Ok(map)
}

/// Warns of tensors that could have a type of the map, and of which it says nothing.
pub fn warn_of_unknown(
    settings: &RecipeSettings,
    header: &MapHeader,
    costs: &Sensitivities,
    watch: &Watch<'_>,
) {
    let has_choice = |tensor: &&MapTensor| {
        let row = tensor.shape.first().copied().unwrap_or_default();
        let fits =
            |kind: &GgmlType| row.is_multiple_of(kind.block) && kind.bits() < tensor.kind.bits();
        costs.unknown.contains(&tensor.name) && header.types.iter().any(fits)
    };
    let unknown = header.tensors.iter().filter(has_choice);
    if let Some(first) = unknown.clone().next() {
        let message = format!(
            "{}: says nothing of {} that could be quantized, {} first: they keep their type; make the map again without --tensors to include them",
            settings.map.display(),
            count_of(unknown.count() as u64, "tensor"),
            first.name
        );
        watch.warn(Warning::new("unknown_tensors", message));
    }
}

/// Refuses types of which the map knows no weight errors.
pub fn check_types(settings: &RecipeSettings, header: &MapHeader) -> Result<()> {
    let known = &header.types;
    let is_unknown = |kind: &&GgmlType| {
        !known.contains(kind) && !header.tensors.iter().any(|tensor| tensor.kind == **kind)
    };
    let Some(kind) = settings.types.iter().find(is_unknown) else {
        return Ok(());
    };
    let known: Vec<&str> = known.iter().map(|kind| kind.name).collect();
    bail!(
        "--types {kind}: {} does not know that type: use some of {}, or make a map with kl sensitivity --types",
        settings.map.display(),
        known.join(",")
    )
}

/// Reads the importance matrix, which must be the one that the map was made with.
pub fn read_imatrix(settings: &RecipeSettings, header: &MapHeader) -> Result<Option<Imatrix>> {
    let map = settings.map.display();
    match (&settings.imatrix, &header.imatrix) {
        (None, Some(of_map)) if settings.model.is_some() => bail!(
            "--imatrix is missing: {map} was made with {}: give that file",
            of_map.file_name
        ),
        (None, _) => Ok(None),
        (Some(path), None) => bail!(
            "--imatrix {}: {map} was made without an importance matrix: leave it out, or make a map with it (kl sensitivity --imatrix)",
            path.display()
        ),
        (Some(path), Some(of_map)) => {
            let imatrix = Imatrix::read(path)?;
            if imatrix.identity.sha256 != of_map.sha256 {
                bail!(
                    "--imatrix {}: {map} was made with another one, {}: give that file",
                    path.display(),
                    of_map.file_name
                );
            }
            Ok(Some(imatrix))
        }
    }
}

/// Refuses another model than the one that the map was made of.
pub fn check_original(
    settings: &RecipeSettings,
    original: &Path,
    header: &MapHeader,
    engine: &impl Engine,
) -> Result<()> {
    let identity = engine.inspect(original)?.identity;
    if let Some(of_map) = header.model.as_ref().filter(|of| !of.is_same(&identity)) {
        bail!(
            "-m {}: {} was made of another model, {}: give that one, or make a map of this one with kl sensitivity",
            original.display(),
            settings.map.display(),
            of_map.shown_name().unwrap_or("without a name")
        );
    }
    Ok(())
}

/// Returns true if the map was made on this text.
pub fn is_of_map(header: &MapHeader, text: &TextIdentity) -> bool {
    let mut of_map = header.text.iter().chain(&header.texts);
    text.sha256.is_some() && of_map.any(|of| of.sha256 == text.sha256)
}
