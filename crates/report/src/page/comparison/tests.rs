//! The page as text. `tests/program/page.rs` opens one in a browser.

use kl_stats::stats::{Bin, Estimate};

use super::super::{LICENCES, SCRIPTS};
use super::html;
use crate::comparison::Comparison;
use crate::testing::page::{EVIL, body, check_escaped, embedded};
use crate::testing::sample;

/// A comparison of `n` models, whose curves have as many points as real ones, with groups and spans.
fn many(n: usize) -> Comparison {
    let mut comparison = sample::comparison();
    let models = comparison.models.clone();
    let bin = |label: &str| Bin {
        label: label.to_owned(),
        n_tokens: 1000,
        ..models[0].breakdown.by_position[0].clone()
    };
    comparison.models = (0..n)
        .map(|i| {
            let mut model = models[i.min(1 + i % 4)].clone();
            model.label = format!("a-model-of-many-{i}");
            let size = 16_000_000_000 - 100_000_000 * i as u64;
            (model.model.size_bytes, model.model.file_bytes) = (Some(size), Some(size));
            let mean = 0.0006 * (i + 1) as f64;
            if let Some(kld) = &mut model.summary.kld {
                kld.mean.independent.value = mean;
            }
            let curve = |n: i32| (0..n).map(|k| (f64::from(k), mean / f64::from(k + 1)));
            model.ccdf = curve(120).collect();
            model.by_window = curve(200).collect();
            model.breakdown.by_group = ["wiki", "code", "chat"].map(bin).into();
            model.breakdown.by_span = ["answer", "tool call", "code"].map(bin).into();
            model.top = vec![model.top[0].clone(); 10];
            model
        })
        .collect();
    comparison
}

#[test]
fn every_model_has_its_row() {
    let page = html(&many(12)).unwrap();
    for model in many(12).models {
        let size = model.model.shown_bytes().unwrap();
        let head = format!("<th scope=\"row\">{}</th>", model.label);
        let row = format!("{head}\n<td data-value=\"{size}\">");
        assert!(page.contains(&row), "{row}");
    }
    let data = embedded(&page);
    assert_eq!(data["models"].as_array().unwrap().len(), 12);
    assert_eq!(data["shown"].as_array().unwrap().len(), 8);
    assert_eq!(data["models"][3]["ccdf"].as_array().unwrap().len(), 120);
}

/// A comparison that has [`EVIL`] wherever a file can put text.
fn evil() -> Comparison {
    let mut comparison = sample::comparison();
    for model in &mut comparison.models {
        model.label = format!("{EVIL}{}", model.label);
        model.sidecar = EVIL.to_owned();
        model.model.path = EVIL.to_owned();
        for worst in &mut model.top {
            worst.ref_top.text = Some(EVIL.to_owned());
            worst.eval_top.text = Some(EVIL.to_owned());
            if let Some(text) = &mut worst.text {
                text.before = EVIL.to_owned();
                text.next = Some(EVIL.to_owned());
            }
        }
    }
    comparison.reference.file_name = Some(EVIL.to_owned());
    comparison.not_compared[0].why = EVIL.to_owned();
    comparison
}

#[test]
fn names_and_texts_cannot_break_the_page() {
    let page = html(&evil()).unwrap();
    check_escaped(&page, &html(&sample::comparison()).unwrap());
    let label = embedded(&page)["models"][0]["label"].clone();
    assert_eq!(label, format!("{EVIL}tiny-f16").as_str());
}

