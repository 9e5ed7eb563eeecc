//! The page of a recipe.

mod chart_data;
mod quants;
#[cfg(test)]
mod tests;

use minijinja::value::Serde;
use minijinja::{Error, Value, context};

use super::Page;
use crate::recipe::{quoted, thinned};
use crate::report::number::SizeUnit;
use crate::report::recipe::RecipeReport;
use chart_data::ChartData;
pub use quants::ReportedQuant;

/// The lines of the table of sizes.
const N_SIZES: usize = 16;

/// The page of a recipe: a whole HTML document, which loads nothing else. `quants` are drawn beside it.
///
/// # Errors
/// If a value cannot be written as JSON, or the template fails.
pub fn html(of: &RecipeReport, quants: &[ReportedQuant]) -> Result<String, Error> {
    let data = ChartData::of(of, quants, unit(of, quants));
    let model = of.model.as_ref().and_then(|model| model.shown_name());
    let command: Vec<String> = of.command.iter().map(|word| quoted(word)).collect();
    let values = context! {
        kl_version => of.versions.kl_version,
        r => Value::from(Serde(of)),
        title => model.unwrap_or("a model"),
        command => command.join(" "),
        sizes => Value::from(Serde(thinned(&of.frontier, N_SIZES))),
        quants => Value::from(Serde(quants)),
        types => Value::from(Serde(data.types())),
        grid_width => data.grid_width(),
        is_of_second_round => of.is_of_second_round(),
        has_frontier => data.has_frontier(),
    };
    Page {
        template: include_str!("page.html"),
        scripts: &[
            include_str!("../grid.js"),
            include_str!("charts.js"),
            include_str!("../page.js"),
            include_str!("key.js"),
        ],
    }
    .render(values, &data)
}

/// The unit that suits the sizes of the quants and of the recipe; the original's own is far larger.
fn unit(of: &RecipeReport, quants: &[ReportedQuant]) -> SizeUnit {
    let sizes = quants.iter().map(|quant| quant.size_bytes);
    SizeUnit::for_sizes(sizes.chain([of.size_bytes]).max().unwrap_or(0))
}
