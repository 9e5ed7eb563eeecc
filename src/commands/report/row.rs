//! One evaluation, measured from its records alone.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use anyhow::{Result, bail};
use kl_formats::{SidecarHeader, TokenRecord, TokenTexts};

use super::label::name_of;
use crate::commands::evaluation::Until;
use crate::commands::parts::StoredEvaluation;
use crate::commands::reference::{is_noise_floor, is_same_model};
use crate::report::ModelInfo;
use crate::report::comparison::{ComparedModel, WorstText, WorstToken};
use crate::stats::{Breakdown, ClusterRule, Confidence, MostDivergent, Summary, curves, exclusion};

/// How many of the tokens that diverge most are listed.
const N_WORST: usize = 10;

/// An evaluation with its own numbers. What depends on the other rows is not filled in.
pub struct Row {
    pub model: ComparedModel,
    pub tokens: TokenSet,
    stored: StoredEvaluation,
}

/// Which tokens an evaluation covers, to be compared with another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenSet {
    /// How many tokens.
    pub n: u64,
    /// A hash of the window, the position and the next token of each, in order.
    hash: u64,
}

/// Where each token of a row is.
#[derive(Default)]
pub struct Locations {
    pub windows: Vec<u32>,
    pub groups: Vec<u32>,
}

impl Row {
    /// Reads all records of an evaluation, and keeps the numbers only.
    ///
    /// # Errors
    /// If a file cannot be read, or is damaged.
    pub fn measure(
        stored: StoredEvaluation,
        confidence: Confidence,
        rule: ClusterRule,
    ) -> Result<Self> {
        let mut records = Vec::with_capacity(usize::try_from(stored.n_records())?);
        for record in stored.records()? {
            records.push(record?);
        }
        let texts = stored.texts()?;
        let header = stored.header();
        let identity = header.model.clone().unwrap_or_default();
        let path = header.model_path.as_deref().unwrap_or_default();
        let info = ModelInfo::new(Path::new(path), &identity);
        let is_reference_model =
            is_same_model(header.reference.model.as_ref(), header.model.as_ref());
        let paths = stored.paths().iter().map(|path| path.display().to_string());
        let paths: Vec<String> = paths.collect();
        let summary = Summary::from_records(&records, confidence, rule);
        let until = header.until.map(|target| {
            let mut until = Until::at(target, confidence, rule);
            until.replay(&records);
            until.info(&summary, None)
        });
        let model = ComparedModel {
            label: name_of(header, &info),
            sidecar: paths.first().cloned().unwrap_or_default(),
            parts: if paths.len() > 1 { paths } else { Vec::new() },
            model: info,
            is_reference_model,
            is_noise_floor: is_noise_floor(
                is_reference_model,
                header.backend.as_ref(),
                header.reference.backend.as_ref(),
            ),
            is_incomplete: false,
            n_vocab_compared: header.n_vocab_compared,
            until,
            summary,
            difference_to_best: None,
            indistinguishable_from_best: false,
            pareto: false,
            set_up: header.backend.clone().unwrap_or_default(),
            breakdown: Breakdown::of(&records, &header.groups, confidence, rule),
            ccdf: curves::ccdf(&records),
            by_window: curves::by_window(&records),
            top: worst(&records, &texts),
        };
        Ok(Self {
            model,
            tokens: TokenSet::of(&records),
            stored,
        })
    }

    /// Whether a model of a comparison is this row.
    pub fn is_of(&self, model: &ComparedModel) -> bool {
        self.model.sidecar == model.sidecar
    }

    /// What the evaluation's files record of it.
    pub fn header(&self) -> &SidecarHeader {
        self.stored.header()
    }

    /// The KLD of each token, in nats: NaN where no statistic counts it, or where it is infinite.
    /// `each` is called for every record.
    ///
    /// # Errors
    /// If a file can no longer be read, or has become another.
    pub fn klds(&self, mut each: impl FnMut(&TokenRecord)) -> Result<Vec<f64>> {
        let mut klds = Vec::with_capacity(usize::try_from(self.tokens.n)?);
        for record in self.stored.records()? {
            let record = record?;
            each(&record);
            let counts = exclusion::is_counted(&record) && record.kld.is_finite();
            klds.push(if counts { record.kld } else { f64::NAN });
        }
        if klds.len() as u64 != self.tokens.n {
            bail!(
                "{}: was replaced while it was read: run again",
                self.model.sidecar
            );
        }
        Ok(klds)
    }

    /// The KLD of each token, as [`Row::klds`], and where the tokens are.
    ///
    /// # Errors
    /// Those of [`Row::klds`].
    pub fn located_klds(&self) -> Result<(Vec<f64>, Locations)> {
        let mut locations = Locations::default();
        let klds = self.klds(|record| {
            locations.windows.push(record.window);
            locations.groups.push(record.group);
        })?;
        Ok((klds, locations))
    }

