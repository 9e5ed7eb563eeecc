//! A recipe as llama.cpp's quantizer takes it: a file of types, and the whole command.

use kl_formats::Mixture;

/// Returns the file that `llama-quantize --tensor-type-file` takes: `regex=type`, one tensor a line,
/// and the first match counts.
///
/// llama.cpp reads words between spaces, splits each at its first `=`, and turns the regex to lower
/// case, but not the tensor's name that it is searched in. So a character that would change in that,
/// or that a regex would take for an operator, becomes `.`, which matches any; a point itself is
/// escaped. The more exact names come first.
pub fn tensor_type_file(mixture: &Mixture) -> String {
    let mut lines: Vec<(usize, String)> = mixture
        .iter()
        .map(|(name, kind)| {
            let (regex, n_any) = regex(name);
            (n_any, format!("^{regex}$={kind}\n"))
        })
        .collect();
    lines.sort_by_key(|(n_any, _)| *n_any);
    lines.into_iter().map(|(_, line)| line).collect()
}

/// A regex that matches a name, and the number of its characters that match any other too.
fn regex(name: &str) -> (String, usize) {
    let (mut regex, mut n_any) = (String::new(), 0);
    // llama.cpp's regexes go by bytes.
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b':' | b'/' | b',' => {
                regex.push(char::from(byte));
            }
            b'.' => regex.push_str("\\."),
            _ => {
                regex.push('.');
                n_any += 1;
            }
        }
    }
    (regex, n_any)
}

/// The flags by which `llama-quantize` gives the tensors their types: the file that [`tensor_type_file`]
/// returns, at the path `types`, and the flags that count more than its lines.
pub fn flags(mixture: &Mixture, types: &str) -> Vec<String> {
    let kind = |name: &str| mixture.get(name).copied();
    // Versions of llama.cpp give a second table of embeddings the first one's type; without the flag
    // the file counts.
    let of_layers = kind("per_layer_token_embd.weight");
    let of_tokens = kind("token_embd.weight");
    let embedding = of_tokens.filter(|token_kind| of_layers.is_none_or(|kind| kind == *token_kind));
    let mut flags = vec!["--tensor-type-file".to_owned(), types.to_owned()];
    for (flag, kind) in [
        ("--output-tensor-type", kind("output.weight")),
        ("--token-embedding-type", embedding),
    ] {
        flags.extend(
            kind.iter()
                .flat_map(|kind| [flag.to_owned(), kind.to_string()]),
        );
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixture(of: &[(&str, &str)]) -> Mixture {
        let of = of.iter();
        of.map(|(name, kind)| (name.to_string(), kind.parse().unwrap()))
            .collect()
    }

    #[test]
    fn a_line_matches_its_tensor_alone() {
        let of = mixture(&[
            ("blk.0.attn_q.weight", "q4_K"),
            ("blk.10.attn_q.weight", "iq4_xs"),
            ("Z+ b.weight", "q8_0"),
            ("zä=.weight", "q6_K"),
        ]);
        assert_eq!(
            tensor_type_file(&of),
            "^blk\\.0\\.attn_q\\.weight$=q4_K\n^blk\\.10\\.attn_q\\.weight$=iq4_xs\n\
             ^...b\\.weight$=q8_0\n^z...\\.weight$=q6_K\n"
        );
    }

    #[test]
    fn a_command_states_what_would_override_the_file() {
        let of = [
            ("output.weight", "q6_K"),
            ("token_embd.weight", "q4_0"),
            ("per_layer_token_embd.weight", "q8_0"),
        ];
        let line = |of: &[(&str, &str)]| flags(&mixture(of), "types").join(" ");
        let output = "--tensor-type-file types --output-tensor-type q6_K";
        assert_eq!(line(&of), output);
        let embedding = format!("{output} --token-embedding-type q4_0");
        assert_eq!(line(&of[..2]), embedding);
    }
}
