//! When one of many quants need not be measured to the end, since it cannot be the pick any more (docs/PICK.md).
//!
//! Each quant is looked at once, after a tenth of the windows, which are a random sample of all. It stops there if its
//! mean KLD is surely above the highest that is wished for, or if another that is measured already is smaller, faster and
//! surely nearer, so that it is not on the front either. "Surely" is one-sided, at 5 % over the number of quants: the one
//! that would be picked meets at most one such test for each other quant and one for the limit, and so all of them
//! together stop it with a chance of at most 5 %.

use kl_formats::{Pace, TokenRecord};
use kl_stats::stats::{Confidence, Estimator, p_no_farther, usable_klds};

use crate::comparison::ROUNDING_KLD;
use crate::number::short_kld;

/// Of fewer quants, all are measured to the end.
const MIN_QUANTS: usize = 20;

/// Of fewer windows, a tenth says too little.
const MIN_WINDOWS: u64 = 100;

/// The share of the windows after which a quant is looked at, as a divisor.
const SHARE: u64 = 10;

/// The chance that the quant that would be picked is stopped.
const CHANCE: f64 = 0.05;

/// The rule by which quants are left alone.
#[derive(Debug, Clone, Copy)]
pub struct EarlyRule {
    /// The number of quants.
    pub n_quants: usize,
    /// The number of windows, all together.
    pub n_windows: u64,
    /// The tokens of the context whose memory counts.
    pub context: u64,
    /// The highest mean KLD that is wished for, in nats.
    pub max_kld: Option<f64>,
}

/// What is known of a quant when it is looked at.
#[derive(Debug, Clone)]
pub struct Look {
    /// Its label.
    pub label: String,
    /// The bytes that it takes with the context that is asked for.
    pub memory: Option<u64>,
    /// The speed at which it generates.
    pub generation: Option<Pace>,
    /// The records of the windows after which quants are looked at.
    pub records: Vec<TokenRecord>,
}

impl EarlyRule {
    /// The number of windows after which a quant is looked at; `None`: it is measured to the end.
    pub fn looks_after(&self) -> Option<u64> {
        let is_worth_it = self.n_quants >= MIN_QUANTS && self.n_windows >= MIN_WINDOWS;
        is_worth_it.then(|| self.n_windows.div_ceil(SHARE))
    }

    /// Why a quant cannot be the pick, in words that follow its name and a colon; `None` where it can. `whole`: those that are
    /// measured to the end. Without any, none is stopped, as one is to be left.
    pub fn why_not(&self, quant: &Look, whole: Vec<&Look>) -> Option<String> {
        if whole.is_empty() {
            return None;
        }
        let klds = usable_klds(&quant.records);
        let chance = CHANCE / self.n_quants as f64;
        // One end of a two-sided interval.
        let confidence = Confidence::new(1.0 - 2.0 * chance)?;
        // Of a random sample each window stands for itself, also where neighbours resemble each other.
        let windows = quant.records.iter().map(|record| record.window.into());
        let estimator = Estimator::new(windows, confidence);
        let mean = estimator.mean_of_positive(klds.iter().copied())?.estimate();
        if let (Some(max_kld), Some(lo)) = (self.max_kld, mean.lo)
            && lo > max_kld
        {
            return Some(format!("surely above {} nats", short_kld(max_kld)));
        }
        if mean.value <= ROUNDING_KLD {
            return None;
        }
        let nearer = whole.into_iter().find(|other| {
            quant.is_dominated_by(other) && is_nearer(other, quant, &estimator, chance)
        })?;
        let label = &nearer.label;
        Some(format!("{label} is smaller, faster and surely nearer"))
    }
}

impl Look {
    /// True if the other takes no more memory, and was faster in each of its runs than this one in any.
    fn is_dominated_by(&self, other: &Self) -> bool {
        let is_smaller = self
            .memory
            .zip(other.memory)
            .is_some_and(|(own, other)| other <= own);
        let is_faster = self
            .generation
            .zip(other.generation)
            .is_some_and(|(own, other)| other.lo > own.hi);
        is_smaller && is_faster
    }
}

/// True if one quant is nearer than another, with a chance of error of at most `chance`; both on the same windows.
fn is_nearer(one: &Look, other: &Look, estimator: &Estimator, chance: f64) -> bool {
    let [of_one, of_other] = [one, other].map(|look| &*look.records);
    let place = |record: &TokenRecord| (record.window, record.position);
    if !of_one.iter().map(place).eq(of_other.iter().map(place)) {
        return false;
    }
    let p = p_no_farther(estimator, &usable_klds(of_other), &usable_klds(of_one));
    p.is_some_and(|p| p < chance)
}

#[cfg(test)]
mod tests {
    use kl_formats::Random;

    use super::*;

    const N_WINDOWS: u32 = 20;
    const N_TOKENS: u32 = 16;

