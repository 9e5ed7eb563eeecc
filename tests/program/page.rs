//! The pages, opened in a browser as a person opens them.

use std::path::Path;
use std::process::Command;

use crate::session::{Session, can_run};

const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// A page opened in a browser: the document after its scripts have run, and each of its charts.
struct Opened {
    document: String,
    charts: Vec<String>,
}

/// The number of marks that are drawn in a chart.
fn n_drawn(chart: &str) -> usize {
    chart.matches("<path aria-label=").count()
}

/// Opens a page, which has to write nothing to the console; `None` if no browser is installed.
fn open(page: &Path) -> Option<Opened> {
    let mut browsers = BROWSERS.into_iter();
    let browser = browsers.find(|browser| can_run(browser, &["--version"]))?;
    let profile = tempfile::tempdir().unwrap();
    let flags = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
                 --enable-logging=stderr --v=0 --virtual-time-budget=20000 --dump-dom";
    let output = Command::new(browser)
        .args(flags.split_whitespace())
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let console = errors.lines().filter(|line| line.contains(":CONSOLE"));
    assert_eq!(Vec::from_iter(console), [""; 0]);
    let document = String::from_utf8_lossy(&output.stdout).into_owned();
    let charts = document.split(r#"<div class="chart"#).skip(1);
    let charts = charts.map(|chart| chart.split("</figure>").next().unwrap().to_owned());
    let charts = charts.collect();
    Some(Opened { document, charts })
}

#[test]
fn a_browser_draws_the_page() {
    let session = Session::with_reference("");
    session.ok("-m @f16 -m @q8 -m @q4 -m @q2 -r ref.gz -q");
    session.ok("report . --html page.html -q");
    // A page replaces an earlier one but nothing else.
    session.ok("report . --html page.html -q");
    session.write("notes.html", "<!doctype html>\n<p>My notes");
    let notes = "report . --html notes.html -q";
    session.fails(notes, 1, &["notes.html", "exists"]);
    let Some(Opened { document, charts }) = open(&session.path("page.html")) else {
        return;
    };
    for model in ["tiny-f16", "tiny-q8_0", "tiny-q4_K_M", "tiny-q2_K"] {
        let row = format!(r#"<th scope="row">{model}</th>"#);
        assert!(document.contains(&row), "no row of {model}");
    }
    assert!(charts.len() >= 6, "{} charts", charts.len());
    for chart in charts {
        let is_drawn = chart.contains("<svg") && chart.contains("<path");
        assert!(is_drawn, "{chart}");
    }
}

/// A script that chooses each type and each measure of a heat map, and writes what it finds below the page.
const CHOOSE_EACH: &str = r##"<script>
drawn.then(async () => {
    const found = document.createElement("pre");
    for (const measure of ["relative", "kld"]) {
        for (const type of [...typeBox.options].reverse()) {
            [typeBox.value, measureBox.value] = [type.value, measure];
            typeBox.dispatchEvent(new Event("change"));
            await views.get("heat").runAsync();
            const cells = views.get("heat").data("cells");
            const steps = document.querySelectorAll("#heat-key li").length;
            found.append(`${type.text} ${measure}: ${cells.length} cells, ${steps > 1} steps;`);
        }
    }
    document.body.append(found);
});
</script>"##;

#[test]
fn a_browser_draws_a_map_and_a_recipe() {
    let session = Session::with_reference("");
    session.ok("sensitivity -m @f16 -t @eval -w map.jsonl -c 64 -n 500 --html map.html -q");
    session.ok("-m @q4 -m @q2 -r ref.gz -q");
    session.ok("report . --json report.json -q");
    let recipe = "recipe map.jsonl --bpw 4.5 -q --html";
    session.ok(&format!("{recipe} recipe.html --report report.json"));
    let no_report = format!("{recipe} other.html --report map.jsonl");
    session.fails(&no_report, 1, &["map.jsonl", "kl report --json"]);

    let path = session.path("map.html");
    let page = session.read_text("map.html");
    let (start, end) = page.rsplit_once("</body>").unwrap();
    session.write("map.html", format!("{start}{CHOOSE_EACH}</body>{end}"));
    let is_drawn = |charts: &[String], least: [usize; 2]| {
        let drawn: Vec<usize> = charts.iter().map(|chart| n_drawn(chart)).collect();
        let is_enough = drawn.len() == 2 && drawn[0] >= least[0] && drawn[1] >= least[1];
        assert!(is_enough, "{drawn:?} marks");
    };
    let Some(Opened { document, charts }) = open(&path) else {
        return;
    };
    for measure in ["kld", "relative"] {
        for kind in ["q8_0", "q3_K", "q2_K"] {
            let found = format!("{kind} {measure}: 22 cells, true steps;");
            assert!(document.contains(&found), "no {found}");
        }
    }
    // The tensors; the layers.
    is_drawn(&charts, [22, 3]);
    let Opened { document, charts } = open(&session.path("recipe.html")).unwrap();
    // The recipe, two quants and the sizes; the tensors.
    is_drawn(&charts, [13, 22]);
    assert!(document.contains(">tiny-q4_K_M<") && document.contains(">recipe<"));
    assert!(document.contains(r#"id="types-key"><li>"#));
}

/// A page of chat answers has their curves, their spans, and what is accepted of drafts.
#[test]
fn a_browser_draws_answers_and_spans() {
    let session = Session::new();
    let answers = "--prompts @prompts --generate 40 --no-chat-template --span she=She...";
    session.ok(&format!("-m @f16 {answers} -w ref.gz -q"));
    session.ok("-m @q8 -m @q4 -m @q2 -r ref.gz -q");
    let report = session.ok("report . --html page.html -q --full");
    report.prints(&[
        "By span, and how many times as far as tiny-q8_0, the best",
        "Greedy answers that are the original's to the end or the cut at 40 tokens",
        "Tokens that the quant drafts and the original accepts",
    ]);
    let Some(Opened { charts, .. }) = open(&session.path("page.html")) else {
        return;
    };
    for name in ["identical", "drafts", "drafted", "spans"] {
        let start = format!(r#"data-chart="{name}""#);
        let chart = charts.iter().find(|chart| chart.contains(&start)).unwrap();
        assert!(n_drawn(chart) >= 3, "{name}: {chart}");
    }
}
