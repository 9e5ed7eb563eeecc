//! The page as text. `tests/program/page.rs` opens one in a browser.

use super::super::tests::{EVIL, check_escaped, embedded, look_at};
use super::html;
use crate::report::WorstToken;
use crate::report::comparison::{ComparedModel, Comparison};
use crate::report::tests::sample;
use crate::stats::{Bin, Estimate, SpanRatio};

/// A comparison of `n` models, sizes and KLDs of an 8B model's quants, whose curves have as many
/// points as real ones.
fn many(n: usize) -> Comparison {
    let mut comparison = sample::comparison();
    let models = comparison.models.clone();
    let groups = ["wiki", "code", "chat"];
    let noise = |k: usize| ((k * 37 % 101) as f64 / 101.0 - 0.5) * 0.8;
    let mean_of = |i: usize| match i {
        0 => 0.0006,
        i => 0.0014 * (5.5 * (i - 1) as f64 / n.max(8) as f64 + noise(i)).exp(),
    };
    let size_of = |i: usize| match i {
        0 => 16_068_000_000,
        i => 8_530_000_000 - 6_400_000_000 * (i as u64 - 1) / n.max(8) as u64,
    };
    let best = (1..n).map(mean_of).fold(f64::INFINITY, f64::min);
    comparison.models = (0..n)
        .map(|i| {
            let mut model = models[i.min(1 + i % 4)].clone();
            let mean = mean_of(i);
            let names = [
                "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M", "IQ2_XXS",
            ];
            model.label = match i {
                0 => "Meta-Llama-3-8B-f16".to_owned(),
                i => format!(
                    "{}-{}",
                    names[i * names.len() / n],
                    "imat".repeat(i % 3) + &i.to_string()
                ),
            };
            model.is_noise_floor = i == 0;
            model.pareto = i > 0 && (1..n).all(|k| k <= i || mean_of(k) > mean);
            model.indistinguishable_from_best = i > 0 && mean < 1.1 * best;
            model.model.size_bytes = Some(size_of(i));
            model.model.file_bytes = model.model.size_bytes;
            model.model.bpw = Some(size_of(i) as f64 / 1e9);
            if let Some(kld) = &mut model.summary.kld {
                let factor = mean / kld.mean.independent.value;
                kld.mean.independent.value = mean;
                kld.mean.clustered.lo = Some(0.95 * mean);
                kld.mean.clustered.hi = Some(1.06 * mean);
                for quantile in &mut kld.quantiles {
                    quantile.estimate.value *= factor;
                }
                kld.max *= factor;
            }
            let is_compared = i > 0 && mean > best;
            model.difference_to_best = is_compared.then(|| Estimate::point(mean - best));
            model.ratio_to_best = is_compared.then(|| {
                let mut to_best = models[2].ratio_to_best.unwrap();
                to_best.ratio = sample::ratio(mean / best, 0.01);
                to_best
            });
            model.ccdf = (0..120_i32)
                .map(|k| {
                    let x = mean * 10_f64.powf(f64::from(k) / 30.0 - 2.5);
                    (x, (-(x / mean).powf(0.6)).exp())
                })
                .collect();
            model.by_window = (0..200_i32)
                .map(|k| {
                    let swing = (f64::from(k) / 15.0).sin() * 0.5
                        + noise(7 * k as usize)
                        + noise(5 * k as usize + i) / 4.0;
                    (f64::from(3 * k), mean * swing.exp())
                })
                .collect();
            let bin = |label: String, factor: f64| Bin {
                label,
                from: None,
                to: None,
                n_tokens: 1000,
                n_infinite: 0,
                kld: Some(Estimate::within(
                    mean * factor,
                    mean * factor * 0.9,
                    mean * factor * 1.1,
                )),
                share_of_kld: Some(0.2),
                agreement: Some(0.9),
            };
            let confidence = [
                "below 25 %",
                "25 to 50 %",
                "50 to 75 %",
                "75 to 95 %",
                "95 % and above",
            ];
            model.breakdown.by_confidence = confidence
                .iter()
                .zip([1.9, 1.7, 1.2, 0.7, 0.12])
                .map(|(label, factor)| bin((*label).to_owned(), factor))
                .collect();
            model.breakdown.by_position = (0..9)
                .map(|k| {
                    bin(
                        format!("{} to {}", 1 << k, (2 << k) - 1),
                        1.0 + 1.0 / f64::from(k + 1),
                    )
                })
                .collect();
            model.breakdown.by_group = groups
                .iter()
                .zip([1.0, 0.4, 1.7])
                .map(|(label, factor)| bin((*label).to_owned(), factor))
                .collect();
            let spans = ["answer", "reasoning", "tool call", "code"];
            let in_spans = || spans.iter().zip([1.0, 0.7, 2.1, 0.5]);
            model.breakdown.by_span = in_spans()
                .map(|(label, factor)| bin((*label).to_owned(), factor))
                .collect();
            let of_spans = in_spans().filter(|_| is_compared);
            model.ratio_to_best_by_span = of_spans
                .map(|(label, factor)| SpanRatio {
                    label: (*label).to_owned(),
                    n_tokens: 1000,
                    ratio: Some(sample::ratio(factor.sqrt() * mean / best, 0.01)),
                    to_others: Some(sample::ratio(1.1 * factor, 0.01)),
                    p_holm: Some(if factor > 2.0 && i % 3 == 1 {
                        0.01
                    } else {
                        0.5
                    }),
                })
                .collect();
            model.summary.identical_output = Some(sample::identical(0.5 / mean.max(0.001)));
            if let Some(acceptance) = &mut model.summary.acceptance {
                let accepted = 1.0 - 0.6 * mean.sqrt();
                acceptance.mean = Estimate::within(accepted, accepted - 0.004, accepted + 0.004);
                for of in &mut acceptance.drafted {
                    let n = f64::from(of.n_drafted);
                    let sum = accepted * (1.0 - accepted.powf(n)) / (1.0 - accepted);
                    of.accepted = Estimate::within(sum, 0.98 * sum, 1.02 * sum);
                }
            }
            let worst = model.top[0].clone();
            model.top = (0..10)
                .map(|k| WorstToken {
                    kld: 2000.0 * mean / f64::from(k + 1),
                    ..worst.clone()
                })
                .collect();
            model
        })
        .collect();
    let mean = |model: &ComparedModel| model.mean_kld().unwrap().value;
    comparison
        .models
        .sort_by(|a, b| mean(a).total_cmp(&mean(b)));
    comparison
}

