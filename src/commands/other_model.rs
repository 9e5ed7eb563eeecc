//! Checks, as far as headers show, that a model can be a quant of the reference's.

use kl_formats::ModelIdentity;

use super::observer::Watch;
use crate::report::Warning;

/// By how much the numbers of parameters may differ: some quants leave out the layers that predict
/// further tokens, and a small model's output head, up to 28 % of one of 0.5 billion parameters, may
/// be stored in one file and be the embeddings in the other.
const PARAMETERS_TOLERANCE: f64 = 0.3;

/// From so many bits per weight on, a reference is an original.
const ORIGINAL_BITS: f64 = 15.5;

/// The most bits per weight that a quant may have, as a multiple of the reference's. Two
/// conversions of one model differ by little: some keep a few tensors in another type.
const BITS_TOLERANCE: f64 = 1.1;

/// Warns if the evaluated model is another one than the reference's, or the larger one of the two.
pub fn check_models(reference: Option<&ModelIdentity>, model: &ModelIdentity, watch: &Watch<'_>) {
    let Some(reference) = reference else { return };
    if let Some(warning) = other_model(reference, model) {
        watch.warn(warning);
    } else if let (Some(here), Some(there)) = (model.bits_per_weight(), reference.bits_per_weight())
        && there < ORIGINAL_BITS
        && here > BITS_TOLERANCE * there
    {
        watch.warn(Warning::SmallerReference { here, there });
    }
}

/// The warning that the evaluated model cannot be a quant of the reference's, if headers show it.
pub fn other_model(reference: &ModelIdentity, model: &ModelIdentity) -> Option<Warning> {
    let other = |what, here: String, there: String| Warning::OtherModel { what, here, there };
    if let (Some(here), Some(there)) = (&model.architecture, &reference.architecture)
        && here != there
    {
        return Some(other("architecture", here.clone(), there.clone()));
    }
    let (here, there) = (model.n_params?, reference.n_params?);
    if (here as f64 - there as f64).abs() > PARAMETERS_TOLERANCE * there as f64 {
        let [here, there] = [here, there].map(|n| n.to_string());
        return Some(other("number of parameters", here, there));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(architecture: &str, n_params: u64, size_bytes: u64) -> ModelIdentity {
        let mut model = ModelIdentity::named("a.gguf");
        model.architecture = Some(architecture.to_owned());
        model.n_params = Some(n_params);
        model.size_bytes = Some(size_bytes);
        model
    }

    fn kind(reference: &ModelIdentity, evaluated: &ModelIdentity) -> Option<&'static str> {
        let watch = Watch::new(&());
        check_models(Some(reference), evaluated, &watch);
        watch.warnings().first().map(Warning::kind)
    }

    #[test]
    fn other_models_and_swapped_ones_are_noticed() {
        let original = model("llama", 1000, 2000);
        let quant = model("llama", 1000, 600);
        assert_eq!(kind(&original, &quant), None);
        assert_eq!(kind(&original, &original), None);
        assert_eq!(kind(&quant, &original), Some("smaller_reference"));
        assert_eq!(kind(&original, &model("llama", 1000, 4000)), None);
        assert_eq!(kind(&original, &model("llama", 980, 600)), None);
        assert_eq!(kind(&original, &model("llama", 1270, 760)), None);
        let other = Some("other_model");
        assert_eq!(kind(&original, &model("llama", 600, 400)), other);
        assert_eq!(kind(&original, &model("qwen2", 1000, 600)), other);
        assert_eq!(kind(&ModelIdentity::named("b"), &quant), None);
        check_models(None, &quant, &Watch::new(&()));
    }
}
