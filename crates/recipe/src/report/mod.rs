//! What maps and recipes look like: text, CSV, JSON and pages.

pub mod page;
pub mod recipe;
pub mod sensitivity;

#[cfg(test)]
mod tests {
    use kl_report::testing::schema::{check_published, schema};

    #[test]
    fn schemas_are_those_of_the_types() {
        let of_map = schema::<super::sensitivity::Sensitivity>("Sensitivity");
        check_published("sensitivity.json", &of_map);
        check_published(
            "recipe.json",
            &schema::<super::recipe::RecipeReport>("Recipe"),
        );
    }
}
