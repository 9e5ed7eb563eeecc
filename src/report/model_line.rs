//! The line that a terminal shows for each model where there are several.

use super::number::{count_of, duration, percent, printable, short_kld};
use super::result::ModelReport;

/// The line of the `index`-th of `of` models, counted from 0: its mean KLD, how often its top token is
/// the reference's, and how long it took. Intervals are in the table that follows, which chooses their
/// clusters for all models at once. `unit` is the word for a window.
pub fn model_line(model: &ModelReport, (index, of): (usize, usize), unit: &str) -> String {
    let name = printable(&model.label);
    let start = format!("[{}/{of}] {name}", index + 1);
    let Some(mean) = model.mean_kld() else {
        return format!("{start}  no token with a finite KLD");
    };
    let same_top = model.same_top();
    let same_top = same_top.map(|share| format!("same top {}", percent(share)));
    // With --until, each model stops after a number of windows of its own.
    let until = model.until.as_ref().map(|until| match until.reached {
        true => count_of(model.summary.n_windows, unit),
        false => "--until not reached".to_owned(),
    });
    let took = match &model.timing {
        Some(timing) => duration(timing.wall_s),
        None => "done before".to_owned(),
    };
    let mean = format!("mean KLD {}", short_kld(mean.value));
    let parts = [Some(start), Some(mean), same_top, until, Some(took)];
    Vec::from_iter(parts.into_iter().flatten()).join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::made_up::{plain, records, timing};
    use crate::stats::UntilInfo;

    #[test]
    fn a_line_has_the_whole_name_and_no_interval() {
        let of = |model: &ModelReport| model_line(model, (2, 10), "window");
        let with_until = |reached| {
            let mut model = plain("q4.gguf", &records(12, 80));
            model.result.until = Some(UntilInfo {
                target: 0.05,
                reached,
                relative_half_width: Some(0.05),
                of: Some(99),
            });
            model
        };
        let long = "Meta-Llama-3.1-8B-Instruct-Q4_K_M".repeat(3);
        let mut model = ModelReport {
            timing: Some(timing()),
            ..plain("q4.gguf", &records(12, 80))
        };
        model.result.label.clone_from(&long);
        assert_eq!(
            of(&model),
            format!("[3/10] {long}  mean KLD 0.0135  same top 90.00 %  3 min 20 s")
        );
        let start = "[3/10] q4  mean KLD 0.0135  same top 90.00 %";
        assert_eq!(
            of(&with_until(true)),
            format!("{start}  12 windows  done before")
        );
        assert_eq!(
            of(&with_until(false)),
            format!("{start}  --until not reached  done before")
        );
        let empty = of(&plain("q4.gguf", &[]));
        assert_eq!(empty, "[3/10] q4  no token with a finite KLD");
    }
}
