//! The differences between the nodes of two graphs of one model, and those that rounding explains.
//!
//! Differences by rounding are as often up as down, and their mean over many tokens is near 0; a kernel that
//! computes something else is off in one direction. So two things are measured: the size of the difference,
//! and its mean part along the node's own values.

use kl_engine::TracedNode;
use kl_stats::stats::{linear, sorted};

/// A difference of more than this many times the noise's is wrong: kernels of other devices have up to 0.8.
const TIMES_NOISE: f64 = 1.5;
/// A mean difference is wrong if it is more than this many of its standard errors, ...
const BIAS_ERRORS: f64 = 5.0;
/// ... and also more than this share of the noise's size.
const BIAS_SHARE: f64 = 0.3;

/// llama.cpp's name of the logits.
const LOGITS: &str = "result_output";

/// The difference of a node in another graph.
#[derive(Debug, Clone)]
pub struct NodeDifference {
    pub layer: Option<u32>,
    /// The node's name: the weight that it multiplies by, or else llama.cpp's own name for it.
    pub node: String,
    /// The median and the 90 % quantile over tokens of the difference's length, in relation to the node's.
    sizes: [f64; 2],
    /// The mean over tokens of the difference along the node, in relation to the node, and its standard error.
    bias: [f64; 2],
    /// Tokens at which the node holds a number that is not finite, beyond those of the other graph.
    n_not_finite: usize,
}

impl NodeDifference {
    /// True if it is larger than `noise`, the difference of this node where noise was added, explains.
    pub fn exceeds(&self, noise: &Self) -> bool {
        let [bias, error] = self.bias.map(f64::abs);
        let is_larger = |(size, noise): (&f64, &f64)| *size > TIMES_NOISE * noise;
        self.n_not_finite > 0
            || self.sizes.iter().zip(&noise.sizes).any(is_larger)
            || bias > BIAS_ERRORS * error && bias > BIAS_SHARE * noise.sizes[0]
    }

    /// True if both are the same to the bit.
    pub fn is_none(&self) -> bool {
        self.sizes == [0.0; 2] && self.n_not_finite == 0
    }

    fn new(base: &TracedNode, other: &TracedNode) -> Self {
        let (mut sizes, mut biases) = (Vec::new(), Vec::new());
        for (key, values) in &other.rows {
            let of_base = base.rows.get(key);
            let Some(of_base) = of_base.filter(|of| of.len() == values.len()) else {
                continue;
            };
            let [mean_a, mean_b] = [of_base, values].map(|row| mean_of_logits(base, row));
            let (mut along, mut apart, mut length) = (0.0, 0.0, 0.0);
            for (&a, &b) in of_base.iter().zip(values) {
                let a = f64::from(a) - mean_a;
                let moved = f64::from(b) - mean_b - a;
                along += moved * a;
                apart += moved * moved;
                length += a * a;
            }
            if length > 0.0 && length.is_finite() && apart.is_finite() {
                sizes.push((apart / length).sqrt());
                biases.push(along / length);
            }
        }
        let ordered = sorted(&sizes);
        let n = biases.len().max(1) as f64;
        let mean = biases.iter().sum::<f64>() / n;
        let squares: f64 = biases.iter().map(|bias| (bias - mean).powi(2)).sum();
        let weight = base.weight.as_deref();
        let node = weight.and_then(|weight| weight.rsplit('.').nth(1));
        Self {
            layer: base.layer,
            node: node.unwrap_or(&base.name).to_owned(),
            sizes: [0.5, 0.9].map(|p| linear(&ordered, p).unwrap_or(0.0)),
            bias: [mean, (squares / n / n).sqrt()],
            n_not_finite: other.n_not_finite.saturating_sub(base.n_not_finite),
        }
    }
}

/// The mean of a row of logits, and 0 of any other node: a constant added to all logits changes nothing.
fn mean_of_logits(node: &TracedNode, row: &[f32]) -> f64 {
    let sum: f64 = row.iter().copied().map(f64::from).sum();
    if node.name == LOGITS {
        sum / row.len() as f64
    } else {
        0.0
    }
}

/// Subtracts each layer's input from its output, but not from the logits: no difference is counted twice.
pub fn added(mut outputs: Vec<TracedNode>) -> Vec<TracedNode> {
    for i in (1..outputs.len()).rev() {
        let (inputs, layers) = outputs.split_at_mut(i);
        if let ([.., input], [layer, ..]) = (inputs, layers)
            && layer.layer.is_some()
        {
            for (key, values) in &mut layer.rows {
                let input = input.rows.get(key).into_iter().flatten();
                values
                    .iter_mut()
                    .zip(input)
                    .for_each(|(of, input)| *of -= input);
            }
        }
    }
    outputs
}

/// The differences of the nodes that both graphs have.
pub fn differences(base: &[TracedNode], other: &[TracedNode]) -> Vec<NodeDifference> {
    let same = base
        .iter()
        .filter_map(|node| Some((node, same_node(node, other)?)));
    same.map(|(a, b)| NodeDifference::new(a, b)).collect()
}

/// The first node of a layer whose difference is larger than the noise explains. The noise counts at least as
/// large as it is at the layer's end, `of_layer`.
pub fn first_node(
    base: &[TracedNode],
    other: &[TracedNode],
    noisy: &[TracedNode],
    of_layer: &NodeDifference,
) -> Option<String> {
    base.iter().find_map(|node| {
        let mut noise = NodeDifference::new(node, same_node(node, noisy)?);
        for (size, least) in noise.sizes.iter_mut().zip(of_layer.sizes) {
            *size = size.max(least);
        }
        let found = NodeDifference::new(node, same_node(node, other)?);
        found.exceeds(&noise).then_some(found.node)
    })
}

fn same_node<'t>(node: &TracedNode, others: &'t [TracedNode]) -> Option<&'t TracedNode> {
    let key = |of: &TracedNode| (of.name.clone(), of.occurrence, of.layer);
    others.iter().find(|of| key(of) == key(node))
}
