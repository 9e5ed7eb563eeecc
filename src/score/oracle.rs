//! The definitions, computed plainly: the kernels are tested against them.

use kl_formats::Row;

use super::token_score::TokenScore;

/// A compensated sum (Neumaier 1974).
#[derive(Default)]
struct Sum {
    sum: f64,
    lost: f64,
}

impl Sum {
    fn add(&mut self, x: f64) {
        let sum = self.sum + x;
        self.lost += if self.sum.abs() >= x.abs() {
            (self.sum - sum) + x
        } else {
            (x - sum) + self.sum
        };
        self.sum = sum;
    }

    fn value(&self) -> f64 {
        self.sum + self.lost
    }
}

fn sum(terms: impl Iterator<Item = f64>) -> f64 {
    let mut sum = Sum::default();
    terms.for_each(|term| sum.add(term));
    sum.value()
}

pub(super) fn decode(row: Row<'_>) -> Vec<f32> {
    match row {
        Row::F32(row) => row.to_vec(),
        Row::U16 { min, step, codes } => codes
            .iter()
            .map(|&code| {
                let scaled = step * f32::from(code);
                min + scaled
            })
            .collect(),
        Row::U16Masked {
            masked,
            min,
            step,
            codes,
        } => codes
            .iter()
            .map(|&code| {
                let scaled = step * (f32::from(code) - 1.0);
                if code == 0 { masked } else { min + scaled }
            })
            .collect(),
    }
}

fn first_max(row: &[f32]) -> usize {
    let mut top = 0;
    for (i, &x) in row.iter().enumerate() {
        if x > row[top] {
            top = i;
        }
    }
    top
}

fn rank(row: &[f32], of: usize) -> u32 {
    let above = row
        .iter()
        .enumerate()
        .filter(|&(i, &x)| x > row[of] || (x == row[of] && i < of))
        .count();
    1 + above as u32
}

/// Logits minus their maximum, and the logarithm of the sum of their exponentials.
fn shifted(row: &[f32]) -> (Vec<f64>, f64) {
    let max = f64::from(row[first_max(row)]);
    let shifted: Vec<f64> = row.iter().map(|&x| f64::from(x) - max).collect();
    let ln_sum = sum(shifted.iter().map(|x| x.exp())).ln();
    (shifted, ln_sum)
}

pub(super) fn score(reference: Row<'_>, eval: &[f32], next: Option<u32>) -> TokenScore {
    let reference = decode(reference);
    let finite = |row: &[f32]| row.iter().all(|x| x.is_finite());
    if !finite(&reference) || !finite(eval) {
        return TokenScore::excluded(finite(&reference), finite(eval));
    }
    let (a, ln_p_sum) = shifted(&reference);
    let (b, ln_q_sum) = shifted(eval);
    // ln p − ln q. The rows are subtracted first: their difference may be small when the logarithms
    // are not.
    let ln_ratio = |(a, b): (&f64, &f64)| (a - b) - (ln_p_sum - ln_q_sum);
    let p = |a: &f64| (a - ln_p_sum).exp();
    let q = |b: &f64| (b - ln_q_sum).exp();
    let (ref_top, eval_top) = (first_max(&reference), first_max(eval));
    TokenScore {
        kld: sum(a.iter().zip(&b).map(|ab| p(ab.0) * ln_ratio(ab))).max(0.0),
        reverse_kld: sum(a.iter().zip(&b).map(|ab| -q(ab.1) * ln_ratio(ab))).max(0.0),
        ref_entropy: sum(a.iter().map(|a| -p(a) * (a - ln_p_sum))),
        ref_nll: next.map_or(f64::NAN, |next| ln_p_sum - a[next as usize]),
        eval_nll: next.map_or(f64::NAN, |next| ln_q_sum - b[next as usize]),
        ref_top: ref_top as u32,
        eval_top: eval_top as u32,
        ref_top_rank: rank(eval, ref_top),
        eval_top_rank: rank(&reference, eval_top),
        ref_top_p: p(&a[ref_top]),
        eval_top_p: q(&b[eval_top]),
        ref_finite: true,
        eval_finite: true,
    }
}
