//! One evaluation, measured from its records alone, in a run or from its sidecars.

use std::path::Path;

use anyhow::{Result, bail};
use kl_formats::{BackendIdentity, ModelIdentity, SidecarHeader, TokenRecord, TokenTexts};
use kl_report::comparison::ComparedModel;
use kl_report::{ContextMemory, ModelInfo, ModelResult, WorstText, WorstToken};
use kl_stats::stats::{
    ClusterKind, ClusterRule, Clusters, Confidence, KldSoFar, MostDivergent, PartNames, Point, Run,
    TokenTable, WindowSums, usable_kld, usable_klds,
};

use crate::commands::parts::StoredEvaluation;

/// The KV cache's type unless the user chooses another.
const DEFAULT_KV_TYPE: &str = "f16";

/// The number of listed tokens: those that diverge most.
const N_WORST: usize = 10;

/// An evaluation with its own numbers, of which every report and every comparison is a view.
pub struct MeasuredEvaluation {
    /// The model, and the numbers that its records give.
    pub result: ModelResult,
    /// The share of tokens with at least a KLD.
    ccdf: Vec<Point>,
    /// Means along the text.
    by_window: Vec<Point>,
    /// The tokens that diverge most.
    top: Vec<WorstToken>,
    /// A hash of the window, the position and the next token of each token, in order.
    pub tokens_hash: u64,
    /// A hash of the KLDs of all tokens, which would themselves take most of the memory of a large report.
    pub klds_hash: u64,
    /// The reason that it cannot be compared with most others, if it cannot.
    pub why_not: Option<String>,
    pub stored: StoredEvaluation,
}

/// Adds a number to a hash of numbers in their order.
fn hash_with(hash: u64, number: u64) -> u64 {
    /// The golden ratio's bits, as in Fibonacci hashing.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    (hash.rotate_left(26) ^ number).wrapping_mul(FACTOR)
}

/// Adds a token to a hash of tokens in their order.
fn hash_with_token(hash: u64, record: &TokenRecord) -> u64 {
    let location = u64::from(record.window) << 32 | u64::from(record.position);
    hash_with(hash_with(hash, location), record.token.into())
}

/// Receives the records of an evaluation, window by window.
type OnWindow<'e> = dyn FnMut(&[TokenRecord]) -> Result<()> + 'e;

impl MeasuredEvaluation {
    /// Measures an evaluation from its records, which `read` passes window by window, and only keeps the
    /// numbers. `read` returns the known texts of the tokens. The clusters are of this kind, or of the one that
    /// the rule chooses. `table` is cleared, and holds the tokens.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn measure(
        stored: StoredEvaluation,
        confidence: Confidence,
        rule: ClusterRule,
        kind: Option<ClusterKind>,
        table: &mut TokenTable,
        read: impl FnOnce(&StoredEvaluation, &mut OnWindow<'_>) -> Result<TokenTexts>,
    ) -> Result<Self> {
        let header = &stored.header;
        table.clear_for(usize::try_from(stored.n_records)?);
        let (mut tokens_hash, mut klds_hash) = (0, 0);
        let mut worst = MostDivergent::new(N_WORST);
        let mut until = KldSoFar::new(header.until, confidence, rule);
        let texts = read(&stored, &mut |window| {
            for (index, record) in window.iter().enumerate() {
                table.push(record);
                tokens_hash = hash_with_token(tokens_hash, record);
                klds_hash = hash_with(klds_hash, usable_kld(record).to_bits());
                worst.push(record, || tokens_before(window, index));
            }
            until.push(window);
            Ok(())
        })?;
        let windows = table.windows();
        let autocorrelation = windows.autocorrelation();
        let clusters = Clusters::new(&windows, rule, kind, autocorrelation);
        let (groups, spans) = (&header.groups, &header.spans);
        let statistics = table.summarise(&clusters, PartNames { groups, spans }, confidence);
        let result = ModelResult {
            until: until.info(&statistics.summary),
            summary: statistics.summary,
            breakdown: statistics.breakdown,
            ..model_of_header(header)
        };
        Ok(Self {
            result,
            ccdf: statistics.ccdf,
            by_window: windows.means(),
            top: worst_tokens(worst, &texts),
            tokens_hash,
            klds_hash,
            why_not: None,
            stored,
        })
    }

