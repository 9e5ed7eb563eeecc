//! Words of commands that a user may copy into a POSIX shell.

use std::path::Path;

/// The name of a file as an argument of a program: one that begins with a dash would be a flag.
pub fn argument(name: &str) -> String {
    if name.starts_with('-') {
        return format!("./{name}");
    }
    name.to_owned()
}

/// A word for a POSIX shell, in quotes if it needs them.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The name of a file in a command: an [`argument`], [`quoted`].
pub fn file(path: impl AsRef<Path>) -> String {
    quoted(&argument(&path.as_ref().to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_are_words_of_a_shell_and_no_flags() {
        for (name, expected) in [
            ("a-b_1.gguf", "a-b_1.gguf"),
            ("/models/q4.gguf", "/models/q4.gguf"),
            ("my model.gguf", "'my model.gguf'"),
            ("it's f16.gguf", r"'it'\''s f16.gguf'"),
            ("say \"hi\"", "'say \"hi\"'"),
            ("$HOME/i.gguf", "'$HOME/i.gguf'"),
            ("a;b&c|d>e`f`\\g", r"'a;b&c|d>e`f`\g'"),
            ("~/m.gguf", "'~/m.gguf'"),
            ("*.gguf", "'*.gguf'"),
            ("-rf", "./-rf"),
            ("-a b", "'./-a b'"),
            ("größe.gguf", "'größe.gguf'"),
            ("", "''"),
        ] {
            assert_eq!(file(name), expected);
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_shell_reads_the_name_back() {
        for name in ["it's $HOME", "-n", "a\nb", "\\ \"x\" `y` *", "~"] {
            let script = format!("printf %s {}", file(name));
            let ran = std::process::Command::new("sh")
                .args(["-c", &script])
                .output();
            assert_eq!(
                String::from_utf8(ran.unwrap().stdout).unwrap(),
                argument(name)
            );
        }
    }
}
