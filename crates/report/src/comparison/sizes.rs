//! The sizes by which models are compared: those of their files, of their KV caches, or of both.

use std::collections::BTreeSet;

use super::ComparedModel;
use crate::number::count_of;

/// The tokens of the context whose cache counts, unless the user names another.
const USUAL_CONTEXT: u64 = 1000;

/// The KV caches of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caches {
    /// Those of contexts of so many tokens.
    OfContext(u64),
    /// Those that the models ran with, for the windows of a decode call: earlier sidecars record no others.
    Measured,
}

impl Caches {
    /// Chooses the caches that are known of all models and can be compared: those of runs with other numbers of
    /// windows in a call cannot. `for_context`: the tokens of the context that the user names.
    pub fn known<'m>(
        models: impl Iterator<Item = &'m ComparedModel> + Clone,
        for_context: Option<u64>,
    ) -> Option<Self> {
        let of_context = Self::OfContext(for_context.unwrap_or(USUAL_CONTEXT));
        let n_seqs: BTreeSet<_> = models
            .clone()
            .map(|model| model.set_up.n_seq.unwrap_or(1))
            .collect();
        [of_context, Self::Measured].into_iter().find(|caches| {
            let are_alike = *caches != Self::Measured || n_seqs.len() == 1;
            are_alike && models.clone().all(|model| caches.of_model(model).is_some())
        })
    }

    /// The bytes of a model's cache; `None` where they are not recorded.
    pub fn of_model(self, model: &ComparedModel) -> Option<u64> {
        match self {
            Self::OfContext(n) => model.set_up.kv_cache_sizes.as_ref()?.of_context(n),
            Self::Measured => model.set_up.kv_cache_bytes,
        }
    }

    /// The number of tokens, as in ` for 1,000 tokens`; empty where the size is that of the run.
    pub fn for_tokens(self) -> String {
        match self {
            Self::OfContext(n) => format!(" for {}", count_of(n, "token")),
            Self::Measured => String::new(),
        }
    }
}

/// The sizes by which the models of a comparison are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// Those of the files.
    Files,
    /// Those of the files and of the KV caches, where the user names a context, or caches differ.
    FilesAndCaches(Caches),
    /// Those of the KV caches, where models are runs of one file: beside it, what they save would hardly show.
    Caches(Caches),
}

impl Sizes {
    /// Chooses the sizes by which these models are compared. `for_context`: the tokens of the context that the
    /// user names.
    pub fn of<'m>(
        models: impl Iterator<Item = &'m ComparedModel> + Clone,
        for_context: Option<u64>,
    ) -> Self {
        if let Some(n) = for_context {
            return Self::FilesAndCaches(Caches::OfContext(n));
        }
        // The noise floor is not ranked.
        let quants = models.filter(|model| !model.is_noise_floor);
        let Some(caches) = Caches::known(quants.clone(), None) else {
            return Self::Files;
        };
        let cache_sizes: BTreeSet<_> = quants.clone().map(|model| caches.of_model(model)).collect();
        let first = quants.clone().next();
        let is_of_first_file =
            |model: &ComparedModel| first.is_some_and(|first| model.is_of_same_file(first));
        if cache_sizes.len() < 2 {
            Self::Files
        } else if quants.clone().all(is_of_first_file) {
            Self::Caches(caches)
        } else {
            Self::FilesAndCaches(caches)
        }
    }

    /// The bytes of a model; `None` where they are not known.
    pub fn of_model(self, model: &ComparedModel) -> Option<u64> {
        let file = model.model.shown_bytes();
        match self {
            Self::Files => file,
            Self::Caches(caches) => caches.of_model(model),
            Self::FilesAndCaches(caches) => file?.checked_add(caches.of_model(model)?),
        }
    }

    /// The bytes that a smaller model saves; `None` for less than 1 % of the larger one's, for which
    /// nobody would choose it.
    pub fn saved(self, larger: &ComparedModel, smaller: &ComparedModel) -> Option<u64> {
        let size = self.of_model(larger)?;
        let saved = size.checked_sub(self.of_model(smaller)?)?;
        (saved > 0 && saved.saturating_mul(100) >= size).then_some(saved)
    }

    /// True if KV caches count.
    pub fn has_caches(self) -> bool {
        self != Self::Files
    }

    /// The word for a size, at the head of a column.
    pub fn word(self) -> &'static str {
        match self {
            Self::Caches(_) => "cache",
            _ => "size",
        }
    }

    /// The title of a size, where there is room for it.
    pub fn title(self) -> &'static str {
        match self {
            Self::Files => "Size",
            Self::FilesAndCaches(_) => "Size with KV cache",
            Self::Caches(_) => "KV cache",
        }
    }

    /// Says what is counted as the size, if not the file alone.
    pub fn explained(self) -> Option<String> {
        match self {
            Self::Files => None,
            Self::FilesAndCaches(caches) => {
                Some(format!("the file and a KV cache{}", caches.for_tokens()))
            }
            Self::Caches(caches) => {
                let for_tokens = caches.for_tokens();
                Some(format!(
                    "the KV cache{for_tokens}, as all are runs of one file"
                ))
            }
        }
    }

    /// The context at which a model is so much smaller than another, as words to put after the difference.
    pub fn context(self) -> String {
        match self {
            Self::Files => String::new(),
            Self::FilesAndCaches(caches) => format!(" with a cache{}", caches.for_tokens()),
            Self::Caches(caches) => caches.for_tokens(),
        }
    }
}

