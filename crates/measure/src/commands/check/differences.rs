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
            let base_values = base
                .rows
                .get(key)
                .filter(|base_values| base_values.len() == values.len());
            let Some(base_values) = base_values else {
                continue;
            };
            let [base_mean, mean] = [base_values, values].map(|row| mean_of_logits(base, row));
            // The dot product of the difference and the node, and the squared lengths of both.
            let (mut product, mut difference_square, mut node_square) = (0.0, 0.0, 0.0);
            for (&base_value, &value) in base_values.iter().zip(values) {
                let base_value = f64::from(base_value) - base_mean;
                let difference = f64::from(value) - mean - base_value;
                product += difference * base_value;
                difference_square += difference * difference;
                node_square += base_value * base_value;
            }
            if node_square > 0.0 && node_square.is_finite() && difference_square.is_finite() {
                sizes.push((difference_square / node_square).sqrt());
                biases.push(product / node_square);
            }
        }
        let sorted_sizes = sorted(&sizes);
        let n = biases.len().max(1) as f64;
        let mean_bias = biases.iter().sum::<f64>() / n;
        let squares: f64 = biases.iter().map(|bias| (bias - mean_bias).powi(2)).sum();
        let weight = base.weight.as_deref();
        let weight_name = weight.and_then(|weight| weight.rsplit('.').nth(1));
        Self {
            layer: base.layer,
            node: weight_name.unwrap_or(&base.name).to_owned(),
            sizes: [0.5, 0.9].map(|p| linear(&sorted_sizes, p).unwrap_or(0.0)),
            bias: [mean_bias, (squares / n / n).sqrt()],
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
pub fn without_inputs(mut outputs: Vec<TracedNode>) -> Vec<TracedNode> {
    for i in (1..outputs.len()).rev() {
        let (inputs, layers) = outputs.split_at_mut(i);
        if let ([.., input], [layer, ..]) = (inputs, layers)
            && layer.layer.is_some()
        {
            for (key, values) in &mut layer.rows {
                let input = input.rows.get(key).into_iter().flatten();
                for (value, input) in values.iter_mut().zip(input) {
                    *value -= input;
                }
            }
        }
    }
    outputs
}

/// The differences of the nodes that both graphs have.
pub fn differences(base: &[TracedNode], other: &[TracedNode]) -> Vec<NodeDifference> {
    base.iter()
        .filter_map(|node| Some(NodeDifference::new(node, same_node(node, other)?)))
        .collect()
}

/// The first node of a layer whose difference is larger than the noise explains. The noise counts at least as
/// large as it is at the layer's end, `layer_noise`.
pub fn first_node(
    base: &[TracedNode],
    other: &[TracedNode],
    noisy: &[TracedNode],
    layer_noise: &NodeDifference,
) -> Option<String> {
    base.iter().find_map(|node| {
        let mut noise = NodeDifference::new(node, same_node(node, noisy)?);
        for (size, min_size) in noise.sizes.iter_mut().zip(layer_noise.sizes) {
            *size = size.max(min_size);
        }
        let difference = NodeDifference::new(node, same_node(node, other)?);
        difference.exceeds(&noise).then_some(difference.node)
    })
}

/// The same node in another graph.
fn same_node<'t>(node: &TracedNode, others: &'t [TracedNode]) -> Option<&'t TracedNode> {
    others.iter().find(|other| {
        other.name == node.name && other.occurrence == node.occurrence && other.layer == node.layer
    })
}