#[test]
fn every_model_has_its_row() {
    let page = html(&many(12)).unwrap();
    for model in many(12).models {
        let size = model.model.shown_bytes().unwrap();
        let row = format!(
            "<th scope=\"row\">{}</th>\n<td data-value=\"{size}\">",
            model.label
        );
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
    let own: String = {
        let mut rest = page.clone();
        for script in &super::super::SCRIPTS[..3] {
            rest = rest.replace(script, "");
        }
        rest.replace(super::super::LICENCES, "")
    };
    for address in [
        "http:",
        "https:",
        "src=",
        "@import",
        "url(",
        "<link rel=\"stylesheet",
    ] {
        assert!(!own.contains(address), "{address}");
    }
    assert!(page.contains(r#"content="default-src 'none';"#));
}

/// The command line recognises an earlier page by its generator.
#[test]
fn the_generator_is_near_the_start() {
    let page = html(&sample::comparison()).unwrap();
    assert!(page.starts_with("<!doctype html>"));
    assert!(page[..512].contains(r#"<meta name="generator" content="kl "#));
}

#[test]
fn the_libraries_are_whole() {
    for script in super::super::SCRIPTS {
        assert!(!script.contains("</script"));
        assert!(!script.contains("<!--"));
    }
    assert!(super::super::LICENCES.contains("Redistribution and use in source and binary forms"));
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
    for (i, model) in comparison.models.iter_mut().enumerate() {
        let bad = match i % 2 {
            0 => f64::INFINITY,
            _ => f64::NAN,
        };
        if i == 1 {
            continue;
        }
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
    assert!(
        models
            .iter()
            .all(|model| model["ratio_to_best"]["value"].is_null())
    );
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
    }
    let marks = |comparison: &Comparison| {
        let page = html(comparison).unwrap();
        let body = &page[page.find("<body>").unwrap()..page.find("</main>").unwrap()];
        let count = |text: &str| body.matches(text).count();
        [
            count(" *</td>"),
            count("A hollow point"),
            count("* is a mean"),
        ]
    };
    assert_eq!(marks(&comparison), [0, 0, 0]);
    comparison.models[1].breakdown.by_group[0].n_tokens = 999;
    assert_eq!(marks(&comparison), [1, 1, 1]);
}

/// Headings in order, with none left out.
#[test]
fn headings_are_in_order() {
    let page = html(&many(12)).unwrap();
    let body = &page[page.find("<body>").unwrap()..page.find("</main>").unwrap()];
    let mut last = 0;
    for (start, _) in body.match_indices("<h") {
        let Some(level) = body[start + 2..]
            .chars()
            .next()
            .and_then(|c| c.to_digit(10))
        else {
            continue;
        };
        assert!(level <= last + 1, "h{level} after h{last}");
        last = level;
    }
    assert_eq!(body.matches("<h1").count(), 1);
}

/// Writes pages to look at: `KL_PAGES=folder cargo test pages_to_look_at`.
#[test]
fn pages_to_look_at() {
    let write = |name: String, of| look_at(&name, &html(&of).unwrap());
    write("sample.html".to_owned(), sample::comparison());
    write("evil.html".to_owned(), evil());
    write("not-finite.html".to_owned(), not_finite());
    for n in [1, 2, 5, 12, 40, 100] {
        write(format!("{n}.html"), many(n));
    }
}

#[test]
fn tokens_stay_on_a_line() {
    assert_eq!(super::super::token(" a\n\tb\u{7}"), " a↵⇥b\u{fffd}");
}
