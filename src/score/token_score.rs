//! The score of one position.

/// How two rows at one position compare: KL divergence, likelihoods, top tokens.
///
/// If a row holds NaN or an infinity anywhere, its flag is false, and every float of both rows is
/// NaN and every top and rank 0: count such a pair and leave it out, never average it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenScore {
    /// KL(p‖q) = Σ p (ln p − ln q), in nats: the reference against the evaluated model. Never below
    /// 0.
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
    /// Rank of `ref_top` in the evaluated row: 1 + the number of entries above it there, equal ones
    /// at lower indices included.
    pub ref_top_rank: u32,
    /// Rank of `eval_top` in the (decoded) reference row.
    pub eval_top_rank: u32,
    /// p\[`ref_top`\]: the probability that the reference gives its own top token.
    pub ref_top_p: f64,
    /// q\[`eval_top`\]: the probability that the evaluated model gives its own top token.
    pub eval_top_p: f64,
    /// Whether every logit of the reference row is a finite number.
    pub ref_finite: bool,
    /// Whether every logit of the evaluated row is a finite number.
    pub eval_finite: bool,
}

impl TokenScore {
    /// The score of a pair in which a row is not finite.
    pub(super) fn excluded(ref_finite: bool, eval_finite: bool) -> Self {
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
