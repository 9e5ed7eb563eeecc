//! Random numbers that are the same everywhere.

/// Random numbers by their seed alone: splitmix64 (Steele, Lea, Flood 2014). Files carry the seed, so
/// they never change.
pub struct Random(pub u64);

impl Random {
    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Knuth's MMIX random numbers, as in `oracle.py`.
#[cfg(any(test, feature = "testing"))]
pub struct Lcg(u64);

#[cfg(any(test, feature = "testing"))]
impl Lcg {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number, uniform in [0, 1) with 53 bits.
    pub fn uniform(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn below(&mut self, n: u32) -> u32 {
        (self.uniform() * f64::from(n)) as u32
    }
}
