//! Measures the longest word that llama.cpp's pre-tokenizers can make of a text (`llm_tokenizer_bpe` in llama.cpp's
//! `llama-vocab.cpp`, `unicode_regex_split` in its `unicode.cpp`).

use crate::gguf::Gguf;

/// The pre-tokenizers of the release that Cargo.toml pins whose words llama.cpp finds with loops of its own, or that match a few characters at a time.
const WITHOUT_RECURSION: &str = "
    llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano mpt starcoder gpt-2 phi-2 jina-es
    jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jina-v1-en jina-v2-code roberta-bpe exaone4 gemma4
    granite-embed-multi-311m mmbert sarvam-moe refact command-r qwen2 deepseek-r1-qwen kormo f2llmv2 megrez qwen35
    stablelm2 olmo dbrx smaug-bpe chatglm-bpe glm4 glm5 jais smollm codeshell exaone chameleon minerva-7b trillion
    granite-docling hunyuan kimi-k2 grok-2 laguna solar-open mellum2";

/// A run of characters in a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    /// The byte of the text at which it starts.
    pub(super) start: usize,
    pub(super) n_characters: usize,
}

/// A vocabulary's way to split texts into words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Splitter {
    /// True if finding a word takes stack for each of its characters.
    recurses: bool,
    /// True if a word can hold several words of letters with single spaces between them.
    joins_words: bool,
    /// Characters whose runs take time that grows with the square of their length.
    pub(super) slow: Option<Slow>,
}

/// Characters that a pre-tokenizer is slow on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slow {
    /// White space within a line: `\s+$` tries each position anew.
    Blanks,
    /// Digits: `(?=(\d{3})+(?!\d))` looks ahead from each.
    Digits,
}

impl Splitter {
    /// The splitter of a model's vocabulary.
    pub(super) fn new(header: &Gguf) -> Self {
        // Only these split texts with expressions.
        if header.is_bpe() {
            return Self::named(header.pre_tokenizer().unwrap_or("default"));
        }
        Self {
            recurses: false,
            joins_words: false,
            slow: None,
        }
    }

    /// The splitter of a BPE with a pre-tokenizer of this name.
    fn named(pre: &str) -> Self {
        Self {
            recurses: WITHOUT_RECURSION.split_whitespace().all(|name| name != pre),
            joins_words: pre == "exaone-moe",
            slow: match pre {
                "deepseek-llm" => Some(Slow::Blanks),
                "superbpe" => Some(Slow::Digits),
                _ => None,
            },
        }
    }

    /// The longest part of a text that a match of the expressions can span, or more: white space, other characters, and
    /// white space and slashes after them. `None` if the length of words makes no difference.
    pub(super) fn longest_word(self, text: &str) -> Option<Run> {
        if !self.recurses {
            return None;
        }
        let mut longest = Run::default();
        // The white space before the word, the word, and what follows it; the first two as runs of the text.
        let (mut blanks, mut word, mut tail) = (Run::default(), Run::default(), Run::default());
        let mut last = ' ';
        let mut characters = text.char_indices().peekable();
        while let Some((at, c)) = characters.next() {
            let next = characters.peek().map_or(' ', |(_, next)| *next);
            let joins = self.joins_words && c == ' ' && is_letter(last) && is_letter(next);
            // A slash can follow a word's line breaks, and be followed by more of them.
            let in_tail = c == '/' && word.n_characters > 0 && tail.n_characters > 0;
            if (c.is_whitespace() && !joins) || in_tail {
                add(&mut tail, at);
            } else {
                if tail.n_characters > 0 || word.n_characters == 0 {
                    (blanks, word, tail) = (tail, Run::default(), Run::default());
                }
                add(&mut word, at);
            }
            last = c;
            let parts = [blanks, word, tail];
            let n_characters = parts.iter().map(|part| part.n_characters).sum();
            if n_characters > longest.n_characters {
                let first = parts.iter().max_by_key(|part| part.n_characters);
                let start = first.map_or(0, |part| part.start);
                longest = Run {
                    start,
                    n_characters,
                };
            }
        }
        Some(longest)
    }
}

impl Slow {
    /// The longest run of these characters in a text.
    pub(super) fn longest_run(self, text: &str) -> Run {
        let (mut longest, mut run) = (Run::default(), Run::default());
        for (at, c) in text.char_indices() {
            if self.is_slow(c) {
                add(&mut run, at);
            } else {
                run = Run::default();
            }
            if run.n_characters > longest.n_characters {
                longest = run;
            }
        }
        longest
    }

    /// Characters of a run that take about 10 s.
    pub(super) fn longest(self) -> usize {
        match self {
            Self::Blanks => 10_000,
            Self::Digits => 3_000,
        }
    }

    pub(super) fn in_words(self) -> &'static str {
        match self {
            Self::Blanks => "of white space in a row",
            Self::Digits => "that are digits in a row",
        }
    }

    fn is_slow(self, c: char) -> bool {
        match self {
            Self::Blanks => c.is_whitespace() && !matches!(c, '\r' | '\n'),
            Self::Digits => c.is_numeric(),
        }
    }
}

/// Adds the character at this byte to a run.
fn add(run: &mut Run, at: usize) {
    if run.n_characters == 0 {
        run.start = at;
    }
    run.n_characters += 1;
}

/// True for what an expression may take for a letter or a mark.
fn is_letter(c: char) -> bool {
    !c.is_whitespace() && !c.is_ascii_digit() && !c.is_ascii_punctuation()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn longest(pre: &str, text: &str) -> (usize, usize) {
        let run = Splitter::named(pre).longest_word(text).unwrap();
        (run.start, run.n_characters)
    }

    #[test]
    fn a_word_has_the_white_space_on_both_sides_of_it() {
        let letters = "A".repeat(60);
        assert_eq!(longest("tekken", ""), (0, 0));
        assert_eq!(
            longest("tekken", &format!("It is. {letters}\nEnd.")),
            (7, 62)
        );
        // The start of what is longest in it is named: here the blank lines.
        let lines = "\n".repeat(60);
        assert_eq!(
            longest("gpt-4o", &format!("It is.{lines}The end.")),
            (6, 64)
        );
        assert_eq!(longest("default", &"я ".repeat(60)).1, 3);
        // Slashes can follow line breaks, and line breaks them.
        assert_eq!(
            longest("gpt-4o", &format!("!{}", "\n/".repeat(60))),
            (1, 121)
        );
        assert_eq!(longest("gpt-4o", &format!("a {}", "/".repeat(60))).1, 62);
        assert_eq!(longest("gpt-4o", &"/".repeat(60)), (0, 60));
    }

    #[test]
    fn words_with_single_spaces_are_one_where_the_expression_joins_them() {
        let text = "so it is  and so on, and so on";
        assert_eq!(longest("tekken", text), (10, 6));
        assert_eq!(longest("exaone-moe", text), (10, 13));
    }

    #[test]
    fn words_make_no_difference_without_recursion() {
        assert_eq!(Splitter::named("qwen2").longest_word("AAA"), None);
        assert_eq!(Splitter::named("tekken").slow, None);
    }

    #[test]
    fn slow_runs_are_found() {
        let blanks = Splitter::named("deepseek-llm").slow.unwrap();
        let expected = Run {
            start: 4,
            n_characters: 5,
        };
        assert_eq!(blanks.longest_run("a  \n    \t1 1"), expected);
        let digits = Splitter::named("superbpe").slow.unwrap();
        assert_eq!(digits.longest_run("12 345 6").n_characters, 3);
    }
}
