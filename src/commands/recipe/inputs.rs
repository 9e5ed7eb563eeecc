//! What a recipe is made of: the map, the importance matrix and the original, which must belong together.

use std::path::Path;

use anyhow::{Result, bail};
use kl_formats::{MapHeader, SensitivityMap};

use crate::commands::observer::Watch;
use crate::commands::settings::RecipeSettings;
use crate::engine::{Engine, Imatrix};
use crate::report::Warning;
use crate::report::number::{count_of, part};

/// Reads the map, as far as it was written. It must know weight errors of all types that are asked for.
pub fn read_map(settings: &RecipeSettings, watch: &Watch<'_>) -> Result<SensitivityMap> {
    let map = SensitivityMap::read(&settings.map)?;
    let (shown, header) = (settings.map.display(), &map.header);
    if let Some(shard) = header.shard {
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
    let own = header.tensors.iter().map(|tensor| &tensor.kind);
    let mut asked = settings.types.iter();
    if let Some(kind) =
        asked.find(|kind| !header.types.contains(kind) && !own.clone().any(|own| own == *kind))
    {
        let known = Vec::from_iter(header.types.iter().map(|kind| kind.name)).join(",");
        bail!(
            "--types {kind}: {shown} does not know that type: use some of {known}, or make a map with kl sensitivity --types"
        );
    }
    Ok(map)
}

/// Warns of tensors that could have a type of the map, and of which it says nothing.
pub fn warn_of_unknown(map: &Path, unknown: &[String], watch: &Watch<'_>) {
    if let Some(first) = unknown.first() {
        let message = format!(
            "{}: says nothing of {} that could be quantized, {first} first: they keep their type; make the map again without --tensors to include them",
            map.display(),
            count_of(unknown.len() as u64, "tensor"),
        );
        watch.warn(Warning::new("unknown_tensors", message));
    }
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
    map: &Path,
    original: &Path,
    header: &MapHeader,
    engine: &impl Engine,
) -> Result<()> {
    let identity = engine.inspect(original)?.identity;
    match header.model.as_ref().filter(|of| !of.is_same(&identity)) {
        None => Ok(()),
        Some(of_map) => bail!(
            "-m {}: {} was made of another model, {}: give that one, or make a map of this one with kl sensitivity",
            original.display(),
            map.display(),
            of_map.shown_name().unwrap_or("without a name")
        ),
    }
}
