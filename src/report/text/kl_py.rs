//! The divergence as kl.py prints it, to be laid beside its output.

use super::sheet::Sheet;
use crate::report::number::{ends, kld, quantile_name};
use crate::stats::Distribution;

/// The quantiles that kl.py prints.
const QUANTILES: [f64; 3] = [0.9, 0.95, 0.99];

/// Adds kl.py's lines, whose intervals treat tokens as independent: the Bayesian one of the mean,
/// and Maritz and Jarrett's of the quantiles.
pub fn kl_py_section(out: &mut Sheet, reverse_kld: &Distribution) {
    out.title("As kl.py computes it: KL(model ‖ reference), tokens as independent");
    let mean = &reverse_kld.mean.estimate;
    out.value_and("mean", &kld(mean.value), &ends(mean.lo, mean.hi, kld));
    let quantiles = reverse_kld.quantiles.iter();
    for quantile in quantiles.filter(|quantile| QUANTILES.contains(&quantile.p)) {
        let ends = ends(quantile.mj_lo, quantile.mj_hi, kld);
        out.value_and(
            &quantile_name(quantile.p),
            &kld(quantile.estimate.value),
            &ends,
        );
    }
    out.value("maximum", &kld(reverse_kld.max));
}
