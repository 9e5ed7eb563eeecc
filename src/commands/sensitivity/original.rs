//! The original: which of its tensors are measured, and at which types.

use std::path::Path;

use anyhow::{Result, bail};
use kl_formats::GgmlType;
use regex::Regex;

use crate::commands::settings::SensitivitySettings;
use crate::engine::{Blueprint, Engine, Imatrix, needs_imatrix};

/// The types of a recipe, unless others are asked for: those that ggml computes fast everywhere.
const TYPES: [&str; 13] = [
    "q8_0", "q6_K", "q5_K", "q5_1", "q5_0", "q4_K", "q4_1", "q4_0", "iq4_nl", "iq4_xs", "q3_K",
    "iq3_s", "q2_K",
];

/// More types, with an importance matrix: llama.cpp's quantizer refuses most of them without one.
const TYPES_WITH_IMATRIX: [&str; 6] = ["iq3_xxs", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s"];

/// The type at which tensors are measured: at fewer bits their KLDs no longer add up, and at more bits
/// they are small beside what rounding does.
const MEASURED_TYPE: &str = "q3_K";

/// Types in blocks that an original may have: from q8_0 smaller ones can be made, and in the other two models
/// are published, whose tensors of these types stay as they are.
const ORIGINAL_TYPES: [&str; 3] = ["q8_0", "mxfp4", "nvfp4"];

/// A model to measure, as its file describes it.
#[derive(Debug)]
pub struct Original {
    pub blueprint: Blueprint,
    /// The types that a recipe may use.
    pub types: Vec<GgmlType>,
    /// The type at which tensors are measured, where they can have it.
    pub measured_type: GgmlType,
    /// The tensors to measure, in the order of the file.
    pub tensors: Vec<Tensor>,
}

/// A tensor to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub name: String,
    /// The types that a recipe may give it; all are smaller than its own.
    pub types: Vec<GgmlType>,
    /// The type at which it is measured.
    pub measured_type: GgmlType,
}

impl Original {
    /// Reads the model's file, and finds the tensors and types to measure.
    ///
    /// # Errors
    /// A model that is quantized, types that it cannot have, or nothing to measure.
    pub fn inspect(
        settings: &SensitivitySettings,
        engine: &impl Engine,
        imatrix: Option<&Imatrix>,
    ) -> Result<Self> {
        let path = &settings.model;
        let types = types(&settings.types, imatrix.is_some())?;
        let measured_type = match settings.measured_type {
            Some(kind) => kind,
            None => MEASURED_TYPE.parse().map_err(anyhow::Error::msg)?,
        };
        check_quantized("--type", measured_type)?;
        let blueprint = engine.blueprint(path, imatrix)?;
        if let Some(imatrix) = imatrix {
            imatrix.check(&blueprint.tensors)?;
        }
        check_original(path, &blueprint)?;
        let chosen = |name: &str| {
            let pattern = settings.tensors.as_ref();
            pattern.is_none_or(|pattern: &Regex| pattern.is_match(name))
        };
        let mut tensors = Vec::new();
        for facts in &blueprint.tensors {
            if !facts.is_quantizable || !chosen(&facts.name) {
                continue;
            }
            let row = facts.shape.first().copied().unwrap_or_default();
            let has_blocks =
                |kind: &GgmlType| row.is_multiple_of(kind.block) && kind.bits() < facts.kind.bits();
            // llama-imatrix leaves out embeddings, for example.
            let is_known = imatrix.is_some_and(|imatrix| imatrix.values(&facts.name).is_some());
            let lacks_imatrix = |kind: &GgmlType| !is_known && needs_imatrix(&facts.name, *kind);
            let is_asked = !settings.types.is_empty() || settings.measured_type.is_some();
            let mut asked = types.iter().chain(Some(&measured_type));
            let refused = asked.find(|kind| has_blocks(kind) && lacks_imatrix(kind));
            if let (Some(kind), true, None) = (refused, is_asked, imatrix) {
                bail!(
                    "{}: {kind} needs an importance matrix: give --imatrix, or leave {kind} out",
                    facts.name
                );
            }
            let fits = |kind: &GgmlType| has_blocks(kind) && !lacks_imatrix(kind);
            let of_recipe: Vec<GgmlType> = types.iter().copied().filter(fits).collect();
            let common = named(&TYPES);
            let measurable = of_recipe
                .iter()
                .chain(common.iter().filter(|kind| fits(kind)));
            let nearest = match fits(&measured_type) {
                true => Some(measured_type),
                false => nearest(measured_type, measurable),
            };
            if let (Some(measured_type), false) = (nearest, of_recipe.is_empty()) {
                tensors.push(Tensor {
                    name: facts.name.clone(),
                    types: of_recipe,
                    measured_type,
                });
            }
        }
        if tensors.is_empty() {
            let what = match &settings.tensors {
                Some(pattern) => format!("--tensors '{pattern}' matches no tensor that"),
                None => "no tensor of it".to_owned(),
            };
            bail!("{}: {what} can have one of these types", path.display());
        }
        Ok(Self {
            blueprint,
            types,
            measured_type,
            tensors,
        })
    }

