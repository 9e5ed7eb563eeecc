//! The page as text. `tests/program/page.rs` opens one in a browser.

use kl_report::testing::page::{EVIL, body, check_escaped, embedded};
use kl_report::testing::sample::comparison;
use kl_stats::stats::Estimate;

use super::{ReportedQuant, html};
use crate::report::recipe::RecipeReport;
use crate::report::recipe::tests::{measured, report};
use crate::report::sensitivity::testing as sample;

fn quants() -> Vec<ReportedQuant> {
    ReportedQuant::of_json(&serde_json::to_value(comparison()).unwrap()).unwrap()
}

/// The noise floor is no quant, and a model of unknown size has no place in the chart.
#[test]
fn quants_are_those_of_a_report() {
    let quants = quants();
    let labels: Vec<&str> = quants.iter().map(|quant| quant.label.as_str()).collect();
    let expected = ["tiny-q4_K_M", "tiny-iq4_xs", "tiny-q4_0", "tiny-q2_K"];
    assert_eq!(labels, expected);
    assert_eq!(quants[3].size_bytes, 850_000);
    assert_eq!(Some(quants[3].kld), comparison().models[4].mean_kld());
    for other in ["null", "{}", r#"{"models": 1}"#, "[1]"] {
        let error = ReportedQuant::of_json(&serde_json::from_str(other).unwrap()).unwrap_err();
        assert!(error.contains("kl report --json"), "{error}");
    }
    let none = ReportedQuant::of_json(&serde_json::json!({"models": [{}, 1]}));
    assert_eq!(none, Ok(Vec::new()));
}

#[test]
fn the_page_has_the_recipe_and_the_quants() {
    let of = measured();
    let quants = quants();
    let page = html(&of, &quants).unwrap();
    for tensor in &of.recipe.tensors {
        let row = format!("<th scope=\"row\">{}</th>", tensor.name);
        assert!(page.contains(&row), "{row}");
    }
    assert!(page.contains("<code>llama-quantize --tensor-type-file "));
    let data = embedded(&page);
    let frontier = data["recipe"]["frontier"].as_array().unwrap();
    assert_eq!(frontier.len(), of.frontier.len());
    assert_eq!(data["quants"].as_array().unwrap().len(), quants.len());
    assert_eq!(data["types"], serde_json::json!(["q3_K", "q4_K", "q6_K"]));
    assert!(data["layers"][0].is_null() && data["layers"][1] == 0);
}

/// A recipe from which almost all is missing, or is not finite.
fn broken() -> RecipeReport {
    let mut of = report(&sample::small());
    of.recipe.kld.predicted = Estimate::within(f64::NAN, f64::NAN, f64::INFINITY);
    for point in &mut of.frontier {
        point.kld = 0.0;
    }
    for tensor in &mut of.recipe.tensors {
        tensor.kld = f64::NAN;
    }
    of.model = None;
    of
}

#[test]
fn what_is_missing_leaves_the_page_whole() {
    let page = html(&broken(), &[]).unwrap();
    let body = body(&page);
    let is_whole = !body.contains("NaN") && body.contains("There are no sizes to draw");
    assert!(is_whole, "{body}");
    let mut of = broken();
    of.recipe.tensors.clear();
    of.frontier.clear();
    assert!(!html(&of, &[]).unwrap().contains("data-chart"));
}

#[test]
fn names_cannot_break_the_page() {
    let plain = html(&measured(), &[]).unwrap();
    let mut of = measured();
    of.map_path = EVIL.to_owned();
    of.command.push(EVIL.to_owned());
    for tensor in &mut of.recipe.tensors {
        (tensor.name, tensor.role) = (format!("{EVIL}{}", tensor.name), EVIL.to_owned());
    }
    let page = html(&of, &[]).unwrap();
    check_escaped(&page, &plain);
}
