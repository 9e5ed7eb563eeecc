//! The sizes by which models are compared.

use std::collections::BTreeSet;

use super::ComparedModel;

/// The sizes of a comparison's models: those of their files, and of their KV caches too where these
/// differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub has_caches: bool,
}

impl Sizes {
    /// Chooses the sizes by which these models are compared. KV caches count only if the size of each is
    /// recorded, and is that of as many windows.
    pub fn of(models: &[ComparedModel]) -> Self {
        let set_ups = models.iter().map(|model| &model.set_up);
        let caches: BTreeSet<_> = set_ups.clone().map(|of| of.kv_cache_bytes).collect();
        let n_seqs: BTreeSet<_> = set_ups.map(|of| of.n_seq.unwrap_or(1)).collect();
        Self {
            has_caches: caches.len() > 1 && !caches.contains(&None) && n_seqs.len() == 1,
        }
    }

    /// The bytes of a model; `None` where its file's size is not known.
    pub fn bytes(self, model: &ComparedModel) -> Option<u64> {
        let cache = model.set_up.kv_cache_bytes.filter(|_| self.has_caches);
        let file = model.model.shown_bytes()?;
        Some(file.saturating_add(cache.unwrap_or(0)))
    }

    /// The bytes that a smaller model saves; `None` for less than 1 % of the larger one's, for which
    /// nobody would choose it.
    pub fn saved(self, larger: &ComparedModel, smaller: &ComparedModel) -> Option<u64> {
        let size = self.bytes(larger)?;
        let saved = size.checked_sub(self.bytes(smaller)?)?;
        (saved > 0 && saved.saturating_mul(100) >= size).then_some(saved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    #[test]
    fn caches_count_where_they_can_be_compared_and_differ() {
        let mut models = sample::comparison().models;
        models.truncate(2);
        models[1].model = models[0].model.clone();
        let file = models[0].model.shown_bytes().unwrap();
        let mut more = |caches: [Option<u64>; 2], n_seq: Option<u32>| {
            for (model, bytes) in models.iter_mut().zip(caches) {
                model.set_up.kv_cache_bytes = bytes;
            }
            models[1].set_up.n_seq = n_seq;
            let sizes = Sizes::of(&models);
            [0, 1].map(|i| sizes.bytes(&models[i]).unwrap() - file)
        };
        assert_eq!(more([Some(5), Some(7)], None), [5, 7]);
        assert_eq!(more([Some(5), Some(7)], Some(1)), [5, 7]);
        assert_eq!(more([Some(5), Some(7)], Some(4)), [0, 0]);
        assert_eq!(more([Some(5), Some(5)], None), [0, 0]);
        assert_eq!(more([Some(5), None], None), [0, 0]);
    }
}
