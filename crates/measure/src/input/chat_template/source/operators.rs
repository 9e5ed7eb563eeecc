//! Operators that minijinja has in another way than Python, written as filters (`python`).

use super::tokens::{Kind, Token};

/// Names that are no operand, and end one. So does a statement's name.
const KEYWORDS: [&str; 8] = ["and", "or", "not", "in", "is", "if", "else", "recursive"];

/// The code of a tag, up to its end, with these operators as filters. A statement begins with its name.
pub fn rewritten(tokens: &[Token<'_>], code: &str, is_statement: bool) -> String {
    if !tokens
        .iter()
        .any(|token| ["~", "%", "["].contains(&token.text))
    {
        return code.to_owned();
    }
    let n = tokens.len();
    let mut rewriting = Rewriting {
        tokens,
        pairs: pairs(tokens),
        in_tests: in_tests(tokens),
        statement: tokens
            .iter()
            .position(|token| token.kind == Kind::Name)
            .filter(|_| is_statement),
        before: vec![0; n],
        replaced: vec![None; n],
        after: vec![String::new(); n],
    };
    for at in 0..n {
        match rewriting.text(at) {
            "~" => rewriting.concatenate(at),
            "%" => rewriting.format(at),
            "[" => rewriting.slice(at),
            _ => {}
        }
    }
    rewriting.code(code)
}

/// A tag's tokens, and the texts to write in place of some of them and around them.
struct Rewriting<'t> {
    tokens: &'t [Token<'t>],
    /// For each bracket the position of the other one.
    pairs: Vec<Option<usize>>,
    /// True for the words of a test, such as `is not none`.
    in_tests: Vec<bool>,
    /// The position of a statement's name.
    statement: Option<usize>,
    /// The number of brackets to open before each token.
    before: Vec<usize>,
    replaced: Vec<Option<String>>,
    after: Vec<String>,
}

