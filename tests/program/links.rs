//! The docs' links: every file and every heading that one of them names is there.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Folders whose pages are checked.
const FOLDERS: [&str; 6] = [".", "docs", "formats", "fixtures", "fuzz", "benches"];

/// The anchor that GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let mut anchor = heading.trim().to_lowercase().replace(' ', "-");
    anchor.retain(|c| c.is_alphanumeric() || "-_".contains(c));
    anchor
}

/// A page's lines that are not code between fences.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    page.lines().filter(move |line| {
        let fence = line.starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

fn anchors(page: &Path) -> BTreeSet<String> {
    let page = fs::read_to_string(page).unwrap();
    let headings = prose(&page).filter(|line| line.starts_with('#'));
    let anchors = headings.map(|line| anchor(line.trim_start_matches('#')));
    anchors.collect()
}

/// The targets of the links in a page, but not those to other sites.
fn targets(page: &str) -> Vec<String> {
    let text = prose(page).collect::<Vec<_>>().join("\n");
    let links = text.split("](").skip(1);
    let targets = links.filter_map(|rest| rest.split([')', ' ']).next());
    let targets = targets.filter(|target| !target.contains("://"));
    targets.map(str::to_owned).collect()
}

#[test]
fn every_link_in_the_docs_leads_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut broken = Vec::new();
    for folder in FOLDERS {
        let folder = root.join(folder);
        let entries = fs::read_dir(&folder).unwrap();
        let pages = entries.map(|entry| entry.unwrap().path());
        for page in pages.filter(|path| path.extension().is_some_and(|end| end == "md")) {
            for target in targets(&fs::read_to_string(&page).unwrap()) {
                let (file, heading) = target.split_once('#').unwrap_or((&target, ""));
                let file = if file.is_empty() {
                    page.clone()
                } else {
                    folder.join(file)
                };
                let has_heading = || heading.is_empty() || anchors(&file).contains(heading);
                if !file.exists() || !has_heading() {
                    broken.push(format!("{}: {target}", page.display()));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
