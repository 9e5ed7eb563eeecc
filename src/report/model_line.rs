//! The line that a terminal shows for each model where there are several.

use super::comparison::{MIN_NAME, Names};
use super::layout::WIDTH;
use super::number::{count_of, duration, ends, short_kld};
use super::result::ModelReport;

/// The narrowest that a name is cut to where an interval stands beside it.
const MIN_BESIDE_INTERVAL: usize = 20;

/// The line of the `index`-th of `of` models, counted from 0: its mean KLD with the interval, the
/// 99 % quantile where there is room, and how long it took. `unit` is the word for a window.
pub fn model_line(model: &ModelReport, (index, of): (usize, usize), unit: &str) -> String {
    let counter = format!("[{}/{of}] ", index + 1);
    let texts = texts(model, unit);
    let names = Names::whole(&[&model.label]);
    let room =
        |text: &String| WIDTH.saturating_sub(counter.chars().count() + text.chars().count() + 2);
    let width = names.width();
    let widths = [width, width.min(MIN_BESIDE_INTERVAL), MIN_NAME];
    let mut with_width = texts.iter().zip(widths);
    let fitting = with_width.find(|(text, width)| room(text) >= *width);
    let text = fitting.map_or(&texts[2], |(text, _)| text);
    let name = names.short(&model.label, room(text).max(MIN_NAME));
    format!("{counter}{name}  {text}")
}

/// The texts beside the name, the longest first.
fn texts(model: &ModelReport, unit: &str) -> [String; 3] {
    let Some(mean) = model.mean_kld() else {
        return ["no token with a finite KLD"; 3].map(str::to_owned);
    };
    let interval = ends(mean.lo, mean.hi, short_kld);
    let mean = format!("mean KLD {}", short_kld(mean.value));
    let quantile = model.q99().map(|q99| format!("  99 % {}", short_kld(q99)));
    let quantile = quantile.unwrap_or_default();
    let took = match &model.timing {
        Some(timing) => duration(timing.wall_s),
        None => "done before".to_owned(),
    };
    // With --until, each model stops after a number of windows of its own.
    let took = match &model.until {
        Some(until) if until.reached => {
            format!("{}  {took}", count_of(model.summary.n_windows, unit))
        }
        Some(_) => format!("--until not reached  {took}"),
        None => took,
    };
    let with_interval = match interval.as_str() {
        "" => mean.clone(),
        interval => format!("{mean} {interval}"),
    };
    [
        format!("{with_interval}{quantile}  {took}"),
        format!("{with_interval}  {took}"),
        format!("{mean}  {took}"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ModelResult;
    use crate::report::tests::made_up::{plain, records, timing};
    use crate::stats::UntilInfo;

    #[test]
    fn a_line_fits_the_terminal() {
        let model = ModelReport {
            timing: Some(timing()),
            ..plain("q4_K_M.gguf", &records(12, 80))
        };
        let line = |label: &str, model: &ModelReport| {
            let result = ModelResult {
                label: label.to_owned(),
                ..model.result.clone()
            };
            let model = ModelReport {
                timing: model.timing,
                result,
                ..ModelReport::default()
            };
            let line = model_line(&model, (2, 10), "window");
            assert!(line.chars().count() <= WIDTH, "{line}");
            line
        };
        let of_until = |until| {
            let mut model = plain("q4.gguf", &records(12, 80));
            model.result.until = Some(until);
            model
        };
        let short = line("q4_K_M", &model);
        assert_eq!(
            short,
            "[3/10] q4_K_M  mean KLD 0.0135 [0.0130, 0.0141]  99 % 0.0261  3 min 20 s"
        );
        let long = line("Meta-Llama-3.1-8B-Instruct-Q4_K_M", &model);
        assert_eq!(
            long,
            "[3/10] Meta-Lla…8B-Instruct-Q4_K_M  mean KLD 0.0135 [0.0130, 0.0141]  3 min 20 s"
        );
        let longest = line(&"x".repeat(200), &model);
        let end = "x  mean KLD 0.0135 [0.0130, 0.0141]  3 min 20 s";
        assert!(longest.ends_with(end), "{longest}");
        let until = |reached| UntilInfo {
            target: 0.05,
            reached,
            relative_half_width: Some(0.05),
            of: Some(99),
            windows_needed: None,
        };
        let stopped = line("q4", &of_until(until(true)));
        assert!(stopped.ends_with("  12 windows  done before"), "{stopped}");
        let went_on = line("q4", &of_until(until(false)));
        assert!(
            went_on.ends_with("  --until not reached  done before"),
            "{went_on}"
        );
        let empty = line("q4", &plain("a", &[]));
        assert_eq!(empty, "[3/10] q4  no token with a finite KLD");
        let before = line("q4", &plain("a", &records(12, 80)));
        assert!(before.ends_with("  done before"), "{before}");
    }
}
