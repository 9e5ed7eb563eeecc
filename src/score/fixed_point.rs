//! Constants for e^x = 2^(x·log2(e)) with a table of sixteenths, for instruction sets that look up
//! 16 numbers in registers.

/// 1536 + y is a fixed-point number for |y| < 512: its exponent is constant, its lowest
/// `SIXTEENTHS_SHIFT` bits hold the fraction below 1/16, and the bits above them count the
/// sixteenths.
pub(super) const FIXED_POINT: f64 = 1536.0;
pub(super) const SIXTEENTHS_SHIFT: u32 = 38;
pub(super) const FRACTION_MASK: u64 = (1 << SIXTEENTHS_SHIFT) - 1;

/// 2^f for 0 ≤ f ≤ 1/16 is a leading factor times the product over `(root, rest)` of
/// `(FIXED_POINT + f + root)² + rest`. Minimax in relative error, 2.5e-12 (Remez exchange in 50
/// digits). In this form a third of the operations are additions, which have execution units of
/// their own.
pub(super) const QUARTIC: [(f64, f64); 2] = [
    square(4.927_832_436_777_635, 7.715_635_875_017_176),
    square(0.718_229_768_608_814_3, 13.186_786_557_869_029),
];

/// From f² + alpha f + beta.
const fn square(alpha: f64, beta: f64) -> (f64, f64) {
    (alpha / 2.0 - FIXED_POINT, beta - alpha * alpha / 4.0)
}

/// The leading factor times 2^(j/16), minus the number of sixteenths in FIXED_POINT + j/16, shifted
/// to where 16 of them are one step of the exponent: adding the sixteenths of any fixed-point
/// number gives the factor times its power of 2.
pub(super) const SIXTEENTHS: [f64; 16] = {
    let mut table = LEAD;
    let mut j = 0;
    while j < table.len() {
        let sixteenths = (FIXED_POINT.to_bits() >> SIXTEENTHS_SHIFT).wrapping_add(j as u64);
        table[j] = f64::from_bits(table[j].to_bits().wrapping_sub(sixteenths << 48));
        j += 1;
    }
    table
};

/// The quartic's leading factor times 2^(j/16).
const LEAD: [f64; 16] = [
    0.009_828_546_564_035_891,
    0.010_263_693_496_189_724,
    0.010_718_106_028_941_69,
    0.011_192_637_123_301_007,
    0.011_688_177_504_087_03,
    0.012_205_657_331_875_973,
    0.012_746_047_948_971_018,
    0.013_310_363_702_673_146,
    0.013_899_663_849_275_042,
    0.014_515_054_542_352_034,
    0.015_157_690_909_082_174,
    0.015_828_779_218_492_867,
    0.016_529_579_145_703_99,
    0.017_261_406_136_417_606,
    0.018_025_633_876_092_583,
    0.018_823_696_868_438_93,
];
