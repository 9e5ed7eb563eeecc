//! The original: its tensors that are measured, and their types.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Error, Result, bail};
use kl_engine::{Blueprint, Engine, Imatrix, needs_imatrix};
use kl_formats::{GgmlType, MapTensor, Unmeasured};
use kl_measure::commands::observer::Watch;
use kl_report::Warning;

use crate::mathematics::nearest_type;
use crate::settings::SensitivitySettings;

/// The types of a recipe, unless others are asked for: those that ggml computes fast everywhere.
const TYPES: [&str; 13] = [
    "q8_0", "q6_K", "q5_K", "q5_1", "q5_0", "q4_K", "q4_1", "q4_0", "iq4_nl", "iq4_xs", "q3_K",
    "iq3_s", "q2_K",
];

/// More types, with an importance matrix: llama.cpp's quantizer refuses most of them without one.
const TYPES_WITH_IMATRIX: [&str; 6] = ["iq3_xxs", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s"];

/// The type at which tensors are measured: at fewer bits their KLDs no longer add up, and at more bits
/// they are small compared with the effects of rounding.
const MEASURED_TYPE: &str = "q3_K";

/// Types in blocks that an original may have. Tensors in q8_0 can be quantized further; models are published
/// with tensors in the other two, which keep their type.
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
    pub tensors: Vec<MeasuredTensor>,
}

/// A tensor to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasuredTensor {
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
    /// If the model is quantized, cannot have the types, or has no tensor to measure.
    pub fn inspect(
        settings: &SensitivitySettings,
        engine: &dyn Engine,
        imatrix: Option<&Imatrix>,
        watch: &Watch<'_>,
    ) -> Result<Self> {
        let path = &settings.model;
        let types = types(&settings.types, imatrix.is_some())?;
        let asked = settings.measured_type.map_or(MEASURED_TYPE.parse(), Ok);
        let measured_type = asked.map_err(Error::msg)?;
        check_quantized("--type", measured_type)?;
        let blueprint = engine.blueprint(path, imatrix)?;
        if let Some(imatrix) = imatrix {
            imatrix.check(&blueprint.tensors)?;
        }
        check_original(path, &blueprint, watch)?;
        let mut this = Self {
            tensors: Vec::new(),
            blueprint,
            types,
            measured_type,
        };
        let is_asked = !settings.types.is_empty() || settings.measured_type.is_some();
        let refuses = is_asked && imatrix.is_none();
        for facts in &this.blueprint.tensors {
            let name = &facts.name;
            let mut patterns = settings.tensors.iter();
            if facts.is_quantizable && patterns.all(|pattern| pattern.is_match(name)) {
                // llama-imatrix leaves out embeddings, for example.
                let is_known = imatrix.is_some_and(|imatrix| imatrix.values(name).is_some());
                let needs = |kind: &GgmlType| !is_known && needs_imatrix(name, *kind);
                let tensor = this.tensor(facts, needs, refuses)?;
                this.tensors.extend(tensor);
            }
        }
        if this.tensors.is_empty() {
            let what = match &settings.tensors {
                Some(pattern) => format!("--tensors '{pattern}' matches no tensor that"),
                None => "no tensor of it".to_owned(),
            };
            bail!("{}: {what} can have one of these types", path.display());
        }
        Ok(this)
    }

    /// A tensor to measure, if it can have some of the types. Types for which it `needs` an importance matrix
    /// are refused, or left out.
    fn tensor(
        &self,
        facts: &MapTensor,
        needs: impl Fn(&GgmlType) -> bool,
        refuses: bool,
    ) -> Result<Option<MeasuredTensor>> {
        let has_blocks =
            |kind: &GgmlType| facts.has_rows_of(*kind) && kind.bits() < facts.kind.bits();
        let mut asked = self.types.iter().chain([&self.measured_type]);
        if let Some(kind) = asked.find(|kind| refuses && has_blocks(kind) && needs(kind)) {
            bail!(
                "{}: {kind} needs an importance matrix: give --imatrix, or leave {kind} out",
                facts.name
            );
        }
        let fits = |kind: &&GgmlType| has_blocks(kind) && !needs(kind);
        let types: Vec<GgmlType> = self.types.iter().filter(fits).copied().collect();
        let common = named(&TYPES);
        let measurable = types.iter().chain([&self.measured_type]).chain(&common);
        let nearest = nearest_type(self.measured_type, measurable.filter(fits));
        let measured_type = nearest.filter(|_| !types.is_empty());
        Ok(measured_type.map(|measured_type| MeasuredTensor {
            name: facts.name.clone(),
            types,
            measured_type,
        }))
    }

    /// Notes which tensors cannot be measured, and why.
    pub fn mark(&mut self, unmeasured: &[(String, Unmeasured)]) {
        for tensor in &mut self.blueprint.tensors {
            let found = unmeasured.iter().find(|(name, _)| *name == tensor.name);
            tensor.unmeasured = found.map(|(_, why)| *why).filter(|_| tensor.is_quantizable);
        }
    }

    /// Keeps those tensors that can be exchanged, because decoding uses them.
    ///
    /// # Errors
    /// If none is left.
    pub fn keep(&mut self, exchangeable: &[String]) -> Result<()> {
        self.tensors
            .retain(|tensor| exchangeable.contains(&tensor.name));
        if self.tensors.is_empty() {
            bail!("no tensor that decoding uses is among those to measure");
        }
        Ok(())
    }
}

impl MeasuredTensor {
    /// The tensor's type in a mixture where all tensors have `kind`: that, or the nearest in bits of its own
    /// types.
    pub fn nearest(&self, kind: GgmlType) -> GgmlType {
        nearest_type(kind, self.types.iter().chain([&self.measured_type]))
            .unwrap_or(self.measured_type)
    }
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
    let mut seen = BTreeSet::new();
    types.retain(|kind| seen.insert(*kind));
    for kind in &types {
        check_quantized("--types", *kind)?;
    }
    Ok(types)
}

fn check_quantized(flag: &str, kind: GgmlType) -> Result<()> {
    if !kind.is_for_weights || kind.block <= 1 {
        bail!("{flag}: {kind} is not a type that weights are quantized to");
    }
    Ok(())
}

/// Refuses a model that is quantized already, and warns of one in q8_0.
fn check_original(path: &Path, blueprint: &Blueprint, watch: &Watch<'_>) -> Result<()> {
    let originals = named(&ORIGINAL_TYPES);
    let mut quantized = blueprint
        .tensors
        .iter()
        .filter(|tensor| tensor.kind.block > 1);
    let mut others = quantized
        .clone()
        .filter(|tensor| !originals.contains(&tensor.kind));
    if let Some(MapTensor { name, kind, .. }) = others.next() {
        bail!(
            "{}: is quantized already ({name} is {kind}): give the original, in f16, bf16, f32 or q8_0",
            path.display()
        );
    }
    if quantized.any(|facts| facts.is_quantizable) {
        let message = format!(
            "-m {}: is quantized to q8_0, which a map takes for the truth: what that lost is not in it; give f16, bf16 or f32 where you can",
            path.display()
        );
        watch.warn(Warning::new("quantized_original", message));
    }
    Ok(())
}
