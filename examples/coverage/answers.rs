//! Greedy answers, some of which end before they are cut: how often the intervals of their curve hold the
//! true shares.

use kl::stats::{
    ClusterRule, Clusters, Confidence, IdenticalOutput, PartNames, SharePoint, TokenTable,
};
use kl_formats::TokenRecord;
use rayon::prelude::*;

use super::text::Random;

/// The tokens at which answers are cut, and the fewest of one that ends before.
const MAX_TOKENS: u32 = 128;
const SHORTEST: u32 = 8;

/// The tokens at which the curve is looked at.
const TOKENS: [u32; 5] = [4, 16, 48, 96, MAX_TOKENS];

const N_ANSWERS: [u32; 3] = [20, 50, 200];

/// Answers of a conversation.
const CONVERSATION: u32 = 4;

/// The chance that a token differs, on average, and the standard deviation of its logarithm between
/// answers.
const DIFFERS: f64 = 0.02;
const SPREAD: f64 = 1.0;

/// The share of an answer's difficulty, as a variance, that a conversation's answers have in common.
const IN_COMMON: f64 = 0.7;

/// A kind of made-up answers.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    /// The share of answers that end before [`MAX_TOKENS`].
    ending: f64,
    in_common: f64,
    rule: ClusterRule,
}

const KINDS: [Kind; 4] = [
    Kind {
        name: "all go on to the cut",
        ending: 0.0,
        in_common: 0.0,
        rule: ClusterRule::Auto,
    },
    Kind {
        name: "half end early",
        ending: 0.5,
        in_common: 0.0,
        rule: ClusterRule::Auto,
    },
    Kind {
        name: "half end early, in conversations",
        ending: 0.5,
        in_common: IN_COMMON,
        rule: ClusterRule::Auto,
    },
    Kind {
        name: "the same, `--cluster window`",
        ending: 0.5,
        in_common: IN_COMMON,
        rule: ClusterRule::Window,
    },
];

/// Prints the coverage of each kind's intervals, in percent.
pub fn table(replications: u64) {
    let columns = TOKENS.map(|tokens| format!(" {tokens} tokens |")).concat();
    println!("| answers | of |{columns}");
    println!("|---|---:|{}", "---:|".repeat(TOKENS.len()));
    for kind in KINDS {
        let truth = TOKENS.map(|tokens| kind.share(tokens));
        println!("| {}: true shares | |{}", kind.name, cells(&truth));
        for n in N_ANSWERS {
            let seeds = (0..replications).into_par_iter();
            let held = seeds.map(|seed| {
                let of = identical_output(&kind, n, u64::from(n) << 32 | seed);
                std::array::from_fn(|i| holds(at(&of, TOKENS[i]), truth[i]))
            });
            let held: Vec<[bool; TOKENS.len()]> = held.collect();
            let share = |column: usize| {
                let n = held.iter().filter(|held| held[column]).count();
                n as f64 / held.len() as f64
            };
            let shares: [f64; TOKENS.len()] = std::array::from_fn(share);
            println!("| {} | {n} |{}", kind.name, cells(&shares));
        }
    }
}

fn cells(shares: &[f64]) -> String {
    let cells = shares
        .iter()
        .map(|share| format!(" {:.1} |", 100.0 * share));
    cells.collect()
}

impl Kind {
    /// The true share of answers that are still the same after so many tokens: one that ends alike stays so.
    fn share(&self, tokens: u32) -> f64 {
        let ended: f64 = (SHORTEST..MAX_TOKENS).map(|n| share(n.min(tokens))).sum();
        let ended = ended / f64::from(MAX_TOKENS - SHORTEST);
        self.ending * ended + (1.0 - self.ending) * share(tokens)
    }
}

/// The true share of answers without an end that are the same for so many tokens.
fn share(tokens: u32) -> f64 {
    const POINTS: i32 = 4000;
    let (mut sum, mut weights) = (0.0, 0.0);
    for i in -POINTS..=POINTS {
        let z = 8.0 * f64::from(i) / f64::from(POINTS);
        let weight = (-0.5 * z * z).exp();
        sum += weight * (-rate(z) * f64::from(tokens)).exp();
        weights += weight;
    }
    sum / weights
}

/// The rate at which tokens differ, for an answer of this difficulty, which is standard normal.
fn rate(difficulty: f64) -> f64 {
    DIFFERS * (SPREAD * difficulty - 0.5 * SPREAD * SPREAD).exp()
}

/// Measures one made-up evaluation of so many answers.
fn identical_output(kind: &Kind, n_answers: u32, seed: u64) -> IdenticalOutput {
    let mut random = Random(seed);
    let (mut records, mut common) = (Vec::new(), 0.0);
    for window in 0..n_answers {
        if window.is_multiple_of(CONVERSATION) {
            common = random.normal();
        }
        let own = random.normal();
        let difficulty = kind.in_common.sqrt() * common + (1.0 - kind.in_common).sqrt() * own;
        let differs_at = (-random.uniform().ln() / rate(difficulty)) as u32;
        let length = match random.uniform() < kind.ending {
            true => SHORTEST + (random.uniform() * f64::from(MAX_TOKENS - SHORTEST)) as u32,
            false => MAX_TOKENS,
        };
        for position in 0..length {
            let ends = position + 1 == length && length < MAX_TOKENS;
            records.push(TokenRecord {
                window,
                position,
                flags: TokenRecord::NEXT_IS_GREEDY
                    | if ends {
                        TokenRecord::NEXT_ENDS_ANSWER
                    } else {
                        0
                    },
                eval_top: u32::from(position == differs_at),
                ref_top_rank: 1,
                eval_top_rank: 1,
                kld: rate(difficulty) * (0.5 * random.normal()).exp(),
                ..TokenRecord::default()
            });
        }
    }
    let table = TokenTable::from_records(&records);
    let clusters = Clusters::by_rule(&table.windows(), kind.rule);
    let statistics = table.summarise(&clusters, PartNames::default(), Confidence::default());
    statistics.summary.identical_output.unwrap()
}

/// The last point up to so many tokens.
fn at(of: &IdenticalOutput, tokens: u32) -> Option<&SharePoint> {
    of.curve.iter().rfind(|point| point.tokens <= tokens)
}

fn holds(point: Option<&SharePoint>, share: f64) -> bool {
    let ends = point.and_then(|point| point.lo.zip(point.hi));
    ends.is_some_and(|(lo, hi)| (lo..=hi).contains(&share))
}
