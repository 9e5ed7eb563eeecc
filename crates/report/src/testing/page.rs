//! Checks of pages.

use serde_json::Value;

/// Text that would end a script, an attribute or a comment if it were not escaped.
pub const EVIL: &str = "</script><script>alert(1)</script>\"'&<!--";

/// Checks that a page that has [`EVIL`] wherever a file can put text is built as a plain one.
#[track_caller]
pub fn check_escaped(page: &str, plain: &str) {
    assert!(!page.contains("<script>alert") && !page.contains(r#""'&<"#));
    for part in ["<script", "</script", "<!--"] {
        let n = [page, plain].map(|page| page.matches(part).count());
        assert_eq!(n[0], n[1], "{part}");
    }
}

/// What a page shows.
pub fn body(page: &str) -> &str {
    &page[page.find("<body>").unwrap()..page.find("</main>").unwrap()]
}

/// The JSON in a script element of a page.
pub fn embedded(page: &str) -> Value {
    let start = r#"<script type="application/json" id="data">"#;
    let (_, rest) = page.split_once(start).unwrap();
    let (json, _) = rest.split_once("</script>").unwrap();
    serde_json::from_str(json).unwrap()
}