    /// The model in a comparison, without what depends on other evaluations: its place, and its distance from the
    /// best.
    pub fn compared(&self) -> ComparedModel {
        let parts = Vec::from_iter(self.stored.shown_paths());
        ComparedModel {
            result: self.result.clone(),
            sidecar: self.sidecar(),
            parts: Some(parts)
                .filter(|parts| parts.len() > 1)
                .unwrap_or_default(),
            set_up: self.stored.header.backend.clone().unwrap_or_default(),
            ccdf: self.ccdf.clone(),
            by_window: self.by_window.clone(),
            top: self.top.clone(),
            ..ComparedModel::default()
        }
    }

    /// The path of its sidecar, or of the first part; empty without one.
    pub fn sidecar(&self) -> String {
        self.stored.shown_paths().next().unwrap_or_default()
    }

    /// Measures the evaluation again, with its intervals by clusters of this kind.
    ///
    /// # Errors
    /// If a file can no longer be read, or has changed.
    pub fn measure_by(
        &mut self,
        kind: ClusterKind,
        confidence: Confidence,
        rule: ClusterRule,
        table: &mut TokenTable,
    ) -> Result<()> {
        let measured = Self::measure(
            self.stored.clone(),
            confidence,
            rule,
            Some(kind),
            table,
            |stored, on_window| stored.read(on_window),
        )?;
        self.check(measured.klds_hash)?;
        self.result.summary = measured.result.summary;
        self.result.breakdown = measured.result.breakdown;
        Ok(())
    }

    /// Adds the memory that the model takes with a context of `n_tokens`, if that is known.
    pub fn add_memory(&mut self, n_tokens: u64) {
        let set_up = self.stored.header.backend.as_ref();
        self.result.memory =
            set_up.and_then(|set_up| ContextMemory::of(&self.result.model, set_up, n_tokens));
    }

    /// Checks that KLDs that were read again are those that were measured, by their hash.
    fn check(&self, klds_hash: u64) -> Result<()> {
        if klds_hash != self.klds_hash {
            bail!("{}: has changed while it was read", self.sidecar());
        }
        Ok(())
    }

    /// True if both are one evaluation, in copies of a file.
    pub fn is_copy_of(&self, other: &Self) -> bool {
        self.klds_hash == other.klds_hash
            && self.tokens_hash == other.tokens_hash
            && self.stored.header == other.stored.header
    }

    /// Reads the records again: the runs of their tokens, and their windows.
    ///
    /// # Errors
    /// If a file can no longer be read.
    pub fn read_windows(&self) -> Result<(Vec<Run>, WindowSums)> {
        let (mut runs, mut windows) = (Vec::new(), WindowSums::default());
        self.stored.read(|window| {
            let window_runs = Run::from_records(window);
            windows.add(&window_runs, &usable_klds(window));
            runs.extend(window_runs);
            Ok(())
        })?;
        Ok((runs, windows))
    }

    /// Reads the KLD of each token again: NaN where it is not counted, or is infinite.
    ///
    /// # Errors
    /// If a file can no longer be read, or has changed.
    pub fn read_klds(&self) -> Result<Vec<f64>> {
        let mut klds = Vec::with_capacity(usize::try_from(self.stored.n_records)?);
        let mut hash = 0;
        self.stored.read(|window| {
            for kld in window.iter().map(usable_kld) {
                hash = hash_with(hash, kld.to_bits());
                klds.push(kld);
            }
            Ok(())
        })?;
        self.check(hash)?;
        Ok(klds)
    }

    /// Reads all records again, and the texts of their tokens.
    ///
    /// # Errors
    /// If a file can no longer be read.
    pub fn read_all(&self) -> Result<(Vec<TokenRecord>, TokenTexts)> {
        let mut records = Vec::new();
        let texts = self.stored.read(|window| {
            records.extend_from_slice(window);
            Ok(())
        })?;
        Ok((records, texts))
    }
}

/// The model as a header describes it, without its numbers.
pub fn model_of_header(header: &SidecarHeader) -> ModelResult {
    let path = Path::new(header.model_path.as_deref().unwrap_or_default());
    let model = ModelInfo::new(path, &header.model.clone().unwrap_or_default());
    let label = header.label.as_deref();
    ModelResult {
        label: label.unwrap_or_else(|| model.default_label()).to_owned(),
        model,
        is_reference_model: is_reference_model(header),
        is_noise_floor: is_reference_model(header)
            && has_kv_types_of_reference(header)
            && has_weights_of_reference(header),
        n_vocab_compared: header.n_vocab_compared,
        speed: header.speed,
        ..ModelResult::default()
    }
}