    /// All records, which are large.
    ///
    /// # Errors
    /// If a file can no longer be read.
    pub fn records(&self) -> Result<Vec<TokenRecord>> {
        Ok(self.stored.records()?.collect::<kl_formats::Result<_>>()?)
    }

    /// The texts of its tokens.
    ///
    /// # Errors
    /// If a file can no longer be read.
    pub fn texts(&self) -> Result<TokenTexts> {
        self.stored.texts()
    }
}

impl TokenSet {
    fn of(records: &[TokenRecord]) -> Self {
        let mut hasher = DefaultHasher::new();
        for record in records {
            (record.window, record.position, record.token).hash(&mut hasher);
        }
        Self {
            n: records.len() as u64,
            hash: hasher.finish(),
        }
    }
}

/// The tokens that diverge most.
fn worst(records: &[TokenRecord], texts: &TokenTexts) -> Vec<WorstToken> {
    let mut worst = MostDivergent::new(N_WORST);
    for (index, record) in records.iter().enumerate() {
        worst.push(record, || index);
    }
    let worst = worst.into_sorted().into_iter();
    worst
        .map(|(record, index)| {
            let before = tokens_before(records, index);
            WorstToken::new(&record, &before, |tokens| known_text(texts, tokens))
        })
        .collect()
}

/// The text around a record's position, if it is known.
pub fn around(records: &[TokenRecord], index: usize, texts: &TokenTexts) -> Option<WorstText> {
    let before = tokens_before(records, index);
    let text = |tokens: &[u32]| known_text(texts, tokens);
    WorstToken::new(records.get(index)?, &before, text).text
}

/// The text of tokens, if that of each is known.
fn known_text(texts: &TokenTexts, tokens: &[u32]) -> Option<String> {
    let is_known = |token: &u32| texts.get(*token).is_some();
    (!texts.is_empty() && tokens.iter().all(is_known)).then(|| texts.text(tokens))
}

/// The tokens up to the position of a record, as far as the records before it hold them: each holds
/// the token after its position.
fn tokens_before(records: &[TokenRecord], index: usize) -> Vec<u32> {
    let Some((before, [record, ..])) = records.split_at_checked(index) else {
        return Vec::new();
    };
    let last_first = before.iter().rev().zip(1..);
    let mut tokens: Vec<u32> = last_first
        .take(WorstToken::CONTEXT_TOKENS)
        .take_while(|(earlier, distance)| {
            earlier.window == record.window
                && earlier.position.checked_add(*distance) == Some(record.position)
        })
        .map_while(|(earlier, _)| earlier.next_token())
        .collect();
    tokens.reverse();
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(window: u32, position: u32) -> TokenRecord {
        TokenRecord {
            window,
            position,
            token: 10 * window + position + 1,
            flags: 0,
            ref_top: 1,
            eval_top: 2,
            ref_top_rank: 2,
            eval_top_rank: 2,
            kld: f64::from(window + position),
            reverse_kld: 1.0,
            ref_nll: 1.0,
            eval_nll: 1.0,
            ref_entropy: 1.0,
            ref_top_p: f64::NAN,
            eval_top_p: 0.5,
            ref_unknown_p: 0.0,
            group: 0,
        }
    }

    #[test]
    fn a_token_comes_with_those_before_it_in_its_window() {
        let records = [record(0, 4), record(1, 3), record(1, 4), record(1, 5)];
        assert_eq!(tokens_before(&records, 3), [14, 15]);
        assert!(tokens_before(&records, 1).is_empty());
        let gap = [record(1, 2), record(1, 4), record(1, 5)];
        assert_eq!(tokens_before(&gap, 2), [15]);
    }

    #[test]
    fn texts_are_shown_where_all_are_known() {
        let records = [record(1, 3), record(1, 4), record(1, 5)];
        let texts = [(1, " a"), (2, " b"), (14, "x"), (15, "y"), (16, "z")];
        let known: TokenTexts = texts.into_iter().collect();
        let shown = worst(&records, &known);
        let text = shown[0].text.clone().unwrap();
        assert_eq!(
            (text.before, text.next),
            ("xy".to_owned(), Some("z".to_owned()))
        );
        assert_eq!(shown[0].ref_top.text.as_deref(), Some(" a"));
        assert_eq!((shown[0].ref_top.p, shown[0].eval_top.p), (None, Some(0.5)));
        let none = worst(&records, &TokenTexts::default());
        assert!(none[0].text.is_none() && none[0].eval_top.text.is_none());
        let part: TokenTexts = texts[..3].iter().copied().collect();
        assert!(worst(&records, &part)[0].text.is_none());
    }

    #[test]
    fn other_tokens_make_another_set() {
        let records = [record(0, 1), record(0, 2)];
        let mut other = records;
        other[0].kld = 5.0;
        assert_eq!(TokenSet::of(&records), TokenSet::of(&other));
        other[1].token += 1;
        assert_ne!(TokenSet::of(&records), TokenSet::of(&other));
        assert_ne!(TokenSet::of(&records), TokenSet::of(&records[..1]));
    }
}
