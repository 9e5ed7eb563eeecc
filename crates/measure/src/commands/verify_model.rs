//! Checks a model's file: its weights by themselves, and its weights and metadata against an original.

use std::path::Path;

use anyhow::{Result, bail};
use kl_engine::gguf::{self, Gguf};
use kl_engine::{Engine, EngineError, FaultyRow, ModelOptions, RowDistance, StoredRows};
use kl_report::number::short_kld;
use kl_report::{COMPARED_ROWS, Finding, FindingKind, Verification, Warning, WeightError};
use rayon::prelude::*;

use super::observer::Watch;

/// The advice where weights are damaged.
const DAMAGED: &str = "download the file again, or quantize the original again";

/// The advice where something differs that the quantizer would have copied.
const CHANGED: &str = "unless that is intended, quantize the original again";

/// Reads every weight of a model's file, and compares it with the original, if there is one.
///
/// # Errors
/// A file that cannot be read, or an original whose weights are not finite.
pub fn verify_model(
    path: &Path,
    original: Option<&Path>,
    engine: &dyn Engine,
    watch: &Watch<'_>,
) -> Result<Verification> {
    let header = gguf::read(path)?;
    let original = original.map(gguf::read).transpose()?;
    let changes = original
        .as_ref()
        .map(|original| header.changes(original))
        .unwrap_or_default();
    if let Some(values) = changes.get("general.architecture") {
        bail!(
            "--original: its architecture is another ({values}): give the model that was quantized"
        );
    }
    let mut findings = Vec::new();
    for [before, tensor] in header.overlaps() {
        let (start, name) = (tensor.offset, &before.name);
        let fault = format!("begins at byte {start}, within {name}: download or convert it again");
        findings.push(Finding::new(FindingKind::Overlap, &tensor.name, fault));
    }
    if findings.is_empty() {
        findings.extend(refusal(path, &header, engine, watch)?);
    }
    findings.extend(changed_files(&header, watch)?);
    for (name, values) in changes {
        findings.push(Finding::new(
            FindingKind::Changed,
            &name,
            format!("{values}: {CHANGED}"),
        ));
    }
    let n_tensors = header.tensors.len() as u64;
    let phase = watch.begin("verifying", Some(n_tensors), None);
    let (mut weight_errors, mut far_weights, mut n_compared) = (Vec::new(), Vec::new(), 0);
    for tensor in &header.tensors {
        let original_rows = original.as_ref().and_then(|original| {
            let original_tensor = original
                .tensor(&tensor.name)
                .filter(|original_tensor| original_tensor.shape == tensor.shape)?;
            StoredRows::new(original, original_tensor)
        });
        if let Some(rows) = StoredRows::new(&header, tensor) {
            let n_findings = findings.len();
            findings.extend(faults(&rows, original_rows.as_ref())?);
            if let Some(original_rows) = original_rows.filter(|_| findings.len() == n_findings) {
                let (error, finding) = compare(&rows, &original_rows)?;
                weight_errors.extend(error);
                far_weights.extend(finding);
                n_compared += 1;
            }
        }
        phase.window(None);
        phase.rows(0);
        watch.check()?;
    }
    if let Some(original) = &original
        && 2 * far_weights.len() > n_compared
        && far_weights.len() > 1
    {
        findings.push(other_original(original, far_weights.len(), n_compared));
    } else {
        findings.extend(far_weights);
    }
    let ratio = |weights: &WeightError| weights.error / weights.expected.max(f64::MIN_POSITIVE);
    weight_errors.sort_by(|a, b| ratio(b).total_cmp(&ratio(a)));
    Ok(Verification {
        n_tensors,
        findings,
        original: original.map(|original| original.path().display().to_string()),
        weight_errors,
    })
}

/// The finding that the weights of most tensors are not an original's: damage reaches few of them.
fn other_original(original: &Gguf, n_far: usize, n_compared: usize) -> Finding {
    let path = original.path();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let what = format!(
        "the weights of {n_far} of {n_compared} tensors are further from it than their types explain: the file was made of another original, or changed before it was quantized; give the one that it was made of"
    );
    Finding::new(FindingKind::OtherOriginal, &name, what)
}

/// The findings that files in a cache of models have other bytes than their names, which are hashes, state.
fn changed_files(header: &Gguf, watch: &Watch<'_>) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for path in &header.files {
        if kl_hub::differs_from_name(path, || Ok(watch.check()?))? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let fault =
                format!(": its bytes have another hash than its name in the cache: {DAMAGED}");
            findings.push(Finding::new(FindingKind::Hash, &name, fault));
        }
    }
    Ok(findings)
}

/// The finding that llama.cpp does not load the model, or would crash on it, if that is so. No weights are loaded
/// to find out, and nothing but causal language models.
fn refusal(
    path: &Path,
    header: &Gguf,
    engine: &dyn Engine,
    watch: &Watch<'_>,
) -> Result<Option<Finding>, EngineError> {
    if let Some(kind) = header.not_a_model() {
        let message = format!(
            "its tensors' names and shapes were not checked: it is {}",
            kind.in_place_of_a_model()
        );
        watch.warn(Warning::new("not_a_model", message));
        return Ok(None);
    }
    if let Some(fault) = header.fault().or_else(|| header.misaligned()) {
        return Ok(Some(Finding::new(
            FindingKind::Refused,
            &fault.tensor,
            fault.what,
        )));
    }
    let options = ModelOptions {
        is_without_weights: true,
        ..ModelOptions::on_cpu()
    };
    let reason = match engine.load(path, &options) {
        Ok(_) => return Ok(None),
        Err(EngineError::Model(error)) => error.what,
        Err(error) => return Err(error),
    };
    let name = named_tensor(&reason, header).unwrap_or_default().to_owned();
    Ok(Some(Finding::new(FindingKind::Refused, &name, reason)))
}

