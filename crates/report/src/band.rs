//! What a mean KLD means: the bands into which people sort quants, in one table, and how many top tokens
//! differ.

use super::number::{capitalised, count};
use super::result::ModelResult;

/// A band of mean KLDs.
pub struct Band {
    name: &'static str,
    /// The name as it describes a loss.
    loss: &'static str,
    /// The mean KLD in nats at which the next band begins.
    below: f64,
}

/// The bands, by rising KLD: those of SGLang's KLD scripts. Other tools draw other lines, see docs/READING.md,
/// which has this table too.
const BANDS: [Band; 4] = [
    Band {
        name: "near-lossless",
        loss: "near-lossless",
        below: 0.01,
    },
    Band {
        name: "good",
        loss: "good",
        below: 0.05,
    },
    Band {
        name: "noticeable",
        loss: "a noticeable loss",
        below: 0.1,
    },
    Band {
        name: "significant",
        loss: "a significant loss",
        below: f64::INFINITY,
    },
];

/// The caution that comes with a band's name.
const CAUTION: &str = "bands depend on model and text";

/// The share of top tokens from which it is given in percent, not as one in so many: rounded, `1 in 2` could as well
/// be a third.
const SHARE_IN_PERCENT: f64 = 0.4;

impl Band {
    /// The band of a mean KLD in nats.
    fn of(kld: f64) -> Option<&'static Self> {
        BANDS.iter().find(|band| kld < band.below)
    }

    /// The mean KLDs that it holds: `from 0.01 to 0.05`.
    fn range(&self) -> String {
        let mut descending_ends = BANDS.iter().rev().map(|band| band.below);
        match (descending_ends.find(|end| *end < self.below), self.below) {
            (None, end) => format!("below {end}"),
            (Some(start), f64::INFINITY) => format!("above {start}"),
            (Some(start), end) => format!("from {start} to {end}"),
        }
    }
}

impl ModelResult {
    /// The band of its mean KLD. `None` for the noise floor, which has lost nothing, and for a mean that leaves out
    /// tokens, which may be the worst.
    fn band(&self) -> Option<&'static Band> {
        let mean = self.mean_kld()?.value;
        Band::of(mean).filter(|_| !self.is_noise_floor && self.n_left_out() == 0)
    }

    /// Its loss in words: the band of its mean KLD, and how many top tokens differ. `None` without a band.
    pub fn loss_in_words(&self) -> Option<String> {
        let loss = self.band()?.loss;
        let same_top = self.same_top().filter(|same| same.is_finite());
        let differing = same_top.map(|same| format!(", {}", differing(1.0 - same)));
        Some(format!("{loss}{}", differing.unwrap_or_default()))
    }

    /// Its loss as a sentence, with what such words are worth. `None` without a band.
    pub fn loss_sentence(&self) -> Option<String> {
        let loss = capitalised(&self.loss_in_words()?);
        Some(format!("{loss}; {CAUTION}."))
    }

    /// Explains its band, with what such words are worth. `None` without a band.
    pub fn band_in_words(&self) -> Option<String> {
        let band = self.band()?;
        let (name, range) = (band.name, band.range());
        Some(format!("{name}: a mean KLD {range}; {CAUTION}"))
    }
}

/// Says how many top tokens differ: `1 top token in 48 differs`.
fn differing(share: f64) -> String {
    if share <= 0.0 {
        "no top token differs".to_owned()
    } else if share < SHARE_IN_PERCENT {
        let one_in = count((1.0 / share).round() as u64);
        format!("1 top token in {one_in} differs")
    } else {
        format!("{:.0} % of the top tokens differ", 100.0 * share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sample;

    /// A model with such a mean KLD and such a share of equal top tokens.
    fn model(mean: f64, same_top: f64) -> ModelResult {
        let mut model = sample::model("q4", 1_000_000, 1.0).result;
        model.summary.kld.as_mut().unwrap().mean.independent.value = mean;
        let agreement = model.summary.agreement.as_mut().unwrap();
        agreement.ref_top1.estimate.value = same_top;
        model
    }

    #[test]
    fn a_loss_has_words() {
        for (mean, same_top, loss) in [
            (0.0, 1.0, "near-lossless, no top token differs"),
            (0.0099, 0.979, "near-lossless, 1 top token in 48 differs"),
            (0.01, 0.999_9, "good, 1 top token in 10,000 differs"),
            (0.07, 0.88, "a noticeable loss, 1 top token in 8 differs"),
            (0.183, 0.75, "a significant loss, 1 top token in 4 differs"),
            (
                3.0,
                0.6,
                "a significant loss, 40 % of the top tokens differ",
            ),
        ] {
            assert_eq!(model(mean, same_top).loss_in_words().unwrap(), loss);
        }
        let far = model(0.183, 0.75);
        let explained = "significant: a mean KLD above 0.1; bands depend on model and text";
        assert_eq!(far.band_in_words().unwrap(), explained);
        let sentence =
            "A significant loss, 1 top token in 4 differs; bands depend on model and text.";
        assert_eq!(far.loss_sentence().unwrap(), sentence);
    }

    #[test]
    fn a_mean_without_its_worst_tokens_has_no_band() {
        let mut model = model(0.003, 0.9);
        model.summary.n_excluded = 1;
        assert_eq!(model.loss_in_words(), None);
        model.summary.n_excluded = 0;
        assert!(model.loss_in_words().is_some());
        model.is_noise_floor = true;
        assert_eq!((model.loss_in_words(), model.band_in_words()), (None, None));
    }

    #[test]
    fn the_documents_have_the_bands() {
        let page = include_str!("../../../docs/READING.md");
        for band in &BANDS {
            let row = format!("| {} | {} |", band.range(), band.name);
            assert!(page.contains(&row), "{row}");
        }
    }
}
