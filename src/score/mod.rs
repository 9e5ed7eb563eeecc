//! Two rows of logits in, one [`TokenScore`] out: the hot loop.
//!
//! Let `l` be the reference row and `m` the evaluated one, `L` and `M` their maxima, `p = softmax(l)`, `q = softmax(m)`,
//! natural logarithms throughout. With `a = l − L`, `b = m − M`, `d = a − b`, `P = Σ e^a` and `Q = Σ e^b`:
//!
//! | number | formula |
//! |---|---|
//! | KL(p‖q) | `Σ e^a d / P + ln(Q/P)` |
//! | KL(q‖p) | `−Σ e^b d / Q + ln(P/Q)` |
//! | entropy of p | `ln P − Σ e^a a / P` |
//! | NLL | `ln P − a[next]`, `ln Q − b[next]` |
//! | probability of the first choice | `e^(max a) / P`, `e^(max b) / Q` |
//!
//! which are the definitions (Kullback and Leibler 1951) with the softmax's normalisers taken out of the sums. Every entry
//! counts: nothing is clipped, floored or smoothed.
//!
//! # Passes
//!
//! Logits are f32, all that follows is f64. Rows of language models are *ordinary*: all logits within ±300, so that e^l itself
//! neither overflows nor underflows. One pass then collects sums and maxima at once, with `L = M = 0` in the formulas above.
//! Any other pair takes two: the maxima and whether all is finite, then the sums with the true `L` and `M`, so that `a`, `b`
//! and `d` are right up to the largest f32, and an entry whose weight underflows adds exactly 0. Ranks need the maxima and
//! are counted last, unless both rows have the same one.
//!
//! Encoded rows are decoded on the fly, to the same f32 values as [`Row::get`] gives.
//!
//! # Accuracy
//!
//! Largest errors against a float64 computation with the C library's exp and compensated sums, over this module's tests (2,383
//! pairs with finite logits: random, flat, peaked, equal but for one entry, with ties, with ranges up to the largest f32, of
//! 1 to 128,259 entries). The error of e^x is that of its polynomial.
//!
//! | kernel | e^x, relative | either KL below 1 nat, absolute | above, relative |
//! |---|---|---|---|
//! | AVX-512 | 2.5e-12 | 4.8e-12 | 1.8e-12 |
//! | AVX2, portable | 1.1e-12 | 1.9e-12 | 1.1e-12 |
//!
//! NEON computes as AVX2 does. Its maxima were not recorded: it passes the same tests, whose bar is 1e-11, under emulation.
//!
//! Equal rows give exactly 0 in both directions: both then have the same weights, summed in the same order. What rounding
//! leaves below 0 is returned as 0; so are entropies and NLLs.
//!
//! A kernel gives the same bits from run to run, whatever the number of threads. Two kernels agree within the errors above,
//! not to the bit; tops, ranks and flags agree exactly.
//!
//! # Speed
//!
//! Microseconds for a pair of 128,256 entries on one core, with the same top token on both sides (AVX-512: a tenth more where
//! the tops differ): medians of `cargo bench --bench score` on Zen 5, best of 4,000 runs on a busy Zen 4; `target-cpu=native`.
//!
//! | kernel | Zen 5: f32 reference | u16 | Zen 4: f32 | u16 |
//! |---|---|---|---|---|
//! | AVX-512 | 49 | 55 | 97 | 108 |
//! | AVX2 | 116 | 134 | 133 | 148 |
//! | portable | 348 | 373 | | |
//!
//! Compiled for the baseline of x86-64, with 16 registers, AVX2 takes 171 and 195 on Zen 4. NEON has not been timed.

mod driver;
mod exp;
pub mod llama_perplexity;
mod ln;
pub mod logit_metrics;
mod portable;
mod vector;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod fixed_point;
#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use kl_formats::Row;

pub use llama_perplexity::PeerToken;
pub use logit_metrics::{LogitMetrics, SMOOTHING, logit_metrics};

