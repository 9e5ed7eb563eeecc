//! A comparison as CSV: a row for each model, with raw numbers.

use serde_json::Value;

use super::{ComparedModel, Comparison};
use crate::named_numbers::named_numbers;
use crate::table::csv_text;

/// The start of the CSV, by which it is recognised.
pub const CSV_START: &str = "label,sidecar,model,size_bytes,";

/// All columns: the name of each, after a `=` the key in the JSON of a model, or the number's name, if it
/// is another. The columns' names and their order are stable; new ones are added at the end.
const COLUMNS: &str = "label sidecar model=model.path size_bytes=model.size_bytes
    n_params=model.n_params bpw=model.bpw is_noise_floor n_tokens n_excluded n_infinite n_windows
    kld_mean=kld.mean kld_mean_lo=kld.mean.cluster_lo kld_mean_hi=kld.mean.cluster_hi
    kld_median=kld.median kld_q90=kld.q90 kld_q95=kld.q95 kld_q99=kld.q99 kld_q99.9=kld.q99.9
    kld_max=kld.max reverse_kld_mean=reverse_kld.mean
    same_top=agreement.ref_top1 same_top_lo=agreement.ref_top1.lo same_top_hi=agreement.ref_top1.hi
    ppl_ref=perplexity.ref ppl=perplexity.eval ppl_ratio=perplexity.ratio
    ppl_ratio_lo=perplexity.ratio.cluster_lo ppl_ratio_hi=perplexity.ratio.cluster_hi
    difference_to_best difference_lo=difference_to_best.lo difference_hi=difference_to_best.hi
    indistinguishable_from_best pareto
    type_k=set_up.type_k type_v=set_up.type_v devices=set_up.devices
    n_gpu_layers=set_up.n_gpu_layers n_batch=set_up.n_batch n_ubatch=set_up.n_ubatch
    flash_attn=set_up.flash_attn threads=set_up.threads llama_cpp=set_up.llama_cpp
    is_incomplete file_bytes=model.file_bytes
    ratio_to_best ratio_lo=ratio_to_best.lo ratio_hi=ratio_to_best.hi
    ratio_upper=ratio_to_best.upper ratio_p=ratio_to_best.p ratio_p_holm=ratio_to_best.p_holm
    kv_cache_bytes=set_up.kv_cache_bytes
    acceptance=acceptance.mean acceptance_lo=acceptance.mean.lo acceptance_hi=acceptance.mean.hi
    accepted_of_3=acceptance.drafted3 accepted_of_3_lo=acceptance.drafted3.lo
    accepted_of_3_hi=acceptance.drafted3.hi
    same_to_the_end=identical_output.same_to_the_end
    same_to_the_end_lo=identical_output.same_to_the_end.lo
    same_to_the_end_hi=identical_output.same_to_the_end.hi
    half_differ_within=identical_output.half_differ_within greedy_answers=identical_output.n_answers
    weights=set_up.weights is_weights_alone
    prompt_tokens_per_s=speed.prompt.tokens_per_s prompt_lo=speed.prompt.lo
    prompt_hi=speed.prompt.hi generation_tokens_per_s=speed.generation.tokens_per_s
    generation_lo=speed.generation.lo generation_hi=speed.generation.hi
    memory_context=memory.context memory_weights=memory.weights
    memory_kv_cache=memory.kv_cache memory_compute=memory.compute";

/// The one column that is not in the JSON where there is no KLD.
const N_INFINITE: &str = "n_infinite";

/// The columns, each with its name and its key.
fn columns() -> impl Iterator<Item = (&'static str, &'static str)> {
    COLUMNS
        .split_whitespace()
        .map(|column| column.split_once('=').unwrap_or((column, column)))
}

impl Comparison {
    /// The models as CSV (RFC 4180, but with line feeds alone), after a line with the names of the
    /// columns. What is not known is empty.
    pub fn csv(&self) -> String {
        let names = columns().map(|(name, _)| name.to_owned()).collect();
        let rows = [names].into_iter().chain(self.models.iter().map(row));
        rows.map(|row: Vec<String>| row.join(",") + "\n").collect()
    }
}

fn row(model: &ComparedModel) -> Vec<String> {
    // Without JSON there is nothing to show.
    let json = serde_json::to_value(model).unwrap_or_default();
    let mut numbers = named_numbers(&json);
    let n_infinite = model.summary.n_infinite() as f64;
    numbers.insert(N_INFINITE.to_owned(), Some(n_infinite));
    let cell = |(_, key): (&str, &str)| {
        let number = numbers.get(key).copied().flatten();
        match json.pointer(&format!("/{}", key.replace('.', "/"))) {
            Some(Value::Bool(value)) => value.to_string(),
            Some(Value::String(value)) => csv_text(value),
            Some(Value::Array(values)) => {
                let values = values.iter().filter_map(Value::as_str);
                csv_text(&Vec::from_iter(values).join(" "))
            }
            _ => number.map(|number| number.to_string()).unwrap_or_default(),
        }
    };
    columns().map(cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sample::comparison;

    /// Excel, LibreOffice and Google Sheets run what looks like a formula.
    #[test]
    fn no_cell_is_a_formula() {
        for (label, cell) in [
            ("=1+1", "'=1+1"),
            ("+q4", "'+q4"),
            ("-q4", "'-q4"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\tq4", "\u{fffd}q4"),
            ("\r=1", "\u{fffd}=1"),
            ("q4\u{1b}[2J", "q4\u{fffd}[2J"),
            (
                "=HYPERLINK(\"x\",\"y\")",
                "\"'=HYPERLINK(\"\"x\"\",\"\"y\"\")\"",
            ),
            ("q4=x", "q4=x"),
        ] {
            assert_eq!(csv_text(label), cell);
        }
        let mut comparison = comparison();
        comparison.models[0].label = "=1+1".to_owned();
        assert!(
            comparison.csv().contains("\n'=1+1,"),
            "{}",
            comparison.csv()
        );
        // A number keeps its sign.
        comparison.models[2]
            .difference_to_best
            .as_mut()
            .unwrap()
            .value = -0.25;
        assert!(comparison.csv().contains(",-0.25,"), "{}", comparison.csv());
    }

    #[test]
    fn every_model_has_every_column() {
        let mut comparison = comparison();
        comparison.models[0].label = "a, \"b\"".to_owned();
        let csv = comparison.csv();
        assert!(csv.starts_with(CSV_START));
        insta::assert_snapshot!(csv);
        for line in csv.lines().filter(|line| !line.starts_with("\"a")) {
            assert_eq!(line.split(',').count(), columns().count(), "{line}");
        }
    }
}