    fn rule(max_kld: Option<f64>) -> EarlyRule {
        EarlyRule {
            n_quants: 20,
            n_windows: 10 * u64::from(N_WINDOWS),
            context: 8192,
            max_kld,
        }
    }

    /// A quant that generates so many tokens a second, within 2 %, with these KLDs.
    fn quant(speed: f64, memory: u64, mut kld: impl FnMut(u32, u32) -> f64) -> Look {
        let mut records = crate::testing::made_up::records(N_WINDOWS, N_TOKENS);
        for record in &mut records {
            record.kld = kld(record.window, record.position);
        }
        Look {
            label: format!("of-{memory}"),
            memory: Some(memory),
            generation: Some(Pace {
                n_tokens: 64,
                tokens_per_s: speed,
                lo: 0.98 * speed,
                hi: 1.02 * speed,
            }),
            records,
        }
    }

    /// KLDs around `mean` that differ by token and window, the same for any mean.
    fn around(mean: f64) -> impl FnMut(u32, u32) -> f64 {
        move |window, position| mean * f64::from(1 + (window * 7 + position * 3) % 5) / 3.0
    }

    #[test]
    fn few_quants_and_few_windows_are_measured_to_the_end() {
        let rule = |n_quants, n_windows| EarlyRule {
            n_quants,
            n_windows,
            ..rule(None)
        };
        assert_eq!(rule(20, 100).looks_after(), Some(10));
        assert_eq!(rule(24, 205).looks_after(), Some(21));
        assert_eq!(rule(19, 200).looks_after(), None);
        assert_eq!(rule(20, 99).looks_after(), None);
    }

    #[test]
    fn what_is_surely_above_the_limit_stops() {
        let near = quant(30.0, 100, around(0.01));
        let why = |kld, limit| rule(limit).why_not(&quant(50.0, 50, around(kld)), vec![&near]);
        assert_eq!(why(0.2, Some(0.05)).unwrap(), "surely above 0.0500 nats");
        assert_eq!(why(0.051, Some(0.05)), None);
        assert_eq!(why(0.01, Some(0.05)), None);
        assert_eq!(why(0.2, None), None);
        // One is to be left.
        let far = quant(50.0, 50, around(0.2));
        assert_eq!(rule(Some(0.05)).why_not(&far, Vec::new()), None);
    }

    #[test]
    fn only_what_a_smaller_faster_and_nearer_one_beats_stops() {
        let why = |kld, speed, memory, other: &Look| {
            rule(None).why_not(&quant(speed, memory, around(kld)), vec![other])
        };
        let other = quant(40.0, 100, around(0.1));
        assert_eq!(
            why(0.2, 30.0, 110, &other).unwrap(),
            "of-100 is smaller, faster and surely nearer"
        );
        for (kld, speed, memory) in [(0.09, 30.0, 110), (0.2, 39.0, 110), (0.2, 30.0, 99)] {
            assert_eq!(why(kld, speed, memory, &other), None);
        }
        // Nothing is known of it on these windows.
        let mut elsewhere = other.clone();
        elsewhere.records.retain(|record| record.window > 0);
        assert_eq!(why(0.2, 30.0, 110, &elsewhere), None);
        // As near as can be measured is as near as any.
        let exact = quant(40.0, 100, |_, _| 0.0);
        assert_eq!(why(1e-12, 30.0, 110, &exact), None);
    }

    /// The windows' means are as uneven as those of real text: log-normal, with a standard deviation of 1.
    fn uneven(random: &mut Random) -> f64 {
        let mut uniform = || (random.bits() >> 11) as f64 / (1_u64 << 53) as f64;
        let radius = (-2.0 * (1.0 - uniform()).ln()).sqrt();
        (radius * (std::f64::consts::TAU * uniform()).cos()).exp()
    }

    /// A shelf whose quants are all equal, at the limit: each stop is wrong.
    #[test]
    fn the_best_of_equals_is_seldom_stopped() {
        let mut random = Random(1);
        let (mut n_stopped, n_shelves) = (0, 200);
        // exp(1/2) is the mean of such a log-normal.
        let limit = Some(0.5_f64.exp());
        for _ in 0..n_shelves {
            let text = [(); N_WINDOWS as usize].map(|()| uneven(&mut random));
            let mut of = |memory: u64| {
                let speed = 100.0 - 2.0 * memory as f64;
                let own = [(); N_WINDOWS as usize].map(|()| uneven(&mut random).powf(0.2));
                let scale = 0.02_f64.exp();
                quant(speed, memory, |window, _| {
                    text[window as usize] * own[window as usize] / scale
                })
            };
            let others: Vec<Look> = (1..20).map(&mut of).collect();
            let best = of(20);
            n_stopped += usize::from(
                rule(limit)
                    .why_not(&best, others.iter().collect())
                    .is_some(),
            );
        }
        assert!(n_stopped * 20 <= n_shelves, "{n_stopped} of {n_shelves}");
    }
}
