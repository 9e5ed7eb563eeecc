//! Made-up evaluations whose true means are known: tokens with a long tail of KLDs, in windows, in
//! articles.

use kl_formats::TokenRecord;
use statrs::function::erf::erfc;

/// Scored tokens in a window of 512 with a BOS.
const TOKENS: u32 = 511;

/// How the KLD of a token is distributed, as pairs of a share of tokens and the KLD that it stays
/// below. Between two of them the KLD's logarithm is linear.
///
/// This is tiny-q4_K_M on 1,522 windows of the fixtures' corpus (`corpus.py --seed 99`). Windows of
/// tokens drawn from it, with a [`Text::window_sd`] of 0.08, are like the real windows: coefficient
/// of variation 0.32, skewness 3.9, design effect 1.08; the real ones 0.31, 3.6, 1.08.
#[rustfmt::skip]
pub const Q4_K_M: [(f64, f64); 21] = [
    (0.0, 1.11e-8), (0.001, 6.37e-8), (0.01, 1.34e-7), (0.1, 9.6e-7), (0.25, 5.27e-6),
    (0.5, 1.16e-4), (0.75, 4.56e-4), (0.9, 0.00106), (0.95, 0.00182), (0.98, 0.0036),
    (0.99, 0.00601), (0.995, 0.00956), (0.998, 0.0173), (0.999, 0.0266), (0.9995, 0.042),
    (0.9998, 0.0829), (0.9999, 0.13), (0.99995, 0.202), (0.99998, 0.327), (0.99999, 0.449),
    (1.0, 0.937),
];

/// A kind of text, and a quant evaluated on it.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    /// How the KLD of a token is distributed, at a difficulty of 1.
    pub klds: &'static [(f64, f64)],
    /// The standard deviation of the logarithm of a window's difficulty.
    pub window_sd: f64,
    /// That of an article's; 0: windows are independent.
    pub article_sd: f64,
}

/// The rank correlation of two models' KLDs on a token: that of tiny-q4_K_M and tiny-q2_K.
const TOKEN_CORRELATION: f64 = 0.86;

/// Windows in an article.
const ARTICLE: u32 = 8;

impl Text {
    /// The true mean KLD.
    pub fn mean_kld(&self) -> f64 {
        Self::mean_kld_of(self.klds)
    }

    /// The mean of KLDs that are distributed so.
    pub fn mean_kld_of(klds: &[(f64, f64)]) -> f64 {
        let pieces = klds.windows(2).map(|ends| {
            let [(p, a), (q, b)] = [ends[0], ends[1]];
            (q - p) * (b - a) / (b / a).ln()
        });
        pieces.sum()
    }

    /// The records of `n_windows` contiguous windows, which depend on the seed.
    pub fn records(&self, n_windows: u32, seed: u64) -> Vec<TokenRecord> {
        self.windows(seed)
            .take(n_windows as usize)
            .flatten()
            .collect()
    }

    /// The records of contiguous windows, one window at a time and without an end.
    pub fn windows(&self, seed: u64) -> impl Iterator<Item = Vec<TokenRecord>> {
        let mut random = Random(seed);
        let mut article = Article::of(self, &mut random);
        (0..).map(move |window| {
            let difficulty = article.difficulty(self, window, &mut random);
            let positions = 0..TOKENS;
            positions
                .map(|position| self.record(window, position, difficulty, &mut random))
                .collect()
        })
    }

    fn record(
        &self,
        window: u32,
        position: u32,
        difficulty: f64,
        random: &mut Random,
    ) -> TokenRecord {
        let kld = difficulty * kld(self.klds, random.uniform());
        let ref_nll = -difficulty * random.uniform().ln();
        // The NLLs of distributions that are so far apart differ by about this much.
        let eval_nll = ref_nll + (2.0 * kld).sqrt() * random.normal();
        let same_top = random.uniform() >= 0.02 * difficulty;
        TokenRecord {
            window,
            position,
            token: 0,
            flags: 0,
            ref_top: 0,
            eval_top: u32::from(!same_top),
            ref_top_rank: if same_top { 1 } else { 2 },
            eval_top_rank: 1,
            kld,
            reverse_kld: kld * (0.5 + random.uniform()),
            ref_nll,
            eval_nll: eval_nll.max(0.0),
            ref_entropy: 1.0,
            ref_top_p: 0.5,
            eval_top_p: 0.5,
            ref_unknown_p: 0.0,
            group: 0,
            span: 0,
            acceptance: 0.9,
        }
    }

