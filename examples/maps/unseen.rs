//! How far the predictions of maps are off on a text that they have not seen.

use std::path::Path;

use kl::recipe::mathematics::{Goal, Sensitivities, solve};
use kl::stats::{Confidence, Estimate};
use kl_formats::SensitivityMap;

use crate::bench::Bench;
use crate::facts::quantile;
use crate::{Like, Result};

/// Predictions beside what was then measured.
#[derive(Default)]
struct Judged {
    /// Predicted over measured.
    factors: Vec<f64>,
    /// The upper end of each interval over the prediction.
    widths: Vec<f64>,
    n_held: usize,
    measured: Vec<f64>,
}

impl Judged {
    fn add(&mut self, predicted: &Estimate, measured: f64) {
        let (lo, hi) = (
            predicted.lo.unwrap_or(0.0),
            predicted.hi.unwrap_or(f64::INFINITY),
        );
        self.measured.push(measured);
        self.factors.push(predicted.value / measured);
        self.widths.push(hi / predicted.value);
        self.n_held += usize::from((lo..=hi).contains(&measured));
    }

    fn join(&mut self, other: Self) {
        self.measured.extend(other.measured);
        self.factors.extend(other.factors);
        self.widths.extend(other.widths);
        self.n_held += other.n_held;
    }

    fn row(&self) -> String {
        let sorted = |values: &[f64], p: f64| {
            let mut values = values.to_vec();
            values.sort_by(f64::total_cmp);
            quantile(&values, p)
        };
        let [least, median, most] = [0.0, 0.5, 1.0].map(|p| sorted(&self.factors, p));
        format!(
            "{:.3e} | {median:.3} | {least:.2} to {most:.2} | {} of {} | {:.2}",
            sorted(&self.measured, 0.5),
            self.n_held,
            self.factors.len(),
            sorted(&self.widths, 0.5)
        )
    }
}

/// Prints a row for each quant whose size the recipes of these maps have, and one for all: for the
/// recipes' KLDs, and for these over the quants'.
pub fn tables(bench: &mut Bench<'_>, maps: &[String], likes: &[Like]) -> Result<()> {
    println!(
        "\n{} maps, judged on {} tokens:",
        maps.len(),
        bench.n_windows() as u32 * bench.n_rows()
    );
    let titles = "predicted over measured: median | range | interval holds | its upper end over the prediction, median";
    let (mut klds, mut ratios) = (Vec::new(), Vec::new());
    for like in likes {
        let own = bench.mean(&like.mixture)?;
        let (mut kld, mut ratio) = (Judged::default(), Judged::default());
        for path in maps {
            let map = SensitivityMap::read(Path::new(path))?;
            let of = Sensitivities::from_map(&map, Confidence::default())?;
            let recipe = solve(&of, Goal::Size(like.bytes), &[])?;
            let measured = bench.mean(&recipe.mixture())?;
            kld.add(&recipe.kld.predicted, measured);
            let predicted = of.predict_ratio(&recipe, &like.mixture);
            ratio.add(&predicted.ok_or("a type that a map lacks")?, measured / own);
        }
        klds.push((like, kld));
        ratios.push((like, ratio));
    }
    for (what, judged) in [("mean KLD", klds), ("KLD over the quant's", ratios)] {
        println!("\n| {what} of recipes as large as | measured: median | {titles} |");
        println!("|---|---:|---:|---:|---:|---:|");
        let mut all = Judged::default();
        for (like, of) in judged {
            println!("| {} | {} |", like.name, of.row());
            all.join(of);
        }
        println!("| all | {} |", all.row());
    }
    Ok(())
}
