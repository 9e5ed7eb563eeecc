//! A template's source as minijinja reads it.

use super::generation_tags;

/// The source with jinja2's line ends, and with marks in place of the tags that minijinja lacks.
pub(super) fn for_minijinja(source: &str) -> String {
    // jinja2 normalises line ends as well.
    generation_tags::with_marks(&source.replace("\r\n", "\n"))
}
