//! A recipe as llama.cpp's quantizer takes it: a file of types, and the whole command.

use std::fmt::Write;

use kl_formats::{GgmlType, Mixture};

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

/// A command that writes a recipe with `llama-quantize`.
#[derive(Clone, Copy, Debug)]
pub struct QuantizeCommand<'c> {
    /// The original.
    pub input: &'c str,
    pub output: &'c str,
    /// The file that [`tensor_type_file`] returns.
    pub types: &'c str,
    pub mixture: &'c Mixture,
    pub imatrix: Option<&'c str>,
    /// True if tensors of the original are quantized already.
    pub is_requantized: bool,
    /// The file type by its name, such as `Q4_K_M`, which the file is marked with.
    pub file_type: &'c str,
    /// All cores if there is none.
    pub threads: Option<u32>,
}

const OUTPUT: &str = "output.weight";
const EMBEDDING: &str = "token_embd.weight";

/// A second table of embeddings, which versions of llama.cpp give the first one's type.
const LAYERS_EMBEDDING: &str = "per_layer_token_embd.weight";

impl QuantizeCommand<'_> {
    /// The words of the command, unquoted.
    pub fn words(&self) -> Vec<String> {
        let kind = |name: &str| self.mixture.get(name).copied();
        // Without the flag the file counts.
        let embedding = kind(EMBEDDING)
            .filter(|embedding| kind(LAYERS_EMBEDDING).is_none_or(|kind| kind == *embedding));
        let name = |kind: GgmlType| kind.name.to_owned();
        let threads = self.threads.map(|n| n.to_string());
        let flags = [
            ("--imatrix", self.imatrix.map(str::to_owned)),
            ("--tensor-type-file", Some(self.types.to_owned())),
            ("--output-tensor-type", kind(OUTPUT).map(name)),
            ("--token-embedding-type", embedding.map(name)),
        ];
        let mut words = vec!["llama-quantize".to_owned()];
        words.extend(self.is_requantized.then(|| "--allow-requantize".to_owned()));
        for (flag, value) in flags {
            words.extend(value.into_iter().flat_map(|value| [flag.to_owned(), value]));
        }
        words.extend([self.input, self.output, self.file_type].map(str::to_owned));
        words.extend(threads);
        words
    }

    /// The command as a line for a shell.
    pub fn line(&self) -> String {
        let words: Vec<String> = self.words().iter().map(|word| quoted(word)).collect();
        words.join(" ")
    }
}

/// A word for a POSIX shell.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    let mut quoted = String::from("'");
    for c in word.chars() {
        let _ = match c {
            '\'' => quoted.write_str(r"'\''"),
            c => quoted.write_char(c),
        };
    }
    quoted + "'"
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
        let of = mixture(&[
            ("output.weight", "q6_K"),
            ("token_embd.weight", "q4_0"),
            ("per_layer_token_embd.weight", "q8_0"),
        ]);
        let mut command = QuantizeCommand {
            input: "it's f16.gguf",
            output: "out.gguf",
            types: "recipe.txt",
            mixture: &of,
            imatrix: Some("$HOME/i.gguf"),
            is_requantized: true,
            file_type: "Q4_K_M",
            threads: Some(8),
        };
        assert_eq!(
            command.line(),
            r"llama-quantize --allow-requantize --imatrix '$HOME/i.gguf' --tensor-type-file recipe.txt --output-tensor-type q6_K 'it'\''s f16.gguf' out.gguf Q4_K_M 8"
        );
        let of = mixture(&[("token_embd.weight", "q4_0")]);
        command = QuantizeCommand {
            mixture: &of,
            imatrix: None,
            is_requantized: false,
            threads: None,
            ..command
        };
        assert_eq!(
            command.words()[1..5],
            [
                "--tensor-type-file",
                "recipe.txt",
                "--token-embedding-type",
                "q4_0"
            ]
        );
    }
}
