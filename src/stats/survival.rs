//! The Kaplan-Meier estimate: the share of lifetimes that exceed a time, where some end unseen.

use super::cluster::Cluster;
use super::estimate::{Confidence, Estimate};
use super::proportion::jeffreys;
use super::spread::Spread;

/// One lifetime, as far as it was seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lifetime {
    /// The cluster of lifetimes that may resemble each other.
    pub cluster: Cluster,
    /// The time of the event, or the last time at which the event had not happened.
    pub end: u32,
    /// True if it ended with the event, false if it was censored.
    pub is_event: bool,
}

/// The share of lifetimes that exceed a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The time.
    pub time: u32,
    /// The share.
    pub share: f64,
    /// The lifetimes that reach the time.
    n_at_risk: f64,
    /// The lifetimes that reach it without the event.
    n_left: f64,
    /// Greenwood's sum of `d / (r (r − d))` up to the time: the variance of the share's logarithm.
    greenwood: f64,
}

/// The Kaplan-Meier estimate of some lifetimes (Kaplan & Meier 1958, Journal of the American
/// Statistical Association 53).
///
/// At a time with d events among the r lifetimes that reach it, the share is multiplied by `1 − d/r`.
/// A lifetime that was censored at the time of an event reaches it.
#[derive(Clone, Debug)]
pub struct Survival {
    /// The times of events, which ascend.
    pub steps: Vec<Step>,
    lifetimes: Vec<Lifetime>,
    clusters: Vec<Cluster>,
    /// Each lifetime's influence on the logarithm of the share, at its end and later.
    influences: Vec<f64>,
}

impl Survival {
    /// Estimates the shares at the times of events.
    pub fn of(lifetimes: Vec<Lifetime>) -> Self {
        let mut by_end = lifetimes.clone();
        by_end.sort_unstable_by_key(|lifetime| lifetime.end);
        let mut n_at_risk = by_end.len() as f64;
        let (mut steps, mut share, mut greenwood) = (Vec::<Step>::new(), 1.0, 0.0);
        for ending in by_end.chunk_by(|one, next| one.end == next.end) {
            let n_events = ending.iter().filter(|one| one.is_event).count() as f64;
            let n_left = n_at_risk - n_events;
            if n_events > 0.0 {
                share *= n_left / n_at_risk;
                greenwood += n_events / (n_at_risk * n_left);
                steps.push(Step {
                    time: ending[0].end,
                    share,
                    n_at_risk,
                    n_left,
                    greenwood,
                });
            }
            n_at_risk -= ending.len() as f64;
        }
        let of_each = lifetimes.iter();
        Self {
            clusters: of_each.clone().map(|one| one.cluster).collect(),
            influences: of_each.map(|one| influence(&steps, one)).collect(),
            steps,
            lifetimes,
        }
    }

    /// The share at a time without an event: that of the step before it.
    pub fn at(&self, time: u32) -> Step {
        let n = self.lifetimes.iter().filter(|one| one.end >= time).count() as f64;
        let before = step_at(&self.steps, time);
        Step {
            time,
            share: before.map_or(1.0, |step| step.share),
            n_at_risk: n,
            n_left: n,
            greenwood: before.map_or(0.0, |step| step.greenwood),
        }
    }

    /// The share with its interval, which is Jeffreys' at an effective number of lifetimes; no
    /// interval from one cluster.
    ///
    /// That number is the one of uncensored lifetimes whose share S would have Greenwood's variance,
    /// `(1 − S) / (S · Σ d/(r (r − d)))`, over the design effect of the clusters and what Student's t
    /// costs, as for any share of samples: without censoring the intervals are the same. It is at
    /// risk that lifetimes count where the share is 0 or 1 and has no variance, and the upper end of
    /// a share of 0 is at most that of the step before it.
    ///
    /// Dorey & Korn 1987, "Effective sample sizes for confidence intervals for survival
    /// probabilities", Statistics in Medicine 6. The squares of the lifetimes' influences add up to
    /// Greenwood's variance, and those of their sums by cluster to the clustered one: Williams 1995,
    /// "Product-limit survival functions with correlated survival times", Lifetime Data Analysis 1.
    pub fn estimate(&self, step: &Step, confidence: Confidence) -> Estimate {
        let Step {
            share, greenwood, ..
        } = *step;
        let n = self.lifetimes.len() as f64;
        let has_variance = share > 0.0 && share < 1.0;
        let influences = self.lifetimes.iter().zip(&self.influences);
        let residuals = influences.map(|(lifetime, from_its_end_on)| {
            let of_logarithm = match lifetime.end <= step.time {
                true => *from_its_end_on,
                false => greenwood,
            };
            if has_variance {
                n * share * of_logarithm
            } else {
                0.0
            }
        });
        let spread = Spread::of(&self.clusters, residuals);
        let Some(n_for_share) = spread.n_for_share(confidence) else {
            return Estimate::point(share);
        };
        let n_uncensored = match has_variance {
            true => (1.0 - share) / (share * greenwood),
            false => step.n_at_risk,
        };
        let mut estimate = jeffreys(share, n_uncensored * n_for_share / n, confidence);
        let mut before = self
            .steps
            .iter()
            .rev()
            .filter(|before| before.share > share);
        if let (true, Some(before)) = (share == 0.0, before.next()) {
            let most = self.estimate(before, confidence).hi;
            estimate.hi = estimate.hi.zip(most).map(|(hi, most)| hi.min(most));
        }
        estimate
    }
}