#[cfg(test)]
mod tests {
    use kl_formats::CacheSizes;

    use super::*;
    use crate::testing::sample;

    /// Two models with caches of these bytes at 256 and at 512 tokens, and as they ran.
    fn models_with_caches(caches: [(u64, u64, Option<u64>); 2]) -> Vec<ComparedModel> {
        let mut models = sample::comparison().models;
        models.drain(..1);
        models.truncate(2);
        for (model, (at_256, at_512, measured)) in models.iter_mut().zip(caches) {
            let points = vec![(256, at_256), (512, at_512)];
            model.set_up.kv_cache_sizes = Some(CacheSizes(points)).filter(|_| at_256 > 0);
            model.set_up.kv_cache_bytes = measured;
        }
        models
    }

    fn sizes(models: &[ComparedModel], for_context: Option<u64>) -> (Sizes, [Option<u64>; 2]) {
        let sizes = Sizes::of(models.iter(), for_context);
        (sizes, [0, 1].map(|i| sizes.of_model(&models[i])))
    }

    #[test]
    fn runs_of_one_file_are_compared_by_their_caches() {
        let mut models = models_with_caches([(256, 512, Some(5)), (512, 1024, Some(7))]);
        models[1].model = models[0].model.clone();
        let caches = Sizes::Caches(Caches::OfContext(1000));
        assert_eq!(sizes(&models, None), (caches, [Some(1024), Some(2048)]));
        // The original with an f16 cache is another file, and is not ranked.
        models.push(sample::model("tiny-f16", 4_000_000, 0.001));
        models[2].is_noise_floor = true;
        assert_eq!(sizes(&models, None).0, caches);
        // At a context that the user names, weights and cache count.
        let file = models[0].model.shown_bytes().unwrap();
        let both = Sizes::FilesAndCaches(Caches::OfContext(4096));
        let expected = [file + 4096, file + 2 * 4096].map(Some);
        assert_eq!(sizes(&models, Some(4096)), (both, expected));
        models[1].set_up.kv_cache_sizes = None;
        assert_eq!(sizes(&models, Some(4096)).1, [Some(file + 4096), None]);
    }

    #[test]
    fn caches_of_earlier_sidecars_count_as_they_ran() {
        let mut models = models_with_caches([(0, 0, Some(5)), (256, 512, Some(7))]);
        let [one, other] = [0, 1].map(|i| models[i].model.shown_bytes().unwrap());
        let both = Sizes::FilesAndCaches(Caches::Measured);
        assert_eq!(
            sizes(&models, None),
            (both, [Some(one + 5), Some(other + 7)])
        );
        models[1].model = models[0].model.clone();
        let caches = Sizes::Caches(Caches::Measured);
        assert_eq!(sizes(&models, None), (caches, [Some(5), Some(7)]));
        models[1].set_up.n_seq = Some(1);
        assert_eq!(sizes(&models, None).0, caches);
        // One of four windows is not comparable, nor is one that is not known.
        models[1].set_up.n_seq = Some(4);
        assert_eq!(sizes(&models, None), (Sizes::Files, [Some(one), Some(one)]));
        (models[1].set_up.n_seq, models[1].set_up.kv_cache_bytes) = (None, None);
        assert_eq!(sizes(&models, None).0, Sizes::Files);
    }

    #[test]
    fn equal_caches_do_not_count() {
        let models = models_with_caches([(256, 512, Some(5)), (256, 512, Some(5))]);
        assert_eq!(sizes(&models, None).0, Sizes::Files);
    }
}
