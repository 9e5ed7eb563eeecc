//! The best mixtures of all sizes.

use kl_formats::GgmlType;

use super::solve::Options;
use super::{FrontierPoint, Sensitivities, knapsack};

/// The mixtures of these types that none of their size beats, by rising bytes: those on the lower
/// convex hull of KLD by size, from the smallest file to the one that moves least. Between two of
/// them there are more, whose gain is less than in proportion.
pub fn frontier(of: &Sensitivities, types: &[GgmlType]) -> Vec<FrontierPoint> {
    let options = Options::of(of, types);
    let classes = options.classes(|cost| (cost.kld.value, cost.bytes as f64));
    let mut chosen = options.lightest(&classes);
    let point = |chosen: &[usize]| {
        let (mut size_bytes, mut tensor_bytes) = (of.fixed_bytes, of.fixed_tensor_bytes);
        let mut sum = 0.0;
        for (tensor, cost) in options.costs(chosen) {
            size_bytes += cost.bytes;
            tensor_bytes += tensor.data_bytes(cost.kind);
            sum += cost.kld.value;
        }
        FrontierPoint {
            size_bytes,
            bpw: of.bits(tensor_bytes),
            kld: of.curve.whole(sum),
        }
    };
    let mut points = vec![point(&chosen)];
    for step in knapsack::steps(&classes) {
        chosen[step.class] = step.item;
        points.push(point(&chosen));
    }
    points
}

/// At most `n` of a frontier's points, evenly spaced by bits, the first and the last among them.
pub fn thinned(points: &[FrontierPoint], n: usize) -> Vec<FrontierPoint> {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return Vec::new();
    };
    let width = (last.bpw - first.bpw) / (n.max(2) - 1) as f64;
    let mut next = first.bpw;
    let mut thin = Vec::new();
    for point in &points[..points.len() - 1] {
        if point.bpw >= next {
            thin.push(*point);
            // The steps may be wider than that.
            next = f64::max(next + width, point.bpw + 0.5 * width);
        }
    }
    thin.push(*last);
    thin
}