impl Rewriting<'_> {
    fn text(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |token| token.text)
    }

    /// The code with what is to be written.
    fn code(&self, code: &str) -> String {
        let (mut written, mut end) = (String::new(), 0);
        for (at, token) in self.tokens.iter().enumerate() {
            written.push_str(code.get(end..token.start).unwrap_or_default());
            written.push_str(&"(".repeat(self.before.get(at).copied().unwrap_or(0)));
            let replaced = self.replaced.get(at).and_then(Option::as_deref);
            written.push_str(replaced.unwrap_or(token.text));
            written.push_str(self.after.get(at).map_or("", String::as_str));
            end = token.start + token.text.len();
        }
        written.push_str(code.get(end..).unwrap_or_default());
        written
    }

    /// `a ~ b`: both are made strings.
    fn concatenate(&mut self, at: usize) {
        let is_first = !self.is_after_tilde(at);
        if is_first && let Some(start) = self.start_of_product(at) {
            self.wrap(start, at - 1, ")|string");
        }
        if let Some(end) = self.end_of_product(at) {
            self.wrap(at + 1, end, ")|string");
        }
    }

    /// `'..' % a`: what is before and after it is formatted, if either has the form of a formatting.
    fn format(&mut self, at: usize) {
        let (Some(start), Some(end)) = (self.start_of_product(at), self.end_of_factor(at)) else {
            return;
        };
        let is_string = |token: &Token<'_>| token.text.starts_with(['"', '\'']);
        let begins_with_string = self.tokens.get(start).is_some_and(is_string);
        if begins_with_string || self.text(start) == "(" || self.text(at + 1) == "(" {
            if let Some(before) = self.before.get_mut(start) {
                *before += 1;
            }
            self.replace(at, ")|python_format(");
            self.close(end, ")");
        }
    }

    /// `a[b:c:d]`: the three numbers are arguments.
    fn slice(&mut self, at: usize) {
        let Some(close) = self.pairs.get(at).copied().flatten() else {
            return;
        };
        let mut colons = Vec::new();
        let mut inner = at + 1;
        while inner < close {
            if self.text(inner) == ":" {
                colons.push(inner);
            }
            inner = self
                .pairs
                .get(inner)
                .copied()
                .flatten()
                .map_or(inner, |other| other.max(inner))
                + 1;
        }
        let (&[first, second], Some(start)) = (&*colons, self.start_of_primary(at)) else {
            return;
        };
        if let Some(before) = self.before.get_mut(start) {
            *before += 1;
        }
        let missing = |from: usize, to: usize| if from + 1 == to { "none" } else { "" };
        self.replace(at, &format!("|python_slice({}", missing(at, first)));
        self.replace(first, &format!(",{}", missing(first, second)));
        self.replace(second, &format!(",{}", missing(second, close)));
        self.replace(close, "))");
    }

    fn wrap(&mut self, start: usize, end: usize, closing: &str) {
        if let Some(before) = self.before.get_mut(start) {
            *before += 1;
        }
        self.close(end, closing);
    }

    fn close(&mut self, at: usize, closing: &str) {
        if let Some(after) = self.after.get_mut(at) {
            after.push_str(closing);
        }
    }

    fn replace(&mut self, at: usize, text: &str) {
        if let Some(replaced) = self.replaced.get_mut(at) {
            *replaced = Some(text.to_owned());
        }
    }

    /// True if there is a `~` before the operand that is before this one.
    fn is_after_tilde(&self, at: usize) -> bool {
        let start = self.start_of_product(at);
        start
            .and_then(|start| start.checked_sub(1))
            .is_some_and(|before| self.text(before) == "~")
    }

    /// The first token of the operand before an operator: factors and what multiplies them.
    fn start_of_product(&self, at: usize) -> Option<usize> {
        let mut start = at;
        while let Some(before) = start.checked_sub(1) {
            match self.pairs.get(before).copied().flatten() {
                Some(open) if open < before => start = open,
                // It opens what the operand is in.
                Some(_) => break,
                None if self.ends_product(before) => break,
                None => start = before,
            }
        }
        (start < at).then_some(start)
    }

    /// The last token of the operand after an operator.
    fn end_of_product(&self, at: usize) -> Option<usize> {
        self.end_of_operand(at, |end| self.ends_product(end))
    }

    /// The last token of the factor after an operator.
    fn end_of_factor(&self, at: usize) -> Option<usize> {
        let multiplies = |end: usize| ["*", "/", "//", "%"].contains(&self.text(end));
        self.end_of_operand(at, |end| self.ends_product(end) || multiplies(end))
    }

    fn end_of_operand(&self, at: usize, is_end: impl Fn(usize) -> bool) -> Option<usize> {
        let mut end = at;
        while end + 1 < self.tokens.len() {
            match self.pairs.get(end + 1).copied().flatten() {
                Some(close) if close > end + 1 => end = close,
                Some(_) => break,
                None if is_end(end + 1) => break,
                None => end += 1,
            }
        }
        (end > at).then_some(end)
    }

    /// True if the token is no part of a product: an operator that binds less, or a keyword.
    fn ends_product(&self, at: usize) -> bool {
        let Some(token) = self.tokens.get(at) else {
            return true;
        };
        match token.kind {
            Kind::Literal => false,
            Kind::Name => self.is_keyword(at) && !self.in_tests.get(at).is_some_and(|is_in| *is_in),
            Kind::Operator => match token.text {
                "-" | "+" => self.is_binary(at) || self.closes_tag(at),
                "|" | "." | "*" | "**" | "/" | "//" | "%" => false,
                _ => true,
            },
        }
    }

    /// True if a sign follows an operand.
    fn is_binary(&self, at: usize) -> bool {
        at.checked_sub(1)
            .is_some_and(|before| self.is_operand_end(before))
            || at == 0
    }

    /// True for the sign of `-%}`.
    fn closes_tag(&self, at: usize) -> bool {
        at + 1 == self.tokens.len()
    }

    /// True if an operand may end with this token.
    fn is_operand_end(&self, at: usize) -> bool {
        self.tokens.get(at).is_some_and(|token| match token.kind {
            Kind::Literal => true,
            Kind::Name => !self.is_keyword(at),
            Kind::Operator => [")", "]", "}"].contains(&token.text),
        })
    }

    fn is_keyword(&self, at: usize) -> bool {
        let is_word = KEYWORDS.contains(&self.text(at)) || self.statement == Some(at);
        is_word && !self.is_attribute(at)
    }

    /// True if the token follows a point, as in `a.in`.
    fn is_attribute(&self, at: usize) -> bool {
        at.checked_sub(1)
            .is_some_and(|before| self.text(before) == ".")
    }

    /// The first token of what the bracket at `at` is a subscript of; `None` if it opens a list.
    fn start_of_primary(&self, at: usize) -> Option<usize> {
        let mut last = at
            .checked_sub(1)
            .filter(|&before| self.is_operand_end(before))?;
        loop {
            if let Some(open) = self.pairs.get(last).copied().flatten() {
                match open
                    .checked_sub(1)
                    .filter(|&before| self.is_operand_end(before))
                {
                    Some(before) => last = before,
                    None => return Some(open),
                }
            } else if self.is_attribute(last) {
                last = last
                    .checked_sub(2)
                    .filter(|&before| self.is_operand_end(before))?;
            } else {
                let follows_pipe = last
                    .checked_sub(1)
                    .is_some_and(|before| self.text(before) == "|");
                return (!follows_pipe).then_some(last);
            }
        }
    }
}

/// For each bracket the position of the other one.
fn pairs(tokens: &[Token<'_>]) -> Vec<Option<usize>> {
    let (mut pairs, mut open) = (vec![None; tokens.len()], Vec::new());
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "(" | "[" | "{" => open.push(at),
            ")" | "]" | "}" => {
                if let Some(other) = open.pop() {
                    for (one, other) in [(at, other), (other, at)] {
                        if let Some(pair) = pairs.get_mut(one) {
                            *pair = Some(other);
                        }
                    }
                }
            }
            _ => {}
        }
    }
    pairs
}

/// True for each word of a test: `is`, `not` and the test's name.
fn in_tests(tokens: &[Token<'_>]) -> Vec<bool> {
    let mut words = vec![false; tokens.len()];
    let text = |at: usize| tokens.get(at).map_or("", |token: &Token<'_>| token.text);
    for at in 0..tokens.len() {
        if text(at) == "is" && text(at.wrapping_sub(1)) != "." {
            let n_words = if text(at + 1) == "not" { 3 } else { 2 };
            words
                .iter_mut()
                .skip(at)
                .take(n_words)
                .for_each(|word| *word = true);
        }
    }
    words
}