/// The tensor that a reason of llama.cpp names: in quotes, as it names architectures and tokenizers too. It is one of
/// the file's, or has a name that only tensors have.
fn named_tensor<'r>(reason: &'r str, header: &Gguf) -> Option<&'r str> {
    let mut quoted_names = reason.split('\'').skip(1).step_by(2);
    quoted_names.find(|name| {
        let has_usual_end = [".weight", ".bias"].iter().any(|end| name.ends_with(end));
        has_usual_end || name.starts_with("blk.") || header.tensor(name).is_some()
    })
}

/// The findings on the rows of a tensor, one for each expert: weights that are not finite, and rows of zeros.
fn faults(rows: &StoredRows<'_>, original: Option<&StoredRows<'_>>) -> Result<Vec<Finding>> {
    /// The padding at a matrix's end has less than one in this many of its rows.
    const PADDING: usize = 8;
    let n = rows.n_rows_of_expert;
    let finding = |rows_of_expert: &[FaultyRow]| {
        let (first, n_faulty) = (rows_of_expert.first()?, rows_of_expert.len());
        let is_padding = first.index % n + n_faulty == n && n_faulty < n / PADDING;
        let (kind, fault) = match first.block {
            Some(block) => (
                FindingKind::NotFinite,
                format!(", block {block}: not finite"),
            ),
            None if is_padding => return None,
            None => (FindingKind::Zero, ": all weights are zero".to_owned()),
        };
        let place = row_name(rows, first.index);
        let message = format!("{place}{fault} ({n_faulty} of {n} rows): {DAMAGED}");
        Some(Finding::new(kind, &rows.tensor.name, message))
    };
    let expert_and_kind = |row: &FaultyRow| (row.index / n, row.block.is_none());
    let mut faulty_rows = rows.faulty(original)?;
    faulty_rows.sort_by_key(expert_and_kind);
    Ok(faulty_rows
        .chunk_by(|a, b| expert_and_kind(a) == expert_and_kind(b))
        .filter_map(finding)
        .collect())
}

/// Names a row, by its expert where there are several.
fn row_name(rows: &StoredRows<'_>, index: usize) -> String {
    let n = rows.n_rows_of_expert;
    let expert = if rows.n_rows > n {
        &format!("expert {}, ", index / n)
    } else {
        ""
    };
    format!("{expert}row {}", index % n)
}

/// The error of a tensor's weights, unless the original's are all zero; and the finding that the error is much
/// larger than the type explains, or that a row cannot be the original's.
fn compare(
    rows: &StoredRows<'_>,
    original: &StoredRows<'_>,
) -> Result<(Option<WeightError>, Option<Finding>)> {
    /// With an importance matrix, the plain error of a tensor was 0.8 to 1.3 times as large.
    const MANY_TIMES: f64 = 3.0;
    /// Weights made of f32 or bf16 differ from an original in f16 by 1e-6 or less.
    const ROUNDING: f64 = 1e-5;
    /// A row of other weights has an error of about 2, a row of zeros one of 1.
    const OTHER_ROW: f64 = 0.3;
    let n_experts = rows.n_rows / rows.n_rows_of_expert;
    let distances: Vec<RowDistance> = rows
        .sample(COMPARED_ROWS.max(n_experts))
        .into_par_iter()
        .map(|index| rows.error(original, index))
        .collect::<Result<_, EngineError>>()?;
    let sum = |number: fn(&RowDistance) -> f64| distances.iter().map(number).sum::<f64>();
    let squares = sum(|row| row.squares);
    let kind = rows.tensor.kind;
    let weight_error = WeightError {
        error: sum(|row| row.error) / squares,
        expected: sum(|row| row.expected) / squares,
        tensor: rows.tensor.name.clone(),
        kind,
    };
    let finding_if_far = |place: String, error: f64, expected: f64, tolerance: f64| {
        let is_far = error > MANY_TIMES * expected + tolerance;
        is_far.then(|| {
            let [error, expected] = [error, expected].map(short_kld);
            let message =
                format!("{place}its error is {error}, where {kind} gives {expected}: {DAMAGED}");
            Finding::new(FindingKind::WeightError, &rows.tensor.name, message)
        })
    };
    let finding_on_row = distances.iter().find_map(|row| {
        let [error, expected] = [row.error, row.expected].map(|error| error / row.squares);
        finding_if_far(row_name(rows, row.index) + ": ", error, expected, OTHER_ROW)
    });
    let finding = finding_on_row.or_else(|| {
        finding_if_far(
            String::new(),
            weight_error.error,
            weight_error.expected,
            ROUNDING,
        )
    });
    Ok((Some(weight_error).filter(|_| squares > 0.0), finding))
}
