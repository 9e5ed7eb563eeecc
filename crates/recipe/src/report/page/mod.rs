//! The pages of a map and of a recipe.

mod recipe;
mod sensitivity;

pub use recipe::{ReportedQuant, html as recipe_html};
pub use sensitivity::html as sensitivity_html;

/// The script of the grid of layers and roles that both have.
const GRID: &str = include_str!("grid.js");
