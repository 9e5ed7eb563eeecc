//! A comparison as CSV: a row for each model, with raw numbers.

use super::{ComparedModel, Comparison};

/// How the CSV starts: by this it is recognised.
pub const CSV_START: &str = "label,sidecar,model,size_bytes,";

/// A column: its name, and a model's cell. What is not known is empty.
type Column = (&'static str, fn(&ComparedModel) -> String);

/// All columns. Their names and their order are stable; new ones are added at the end.
const COLUMNS: &[Column] = &[
    ("label", |m| text(&m.label)),
    ("sidecar", |m| text(&m.sidecar)),
    ("model", |m| text(&m.model.path)),
    ("size_bytes", |m| shown(m.model.size_bytes)),
    ("n_params", |m| shown(m.model.n_params)),
    ("bpw", |m| number(m.model.bpw)),
    ("is_noise_floor", |m| m.is_noise_floor.to_string()),
    ("n_tokens", |m| m.summary.n_tokens.to_string()),
    ("n_excluded", |m| m.summary.n_excluded.to_string()),
    ("n_infinite", |m| m.summary.n_infinite().to_string()),
    ("n_windows", |m| m.summary.n_windows.to_string()),
    ("kld_mean", |m| {
        number(m.mean_kld().map(|mean| mean.estimate.value))
    }),
    ("kld_mean_lo", |m| {
        number(m.mean_kld().and_then(|mean| mean.clustered.lo))
    }),
    ("kld_mean_hi", |m| {
        number(m.mean_kld().and_then(|mean| mean.clustered.hi))
    }),
    ("kld_median", |m| quantile(m, 0.5)),
    ("kld_q90", |m| quantile(m, 0.9)),
    ("kld_q95", |m| quantile(m, 0.95)),
    ("kld_q99", |m| quantile(m, 0.99)),
    ("kld_q99.9", |m| quantile(m, 0.999)),
    ("kld_max", |m| {
        number(m.summary.kld.as_ref().map(|kld| kld.max))
    }),
    ("reverse_kld_mean", |m| {
        let reverse = m.summary.reverse_kld.as_ref();
        number(reverse.map(|kld| kld.mean.estimate.value))
    }),
    ("same_top", |m| number(m.same_top())),
    ("same_top_lo", |m| same_top_end(m, |share| share.lo)),
    ("same_top_hi", |m| same_top_end(m, |share| share.hi)),
    ("ppl_ref", |m| {
        number(m.summary.perplexity.map(|ppl| ppl.reference))
    }),
    ("ppl", |m| {
        number(m.summary.perplexity.map(|ppl| ppl.evaluated))
    }),
    ("ppl_ratio", |m| number(m.ppl_ratio())),
    ("ppl_ratio_lo", |m| {
        number(m.summary.perplexity.and_then(|ppl| ppl.ratio.clustered.lo))
    }),
    ("ppl_ratio_hi", |m| {
        number(m.summary.perplexity.and_then(|ppl| ppl.ratio.clustered.hi))
    }),
    ("difference_to_best", |m| {
        number(m.difference_to_best.map(|to_best| to_best.difference.value))
    }),
    ("difference_lo", |m| {
        number(
            m.difference_to_best
                .and_then(|to_best| to_best.difference.lo),
        )
    }),
    ("difference_hi", |m| {
        number(
            m.difference_to_best
                .and_then(|to_best| to_best.difference.hi),
        )
    }),
    ("difference_p", |m| {
        number(
            m.difference_to_best
                .and_then(|to_best| to_best.difference.p),
        )
    }),
    ("difference_p_holm", |m| {
        number(m.difference_to_best.and_then(|to_best| to_best.p_holm))
    }),
    ("indistinguishable_from_best", |m| {
        m.indistinguishable_from_best.to_string()
    }),
    ("pareto", |m| m.pareto.to_string()),
    ("type_k", |m| optional(m.set_up.type_k.as_ref())),
    ("type_v", |m| optional(m.set_up.type_v.as_ref())),
    ("devices", |m| {
        let devices = m.set_up.devices.as_ref();
        optional(devices.map(|devices| devices.join(" ")).as_ref())
    }),
    ("n_gpu_layers", |m| shown(m.set_up.n_gpu_layers)),
    ("n_batch", |m| shown(m.set_up.n_batch)),
    ("n_ubatch", |m| shown(m.set_up.n_ubatch)),
    ("flash_attn", |m| optional(m.set_up.flash_attn.as_ref())),
    ("threads", |m| shown(m.set_up.threads)),
    ("llama_cpp", |m| optional(m.set_up.llama_cpp.as_ref())),
    ("kld_macro", |m| {
        number(m.summary.kld_macro.map(|mean| mean.value))
    }),
    ("kld_macro_lo", |m| {
        number(m.summary.kld_macro.and_then(|mean| mean.lo))
    }),
    ("kld_macro_hi", |m| {
        number(m.summary.kld_macro.and_then(|mean| mean.hi))
    }),
    ("is_incomplete", |m| m.is_incomplete.to_string()),
    ("file_bytes", |m| shown(m.model.file_bytes)),
];

impl Comparison {
    /// The models as CSV (RFC 4180, but with line feeds alone), after a line with the names of the
    /// columns.
    #[must_use]
    pub fn csv(&self) -> String {
        let names: Vec<&str> = COLUMNS.iter().map(|(name, _)| *name).collect();
        let mut csv = names.join(",") + "\n";
        for model in &self.models {
            let cells: Vec<String> = COLUMNS.iter().map(|(_, cell)| cell(model)).collect();
            csv.push_str(&cells.join(","));
            csv.push('\n');
        }
        csv
    }
}

fn shown(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// A number, empty if it is not finite.
fn number(value: Option<f64>) -> String {
    shown(value.filter(|value| value.is_finite()))
}

fn optional(value: Option<&String>) -> String {
    value.map(|value| text(value)).unwrap_or_default()
}

/// A text, in quotes where it needs them. A spreadsheet runs a cell that starts like a formula as
/// one, in quotes or not: an apostrophe before it makes it text (OWASP, "CSV Injection").
fn text(value: &str) -> String {
    let apostrophe = match value.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']) {
        true => "'",
        false => "",
    };
    match value.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{apostrophe}{}\"", value.replace('"', "\"\"")),
        false => format!("{apostrophe}{value}"),
    }
}

