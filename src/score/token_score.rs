//! The score of one position.

/// The comparison of two rows at one position: KL divergence, likelihoods, top tokens.
///
/// If a row holds NaN or +∞ anywhere, or nothing but −∞, its flag is false, and every float of both
/// rows is NaN and every top and rank 0: count such a pair and leave it out, never average it.
///
/// Where a row has a floor, both divergences and the entropy are over the entries that both rows
/// know, their probabilities renormalised. Tops and ranks are over the whole rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenScore {
    /// KL(p‖q) = Σ p (ln p − ln q), in nats: the reference against the evaluated model. Never below
    /// 0; +∞ where the evaluated model excludes a token that the reference does not.
    pub kld: f64,
    /// KL(q‖p) = Σ q (ln q − ln p), in nats: what kl.py reports. Never below 0; +∞ where the
    /// reference excludes a token that the evaluated model does not.
    pub reverse_kld: f64,
    /// −Σ p ln p, in nats.
    pub ref_entropy: f64,
    /// −ln p\[next\], in nats: +∞ for a probability of 0, NaN where there is no next token or its
    /// probability is not known. Of a row with a floor it is minus the stored value.
    pub ref_nll: f64,
    /// −ln q\[next\], likewise; of a row without a floor it is over the whole vocabulary.
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
    /// The most that the entries at the reference row's floor can weigh: their number times the
    /// probability at the floor. 0 without a floor.
    pub ref_unknown_p: f64,
    /// True if the reference row has a softmax: no NaN, no +∞, not only −∞.
    pub ref_finite: bool,
    /// True if the evaluated row has one.
    pub eval_finite: bool,
}

impl TokenScore {
    /// The score of a pair in which a row has no softmax.
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
            ref_unknown_p: f64::NAN,
            ref_finite,
            eval_finite,
        }
    }
}
