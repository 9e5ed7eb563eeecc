//! The best mixtures of all sizes.

use kl_formats::GgmlType;

use super::selection::selection;
use super::solve::Options;
use super::{FrontierPoint, Sensitivities, knapsack};

/// The mixtures of these types that none of their size beats, by rising bytes: those on the lower
/// convex hull of KLD by size, from the smallest file to the one that moves least. Between two of
/// them there are more, whose gain is less than in proportion.
pub fn frontier(of: &Sensitivities, types: &[GgmlType]) -> Vec<FrontierPoint> {
    let options = Options::of(of, types);
    let classes = options.classes(|cost| (cost.kld.value, cost.bytes as f64));
    let mut chosen = options.lightest(&classes);
    let mut weights = Vec::new();
    let mut point = |chosen: &[usize]| {
        let (mut size_bytes, mut tensor_bytes) = (of.fixed_bytes, of.fixed_tensor_bytes);
        let mut sum = 0.0;
        for (tensor, cost) in options.costs(chosen) {
            size_bytes += cost.bytes;
            tensor_bytes += tensor.data_bytes(cost.kind);
            sum += cost.kld.value;
        }
        weights.push((size_bytes - of.fixed_bytes) as f64);
        let (bpw, kld) = (of.bits(tensor_bytes), sum);
        FrontierPoint {
            size_bytes,
            bpw,
            kld,
        }
    };
    let mut points = vec![point(&chosen)];
    for step in knapsack::steps(&classes) {
        chosen[step.class] = step.item;
        points.push(point(&chosen));
    }
    let selection = selection(of, &options, &classes, &weights);
    let mut least = f64::INFINITY;
    for (point, selection) in points.iter_mut().zip(selection) {
        // What is drawn at random makes no larger file worse.
        point.kld = of.curve.whole(point.kld * selection).min(least);
        least = point.kld;
    }
    points
}

/// At most `n` of a frontier's points, whose sizes grow by about the same factor, the first and the last
/// among them.
pub fn thinned(points: &[FrontierPoint], n: usize) -> Vec<FrontierPoint> {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return Vec::new();
    };
    let growth = last.size_bytes as f64 / first.size_bytes.max(1) as f64;
    let mut thin: Vec<FrontierPoint> = Vec::new();
    for i in 0..n {
        let wanted = first.size_bytes as f64 * growth.powf(i as f64 / (n.max(2) - 1) as f64);
        let distance = |point: &FrontierPoint| (point.size_bytes as f64 - wanted).abs();
        let nearest = points
            .iter()
            .min_by(|a, b| distance(a).total_cmp(&distance(b)));
        thin.extend(nearest.filter(|point| thin.last() != Some(point)));
    }
    thin
}
