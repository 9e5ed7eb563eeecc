//! The table of prompts: all of a few, the worst of many.

use kl_stats::stats::PromptLogits;

use crate::layout::{View, WIDTH, quoted, wrapped};
use crate::number::{count, or_undefined, percent, short_kld};
use crate::result::PromptReport;
use crate::table::Table;

/// The number of prompts that are printed, and in full; the JSON has all.
const MAX_PRINTED: usize = 5;
const MAX_IN_FULL: usize = 40;

/// The most columns of a prompt that are printed, and the fewest.
const LABEL_WIDTH: usize = 45;
const MIN_LABEL_WIDTH: usize = 8;

/// A table with a row per prompt, in the order of their file.
///
/// Of many prompts it shows those with the largest mean KLD, the largest first.
pub fn prompt_table(prompts: &[PromptReport], view: View) -> String {
    let max_rows = if view.full { MAX_IN_FULL } else { MAX_PRINTED };
    let rows = worst_prompts(prompts, max_rows);
    let has_logits = rows.iter().any(|row| row.stats.logits.is_some());
    let show = |value| or_undefined(value, short_kld);
    let logits_cell = |row: &PromptReport, value: fn(&PromptLogits) -> Option<f64>| {
        show(row.stats.logits.as_ref().and_then(value))
    };
    let table_text = |width: usize| {
        let table = Table::new("", &rows)
            .left("\n  no.", |row| format!("  {}", row.stats.window))
            .left("\nprompt", |row| quoted(&row.prompt, width, false))
            .right("\ntokens", |row| count(row.stats.n_tokens))
            .right("mean\nKLD", |row| show(row.stats.kld.map(|kld| kld.mean)))
            .right("max\nKLD", |row| show(row.stats.kld.map(|kld| kld.max)))
            .right("same\ntop", |row| or_undefined(row.stats.ref_top1, percent))
            .right("abs\ndiff", |row| {
                logits_cell(row, |logits| logits.mean_abs_diff)
            })
            .shown_if(has_logits)
            .right("cos\ndist", |row| {
                logits_cell(row, |logits| logits.cosine_distance)
            })
            .shown_if(has_logits)
            .right("mean\nKLD'", |row| {
                logits_cell(row, |logits| Some(logits.smoothed_kld?.mean))
            })
            .shown_if(has_logits)
            .right("max\nKLD'", |row| {
                logits_cell(row, |logits| Some(logits.smoothed_kld?.max))
            })
            .shown_if(has_logits);
        table.rows_text()
    };
    // The titles are as wide as the rows, and each of their characters takes one column.
    let width = |table: &str| table.lines().nth(1).map(|title| title.chars().count());
    let mut text = (MIN_LABEL_WIDTH..=LABEL_WIDTH)
        .rev()
        .map(&table_text)
        .find(|table| width(table) <= Some(WIDTH))
        .unwrap_or_else(|| table_text(MIN_LABEL_WIDTH));
    text += "no.: the prompt's number, from 0\n";
    if has_logits {
        let legend = "abs diff, cos dist: mean distances between logits; KLD': smoothed with 1e-10";
        text += &wrapped(legend);
    }
    let n_more = prompts.len() - rows.len();
    if n_more > 0 {
        text += &wrapped(&format!(
            "The {max_rows} prompts with the largest mean KLD; {} more in the JSON (--json).",
            count(n_more as u64)
        ));
    }
    text
}

/// The `max_rows` prompts with the largest mean KLD, the largest first; or all in their order, if there are no
/// more.
fn worst_prompts(prompts: &[PromptReport], max_rows: usize) -> Vec<&PromptReport> {
    let mut rows: Vec<&PromptReport> = prompts.iter().collect();
    if rows.len() > max_rows {
        // An infinite KLD is the largest there is, though means leave it out.
        let mean = |prompt: &PromptReport| match &prompt.stats {
            stats if stats.n_infinite > 0 => f64::INFINITY,
            stats => stats.kld.map_or(-1.0, |kld| kld.mean),
        };
        rows.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        rows.truncate(max_rows);
    }
    rows
}

#[cfg(test)]
mod tests {
    use kl_stats::stats::{MeanMax, PromptStats};

    use super::*;
    use crate::tests::{BRIEF, FULL};

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
        let with_logits = prompt_table(&[report(0, 0.25, Some(logits))], FULL);
        insta::assert_snapshot!(prompt_table(&prompts, FULL) + &with_logits);
    }

    #[test]
    fn wide_prompts_and_columns_fit_the_terminal() {
        let logits = PromptLogits {
            mean_abs_diff: Some(0.662119),
            cosine_distance: Some(0.00978994),
            smoothed_kld: Some(MeanMax {
                mean: 0.0000123456,
                max: 4.39055,
            }),
        };
        for prompt in [
            "我想给房东写一条消息".repeat(9),
            "a ".repeat(90),
            "e\u{301}".repeat(40),
        ] {
            let mut row = report(199, 0.0000987654, Some(logits.clone()));
            row.prompt = prompt;
            let table = prompt_table(&[row], FULL);
            // Of those above, Chinese ones take two columns, and the accent none.
            let columns = |c: char| match c {
                '\u{301}' => 0,
                '\u{4e00}'..'\u{9fff}' => 2,
                _ => 1,
            };
            for line in table.lines() {
                assert!(line.chars().map(columns).sum::<usize>() <= WIDTH, "{line}");
            }
            assert!(table.contains(" 199 \""), "{table}");
        }
    }

    #[test]
    fn of_many_the_worst_come_first() {
        let prompts: Vec<_> = (0..100)
            .map(|i| report(i, f64::from(i * 37 % 100), None))
            .collect();
        let table = prompt_table(&prompts, BRIEF);
        let rows: Vec<&str> = table
            .lines()
            .filter(|line| line.contains("\"no. "))
            .collect();
        assert_eq!(rows.len(), MAX_PRINTED);
        // 27 * 37 = 999: the largest mean.
        assert!(rows[0].contains("no. 27"), "{}", rows[0]);
        let more = "The 5 prompts with the largest mean KLD; 95 more in the JSON (--json).\n";
        assert!(table.ends_with(more), "{table}");
    }
}