/// What one pair of rows says about one position.
///
/// If a row holds NaN or an infinity anywhere, its flag is false, every float is NaN and every top and rank is 0, of both
/// rows: such a pair is to be counted and left out, never averaged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenScore {
    /// KL(p‖q) = Σ p (ln p − ln q), in nats: the reference against the evaluated model. Never below 0.
    pub kld: f64,
    /// KL(q‖p) = Σ q (ln q − ln p), in nats: what kl.py reports. Never below 0.
    pub reverse_kld: f64,
    /// −Σ p ln p, in nats.
    pub ref_entropy: f64,
    /// −ln p\[next\], in nats; NaN where there is no next token.
    pub ref_nll: f64,
    /// −ln q\[next\], in nats; NaN where there is no next token.
    pub eval_nll: f64,
    /// Index of the reference row's first maximum.
    pub ref_top: u32,
    /// Index of the evaluated row's first maximum.
    pub eval_top: u32,
    /// Rank of `ref_top` in the evaluated row: 1 + the number of entries above it there, equals at lower indices included.
    pub ref_top_rank: u32,
    /// Rank of `eval_top` in the (decoded) reference row.
    pub eval_top_rank: u32,
    /// p\[`ref_top`\]: the probability of the reference's first choice under the reference.
    pub ref_top_p: f64,
    /// q\[`eval_top`\]: the probability of the evaluated model's first choice under that model.
    pub eval_top_p: f64,
    /// Whether every logit of the reference row is a finite number.
    pub ref_finite: bool,
    /// Whether every logit of the evaluated row is a finite number.
    pub eval_finite: bool,
}

impl TokenScore {
    fn excluded(ref_finite: bool, eval_finite: bool) -> Self {
        Self {
            kld: f64::NAN,
            reverse_kld: f64::NAN,
            ref_entropy: f64::NAN,
            ref_nll: f64::NAN,
            eval_nll: f64::NAN,
            ref_top: 0,
            eval_top: 0,
            ref_top_rank: 0,
            eval_top_rank: 0,
            ref_top_p: f64::NAN,
            eval_top_p: f64::NAN,
            ref_finite,
            eval_finite,
        }
    }
}

/// One compilation of the hot loop. All compute the same numbers, within the bounds the [module](self) states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// x86-64 with AVX-512F: 8 lanes of f64, a table of 16 in two registers.
    Avx512,
    /// x86-64 with AVX2 and FMA: 4 lanes of f64.
    Avx2,
    /// AArch64: 2 lanes of f64.
    Neon,
    /// Arrays of lanes that the compiler vectorises as far as its target allows. Runs anywhere.
    Portable,
}

impl Kernel {
    const ALL: [Self; 4] = [Self::Avx512, Self::Avx2, Self::Neon, Self::Portable];

    /// The fastest kernel that this processor runs.
    pub fn detect() -> Self {
        Self::ALL
            .into_iter()
            .find(|kernel| kernel.is_available())
            .unwrap_or(Self::Portable)
    }

    /// All kernels that this processor runs, fastest first; never empty.
    pub fn available() -> Vec<Self> {
        Self::ALL
            .into_iter()
            .filter(|kernel| kernel.is_available())
            .collect()
    }

    /// Whether this processor runs this kernel.
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => is_x86_feature_detected!("avx512f"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            Self::Portable => true,
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// The kernel's name as [`FromStr`] reads it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Neon => "neon",
            Self::Portable => "portable",
        }
    }

    /// Scores one evaluated row against one reference row.
    ///
    /// `next` is the token that actually follows, an index into the rows; without it both NLLs are NaN.
    ///
    /// # Panics
    ///
    /// If the rows are empty or of different length, if `next` is not below that length, or if the processor does not run
    /// this kernel (see [`Kernel::available`]): errors of the program, not of its input.
    pub fn score(self, reference: Row<'_>, eval: &[f32], next: Option<u32>) -> TokenScore {
        let n = eval.len();
        assert!(n > 0, "a row of logits has at least one entry");
        assert_eq!(reference.len(), n, "rows of different length");
        assert!(u32::try_from(n).is_ok(), "a row is indexed by 32 bits");
        assert!(
            next.is_none_or(|next| (next as usize) < n),
            "next token {next:?} is not in a row of {n}"
        );
        assert!(
            self.is_available(),
            "this processor does not run the {self} kernel"
        );
        match self {
            // SAFETY: the processor has AVX-512F: asserted above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { avx512::score(reference, eval, next) },
            // SAFETY: the processor has AVX2 and FMA: asserted above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { avx2::score(reference, eval, next) },
            // SAFETY: the processor has NEON: asserted above.
            #[cfg(target_arch = "aarch64")]
            Self::Neon => unsafe { neon::score(reference, eval, next) },
            _ => portable::score(reference, eval, next),
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name is not that of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownKernel(String);

impl fmt::Display for UnknownKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no kernel is named {:?}: there are avx512, avx2, neon, portable",
            self.0
        )
    }
}

impl std::error::Error for UnknownKernel {}

impl FromStr for Kernel {
    type Err = UnknownKernel;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|kernel| kernel.name() == name)
            .ok_or_else(|| UnknownKernel(name.to_owned()))
    }
}
