//! Constants for e^x = 2^n · 2^r, where n is the integer nearest to x·log2(e) and r the rest.

/// Adding this to a number and subtracting it again rounds the number to an integer; the sum holds
/// that integer in its lowest bits.
pub(super) const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 · 2^52

/// Below this, e^x counts as 0: e^−708 = 3.3e-308 is still a normal number, so no kernel computes
/// with subnormal ones.
pub(super) const UNDERFLOW: f64 = -708.0;

/// Coefficients of 2^r for |r| ≤ 1/2, lowest power first: minimax in relative error, 1.1e-12, with
/// 2^0 constrained to exactly 1 (Remez exchange in 50 digits).
pub(super) const POLYNOMIAL: [f64; 9] = [
    1.0,
    0.693_147_180_541_232_9,
    0.240_226_506_947_426_37,
    0.055_504_109_592_278_76,
    0.009_618_129_558_824_302,
    0.001_333_343_415_835_268_9,
    0.000_154_030_982_978_597,
    1.531_420_903_803_661e-5,
    1.334_418_095_993_795e-6,
];
