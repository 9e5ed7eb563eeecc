//! A template's source as minijinja reads it.

/// The source with jinja2's line ends, and without the tags that minijinja lacks.
pub(super) fn for_minijinja(source: &str) -> String {
    // jinja2 normalises line ends as well.
    without_generation_blocks(&source.replace("\r\n", "\n"))
}

/// Replaces `{% generation %}`, by which transformers marks the assistant's words for training, by
/// plain blocks.
fn without_generation_blocks(source: &str) -> String {
    let mut source = source.to_owned();
    for (tag, plain) in [("generation", "if true"), ("endgeneration", "endif")] {
        for (open, close) in [("{%", "%}"), ("{%-", "%}"), ("{%", "-%}"), ("{%-", "-%}")] {
            let [tag, plain] = [tag, plain].map(|name| format!("{open} {name} {close}"));
            source = source.replace(&tag, &plain);
        }
    }
    source
}
