//! The best mixture of types for a size, by a map: the fields of [`RecipeReport`] are the keys of its
//! JSON.

#[cfg(test)]
pub(super) mod tests;
mod text;

use kl_formats::{GgmlType, Mixture, ModelIdentity};
use serde::Serialize;

use super::{Versions, Warning};
use crate::recipe::{FrontierPoint, Recipe, Sensitivities};
use crate::stats::{Clustering, Estimate, Ratio};

pub use text::recipe_text;

/// The best mixture of types for a size, by a map of sensitivity.
#[derive(Serialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RecipeReport {
    /// The program that wrote the document, and the version of its keys.
    #[serde(flatten)]
    pub versions: Versions,
    /// The map's path, as given.
    pub map_path: String,
    /// The original.
    pub model: Option<ModelIdentity>,
    /// Bytes of the file that llama-quantize writes.
    pub size_bytes: u64,
    /// Its bits per parameter, of all tensors.
    pub bpw: f64,
    /// The mean KLD from the original.
    pub kld: RecipeKld,
    /// The most by which the predicted KLD of another mixture of this size could be lower, in nats; 0:
    /// no other's is.
    pub gap: f64,
    /// The tensors that the quantizer may change, in the order of the model's file.
    pub tensors: Vec<RecipeTensor>,
    /// The mixtures of these types that no other one of their size or of fewer bytes beats.
    pub frontier: Vec<FrontierPoint>,
    /// The call of llama-quantize that writes the file, word by word.
    pub command: Vec<String>,
    /// The measurement of the recipe; null if it was not measured.
    pub check: Option<RecipeCheck>,
    /// The file for llama-quantize's --tensor-type-file; null if none was written.
    pub types_path: Option<String>,
    /// The quantized model that the run writes after this; null for none.
    pub quantized_path: Option<String>,
    /// The warnings of the run, in the order in which they came up.
    pub warnings: Vec<Warning>,
}

/// The mean KLD of a recipe from the original, in nats.
#[derive(Serialize, Debug, Clone, Copy, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RecipeKld {
    /// By the map.
    pub predicted: Estimate,
    /// On another text, with its clustered interval; null if it was not measured.
    pub measured: Option<Estimate>,
}

/// The measurement of a recipe in memory.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RecipeCheck {
    /// The path of the text, as given.
    pub text_path: String,
    /// Tokens that are counted.
    pub n_tokens: u64,
    /// Windows that they are from.
    pub n_windows: u64,
    /// The clusters of the intervals.
    pub clusters: Clustering,
    /// The mean KLD of the original once its tensors were back, which must be 0.
    pub control: f64,
    /// The round that was measured around the recipe; null where prediction and measurement agree, and
    /// where the text is too short.
    pub second_round: Option<SecondRound>,
    /// The model of --like on the same tokens; null without one.
    pub like: Option<LikeCheck>,
}

/// A second round: the recipe with one tensor at a time moved to the next smaller and to the next larger
/// type, measured on windows that do not judge it.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SecondRound {
    /// Mixtures that were measured.
    pub n_cells: u64,
    /// Tokens that were decoded for them.
    pub n_tokens: u64,
    /// The recipe before the round.
    pub before: RecipeKld,
    /// The recipe that the round found.
    pub after: RecipeKld,
    /// The mean KLD on the windows that the round was measured on.
    pub kept_back: KeptBackKld,
    /// The measured KLD after the round over that before; null where it is not defined.
    pub ratio: Option<Ratio>,
    /// True if the recipe is the one that the round found: its measured KLD is lower.
    pub is_used: bool,
    /// The tensors whose types the round changed.
    pub changed: Vec<ChangedType>,
}

/// The mean KLD on the windows that are kept back for a second round, in nats: of few tokens, and those
/// that the recipe was chosen on.
#[derive(Serialize, Debug, Clone, Copy, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KeptBackKld {
    /// That of the recipe before the round, measured.
    pub before: f64,
    /// That which follows for the recipe after it, from one tensor's change at a time.
    pub after: f64,
}

/// A tensor whose type a second round changed.
#[derive(Serialize, Debug, Clone, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ChangedType {
    /// The tensor's name.
    pub name: String,
    /// Its type before.
    pub from: GgmlType,
    /// Its type after.
    pub to: GgmlType,
}

impl ChangedType {
    /// The tensors whose types differ in two mixtures.
    pub fn of_each(before: &Mixture, after: &Mixture) -> Vec<Self> {
        let changed = before.iter().filter_map(|(name, &from)| {
            let to = *after.get(name)?;
            (from != to).then(|| Self {
                name: name.clone(),
                from,
                to,
            })
        });
        changed.collect()
    }
}

/// Another model on the same tokens.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LikeCheck {
    /// Its path, as given.
    pub path: String,
    /// Bytes of its file.
    pub size_bytes: u64,
    /// Its mean KLD from the original, in nats, with its clustered interval.
    pub kld: Estimate,
    /// The recipe's KLD over this one's; null where it is not defined.
    pub ratio: Option<Ratio>,
    /// The same on the map's text, as the map predicts it; null if the map does not know the types of
    /// this model's tensors.
    pub predicted_ratio: Option<Estimate>,
}

/// A tensor of a recipe.
#[derive(Serialize, Debug, Clone, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RecipeTensor {
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: GgmlType,
    /// Its bytes in the file, with the padding after it.
    pub bytes: u64,
    /// The predicted mean KLD of the model with this tensor alone at its type, in nats.
    pub kld: f64,
    /// Its name without the layer and `.weight`: `attn_v`, `ffn_down_exps`, `output`.
    pub role: String,
    /// Its parameters.
    pub n_params: u64,
}

impl RecipeTensor {
    /// The tensors of a recipe, in the order of the model's file.
    pub fn of_each(recipe: &Recipe, of: &Sensitivities) -> Vec<Self> {
        let tensors = of.tensors.iter().filter_map(|tensor| {
            let kind = recipe.mixture.get(&tensor.name)?;
            let cost = tensor.costs.iter().find(|cost| cost.kind == *kind)?;
            Some(Self {
                name: tensor.name.clone(),
                kind: *kind,
                bytes: cost.bytes,
                kld: cost.kld.value,
                role: tensor.role.clone(),
                n_params: tensor.n_params,
            })
        });
        tensors.collect()
    }
}

impl RecipeReport {
    /// Returns true if the mixture is one that a second round found.
    pub fn is_of_second_round(&self) -> bool {
        let check = self.check.as_ref();
        let round = check.and_then(|check| check.second_round.as_ref());
        round.is_some_and(|round| round.is_used)
    }
}
