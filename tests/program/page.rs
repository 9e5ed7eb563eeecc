//! The page of `kl report`, opened in a browser as a person opens it.

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
