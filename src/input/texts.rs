//! Texts become windows: the tokenizer turns each into tokens, which are cut.

use anyhow::{Result, bail};
use kl_formats::{Groups, TextIdentity, hex};
use sha2::{Digest, Sha256};

use super::text::Text;
use super::{NamedText, Plan, PreparedInput, TextSource, Windowing};
use crate::engine::Model;

/// Cuts each text into windows of its own, numbered one after the other: none holds parts of two
/// texts. Each starts with an inserted BOS, where the model wants one. The windows are as many as the
/// settings allow of each text.
pub(super) fn in_windows<M: Model>(
    source: &TextSource,
    texts: Vec<Text>,
    model: &M,
    max_rows: Option<u64>,
) -> Result<PreparedInput> {
    let (windowing, bos) = (&source.windowing, model.facts().bos());
    check_stride(windowing, bos)?;
    let mut all = Plan::default();
    let (mut identities, mut groups) = (Vec::new(), Vec::new());
    for (named, text) in source.texts.iter().zip(texts) {
        let (tokens, identity) = tokenize(source, named, text, model)?;
        let plan = Plan::cut(&tokens, windowing, bos);
        if plan.n_rows() == 0 {
            bail!(
                "{}: has {} tokens, too few for a scored position: use a longer text, or lower --score",
                named.path.display(),
                tokens.len()
            );
        }
        identities.push(identity);
        let n_windows = plan.windows.len() + plan.n_unscored;
        groups.extend(std::iter::repeat_n(named.group(), n_windows));
        all.append(plan);
    }
    let plan = all.limited(max_rows);
    let text = identity(source, identities.iter());
    let has_groups = has_groups(source);
    if !has_groups {
        identities.clear();
    }
    Ok(PreparedInput {
        texts: identities,
        groups: has_groups.then(|| Groups::of_each(groups)),
        ..PreparedInput::of_text(plan, windowing, bos, text)
    })
}

/// Cuts the only text as llama-perplexity does, with one BOS before all of it: whole windows whose first
/// token the BOS replaces, where the model wants one.
pub(super) fn in_chunks<M: Model>(
    source: &TextSource,
    texts: Vec<Text>,
    model: &M,
) -> Result<PreparedInput> {
    let (windowing, bos) = (&source.windowing, model.facts().bos());
    let Some((named, text)) = source.texts.iter().zip(texts).next() else {
        bail!("there is no text to cut into chunks");
    };
    let (tokens, identity) = tokenize(source, named, text, model)?;
    let mut stream: Vec<u32> = bos.iter().chain(&tokens).copied().collect();
    let plan = Plan::chunks(&stream, windowing.n_ctx, bos);
    if plan.n_rows() == 0 {
        bail!(
            "{}: has {} tokens, too few for a whole window of {}: use a longer text, or lower --n-ctx",
            named.path.display(),
            tokens.len(),
            windowing.n_ctx
        );
    }
    let n_whole = plan.windows.len() * windowing.n_ctx as usize;
    let n_left_out = stream.len().saturating_sub(n_whole) as u64;
    stream.truncate(n_whole);
    Ok(PreparedInput {
        text_tokens: stream,
        n_left_out,
        ..PreparedInput::of_text(plan, windowing, bos, identity)
    })
}

/// Tokenizes a text, and completes what identifies it.
fn tokenize<M: Model>(
    source: &TextSource,
    named: &NamedText,
    text: Text,
    model: &M,
) -> Result<(Vec<u32>, TextIdentity)> {
    let tokens = model.tokenize(&text.text, source.parse_special)?;
    if tokens.len() < 2 {
        bail!(
            "{}: has fewer than two tokens: use a longer text",
            named.path.display()
        );
    }
    let mut identity = text.identity;
    identity.n_tokens = Some(tokens.len() as u64);
    Ok((tokens, identity))
}

/// Refuses a stride that would skip tokens.
fn check_stride(windowing: &Windowing, bos: Option<u32>) -> Result<()> {
    let longest = windowing.text_per_window(bos);
    match windowing.stride {
        Some(stride) if stride as usize > longest => bail!(
            "--stride {stride}: leaves tokens out, because a window of {} holds {longest} tokens of text{}: use at most {longest}",
            windowing.n_ctx,
            if bos.is_some() { " and a BOS" } else { "" }
        ),
        _ => Ok(()),
    }
}

fn has_groups(source: &TextSource) -> bool {
    source.texts.iter().any(|named| named.group.is_some())
}

