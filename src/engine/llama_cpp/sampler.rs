//! Chooses tokens by chance, with llama.cpp's own samplers.

use kl_formats::Sampling;
use llama_cpp_2::sampling::LlamaSampler;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token::data::LlamaTokenData;
use llama_cpp_2::token::data_array::LlamaTokenDataArray;

use crate::engine::top_token;

/// Chooses the tokens of one answer, with llama.cpp's samplers in its order: `top_k`, `top_p`,
/// `min_p`, temperature, and then a token by chance. It needs no model.
#[derive(Debug)]
pub struct Sampler {
    chain: LlamaSampler,
    candidates: LlamaTokenDataArray,
}

impl Sampler {
    /// The sampler of the answer in window `window`, whose random numbers depend on the seed and
    /// the window alone: the order in which answers are generated does not move them.
    pub fn new(sampling: &Sampling, window: u32) -> Self {
        // Samplers keep at least one token; more would weaken the cuts.
        const MIN_KEEP: usize = 1;
        let top_k = i32::try_from(sampling.top_k).unwrap_or(i32::MAX);
        let chain = [
            LlamaSampler::top_k(top_k),
            LlamaSampler::top_p(sampling.top_p, MIN_KEEP),
            LlamaSampler::min_p(sampling.min_p, MIN_KEEP),
            LlamaSampler::temp(sampling.temp),
            LlamaSampler::dist(seed_of(sampling.seed, window)),
        ];
        Self {
            chain: LlamaSampler::chain(chain, true),
            candidates: LlamaTokenDataArray::new(Vec::new(), false),
        }
    }

    /// Chooses a token by a row of logits; `None` where the row holds a NaN or has no finite maximum.
    pub fn choose(&mut self, row: &[f32]) -> Option<u32> {
        top_token(row)?;
        let candidates = &mut self.candidates;
        candidates.data.clear();
        let candidate = |(token, &logit)| LlamaTokenData::new(LlamaToken(token), logit, 0.0);
        candidates.data.extend((0..).zip(row).map(candidate));
        (candidates.selected, candidates.sorted) = (None, false);
        self.chain.apply(candidates);
        candidates.selected_token().map(|token| token.0 as u32)
    }
}

/// The seed of the answer in a window: splitmix64's output (Steele, Lea, Flood 2014) for the state
/// that holds the run's seed in its upper half and the window in its lower one, cut to 32 bits.
fn seed_of(seed: u32, window: u32) -> u32 {
    let state = u64::from(seed) << 32 | u64::from(window);
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    // llama.cpp takes the largest number for "any seed" (`LLAMA_DEFAULT_SEED`).
    ((z ^ (z >> 31)) as u32).min(u32::MAX - 1)
}
