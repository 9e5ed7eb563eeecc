//! The oracle of token numbers: the definitions, computed plainly. The kernels, and `kl`'s runs, are
//! tested against it.

use kl_formats::{Row, TokenRecord};

use super::pair::RowPair;
use super::passes::excluded;

fn sum(terms: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut lost) = (0.0_f64, 0.0);
    for x in terms {
        let more = sum + x;
        // What rounding dropped (Neumaier 1974).
        lost += if sum.abs() >= x.abs() {
            (sum - more) + x
        } else {
            (x - more) + sum
        };
        sum = more;
    }
    sum + lost
}

pub(super) fn decode(row: Row<'_>) -> Vec<f32> {
    match row {
        Row::F32(row) => row.to_vec(),
        Row::U16 {
            masked: None,
            min,
            step,
            codes,
        } => codes
            .iter()
            .map(|&code| {
                let scaled = step * f32::from(code);
                min + scaled
            })
            .collect(),
        Row::U16 {
            masked: Some(masked),
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

/// The index of the top token: the first maximum.
pub fn top(row: &[f32]) -> usize {
    (0..row.len()).fold(0, |top, i| if row[i] > row[top] { i } else { top })
}

/// ln p of each entry.
pub fn log_softmax(row: &[f32]) -> Vec<f64> {
    let (shifted, ln_sum) = shifted(row, &vec![true; row.len()]);
    shifted.iter().map(|x| x - ln_sum).collect()
}

/// KL(p‖q), both given as logarithms.
pub fn kld(ln_p: &[f64], ln_q: &[f64]) -> f64 {
    sum(ln_p.iter().zip(ln_q).map(|(p, q)| p.exp() * (p - q)))
}

fn rank(row: &[f32], index: usize) -> u32 {
    let above = row
        .iter()
        .enumerate()
        .filter(|&(i, &x)| x > row[index] || (x == row[index] && i < index))
        .count();
    1 + above as u32
}

/// Logits minus their maximum, and the logarithm of the sum of their exponentials, over some
/// entries.
fn shifted(row: &[f32], counts: &[bool]) -> (Vec<f64>, f64) {
    let max = f64::from(row[top(row)]);
    let shifted: Vec<f64> = row.iter().map(|&x| f64::from(x) - max).collect();
    let counted = shifted.iter().zip(counts).filter(|(_, counts)| **counts);
    let ln_sum = sum(counted.map(|(x, _)| x.exp())).ln();
    (shifted, ln_sum)
}

/// Σ w(entry) · ratio(entry) of `w` = e^`ln_w`; infinite where an entry weighs something and its
/// ratio is infinite.
fn mean_ratio(ln_w: &[f64], ratio: &[f64]) -> f64 {
    let weights = ln_w.iter().map(|ln_w| ln_w.exp());
    let counted = weights.zip(ratio).filter(|(w, _)| *w > 0.0);
    let terms: Vec<f64> = counted.map(|(w, ratio)| w * ratio).collect();
    match terms.contains(&f64::INFINITY) {
        true => f64::INFINITY,
        false => sum(terms.into_iter()).max(0.0),
    }
}

/// Scores a pair of rows.
pub fn score(pair: &RowPair<'_>) -> TokenRecord {
    let (reference, eval) = (decode(pair.reference), pair.eval);
    let sound = |row: &[f32]| {
        row.iter().all(|x| *x < f32::INFINITY) && row.iter().any(|x| *x > f32::NEG_INFINITY)
    };
    if !sound(&reference) || !sound(eval) {
        return excluded([sound(&reference), sound(eval)]);
    }
    let known = |row: &[f32], floor: Option<f32>| -> Vec<bool> {
        row.iter()
            .map(|&x| floor.is_none_or(|floor| x > floor))
            .collect()
    };
    let ref_known = known(&reference, pair.ref_floor);
    let eval_known = known(eval, pair.eval_floor);
    let both: Vec<bool> = ref_known
        .iter()
        .zip(&eval_known)
        .map(|(l, m)| *l && *m)
        .collect();
    let (a, ln_p_sum) = shifted(&reference, &both);
    let (b, ln_q_sum) = shifted(eval, &both);
    let n = a.len();
    let counted: Vec<usize> = (0..n).filter(|&i| both[i]).collect();
    // ln p − ln q. The rows are subtracted first: their difference may be small when the logarithms
    // are not.
    let ratio: Vec<f64> = counted
        .iter()
        .map(|&i| (a[i] - b[i]) - (ln_p_sum - ln_q_sum))
        .collect();
    let reverse: Vec<f64> = ratio.iter().map(|x| -x).collect();
    let ln_p: Vec<f64> = counted.iter().map(|&i| a[i] - ln_p_sum).collect();
    let ln_q: Vec<f64> = counted.iter().map(|&i| b[i] - ln_q_sum).collect();
    let surprise: Vec<f64> = ln_p.iter().map(|x| -x).collect();
    let nothing = ln_p_sum == f64::NEG_INFINITY || ln_q_sum == f64::NEG_INFINITY;
    let divergence = |ln_w: &[f64], ratio: &[f64]| match nothing {
        true => f64::INFINITY,
        false => mean_ratio(ln_w, ratio),
    };
    // ln p over the whole vocabulary, or as it is stored.
    let whole = |row: &[f32], shifted: &[f64], known: &[bool], floor: Option<f32>, i: usize| match (
        floor, known[i],
    ) {
        (Some(_), true) => f64::from(row[i]),
        (Some(_), false) => f64::NAN,
        (None, _) => shifted[i] - sum(shifted.iter().map(|x| x.exp())).ln(),
    };
    let ln_p_of = |i: usize| whole(&reference, &a, &ref_known, pair.ref_floor, i);
    let ln_q_of = |i: usize| whole(eval, &b, &eval_known, pair.eval_floor, i);
    let nll = |ln_p: f64| if ln_p >= 0.0 { 0.0 } else { -ln_p };
    let next = pair.next.map(|next| next as usize);
    let (ref_top, eval_top) = (top(&reference), top(eval));
    TokenRecord {
        kld: divergence(&ln_p, &ratio),
        reverse_kld: divergence(&ln_q, &reverse),
        ref_entropy: mean_ratio(&ln_p, &surprise),
        ref_nll: next.map_or(f64::NAN, |next| nll(ln_p_of(next))),
        eval_nll: next.map_or(f64::NAN, |next| nll(ln_q_of(next))),
        ref_top: ref_top as u32,
        eval_top: eval_top as u32,
        ref_top_rank: rank(eval, ref_top),
        eval_top_rank: rank(&reference, eval_top),
        ref_top_p: ln_p_of(ref_top).exp().min(1.0),
        eval_top_p: ln_q_of(eval_top).exp().min(1.0),
        ref_unknown_p: pair.ref_floor.map_or(0.0, |floor| {
            let unknown = ref_known.iter().filter(|known| !**known).count();
            (unknown as f64 * f64::from(floor).exp()).min(1.0)
        }),
        window: 0,
        position: 0,
        token: pair.next.unwrap_or(u32::MAX),
        flags: 0,
        group: 0,
        span: 0,
        acceptance: match nothing {
            true => 0.0,
            false => sum(ln_p.iter().zip(&ln_q).map(|(p, q)| p.min(*q).exp())),
        },
    }
}