/// The identity of all texts together. Where they have groups, it is as LOGITS.md states it: their names
/// after their groups, and the hash of their hashes and groups.
pub(super) fn identity<'t>(
    source: &TextSource,
    texts: impl Iterator<Item = &'t TextIdentity> + Clone,
) -> TextIdentity {
    let all = || source.texts.iter().zip(texts.clone());
    if !has_groups(source) {
        return texts.clone().next().cloned().unwrap_or_default();
    }
    let named = all().map(|(named, text)| {
        let name = text.name.as_deref().unwrap_or_default();
        format!("{}={name}", named.group())
    });
    let lines = all().map(|(named, text)| {
        let sha256 = text.sha256.as_deref().unwrap_or_default();
        format!("{sha256}  {}\n", named.group())
    });
    let mut identity = TextIdentity::named(named.collect::<Vec<_>>().join(", "));
    identity.sha256 = Some(hex(&Sha256::digest(lines.collect::<String>())));
    identity.bytes = texts.clone().map(|text| text.bytes).sum();
    identity.n_tokens = texts.clone().map(|text| text.n_tokens).sum();
    identity
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::engine::{Engine as _, FakeEngine, ModelOptions};
    use crate::input::{NamedText, ScoreFrom, Windowing};

    fn source(folder: &tempfile::TempDir, windowing: Windowing) -> TextSource {
        let texts = [("wiki", "a", 20), ("code", "b", 5), ("wiki", "c", 9)];
        let texts = texts.map(|(group, name, n_tokens)| {
            let path = folder.path().join(name);
            fs::write(&path, name.repeat(n_tokens)).unwrap();
            let group = Some(group.to_owned());
            NamedText { group, path }
        });
        TextSource {
            texts: texts.into(),
            windowing,
            parse_special: false,
        }
    }

    fn prepare(source: &TextSource, max_rows: Option<u64>) -> PreparedInput {
        let path = &source.texts[0].path;
        let engine = FakeEngine::default();
        let model = engine.load(path, &ModelOptions::default()).unwrap();
        let texts = source.texts.iter();
        let texts =
            texts.map(|named| crate::input::text::read(&named.path, &mut Vec::new()).unwrap());
        in_windows(source, texts.collect(), &model, max_rows).unwrap()
    }

    const WINDOWING: Windowing = Windowing {
        n_ctx: 8,
        stride: None,
        score: ScoreFrom::Text,
        max_windows: None,
    };

    /// Each window's number, the one text that its tokens come from, and how many there are.
    fn windows(input: &PreparedInput) -> Vec<(u32, char, usize)> {
        let windows = input.plan.windows.iter().map(|window| {
            let letter = window.tokens[1];
            assert!(window.tokens[1..].iter().all(|&token| token == letter));
            let letter = char::from_u32(letter).unwrap();
            (window.window, letter, window.tokens.len() - 1)
        });
        windows.collect()
    }

    #[test]
    fn no_window_holds_parts_of_two_texts() {
        let folder = tempfile::tempdir().unwrap();
        let input = prepare(&source(&folder, WINDOWING), None);
        let expected = [
            (0, 'a', 7),
            (1, 'a', 7),
            (2, 'a', 6),
            (3, 'b', 5),
            (4, 'c', 7),
            (5, 'c', 2),
        ];
        assert_eq!(windows(&input), expected);
        let groups = input.groups.unwrap();
        assert_eq!(groups.names(), ["wiki", "code"]);
        assert_eq!(groups.window_groups(), [(0, 3), (1, 1), (0, 2)]);
    }

    #[test]
    fn limits_are_of_each_text_and_a_stride_too() {
        let folder = tempfile::tempdir().unwrap();
        let first = Windowing {
            max_windows: Some(1),
            ..WINDOWING
        };
        let input = prepare(&source(&folder, first), None);
        assert_eq!(windows(&input), [(0, 'a', 7), (1, 'b', 5), (2, 'c', 7)]);
        let overlapping = Windowing {
            stride: Some(4),
            score: ScoreFrom::New,
            ..WINDOWING
        };
        let input = prepare(&source(&folder, overlapping), None);
        // The first window of each text is scored from its start: nothing has scored it before.
        let from_the_start = input.plan.windows.iter().filter(|w| w.first_scored == 0);
        assert_eq!(
            from_the_start.map(|w| w.window).collect::<Vec<_>>(),
            [0, 5, 6]
        );
        let n_scored: u64 = input.plan.windows.iter().map(|w| u64::from(w.n_rows)).sum();
        assert!(n_scored >= 34, "{n_scored}");
    }

    #[test]
    fn a_sample_is_of_all_texts_and_windows_keep_their_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let all = prepare(&source(&folder, WINDOWING), None);
        let some = prepare(&source(&folder, WINDOWING), Some(20));
        assert!(some.plan.seed.is_some());
        assert_eq!(some.groups, all.groups);
        for window in windows(&some) {
            assert!(windows(&all).contains(&window), "{window:?}");
        }
    }

    #[test]
    fn texts_are_identified_together() {
        let folder = tempfile::tempdir().unwrap();
        let input = prepare(&source(&folder, WINDOWING), None);
        assert_eq!(input.text.name.as_deref(), Some("wiki=a, code=b, wiki=c"));
        assert_eq!(
            (input.text.bytes, input.text.n_tokens),
            (Some(34), Some(34))
        );
        let hash = |bytes: &str| hex(&Sha256::digest(bytes));
        let lines = format!(
            "{}  wiki\n{}  code\n{}  wiki\n",
            hash(&"a".repeat(20)),
            hash(&"b".repeat(5)),
            hash(&"c".repeat(9))
        );
        assert_eq!(input.text.sha256, Some(hash(&lines)));
        let n_tokens = input.texts.iter().map(|text| text.n_tokens);
        assert_eq!(n_tokens.collect::<Vec<_>>(), [20, 5, 9].map(Some));
    }
}
