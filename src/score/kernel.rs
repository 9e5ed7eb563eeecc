//! The choice of a kernel: the hot loop is compiled for several instruction sets.

use std::cell::RefCell;
use std::fmt;

use kl_formats::Row;

#[cfg(target_arch = "aarch64")]
use super::neon;
use super::pair::RowPair;
use super::portable;
use super::token_score::TokenScore;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};

/// The hot loop compiled for one instruction set. All kernels compute the same numbers, within the
/// bounds that the [`score`](super) module states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// x86-64 with AVX-512F: 8 lanes of f64, a table of 16 in two registers.
    Avx512,
    /// x86-64 with AVX2 and FMA: 4 lanes of f64.
    Avx2,
    /// AArch64: 2 lanes of f64.
    Neon,
    /// Any processor: arrays of lanes, which the compiler vectorises as far as its target allows.
    Portable,
}

impl Kernel {
    pub(super) const ALL: [Self; 4] = [Self::Avx512, Self::Avx2, Self::Neon, Self::Portable];

    /// The fastest kernel that this processor can run.
    pub fn detect() -> Self {
        Self::ALL
            .into_iter()
            .find(|kernel| kernel.is_available())
            .unwrap_or(Self::Portable)
    }

    /// All kernels that this processor can run, fastest first; never empty.
    pub fn available() -> Vec<Self> {
        Self::ALL
            .into_iter()
            .filter(|kernel| kernel.is_available())
            .collect()
    }

    /// Returns true if this processor can run this kernel.
    fn is_available(self) -> bool {
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

    /// The kernel's name: `avx512`, `avx2`, `neon` or `portable`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Neon => "neon",
            Self::Portable => "portable",
        }
    }

    /// Scores one evaluated row against one reference row. Without a next token both NLLs are NaN.
    ///
    /// # Panics
    ///
    /// If the rows are empty or of different length, if the next token is not below that length, if
    /// a floor is not one of [`floor`](super::floor())'s, or if the processor cannot run this kernel
    /// (see [`Kernel::available`]). These are bugs in the caller: no input leads to them.
    pub fn score(self, pair: &RowPair<'_>) -> TokenScore {
        pair.check();
        let (n, next) = (pair.eval.len(), pair.next);
        assert!(u32::try_from(n).is_ok(), "a row is indexed by 32 bits");
        assert!(
            next.is_none_or(|next| (next as usize) < n),
            "next token {next:?} is not in a row of {n}"
        );
        assert!(
            self.is_available(),
            "this processor cannot run the {self} kernel"
        );
        // Rare: only rows with masked entries are stored so.
        if let Row::U16Masked { .. } = pair.reference {
            return DECODED.with_borrow_mut(|decoded| {
                decoded.resize(n, 0.0);
                pair.reference.decode_into(decoded);
                self.score_decoded(&RowPair {
                    reference: Row::F32(decoded),
                    ..*pair
                })
            });
        }
        self.score_decoded(pair)
    }

    fn score_decoded(self, pair: &RowPair<'_>) -> TokenScore {
        match self {
            // SAFETY: the processor has AVX-512F: asserted by the caller.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { avx512::score(pair) },
            // SAFETY: the processor has AVX2 and FMA: asserted by the caller.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { avx2::score(pair) },
            // SAFETY: the processor has NEON: asserted by the caller.
            #[cfg(target_arch = "aarch64")]
            Self::Neon => unsafe { neon::score(pair) },
            _ => portable::score(pair),
        }
    }
}

thread_local! {
    /// The memory for a decoded row, used again by the next.
    static DECODED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
