//! The rules by which one quant is picked of several (docs/PICK.md): a pure function of what was measured.
//!
//! 1. What was not measured, leaves out tokens, or does not fit the memory, is not picked.
//! 2. Of the others, from the nearest on, those count as near enough up to the first than which another is
//!    nearer by more than chance. With a highest KLD, those whose interval's upper end is below it do.
//! 3. Of those, the fastest is picked, by the generated tokens a second. Those whose median lies within the range of
//!    the fastest one's runs count as fast as it: of them, the nearest is picked.
//!
//! So no other that fits is as near, as fast and as small, and better in one of these. And more memory never leads to
//! a quant than which the one before is nearer by more than chance.

use kl_formats::Pace;

/// What the rules look at in one quant.
#[derive(Debug, Clone, Copy, Default)]
pub struct Candidate {
    /// Its mean KLD, in nats; `None`: it was not measured, or its mean leaves out tokens.
    pub kld: Option<f64>,
    /// The upper end of that mean's interval.
    pub upper: Option<f64>,
    /// The speed at which it generates; `None`: not measured.
    pub generation: Option<Pace>,
    /// Bytes that it takes with the context that is asked for; `None`: not known.
    pub memory: Option<u64>,
}

impl Candidate {
    fn kld(&self) -> Option<f64> {
        self.kld.filter(|kld| kld.is_finite())
    }

    /// Generated tokens a second; 0 where that was not measured, so that it comes last.
    fn speed(&self) -> f64 {
        let speed = self.generation.map_or(0.0, |pace| pace.tokens_per_s);
        if speed.is_finite() { speed } else { 0.0 }
    }

    fn memory(&self) -> u64 {
        self.memory.unwrap_or(u64::MAX)
    }

    /// True if this one is as near, as fast and as small as the other, and better in one of these.
    fn beats(&self, other: &Self) -> bool {
        let Some((own, others)) = self.kld().zip(other.kld()) else {
            return self.kld().is_some();
        };
        let orders = [
            others.total_cmp(&own),
            self.speed().total_cmp(&other.speed()),
            other.memory().cmp(&self.memory()),
        ];
        orders.iter().all(|order| order.is_ge()) && orders.iter().any(|order| order.is_gt())
    }
}

/// What a pick must keep to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// Bytes that it may take; `None`: any number.
    pub memory: Option<u64>,
    /// The KLD, in nats, below which its interval must end; `None`: as near as any.
    pub max_kld: Option<f64>,
}

impl Limits {
    /// True if a quant takes no more than the memory.
    pub fn are_kept_by(&self, candidate: &Candidate) -> bool {
        self.memory
            .is_none_or(|most| candidate.memory.is_some_and(|bytes| bytes <= most))
    }
}

/// The pick, and those beside it, by their places in the list of candidates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The pick.
    pub place: usize,
    /// All that are near enough, the nearest first; the pick is among them.
    pub near: Vec<usize>,
    /// Those of them that are as fast, the pick among them.
    pub fast: Vec<usize>,
}

/// Why none is picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPick {
    /// None was measured.
    NoneMeasured,
    /// None fits the memory; the place of the smallest one.
    NoneFits(usize),
    /// None is surely below the highest KLD; the place of the nearest one that fits.
    NoneBelow(usize),
}

/// Picks one of the candidates. `is_nearer(a, b)`: the data show that `a` is nearer to the original than `b`, by more
/// than chance.
///
/// # Errors
/// Why none is picked.
pub fn pick(
    candidates: &[Candidate],
    limits: Limits,
    is_nearer: impl Fn(usize, usize) -> bool,
) -> Result<Choice, NoPick> {
    let of = |place: usize| candidates.get(place).copied().unwrap_or_default();
    let kld_of = |place: usize| of(place).kld().unwrap_or(f64::INFINITY);
    let mut measured = Vec::from_iter(0..candidates.len());
    measured.retain(|&place| of(place).kld().is_some());
    let smallest = measured.iter().min_by_key(|&&place| of(place).memory());
    let smallest = *smallest.ok_or(NoPick::NoneMeasured)?;
    // Places decide between equals last of all, so that these come in the order of what was measured.
    let by_kld = |a: &usize, b: &usize| {
        kld_of(*a)
            .total_cmp(&kld_of(*b))
            .then_with(|| of(*b).speed().total_cmp(&of(*a).speed()))
            .then_with(|| of(*a).memory().cmp(&of(*b).memory()))
    };
    let mut fitting = measured;
    fitting.retain(|&place| limits.are_kept_by(&of(place)));
    fitting.sort_by(by_kld);
    let nearest = *fitting.first().ok_or(NoPick::NoneFits(smallest))?;
    let mut near = fitting.clone();
    if let Some(max_kld) = limits.max_kld {
        near.retain(|&place| of(place).upper.is_some_and(|upper| upper < max_kld));
    } else {
        let is_beaten = |place: usize| fitting.iter().any(|&other| is_nearer(other, place));
        let n = near.iter().take_while(|&&place| !is_beaten(place)).count();
        // The order by the means and that of the tests may differ where tokens are left out.
        near.truncate(n.max(1));
    }
    let fastest = near
        .iter()
        .copied()
        .max_by(|a, b| of(*a).speed().total_cmp(&of(*b).speed()))
        .ok_or(NoPick::NoneBelow(nearest))?;
    let most = of(fastest).speed();
    let slowest_run = near
        .iter()
        .filter(|&&place| of(place).speed() >= most)
        .filter_map(|&place| Some(of(place).generation?.lo))
        .fold(most, f64::min);
    let mut fast = near.clone();
    fast.retain(|&place| of(place).speed() >= slowest_run);
    let place = fast.iter().copied().min_by(by_kld).unwrap_or(fastest);
    Ok(Choice { place, near, fast })
}