/// True if the evaluated model is the one that wrote the reference.
fn is_reference_model(header: &SidecarHeader) -> bool {
    header
        .reference
        .model
        .as_ref()
        .zip(header.model.as_ref())
        .is_some_and(|(original, model)| original.is_same(model))
}

/// True if the KV cache has the reference's types: with others, it loses something itself.
fn has_kv_types_of_reference(header: &SidecarHeader) -> bool {
    let kv_types = |backend: &Option<BackendIdentity>| {
        let backend = backend.clone().unwrap_or_default();
        [backend.type_k, backend.type_v].map(|kv| kv.unwrap_or_else(|| DEFAULT_KV_TYPE.to_owned()))
    };
    kv_types(&header.backend) == kv_types(&header.reference.backend)
}

/// True if the weights are the reference's: dequantized ones of a quantized file are others.
fn has_weights_of_reference(header: &SidecarHeader) -> bool {
    let weights = |backend: &Option<BackendIdentity>| backend.as_ref()?.weights.clone();
    let model = header.model.as_ref();
    let is_quantized = model.is_some_and(ModelIdentity::has_quantized_weights);
    !is_quantized || weights(&header.backend) == weights(&header.reference.backend)
}

/// The tokens that diverge most, with the tokens before each.
fn worst_tokens(worst: MostDivergent<Vec<u32>>, texts: &TokenTexts) -> Vec<WorstToken> {
    worst
        .into_sorted()
        .into_iter()
        .map(|(record, before)| {
            WorstToken::new(&record, &before, |tokens| known_text(texts, tokens))
        })
        .collect()
}

/// The text around a record's position, if it is known.
pub fn text_around(records: &[TokenRecord], index: usize, texts: &TokenTexts) -> Option<WorstText> {
    let before = tokens_before(records, index);
    let text = |tokens: &[u32]| known_text(texts, tokens);
    WorstToken::new(records.get(index)?, &before, text).text
}

/// The text of tokens, if the text of each is known.
fn known_text(texts: &TokenTexts, tokens: &[u32]) -> Option<String> {
    let is_known = |token: &u32| texts.get(*token).is_some();
    (!texts.is_empty() && tokens.iter().all(is_known)).then(|| texts.text(tokens))
}

/// The last tokens up to the position of a record. Each record holds the token after its position, so those of
/// the records before it, up to the first gap, are known.
fn tokens_before(records: &[TokenRecord], index: usize) -> Vec<u32> {
    let Some((before, [record, ..])) = records.split_at_checked(index) else {
        return Vec::new();
    };
    let mut tokens: Vec<u32> = before
        .iter()
        .rev()
        .zip(1..)
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
            ref_top: 1,
            eval_top: 2,
            kld: f64::from(window + position),
            ref_top_p: f64::NAN,
            eval_top_p: 0.5,
            ..TokenRecord::default()
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
        let worst = |texts: &TokenTexts| {
            let mut worst = MostDivergent::new(N_WORST);
            for (index, record) in records.iter().enumerate() {
                worst.push(record, || tokens_before(&records, index));
            }
            worst_tokens(worst, texts)
        };
        let shown = worst(&known);
        let text = shown[0].text.clone().unwrap();
        assert_eq!(
            (text.before, text.next),
            ("xy".to_owned(), Some("z".to_owned()))
        );
        assert_eq!(shown[0].ref_top.text.as_deref(), Some(" a"));
        assert_eq!((shown[0].ref_top.p, shown[0].eval_top.p), (None, Some(0.5)));
        let no_texts = TokenTexts::default();
        let none = worst(&no_texts);
        assert!(none[0].text.is_none() && none[0].eval_top.text.is_none());
        let part: TokenTexts = texts[..3].iter().copied().collect();
        assert!(worst(&part)[0].text.is_none());
    }

    #[test]
    fn other_tokens_make_another_set() {
        let records = [record(0, 1), record(0, 2)];
        let mut other = records;
        other[0].kld = 5.0;
        let set = |records: &[TokenRecord]| records.iter().fold(0, hash_with_token);
        assert_eq!(set(&records), set(&other));
        other[1].token += 1;
        assert_ne!(set(&records), set(&other));
        assert_ne!(set(&records), set(&records[..1]));
    }
}
