//! Two models on the tokens of each span.

use serde::Serialize;

use super::cluster::Cluster;
use super::clusters::Clusters;
use super::estimate::Confidence;
use super::paired::sums;
use super::ratio::Ratio;
use super::runs::Run;
use super::significance::holm;
use super::spans::TokenSpans;

/// The ratio of two models' mean KLDs on the tokens of a span.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct SpanRatio {
    /// The span's name.
    pub label: String,
    /// Tokens of the span that both models count.
    pub n_tokens: u64,
    /// The ratio of the mean KLDs on these tokens; null where both are 0.
    pub ratio: Option<Ratio>,
    /// That ratio over the ratio on all other tokens: above 1, the model loses more in this span than
    /// elsewhere. Null where a mean is 0, where the second's in the span is noise, and from fewer than two
    /// clusters.
    pub to_others: Option<Ratio>,
    /// The p-value of `to_others` after Holm's adjustment for the number of models and spans, of which two
    /// are one test; null where it was not adjusted.
    pub p_holm: Option<f64>,
}

impl SpanRatio {
    /// Compares the KLDs of two models, in nats, on the tokens of `runs`, NaN where a model does not
    /// count a token: a ratio for each span that has tokens, in the order of `names`. Empty unless two
    /// spans have some: a single one is all of the tokens.
    pub fn of_each(
        (runs, spans): (&[Run], &TokenSpans),
        names: &[String],
        a: &[f64],
        b: &[f64],
        clusters: &Clusters,
        confidence: Confidence,
    ) -> Vec<Self> {
        if names.len() < 2 {
            return Vec::new();
        }
        let klds = a.iter().copied().zip(b.iter().copied());
        let tokens = clusters.of_tokens(runs).into_iter().zip(spans.iter());
        let tokens = tokens.zip(klds);
        let counted = tokens.filter(|(_, (a, b))| !a.is_nan() && !b.is_nan());
        let counted: Vec<((Cluster, u32), (f64, f64))> = counted.collect();
        let of_span = |span: usize, label: &String| {
            let (inside, outside): (Vec<_>, Vec<_>) = counted
                .iter()
                .map(|((cluster, of), klds)| (*of as usize == span, (*cluster, *klds)))
                .partition(|(is_inside, _)| *is_inside);
            let [inside, outside] = [inside, outside].map(|tokens| {
                let (clusters, klds): (Vec<Cluster>, Vec<(f64, f64)>) =
                    tokens.into_iter().map(|(_, token)| token).unzip();
                (klds.len(), sums(&clusters, &klds))
            });
            Self {
                label: label.clone(),
                n_tokens: inside.0 as u64,
                ratio: Ratio::of(&inside.1, confidence),
                to_others: Ratio::of_ratios(&inside.1, &outside.1, confidence),
                p_holm: None,
            }
        };
        let of_each = names.iter().enumerate();
        let mut of_each: Vec<Self> = of_each.map(|(span, name)| of_span(span, name)).collect();
        of_each.retain(|of| of.n_tokens > 0);
        match of_each.len() {
            1 => Vec::new(),
            _ => of_each,
        }
    }

    /// Adjusts the p-values of `to_others` for the number of models and spans, by Holm's method: `models` are
    /// the spans of each. Exactly two spans are one test, as the one's ratio to the other is the inverse of
    /// the other's.
    pub fn adjust<'r>(models: impl Iterator<Item = &'r mut Vec<Self>>) {
        let tests = models.flat_map(|spans| {
            let spans_of_a_test = if spans.len() == 2 { 2 } else { 1 };
            spans.chunks_mut(spans_of_a_test)
        });
        let p = |test: &[Self]| test.first()?.to_others?.p;
        let tests: Vec<&mut [Self]> = tests.filter(|test| p(test).is_some()).collect();
        let each_p: Vec<f64> = tests.iter().filter_map(|test| p(test)).collect();
        for (test, p_holm) in tests.into_iter().zip(holm(&each_p)) {
            test.iter_mut().for_each(|of| of.p_holm = Some(p_holm));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::oracle::{assert_close, records};
    use crate::stats::{ClusterRule, Columns, Windows};

    /// Of a ratio and of its quotient with that of the others: value, ends and p-value.
    type Pinned = (f64, f64, f64, f64, f64, f64, f64, f64);

    const NAMES: [&str; 5] = ["prompt", "answer", "reasoning", "tool call", "code"];

    /// The records' two divergences, as if they were two models', on the tokens of these spans.
    fn of_each(span: impl Fn(u32, u32) -> u32) -> Vec<SpanRatio> {
        let mut records: Vec<_> = records().into_iter().filter(|r| r.flags == 0).collect();
        for record in &mut records {
            record.span = span(record.window, record.position);
        }
        let columns = Columns::of(&records);
        let clusters = Clusters::of(
            &Windows::of(&columns.runs, &columns.kld),
            ClusterRule::Window,
        );
        SpanRatio::of_each(
            (&columns.runs, &columns.spans),
            &NAMES.map(str::to_owned),
            &columns.reverse_kld,
            &columns.kld,
            &clusters,
            Confidence::default(),
        )
    }

    /// The cases of `oracle.py`.
    #[test]
    fn matches_numpy_and_scipy() {
        let got = of_each(|window, position| match position {
            0..10 => 1,
            25.. if window % 3 == 0 => 3,
            _ => 2,
        });
        let labels: Vec<&str> = got.iter().map(|of| of.label.as_str()).collect();
        assert_eq!(labels, ["answer", "reasoning", "tool call"]);
        for (got, expected) in got.iter().zip(SPAN_RATIOS) {
            let (value, lo, hi, p, times, times_lo, times_hi, times_p) = expected;
            let (ratio, to_others) = (got.ratio.unwrap(), got.to_others.unwrap());
            for (got, expected) in [
                (ratio.value, value),
                (ratio.lo.unwrap(), lo),
                (ratio.hi.unwrap(), hi),
                (ratio.p.unwrap(), p),
                (to_others.value, times),
                (to_others.lo.unwrap(), times_lo),
                (to_others.hi.unwrap(), times_hi),
                (to_others.p.unwrap(), times_p),
            ] {
                assert_close(got, expected, 1e-12);
            }
        }
    }

    #[test]
    fn a_single_span_is_all_of_the_tokens() {
        assert!(of_each(|_, _| 1).is_empty());
        // One that is in a single window has a ratio, but no interval.
        let got = of_each(|window, _| 1 + u32::from(window == 7));
        assert_eq!(got.len(), 2);
        assert!(got[1].ratio.is_some_and(|ratio| ratio.p.is_none()));
        assert!(got.iter().all(|of| of.to_others.is_none()));
    }

    const SPAN_RATIOS: [Pinned; 3] = [
        (
            1.096273305830919,
            0.7961636340591315,
            1.5095077314071248,
            0.5643899069403084,
            1.0894795661721317,
            0.8022341128046939,
            1.4795752339137769,
            0.573405723769918,
        ),
        (
            0.9949731519460324,
            0.8947151952280248,
            1.1064655863379196,
            0.9235954964623685,
            0.9090077271068299,
            0.72115028740703,
            1.1458014541059862,
            0.4046410105191533,
        ),
        (
            1.0900039271850859,
            0.994569787287374,
            1.194595468779924,
            0.06236545275276526,
            1.0667270524697008,
            0.9349717483450358,
            1.2170491851597318,
            0.2981685543046307,
        ),
    ];
}
