//! The page as text. `tests/program/page.rs` opens one in a browser.

use kl_report::testing::page::{EVIL, body, check_escaped, embedded};
use kl_stats::stats::Estimate;

use super::html;
use crate::report::sensitivity::{Sensitivity, testing as sample};

#[test]
fn every_tensor_is_in_the_tables_and_in_the_map() {
    let of = sample::experts();
    let page = html(&of).unwrap();
    for tensor in &of.tensors {
        let row = format!("<th scope=\"row\">{}</th>", tensor.tensor.name);
        assert!(page.contains(&row), "{row}");
    }
    // Titles that text breaks are whole on a page.
    assert!(page.contains(">Tensors</button>") && page.contains(">Parameters</button>"));
    let data = embedded(&page);
    let types = ["q8_0", "q6_K", "q5_K", "q4_K", "q3_K", "q2_K"];
    assert_eq!(data["types"], serde_json::json!(types));
    let tensors = data["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), of.tensors.len());
    assert_eq!(tensors[2]["name"], "blk.0.attn_kv_a_mqa.weight");
    assert_eq!(data["by_layer"].as_array().unwrap().len(), 61);
    assert!(page.len() < 2_500_000, "{} bytes", page.len());
}

#[test]
fn names_cannot_break_the_page() {
    let plain = html(&sample::small()).unwrap();
    let mut of = sample::small();
    for tensor in &mut of.tensors {
        tensor.tensor.name = format!("{EVIL}{}", tensor.tensor.name);
    }
    for role in &mut of.by_role {
        role.role = format!("{EVIL}{}", role.role);
    }
    of.checks[0].tensor = EVIL.to_owned();
    (of.model.path, of.reference) = (EVIL.to_owned(), Some(EVIL.to_owned()));
    of.text.as_mut().unwrap().name = Some(EVIL.to_owned());
    let page = html(&of).unwrap();
    check_escaped(&page, &plain);
    let role = embedded(&page)["by_role"][0]["role"].clone();
    assert_eq!(role, format!("{EVIL}attn_v").as_str());
}

/// Numbers that only a damaged or made-up map can give.
fn broken() -> Sensitivity {
    let mut of = sample::small();
    for (i, tensor) in of.tensors.iter_mut().enumerate() {
        let bad = [f64::NAN, f64::INFINITY, 0.0, -1e-9][i % 4];
        tensor.at.kld = Estimate::within(bad, bad, bad);
        (tensor.share, tensor.relative_cost) = (None, None);
        for cost in &mut tensor.tensor.costs {
            cost.kld = Estimate::within(bad, bad, bad);
        }
    }
    (of.whole.kld, of.control) = (Estimate::point(f64::NAN), None);
    (of.text, of.set_up) = (None, None);
    of
}

/// A map may lack almost everything.
#[test]
fn what_is_missing_leaves_the_page_whole() {
    let mut of = broken();
    let page = html(&of).unwrap();
    let body = body(&page);
    assert!(!body.contains("NaN") && !body.contains("inf<"), "{body}");
    assert!(embedded(&page)["tensors"][0]["costs"][0]["kld"]["value"].is_null());
    of.tensors.clear();
    of.by_role.clear();
    of.by_layer.clear();
    of.additivity.clear();
    of.checks.clear();
    let page = html(&of).unwrap();
    assert!(page.contains("There is no tensor to draw") && !page.contains("data-chart"));
}
