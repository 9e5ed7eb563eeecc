//! A template's source as minijinja reads it: what it lacks, or does in another way than jinja2, is written
//! as something that it has.
//!
//! - A line is ended by `\n`, as jinja2 normalises it.
//! - `{% generation %}`, by which transformers marks the assistant's words for training, prints marks
//!   (`generation_tags`).
//! - A line break after `{% raw %}` stays: minijinja drops one, so there is another before it.
//! - `a ~ b` joins the texts of both in Python's form: minijinja's own has other floats.
//! - `a[b:c:d]` is a call of `python_slice`: minijinja counts backwards in another way.
//! - `'..' % a` is a call of `python_format`: minijinja's `%` is for numbers alone.
//!
//! All else stays as it is, to the byte, so that lines keep their numbers.

mod operators;
mod tokens;

use operators::rewritten;
use tokens::tokens;

use super::generation_tags;

/// The source for minijinja.
pub(super) fn for_minijinja(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = generation_tags::with_marks(&source);
    let (mut written, mut rest) = (String::with_capacity(source.len()), &*source);
    while let Some(at) = start_of_tag(rest) {
        let (text, tag) = rest.split_at(at);
        written.push_str(text);
        rest = add_tag(&mut written, tag);
    }
    written + rest
}

/// The position of a text's first tag.
fn start_of_tag(text: &str) -> Option<usize> {
    let mut braces = text.match_indices('{').map(|(at, _)| at);
    let opens_tag = |at: &usize| {
        text.get(at + 1..)
            .is_some_and(|rest| rest.starts_with(['{', '%', '#']))
    };
    braces.find(opens_tag)
}

/// Adds the tag with which `rest` begins, for minijinja, and a raw block with it. Returns what follows; a
/// tag without an end is all of it.
fn add_tag<'s>(written: &mut String, rest: &'s str) -> &'s str {
    let (opening, code) = rest.split_at(2);
    if opening == "{#" {
        let n_bytes = code.find("#}").map_or(rest.len(), |at| at + 4);
        let (comment, rest) = rest.split_at(n_bytes);
        written.push_str(comment);
        return rest;
    }
    let closing = if opening == "{{" { "}}" } else { "%}" };
    let Some((tokens, rest_of_source)) = tokens(code, closing) else {
        written.push_str(rest);
        return "";
    };
    let (tag, _) = rest.split_at(rest.len() - rest_of_source.len());
    let names: Vec<&str> = tokens
        .iter()
        .map(|token| token.text)
        .filter(|text| !["-", "+"].contains(text))
        .collect();
    match (opening, &*names) {
        ("{%", ["raw"]) => {
            written.push_str(tag);
            if !tag.ends_with("-%}") {
                written.push('\n');
            }
            let (body, rest) = rest_of_source.split_at(end_of_raw(rest_of_source));
            written.push_str(body);
            rest
        }
        _ => {
            written.push_str(opening);
            let (code, _) = code.split_at(code.len() - rest_of_source.len());
            written.push_str(&rewritten(&tokens, code, opening == "{%"));
            rest_of_source
        }
    }
}

/// The number of bytes before the tag that ends a raw block; all without one.
fn end_of_raw(source: &str) -> usize {
    let mut tags = source.match_indices("{%").map(|(at, _)| at);
    let is_end = |at: &usize| {
        let code = source.get(at + 2..).unwrap_or_default();
        let name = code
            .trim_start_matches(['-', '+'])
            .trim_start()
            .strip_prefix("endraw");
        name.is_some_and(|rest| {
            rest.trim_start()
                .trim_start_matches(['-', '+'])
                .starts_with("%}")
        })
    };
    tags.find(is_end).unwrap_or(source.len())
}
