//! The table of prompts: all of a few, the worst of many.

use comfy_table::{CellAlignment, Table, presets};

use crate::report::number::{count, kld, or_undefined, percent};
use crate::report::result::PromptReport;
use crate::stats::MeanMax;

/// The number of prompts that are printed; the JSON has all.
const MAX_PRINTED: usize = 40;

/// The number of characters of a prompt that are printed.
const LABEL_CHARS: usize = 45;

/// A table with a row per prompt, in the order of their file.
///
/// Of more than [`MAX_PRINTED`] prompts it shows those with the largest mean KLD, the largest
/// first.
pub fn prompt_table(prompts: &[PromptReport]) -> String {
    let mut rows: Vec<&PromptReport> = prompts.iter().collect();
    if rows.len() > MAX_PRINTED {
        // An infinite KLD is the largest there is, though means leave it out.
        let mean = |prompt: &PromptReport| match &prompt.stats {
            stats if stats.n_infinite > 0 => f64::INFINITY,
            stats => stats.kld.map_or(-1.0, |kld| kld.mean),
        };
        rows.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        rows.truncate(MAX_PRINTED);
    }
    let has_logits = rows.iter().any(|row| row.stats.logits.is_some());
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let mut header = vec!["prompt", "tokens", "mean KLD", "max KLD", "same top"];
    if has_logits {
        header.extend(["abs diff", "cos dist", "mean KLD'", "max KLD'"]);
    }
    table.set_header(header);
    for row in &rows {
        table.add_row(cells(row));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let more = match prompts.len() - rows.len() {
        0 => String::new(),
        n => format!(
            "\nThe {MAX_PRINTED} prompts with the largest mean KLD; {} more are in the JSON (--json).",
            count(n as u64)
        ),
    };
    let smoothed = match has_logits {
        true => "\nabs diff, cos dist: mean distances between logits; KLD': smoothed with 1e-10.",
        false => "",
    };
    format!("{table}{smoothed}{more}\n")
}

fn cells(row: &PromptReport) -> Vec<String> {
    let stats = &row.stats;
    let show = |value| or_undefined(value, kld);
    let mean_and_max =
        |value: Option<MeanMax>| [show(value.map(|v| v.mean)), show(value.map(|v| v.max))];
    let same_top = or_undefined(stats.ref_top1, percent);
    let mut cells = vec![label(&row.prompt), count(stats.n_tokens)];
    cells.extend(mean_and_max(stats.kld));
    cells.push(same_top);
    if let Some(logits) = &stats.logits {
        cells.push(show(logits.mean_abs_diff));
        cells.push(show(logits.cosine_distance));
        cells.extend(mean_and_max(logits.smoothed_kld));
    }
    cells
}

/// The beginning of a prompt, quoted and escaped, so that it is one line whatever it holds.
fn label(prompt: &str) -> String {
    match prompt.char_indices().nth(LABEL_CHARS) {
        Some((end, _)) => format!("{:?}...", prompt.get(..end).unwrap_or_default()),
        None => format!("{prompt:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{PromptLogits, PromptStats};

    fn report(window: u32, mean: f64, logits: Option<PromptLogits>) -> PromptReport {
        PromptReport {
            prompt: format!("no. {window}\n"),
            stats: PromptStats {
                window,
                n_tokens: 1234,
                n_infinite: 0,
                kld: Some(MeanMax {
                    mean,
                    max: 2.0 * mean,
                }),
                reverse_kld_mean: Some(mean),
                ref_top1: Some(0.5),
                logits,
            },
        }
    }

    #[test]
    fn a_few_are_all_shown_in_their_order() {
        let logits = PromptLogits {
            mean_abs_diff: Some(0.125),
            cosine_distance: None,
            smoothed_kld: Some(MeanMax {
                mean: 0.25,
                max: 0.5,
            }),
        };
        let prompts = [report(0, 0.25, None), report(1, 0.5, None)];
        assert_eq!(
            prompt_table(&prompts),
            "\
| prompt    | tokens | mean KLD |  max KLD | same top |
|-----------|--------|----------|----------|----------|
| \"no. 0\\n\" |  1,234 | 0.250000 | 0.500000 |  50.00 % |
| \"no. 1\\n\" |  1,234 | 0.500000 |  1.00000 |  50.00 % |
"
        );
        let with_logits = prompt_table(&[report(0, 0.25, Some(logits))]);
        let row = "| \"no. 0\\n\" |  1,234 | 0.250000 | 0.500000 |  50.00 % | 0.125000 |        - |  0.250000 | 0.500000 |";
        assert!(with_logits.contains(row), "{with_logits}");
        assert!(
            with_logits.ends_with("smoothed with 1e-10.\n"),
            "{with_logits}"
        );
    }

    #[test]
    fn of_many_the_worst_come_first() {
        let prompts: Vec<_> = (0..100)
            .map(|i| report(i, f64::from(i * 37 % 100), None))
            .collect();
        let table = prompt_table(&prompts);
        let rows: Vec<&str> = table.lines().filter(|line| line.contains("no.")).collect();
        assert_eq!(rows.len(), MAX_PRINTED);
        // 27 * 37 = 999: the largest mean.
        assert!(rows[0].contains("no. 27"), "{}", rows[0]);
        assert!(
            table.ends_with("; 60 more are in the JSON (--json).\n"),
            "{table}"
        );
    }

    #[test]
    fn a_label_is_one_short_line() {
        assert_eq!(label("a\n\u{1b}[1m\"é"), r#""a\n\u{1b}[1m\"é""#);
        assert_eq!(label(&"é".repeat(45)), format!("{:?}", "é".repeat(45)));
        assert_eq!(label(&"é".repeat(46)), format!("{:?}...", "é".repeat(45)));
    }
}