/// True for each candidate that keeps to the limits' memory and that no other such candidate beats.
pub fn front(candidates: &[Candidate], limits: Limits) -> Vec<bool> {
    let can_be =
        |candidate: &&Candidate| candidate.kld().is_some() && limits.are_kept_by(candidate);
    let on_front = |one: &Candidate| {
        let mut others = candidates.iter().filter(can_be);
        can_be(&one) && !others.any(|other| other.beats(one))
    };
    candidates.iter().map(on_front).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A model with this KLD, these generated tokens a second, measured within 5 %, and this memory.
    fn model(kld: f64, speed: f64, memory: u64) -> Candidate {
        let generation = Pace {
            n_tokens: 64,
            tokens_per_s: speed,
            lo: 0.95 * speed,
            hi: 1.05 * speed,
        };
        Candidate {
            kld: Some(kld),
            upper: Some(1.2 * kld),
            generation: Some(generation),
            memory: Some(memory),
        }
    }

    fn within(memory: u64) -> Limits {
        Limits {
            memory: Some(memory),
            max_kld: None,
        }
    }

    /// A KLD is nearer by more than chance if it is this many times smaller.
    const NEARER: f64 = 1.3;

    fn picked(candidates: &[Candidate], limits: Limits) -> Result<usize, NoPick> {
        let kld = |place: usize| candidates[place].kld.unwrap_or(f64::NAN);
        pick(candidates, limits, |a, b| kld(b) > NEARER * kld(a)).map(|choice| choice.place)
    }

    /// A shelf of an 8B model, as the sentences of the documentation argue about it.
    #[test]
    fn the_rules_pick_as_a_person_would() {
        let shelf = [
            model(0.001, 30.0, 9000), // Q8_0
            model(0.010, 38.0, 7000), // Q6_K
            model(0.011, 43.0, 6000), // Q5_K_M, as near
            model(0.030, 50.0, 5000), // Q4_K_M
            model(0.037, 55.0, 4700), // IQ4_XS, as near as Q4_K_M
            model(0.150, 60.0, 3500), // Q3_K_M
        ];
        assert_eq!(picked(&shelf, Limits::default()), Ok(0));
        assert_eq!(picked(&shelf, within(8000)), Ok(2));
        assert_eq!(picked(&shelf, within(6500)), Ok(2));
        assert_eq!(picked(&shelf, within(5500)), Ok(4));
        assert_eq!(picked(&shelf, within(4000)), Ok(5));
        assert_eq!(picked(&shelf, within(100)), Err(NoPick::NoneFits(5)));
        let below = |max_kld| Limits {
            memory: Some(8000),
            max_kld: Some(max_kld),
        };
        assert_eq!(picked(&shelf, below(0.05)), Ok(4));
        // 1.2 times 0.037 is above it.
        assert_eq!(picked(&shelf, below(0.04)), Ok(3));
        assert_eq!(picked(&shelf, below(0.005)), Err(NoPick::NoneBelow(1)));
    }

    #[test]
    fn speeds_within_the_range_of_the_runs_are_equal() {
        let two = [model(0.01, 100.0, 2), model(0.011, 102.0, 1)];
        assert_eq!(picked(&two, Limits::default()), Ok(0));
        let two = [model(0.01, 100.0, 2), model(0.011, 110.0, 1)];
        assert_eq!(picked(&two, Limits::default()), Ok(1));
    }

    #[test]
    fn what_was_not_measured_is_not_picked() {
        let none = [Candidate::default(); 2];
        assert_eq!(picked(&none, Limits::default()), Err(NoPick::NoneMeasured));
        assert_eq!(picked(&[], Limits::default()), Err(NoPick::NoneMeasured));
        let mut shelf = [model(0.5, 1.0, 10), model(f64::NAN, 99.0, 1), none[0]];
        assert_eq!(picked(&shelf, Limits::default()), Ok(0));
        // Nothing says that it fits.
        shelf[0].memory = None;
        assert_eq!(picked(&shelf, within(20)), Err(NoPick::NoneFits(0)));
        // Where no speed was measured, the nearest is picked.
        let mut slow = [model(0.5, 1.0, 10), model(0.4, 2.0, 10)];
        slow.iter_mut().for_each(|one| one.generation = None);
        assert_eq!(picked(&slow, Limits::default()), Ok(1));
    }

    prop_compose! {
        /// Few different values, so that equals occur; some are not measured, or not numbers.
        fn any_candidate()(
            kld in prop::option::weighted(0.9, prop_oneof![
                9 => (1u32..12).prop_map(|n| f64::from(n) / 100.0),
                1 => Just(f64::NAN),
            ]),
            upper in prop::option::weighted(0.9, 1.0..1.5),
            speed in prop::option::weighted(0.9, 1u32..8),
            lo in 0.8..1.0,
            memory in prop::option::weighted(0.9, 1u64..9),
        ) -> Candidate {
            let generation = speed.map(|speed| Pace {
                n_tokens: 64,
                tokens_per_s: f64::from(speed),
                lo: lo * f64::from(speed),
                hi: f64::from(speed),
            });
            Candidate { kld, upper: kld.zip(upper).map(|(kld, times)| kld * times), generation, memory }
        }
    }

    prop_compose! {
        /// Candidates, and for every two how many times as far the second must be to be farther by more than chance.
        fn any_shelf()(n in 0usize..10)(
            candidates in prop::collection::vec(any_candidate(), n),
            factors in prop::collection::vec(1.0..2.0f64, n * n),
        ) -> (Vec<Candidate>, Vec<f64>) {
            (candidates, factors)
        }
    }

    /// The relation of a shelf, in which each factor holds for both orders of two.
    fn nearer<'s>(
        shelf: &'s [Candidate],
        factors: &'s [f64],
    ) -> impl Fn(usize, usize) -> bool + 's {
        move |a, b| {
            let kld = |place: usize| shelf[place].kld.unwrap_or(f64::NAN);
            kld(b) > kld(a) * factors[a.min(b) * shelf.len() + a.max(b)]
        }
    }

    proptest! {
        #[test]
        fn no_other_that_fits_beats_the_pick((shelf, factors) in any_shelf(), memory in 0u64..9, max_kld in prop::option::of(0.01..0.2)) {
            let limits = Limits { memory: Some(memory), max_kld };
            if let Ok(choice) = pick(&shelf, limits, nearer(&shelf, &factors)) {
                let picked = &shelf[choice.place];
                prop_assert!(picked.memory.unwrap() <= memory);
                prop_assert!(picked.kld.unwrap().is_finite());
                prop_assert!(choice.near.contains(&choice.place) && choice.fast.contains(&choice.place));
                if let Some(max_kld) = max_kld {
                    prop_assert!(picked.upper.unwrap() < max_kld);
                } else {
                    prop_assert!(front(&shelf, limits)[choice.place]);
                    for (place, other) in shelf.iter().enumerate() {
                        let fits = limits.are_kept_by(other);
                        prop_assert!(!fits || !nearer(&shelf, &factors)(place, choice.place));
                    }
                }
            }
        }

        #[test]
        fn more_memory_never_leads_to_a_farther_pick((shelf, factors) in any_shelf(), memory in 0u64..9, more in 0u64..9) {
            let nearer = nearer(&shelf, &factors);
            let with = |memory| pick(&shelf, within(memory), &nearer);
            if let Ok(before) = with(memory) {
                let after = with(memory + more).unwrap();
                prop_assert!(!nearer(before.place, after.place));
            }
        }

        #[test]
        fn the_order_of_the_models_does_not_matter((shelf, factors) in any_shelf(), memory in 0u64..9, max_kld in prop::option::of(0.01..0.2)) {
            let limits = Limits { memory: Some(memory), max_kld };
            let n = shelf.len();
            let forward = pick(&shelf, limits, nearer(&shelf, &factors));
            let turned: Vec<Candidate> = shelf.iter().rev().copied().collect();
            let turned_nearer = |a: usize, b: usize| nearer(&shelf, &factors)(n - 1 - a, n - 1 - b);
            let backward = pick(&turned, limits, turned_nearer);
            let seen = |candidate: &Candidate| {
                let speed = candidate.generation.map(|pace| pace.tokens_per_s.to_bits());
                (candidate.kld.map(f64::to_bits), speed, candidate.memory)
            };
            let forward = forward.map(|choice| seen(&shelf[choice.place])).ok();
            let backward = backward.map(|choice| seen(&turned[choice.place])).ok();
            // Two of the same numbers may take each other's place.
            prop_assert_eq!(forward, backward);
        }
    }
}