    /// The KLDs of several models on the tokens of one text, each with a distribution of its tokens'
    /// KLDs. A window's difficulty is that of all; the logarithm of what it is for one model alone
    /// has the standard deviation `own_sd`.
    pub fn klds_of(
        &self,
        n_windows: u32,
        seed: u64,
        models: &[&[(f64, f64)]],
        own_sd: f64,
    ) -> Klds {
        // Normals whose correlation is r have this rank correlation: Pearson 1907.
        let r = 2.0 * (TOKEN_CORRELATION * std::f64::consts::PI / 6.0).sin();
        let mut random = Random(seed);
        let mut article = Article::of(self, &mut random);
        let mut windows = Vec::new();
        let mut of_models = vec![Vec::new(); models.len()];
        for window in 0..n_windows {
            let common = article.difficulty(self, window, &mut random);
            let own = models.iter().map(|_| common * random.difficulty(own_sd));
            let difficulties: Vec<f64> = own.collect();
            for _ in 0..TOKENS {
                windows.push(window);
                let common = random.normal();
                for (i, of_model) in of_models.iter_mut().enumerate() {
                    let z = r.sqrt() * common + (1.0 - r).sqrt() * random.normal();
                    let share = 0.5 * erfc(-z * std::f64::consts::FRAC_1_SQRT_2);
                    of_model.push(difficulties[i] * kld(models[i], share));
                }
            }
        }
        Klds { windows, of_models }
    }
}

/// The article that a window is in.
struct Article {
    /// Windows of the first article that came before the text.
    offset: u32,
    difficulty: f64,
}

impl Article {
    fn of(text: &Text, random: &mut Random) -> Self {
        Self {
            offset: (random.uniform() * f64::from(ARTICLE)) as u32,
            difficulty: random.difficulty(text.article_sd),
        }
    }

    /// The difficulty of the next window.
    fn difficulty(&mut self, text: &Text, window: u32, random: &mut Random) -> f64 {
        if (window + self.offset).is_multiple_of(ARTICLE) {
            self.difficulty = random.difficulty(text.article_sd);
        }
        self.difficulty * random.difficulty(text.window_sd)
    }
}

/// The KLDs of several models on the same tokens.
pub struct Klds {
    /// The window of each token.
    pub windows: Vec<u32>,
    /// Each model's KLD of each token.
    pub of_models: Vec<Vec<f64>>,
}

/// Records of tokens in these windows.
pub fn tokens_of(windows: &[u32]) -> Vec<TokenRecord> {
    let record = |window: &u32| TokenRecord {
        window: *window,
        ..TokenRecord::default()
    };
    windows.iter().map(record).collect()
}

/// The KLD that this share of tokens stays below.
pub fn kld(klds: &[(f64, f64)], share: f64) -> f64 {
    let above = klds.partition_point(|(p, _)| *p <= share);
    let above = above.clamp(1, klds.len() - 1);
    let [(p, a), (q, b)] = [klds[above - 1], klds[above]];
    a * ((share - p) / (q - p) * (b / a).ln()).exp()
}

/// Random numbers by splitmix64.
pub struct Random(pub u64);

impl Random {
    /// Above 0, below 1.
    pub fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (((z ^ (z >> 31)) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Standard normal, by Box and Muller's method.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Log-normal with a mean of 1.
    pub fn difficulty(&mut self, sd: f64) -> f64 {
        match sd > 0.0 {
            true => (sd * self.normal() - 0.5 * sd * sd).exp(),
            false => 1.0,
        }
    }
}