#[test]
fn the_page_loads_nothing() {
    let page = html(&sample::comparison()).unwrap();
    // Addresses in the libraries: names of XML namespaces, schemas and documents. The page's policy
    // lets the browser load none of them.
    let mut own = page.replace(LICENCES, "");
    for script in &SCRIPTS[..3] {
        own = own.replace(script, "");
    }
    for address in ["http:", "https:", "src=", "@import", "url(", "stylesheet"] {
        assert!(!own.contains(address), "{address}");
    }
    assert!(page.contains(r#"content="default-src 'none';"#));
    // The command line recognises an earlier page by its generator.
    assert!(page.starts_with("<!doctype html>"));
    assert!(page[..512].contains(r#"<meta name="generator" content="kl "#));
    for script in SCRIPTS {
        assert!(!script.contains("</script"));
        assert!(!script.contains("<!--"));
    }
    assert!(LICENCES.contains("Redistribution and use in source and binary forms"));
}

#[test]
fn a_hundred_models_fit_in_5_mb() {
    let page = html(&many(100)).unwrap();
    assert!(page.len() < 5_000_000, "{} bytes", page.len());
}

#[test]
fn a_comparison_may_lack_almost_everything() {
    let mut comparison = sample::comparison();
    comparison.warnings.clear();
    comparison.not_compared.clear();
    comparison.pairs.clear();
    comparison.reference = Default::default();
    comparison.models.truncate(2);
    for model in &mut comparison.models {
        model.summary.kld = None;
        model.summary.perplexity = None;
        model.summary.agreement = None;
        model.summary.reverse_kld = None;
        model.breakdown.by_confidence.clear();
        model.breakdown.by_position.clear();
        model.breakdown.special.clear();
        model.ccdf.clear();
        model.by_window.clear();
        model.top.clear();
    }
    assert!(html(&comparison).unwrap().contains("nothing to rank"));
    comparison.models.clear();
    html(&comparison).unwrap();
}

/// Numbers that only a damaged or made-up sidecar can give.
fn not_finite() -> Comparison {
    let mut comparison = many(5);
    for (i, bad) in [
        (0, f64::INFINITY),
        (2, f64::INFINITY),
        (3, f64::NAN),
        (4, f64::INFINITY),
    ] {
        let model = &mut comparison.models[i];
        if let Some(kld) = &mut model.summary.kld {
            kld.mean.independent.value = bad;
            (kld.mean.clustered.lo, kld.mean.clustered.hi) = (Some(bad), Some(bad));
        }
        if let Some(to_best) = &mut model.ratio_to_best {
            to_best.ratio.value = bad;
            (to_best.ratio.lo, to_best.ratio.hi) = (Some(bad), Some(bad));
        }
        for point in &mut model.by_window {
            point.1 = bad;
        }
        for point in &mut model.ccdf {
            point.0 = bad;
        }
        for bin in &mut model.breakdown.by_group {
            bin.kld = Some(Estimate::within(bad, bad, bad));
        }
    }
    comparison
}

#[test]
fn what_is_not_finite_is_left_out_of_the_charts() {
    let data = embedded(&html(&not_finite()).unwrap());
    let models = data["models"].as_array().unwrap();
    let mut ratios = models.iter().map(|model| &model["ratio_to_best"]["value"]);
    assert!(ratios.all(|ratio| ratio.is_null()));
    let model = &models[0];
    assert!(model["kld"]["mean"]["value"].is_null() && model["by_window"][0][1].is_null());
    assert!(model["breakdown"]["by_group"][0]["kld"]["value"].is_null());
}

/// The part of the page from a section's title to the next section.
fn section<'p>(page: &'p str, title: &str) -> &'p str {
    let (_, rest) = page.split_once(&format!("{title}</h2>")).unwrap();
    rest.split_once("</section>").unwrap().0
}

#[test]
fn an_infinite_ratio_is_named_and_not_drawn() {
    let title = "How many times as far as the best";
    let mut comparison = sample::comparison();
    let last = comparison.models.last_mut().unwrap();
    last.ratio_to_best.as_mut().unwrap().ratio.value = f64::INFINITY;
    let page = html(&comparison).unwrap();
    let forest = section(&page, title);
    assert!(forest.contains("Not shown: <strong>other.npz</strong>. The best one"));
    assert!(!forest.contains("; other.npz"), "the chart's text has it");
    assert!(embedded(&page)["models"][5]["ratio_to_best"]["value"].is_null());

    for model in &mut comparison.models {
        if let Some(to_best) = &mut model.ratio_to_best {
            to_best.ratio.value = f64::INFINITY;
        }
    }
    let page = html(&comparison).unwrap();
    let forest = section(&page, title);
    assert!(forest.contains("nothing to draw") && !forest.contains("data-chart"));
}

#[test]
fn a_ratio_without_an_interval_is_named() {
    let mut comparison = sample::comparison();
    assert!(!html(&comparison).unwrap().contains("Without an interval"));
    let ratio = &mut comparison.models[3].ratio_to_best.as_mut().unwrap().ratio;
    (ratio.lo, ratio.hi) = (None, None);
    let page = html(&comparison).unwrap();
    assert!(page.contains("Without an interval: <strong>tiny-q4_0</strong>."));
}

#[test]
fn means_over_few_tokens_are_marked() {
    let mut comparison = many(3);
    for model in &mut comparison.models {
        model.breakdown.special.clear();
        model.breakdown.by_confidence.clear();
        model.breakdown.by_position.clear();
        model.ratio_to_best_by_span.clear();
    }
    let marks = |comparison: &Comparison| {
        let page = html(comparison).unwrap();
        let count = |text: &str| body(&page).matches(text).count();
        [" *</td>", "A hollow point", "* is a mean"].map(count)
    };
    assert_eq!(marks(&comparison), [0, 0, 0]);
    comparison.models[1].breakdown.by_group[0].n_tokens = 999;
    assert_eq!(marks(&comparison), [1, 1, 1]);
}

/// Headings in order, with none left out.
#[test]
fn headings_are_in_order() {
    let page = html(&many(12)).unwrap();
    let body = body(&page);
    let mut last = 0;
    let after = body
        .match_indices("<h")
        .map(|(start, _)| &body[start + 2..]);
    for level in after.filter_map(|rest| rest.chars().next()?.to_digit(10)) {
        assert!(level <= last + 1, "h{level} after h{last}");
        last = level;
    }
    assert_eq!(body.matches("<h1").count(), 1);
}

#[test]
fn tokens_stay_on_a_line() {
    assert_eq!(super::super::token(" a\n\tb\u{7}"), " a↵⇥b\u{fffd}");
}