    /// Returns true if some of the tensors to measure are quantized: to q8_0, or they would be refused.
    pub fn is_quantized(&self) -> bool {
        let mut all = self.blueprint.tensors.iter();
        all.any(|facts| facts.is_quantizable && facts.kind.block > 1)
    }

    /// Keeps the tensors that can be exchanged: those of these that decoding uses.
    ///
    /// # Errors
    /// If none is left.
    pub fn keep(&mut self, exchangeable: &[String]) -> Result<()> {
        self.tensors.retain(|of| exchangeable.contains(&of.name));
        match self.tensors.is_empty() {
            true => bail!("no tensor that decoding uses is among those to measure"),
            false => Ok(()),
        }
    }
}

impl Tensor {
    /// The type with which it takes part where all tensors have `kind`: that, or the one of its types
    /// that is nearest in bits.
    pub fn nearest(&self, kind: GgmlType) -> GgmlType {
        nearest(kind, self.types.iter().chain([&self.measured_type])).unwrap_or(self.measured_type)
    }
}

/// Of some types the one itself, or the nearest in bits, the first of equals.
fn nearest<'t>(
    kind: GgmlType,
    types: impl Iterator<Item = &'t GgmlType> + Clone,
) -> Option<GgmlType> {
    let far = |other: &GgmlType| (other.bits() - kind.bits()).abs();
    let mut all = types.clone();
    let itself = all.find(|other| **other == kind);
    let nearest = || types.min_by(|a, b| far(a).total_cmp(&far(b)));
    itself.or_else(nearest).copied()
}

fn named(names: &[&str]) -> Vec<GgmlType> {
    names.iter().filter_map(|name| name.parse().ok()).collect()
}

/// The types of a recipe, each once.
fn types(asked: &[GgmlType], has_imatrix: bool) -> Result<Vec<GgmlType>> {
    let mut types = asked.to_vec();
    if types.is_empty() {
        types = named(&TYPES);
        types.extend(named(&TYPES_WITH_IMATRIX).iter().filter(|_| has_imatrix));
    }
    let mut seen = Vec::new();
    for kind in types {
        check_quantized("--types", kind)?;
        if !seen.contains(&kind) {
            seen.push(kind);
        }
    }
    Ok(seen)
}

fn check_quantized(flag: &str, kind: GgmlType) -> Result<()> {
    match kind.is_for_weights && kind.block > 1 {
        true => Ok(()),
        false => bail!("{flag}: {kind} is not a type that weights are quantized to"),
    }
}

/// Refuses a model that is quantized already.
fn check_original(path: &Path, blueprint: &Blueprint) -> Result<()> {
    let originals = named(&ORIGINAL_TYPES);
    let mut tensors = blueprint.tensors.iter();
    match tensors.find(|facts| facts.kind.block > 1 && !originals.contains(&facts.kind)) {
        None => Ok(()),
        Some(facts) => bail!(
            "{}: is quantized already ({} is {}): give the original, in f16, bf16, f32 or q8_0",
            path.display(),
            facts.name,
            facts.kind
        ),
    }
}