/// The last step up to a time.
fn step_at(steps: &[Step], time: u32) -> Option<&Step> {
    let n = steps.partition_point(|step| step.time <= time);
    steps.get(n.checked_sub(1)?)
}

/// The influence of a lifetime on the logarithm of the share at its end and later: `Σ d/(r (r − d))`
/// up to there, for having reached these times, less `1/(r − d)` for its event.
fn influence(steps: &[Step], lifetime: &Lifetime) -> f64 {
    let last = step_at(steps, lifetime.end);
    last.map_or(0.0, |last| match lifetime.is_event {
        true => last.greenwood - 1.0 / last.n_left,
        false => last.greenwood,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::oracle::{Lcg, assert_close};
    use crate::stats::proportion::Share;

    /// Lifetimes with ties, as `lifetimes` in `oracle.py` makes them, in clusters of so many.
    fn lifetimes(n: u32, together: u32) -> Vec<Lifetime> {
        let mut lcg = Lcg::new(n.into());
        let mut hard = 0.0;
        let lifetime = |i: u32| {
            if i.is_multiple_of(3) {
                hard = lcg.uniform();
            }
            let event = 1 + (30.0 * hard * lcg.uniform()) as u32;
            let last = 5 + lcg.below(15);
            Lifetime {
                cluster: (i / together).into(),
                end: event.min(last),
                is_event: event <= last,
            }
        };
        (0..n).map(lifetime).collect()
    }

    /// Lifetimes of these ends, each its own cluster.
    fn independent(ends: &[(u32, bool)]) -> Vec<Lifetime> {
        let lifetimes = (0..).zip(ends).map(|(i, &(end, is_event))| Lifetime {
            cluster: Cluster::from(i),
            end,
            is_event,
        });
        lifetimes.collect()
    }

    fn estimates(survival: &Survival) -> Vec<(u32, Estimate)> {
        let confidence = Confidence::default();
        let steps = survival.steps.iter();
        steps
            .map(|step| (step.time, survival.estimate(step, confidence)))
            .collect()
    }

    /// scipy.stats.ecdf of censored data, from `oracle.py`; lifelines gives the same shares.
    #[test]
    fn matches_scipy() {
        let got = [1, 3].map(|together| estimates(&Survival::of(lifetimes(60, together))));
        assert_eq!(got[0].len() + got[1].len(), KAPLAN_MEIER.len());
        let got = got.into_iter().flatten();
        for ((time, got), (_, expected_time, share, lo, hi)) in got.zip(KAPLAN_MEIER) {
            assert_eq!(time, expected_time);
            assert_close(got.value, share, 1e-14);
            assert_close(got.lo.unwrap(), lo, 1e-11);
            assert_close(got.hi.unwrap(), hi, 1e-11);
        }
    }

    /// Lifetimes in a cluster, time, share, and its interval.
    const KAPLAN_MEIER: [(u32, u32, f64, f64, f64); 22] = [
        (
            1,
            1,
            0.7666666666666667,
            0.6461538992833775,
            0.8611372411280134,
        ),
        (
            1,
            2,
            0.6666666666666667,
            0.5390841677173608,
            0.777958356135926,
        ),
        (
            1,
            3,
            0.6166666666666668,
            0.4878722086374227,
            0.7340550481046635,
        ),
        (
            1,
            4,
            0.45000000000000007,
            0.32656112100410517,
            0.5783279560012237,
        ),
        (1, 5, 0.4, 0.2808828644356027, 0.5288942808772092),
        (
            1,
            7,
            0.38095238095238093,
            0.26323853777932515,
            0.5104292524388565,
        ),
        (
            1,
            8,
            0.35978835978835977,
            0.24338451250302523,
            0.49034412769440877,
        ),
        (
            1,
            9,
            0.31746031746031744,
            0.20491821569610774,
            0.4491264986658571,
        ),
        (
            1,
            10,
            0.2686202686202686,
            0.16099413107824415,
            0.40227095060400075,
        ),
        (
            1,
            11,
            0.2148962148962149,
            0.11508100196562533,
            0.34984701371133636,
        ),
        (
            1,
            12,
            0.18803418803418803,
            0.09389332716665648,
            0.3221114421123272,
        ),
        (
            3,
            1,
            0.7666666666666667,
            0.5856728968566474,
            0.8939488831992806,
        ),
        (
            3,
            2,
            0.6666666666666667,
            0.48333945894097474,
            0.8177426046826859,
        ),
        (
            3,
            3,
            0.6166666666666668,
            0.436682107890291,
            0.7748848756679747,
        ),
        (
            3,
            4,
            0.45000000000000007,
            0.263333222790058,
            0.6483140653482045,
        ),
        (3, 5, 0.4, 0.23282479469179013, 0.5874360557721561),
        (
            3,
            7,
            0.38095238095238093,
            0.2181090353945554,
            0.5676078979541137,
        ),
        (
            3,
            8,
            0.35978835978835977,
            0.20260140025495454,
            0.5443822675545033,
        ),
        (
            3,
            9,
            0.31746031746031744,
            0.16714309534035293,
            0.5046552673038387,
        ),
        (
            3,
            10,
            0.2686202686202686,
            0.12060683763252626,
            0.47241871000231805,
        ),
        (
            3,
            11,
            0.2148962148962149,
            0.09615212108483981,
            0.38793312926327067,
        ),
        (
            3,
            12,
            0.18803418803418803,
            0.07531998047372385,
            0.36481319471203755,
        ),
    ];

    #[test]
    fn without_censoring_it_is_a_share_of_samples() {
        for together in [1, 4] {
            let mut lifetimes = lifetimes(80, together);
            for (i, lifetime) in lifetimes.iter_mut().enumerate() {
                // In two groups, whose clusters are strata.
                lifetime.cluster.stratum = u32::from(i >= 32);
                lifetime.is_event = true;
            }
            let clusters: Vec<Cluster> = lifetimes.iter().map(|one| one.cluster).collect();
            let survival = Survival::of(lifetimes.clone());
            let (last, inside) = survival.steps.split_last().unwrap();
            for step in inside {
                let exceeds: Vec<bool> = lifetimes.iter().map(|one| one.end > step.time).collect();
                let share = Share::of(&clusters, &exceeds, Confidence::default()).unwrap();
                let got = survival.estimate(step, Confidence::default());
                assert_close(got.value, share.estimate.value, 1e-13);
                assert_close(got.lo.unwrap(), share.estimate.lo.unwrap(), 1e-11);
                assert_close(got.hi.unwrap(), share.estimate.hi.unwrap(), 1e-11);
            }
            assert_eq!(last.share, 0.0);
        }
    }

    /// By hand: 5/6 at 1, times 3/4 at 3, times 0/1 at 8. One is censored at 1, after the event there,
    /// and one at 3.
    #[test]
    fn a_lifetime_that_is_censored_at_an_event_reaches_it() {
        let ends = [
            (3, true),
            (1, true),
            (1, false),
            (8, true),
            (3, false),
            (5, false),
        ];
        let survival = Survival::of(independent(&ends));
        let shares: Vec<(u32, f64)> = survival.steps.iter().map(|s| (s.time, s.share)).collect();
        assert_eq!(shares, [(1, 5.0 / 6.0), (3, 5.0 / 6.0 * 0.75), (8, 0.0)]);
        assert_eq!((survival.at(6).share, survival.at(0).share), (0.625, 1.0));
    }

    /// The one lifetime at risk in the end could by itself have been any of many.
    #[test]
    fn a_share_of_0_is_not_higher_than_the_one_before() {
        let mut ends = vec![(1, true); 16];
        ends.extend([(2, false), (2, false), (2, false), (5, true)]);
        let estimates = estimates(&Survival::of(independent(&ends)));
        let [(1, before), (5, last)] = estimates[..] else {
            panic!("{estimates:?}")
        };
        assert!(before.hi.unwrap() < 0.5);
        assert_eq!((last.value, last.lo, last.hi), (0.0, Some(0.0), before.hi));
    }

    #[test]
    fn all_and_none_are_estimated_from_those_at_risk() {
        let confidence = Confidence::default();
        let ends = |is_event| [(7, is_event); 20];
        let none = Survival::of(independent(&ends(true)));
        let step = none.steps[0];
        let of_none = none.estimate(&step, confidence);
        let clusters: Vec<Cluster> = (0..20).map(Cluster::from).collect();
        let share = Share::of(&clusters, &[false; 20], confidence);
        assert_eq!(of_none, share.unwrap().estimate);
        let all = Survival::of(independent(&ends(false)));
        assert!(all.steps.is_empty());
        let share = Share::of(&clusters, &[true; 20], confidence);
        assert_eq!(
            all.estimate(&all.at(7), confidence),
            share.unwrap().estimate
        );
        let one = Survival::of(independent(&[(7, true)]));
        assert_eq!(
            one.estimate(&one.steps[0], confidence),
            Estimate::point(0.0)
        );
    }
}
