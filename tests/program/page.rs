//! The pages, opened in a browser as a person opens them.

use std::path::Path;
use std::process::Command;

use crate::session::Session;

const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// A browser that answers to `--version`.
fn browser() -> Option<&'static str> {
    let answers = |browser: &&str| {
        let output = Command::new(browser).arg("--version").output();
        output.is_ok_and(|output| output.status.success())
    };
    BROWSERS.into_iter().find(answers)
}

/// The document after its scripts have run, and what the page wrote to the console.
fn open(browser: &str, page: &Path) -> (String, Vec<String>) {
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ])
        .args([
            "--enable-logging=stderr",
            "--v=0",
            "--virtual-time-budget=20000",
        ])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg("--dump-dom")
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    let console = String::from_utf8_lossy(&output.stderr)
        .lines()
        .filter(|line| line.contains(":CONSOLE"))
        .map(str::to_owned)
        .collect();
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        console,
    )
}

#[test]
fn a_browser_draws_the_page() {
    let Some(browser) = browser() else {
        eprintln!("skipped: none of {BROWSERS:?} is installed");
        return;
    };
    let session = Session::new();
    session.reference("");
    session.ok("-m @f16 -m @q8 -m @q4 -m @q2 -r ref.gz -q");
    session.ok("report . --html page.html -q");
    let (document, console) = open(browser, &session.path("page.html"));
    assert_eq!(console, Vec::<String>::new());

    for model in ["tiny-f16", "tiny-q8_0", "tiny-q4_K_M", "tiny-q2_K"] {
        let row = format!(r#"<th scope="row">{model}</th>"#);
        assert!(document.contains(&row), "no row of {model}");
    }
    let charts: Vec<&str> = document.split(r#"<div class="chart"#).skip(1).collect();
    assert!(charts.len() >= 6, "{} charts", charts.len());
    for chart in charts {
        let end = chart.find("</figure>").unwrap_or(chart.len());
        let name = &chart[..chart.len().min(60)];
        assert!(chart[..end].contains("<svg"), "no drawing in {name}");
        assert!(chart[..end].contains("<path"), "nothing drawn in {name}");
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

/// The charts of a document: at least so many marks are drawn in each.
#[track_caller]
fn check_drawn(document: &str, n_least: &[usize]) {
    let charts: Vec<&str> = document.split(r#"<div class="chart"#).skip(1).collect();
    assert_eq!(charts.len(), n_least.len());
    for (chart, &n_least) in charts.iter().zip(n_least) {
        let end = chart.find("</figure>").unwrap_or(chart.len());
        let drawn = chart[..end].matches("<path aria-label=").count();
        let name = &chart[..chart.len().min(60)];
        assert!(drawn >= n_least, "{drawn} marks in {name}");
    }
}

#[test]
fn a_browser_draws_a_map_and_a_recipe() {
    let Some(browser) = browser() else {
        eprintln!("skipped: none of {BROWSERS:?} is installed");
        return;
    };
    let session = Session::new();
    session.ok("sensitivity -m @f16 -t @eval -w map.jsonl -c 64 -n 500 --html map.html -q");
    let path = session.path("map.html");
    let page = std::fs::read_to_string(&path).unwrap();
    let (start, end) = page.rsplit_once("</body>").unwrap();
    std::fs::write(&path, format!("{start}{CHOOSE_EACH}</body>{end}")).unwrap();
    let (document, console) = open(browser, &path);
    assert_eq!(console, Vec::<String>::new());
    for measure in ["kld", "relative"] {
        for kind in ["q8_0", "q3_K", "q2_K"] {
            let found = format!("{kind} {measure}: 22 cells, true steps;");
            assert!(document.contains(&found), "no {found}");
        }
    }
    // The tensors; the layers.
    check_drawn(&document, &[22, 3]);

    session.reference("");
    session.ok("-m @q4 -m @q2 -r ref.gz -q");
    session.ok("report . --json report.json -q");
    session.ok("recipe map.jsonl --bpw 4.5 --html recipe.html --report report.json -q");
    let (document, console) = open(browser, &session.path("recipe.html"));
    assert_eq!(console, Vec::<String>::new());
    // The recipe, two quants and the sizes; the tensors.
    check_drawn(&document, &[13, 22]);
    assert!(document.contains(">tiny-q4_K_M<") && document.contains(">recipe<"));
    assert!(document.contains(r#"id="types-key"><li>"#));
    session.fails(
        "recipe map.jsonl --bpw 4.5 --html other.html --report map.jsonl -q",
        1,
        &["map.jsonl", "kl report --json"],
    );
}

#[test]
fn a_page_replaces_an_earlier_one_but_nothing_else() {
    let session = Session::new();
    session.reference("");
    session.ok("-m @q4 -r ref.gz -q");
    session.ok("report . --html page.html -q");
    session.ok("report . --html page.html -q");
    session.write("notes.html", "<!doctype html>\n<p>My notes");
    session.fails(
        "report . --html notes.html -q",
        1,
        &["notes.html", "exists"],
    );
}

/// A page of chat answers has their curves, their spans, and what is accepted of drafts.
#[test]
fn a_browser_draws_answers_and_spans() {
    let session = Session::new();
    session.ok(
        "-m @f16 --prompts @prompts --generate 40 --no-chat-template --span she=She... -w ref.gz -q",
    );
    session.ok("-m @q8 -m @q4 -m @q2 -r ref.gz -q");
    let report = session.ok("report . --html page.html --json report.json -q --full");
    report.prints(&[
        "By span, and how many times as far as tiny-q8_0, the best",
        "Greedy answers that are the original's to the end or the cut at 40 tokens",
        "Tokens that the quant drafts and the original accepts",
    ]);
    let json = session.read_json("report.json");
    let csv = session.ok("report . --csv - -q").stdout;
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let titles = lines.next().unwrap();
    for (line, model) in lines.zip(json["models"].as_array().unwrap()) {
        let cell = |title: &str| {
            let column = titles.iter().position(|of| *of == title).unwrap();
            line[column].parse::<f64>().ok()
        };
        let number = |key: &str| model.pointer(key).unwrap().as_f64();
        for (title, key) in [
            ("acceptance", "/acceptance/mean/value"),
            ("acceptance_hi", "/acceptance/mean/hi"),
            ("accepted_of_3", "/acceptance/drafted/2/accepted/value"),
            ("same_to_the_end", "/identical_output/same_to_the_end/value"),
            ("half_differ_within", "/identical_output/half_differ_within"),
            ("greedy_answers", "/identical_output/n_answers"),
        ] {
            assert_eq!(cell(title), number(key), "{title}");
        }
    }
    let Some(browser) = browser() else {
        eprintln!("skipped: none of {BROWSERS:?} is installed");
        return;
    };
    let (document, console) = open(browser, &session.path("page.html"));
    assert_eq!(console, Vec::<String>::new());
    for name in ["identical", "drafts", "drafted", "spans"] {
        let start = format!(r#"data-chart="{name}""#);
        let (_, chart) = document.split_once(&start).unwrap();
        let end = chart.find("</figure>").unwrap_or(chart.len());
        let drawn = chart[..end].matches("<path aria-label=").count();
        assert!(drawn >= 3, "{drawn} marks in {name}");
    }
}