fn quantile(model: &ComparedModel, p: f64) -> String {
    number(model.quantile(p).map(|quantile| quantile.estimate.value))
}

fn same_top_end(model: &ComparedModel, end: fn(&crate::stats::Estimate) -> Option<f64>) -> String {
    let agreement = model.summary.agreement.as_ref();
    number(agreement.and_then(|agreement| end(&agreement.ref_top1.estimate)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample::comparison;

    /// Excel, LibreOffice and Google Sheets run what looks like a formula.
    #[test]
    fn no_cell_is_a_formula() {
        for (label, cell) in [
            ("=1+1", "'=1+1"),
            ("+q4", "'+q4"),
            ("-q4", "'-q4"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\tq4", "'\tq4"),
            ("\r=1", "\"'\r=1\""),
            (
                "=HYPERLINK(\"x\",\"y\")",
                "\"'=HYPERLINK(\"\"x\"\",\"\"y\"\")\"",
            ),
            ("q4=x", "q4=x"),
        ] {
            assert_eq!(text(label), cell);
        }
        let mut of = comparison();
        of.models[0].label = "=1+1".to_owned();
        assert!(of.csv().contains("\n'=1+1,"), "{}", of.csv());
        // A number keeps its sign.
        of.models[2]
            .difference_to_best
            .as_mut()
            .unwrap()
            .difference
            .value = -0.25;
        assert!(of.csv().contains(",-0.25,"), "{}", of.csv());
    }

    #[test]
    fn every_model_has_every_column() {
        let mut of = comparison();
        of.models[0].label = "a, \"b\"".to_owned();
        let csv = of.csv();
        assert!(csv.starts_with(CSV_START));
        insta::assert_snapshot!(csv);
        for line in csv.lines().filter(|line| !line.starts_with("\"a")) {
            assert_eq!(line.split(',').count(), COLUMNS.len(), "{line}");
        }
    }
}
