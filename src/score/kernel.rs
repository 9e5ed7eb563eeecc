//! The choice of a kernel: the hot loop is compiled for several instruction sets.

use std::cell::RefCell;
use std::fmt;

use fearless_simd::Level;
#[cfg(target_arch = "x86_64")]
use fearless_simd::{
    Simd,
    x86::{Avx2, Avx512, Sse2},
};
use kl_formats::{Row, TokenRecord};

use super::pair::RowPair;
use super::passes;

/// The hot loop compiled for one instruction set. All kernels compute the same numbers, within the
/// bounds that the [`score`](super) module states.
#[derive(Clone, Copy, Debug)]
pub enum Kernel {
    /// x86-64 with AVX-512 as of Ice Lake: 8 lanes of f64.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// x86-64 with AVX2 and FMA: 4 lanes of f64.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// Any x86-64: 2 lanes of f64.
    #[cfg(target_arch = "x86_64")]
    Sse2(Sse2),
    /// The best that another processor has: NEON, or lanes that the compiler vectorises.
    #[cfg(not(target_arch = "x86_64"))]
    Other(Level),
}

impl Kernel {
    /// The fastest kernel that this processor can run.
    pub fn detect() -> Self {
        Self::available()[0]
    }

    /// All kernels that this processor can run, fastest first; never empty.
    #[cfg(target_arch = "x86_64")]
    pub fn available() -> Vec<Self> {
        let level = Level::new();
        let kernels = [
            level.as_avx512().map(Self::Avx512),
            level.as_avx2().map(Self::Avx2),
            level.as_sse2().map(Self::Sse2),
        ];
        kernels.into_iter().flatten().collect()
    }

    /// All kernels that this processor can run, fastest first; never empty.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn available() -> Vec<Self> {
        vec![Self::Other(Level::new())]
    }

    /// The kernel's name: `avx512`, `avx2`, `neon` or `portable`.
    pub fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            #[cfg(target_arch = "aarch64")]
            Self::Other(Level::Neon(_)) => "neon",
            _ => "portable",
        }
    }

    /// Scores one evaluated row against one reference row. Without a next token both NLLs are NaN. The
    /// record's window, position and group are left at 0.
    ///
    /// # Panics
    ///
    /// If the rows are empty or of different length, if the next token is not below that length, or
    /// if a floor is not one of [`floor`](super::floor())'s. These are bugs in the caller: no input
    /// leads to them.
    pub fn score(self, pair: &RowPair<'_>) -> TokenRecord {
        pair.check();
        let (n, next) = (pair.eval.len(), pair.next);
        assert!(u32::try_from(n).is_ok(), "a row is indexed by 32 bits");
        assert!(
            next.is_none_or(|next| (next as usize) < n),
            "next token {next:?} is not in a row of {n}"
        );
        // Rare: only rows with masked entries are stored so.
        if let Row::U16Masked { .. } = pair.reference {
            return DECODED.with_borrow_mut(|decoded| {
                decoded.resize(n, 0.0);
                pair.reference.decode_into(decoded);
                self.score(&RowPair {
                    reference: Row::F32(decoded),
                    ..*pair
                })
            });
        }
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(simd) => compiled_for(simd, pair),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(simd) => compiled_for(simd, pair),
            #[cfg(target_arch = "x86_64")]
            Self::Sse2(simd) => compiled_for(simd, pair),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Other(level) => {
                fearless_simd::dispatch!(level, simd => passes::score(simd, pair))
            }
        }
    }
}

/// Scores with the instructions of `simd`, whatever the program is compiled for.
#[cfg(target_arch = "x86_64")]
fn compiled_for<S: Simd>(simd: S, pair: &RowPair<'_>) -> TokenRecord {
    simd.vectorize(
        #[inline(always)]
        || passes::score(simd, pair),
    )
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
