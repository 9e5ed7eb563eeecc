//! How far the nodes of two graphs of one model are apart, and whether rounding explains it.
//!
//! A layer adds to what it is given, and what it adds is compared, so that an earlier difference is not
//! counted again. Differences by rounding are as often up as down, and their mean over many tokens is near
//! 0; a kernel that computes something else is off in one direction. So two things are looked at: the size of
//! the difference, and its mean part along what the layer adds.

use crate::engine::TracedNode;
use crate::stats::{linear, sorted};

/// A difference is wrong from this many times the noise's on: kernels of other devices have up to 0.8.
const TIMES_NOISE: f64 = 1.5;
/// A mean difference is wrong from this many of its standard errors on, ...
const BIAS_ERRORS: f64 = 5.0;
/// ... if it is also this share of the size that noise has.
const BIAS_SHARE: f64 = 0.3;

/// The difference of a node in another graph.
#[derive(Debug, Clone)]
pub struct Difference {
    pub layer: Option<u32>,
    /// What computes the node: the weight that it multiplies, or llama.cpp's name of it.
    pub node: String,
    /// The median and the 90 % quantile over tokens of the difference's length, in relation to the node's.
    pub sizes: [f64; 2],
    /// The mean over tokens of the difference along the node, in relation to the node, and its standard error.
    pub bias: [f64; 2],
    /// Tokens, any of them, at which it holds a number that is not finite, beyond those of the other.
    pub n_not_finite: usize,
}

impl Difference {
    /// Whether it is larger than `noise` explains: of the same node, where noise was added.
    pub fn exceeds(&self, noise: &Self) -> bool {
        let [bias, error] = self.bias.map(f64::abs);
        let is_larger = |(size, noise): (&f64, &f64)| *size > TIMES_NOISE * noise;
        self.n_not_finite > 0
            || self.sizes.iter().zip(&noise.sizes).any(is_larger)
            || bias > BIAS_ERRORS * error && bias > BIAS_SHARE * noise.sizes[0]
    }

    /// Whether all is the same to the bit.
    pub fn is_none(&self) -> bool {
        self.sizes == [0.0; 2] && self.n_not_finite == 0
    }

    /// The larger of two noises.
    fn or(&self, other: &Self) -> Self {
        let [one, two] = [self.sizes, other.sizes];
        Self {
            sizes: [one[0].max(two[0]), one[1].max(two[1])],
            ..self.clone()
        }
    }
}

/// The differences of layers: of what each adds to its input, and of the logits.
pub fn of_layers(base: &[TracedNode], other: &[TracedNode]) -> Vec<Difference> {
    let mut before: Option<(&TracedNode, &TracedNode)> = None;
    let mut differences = Vec::new();
    for (a, b) in pairs(base, other) {
        let input = before.filter(|_| a.layer.is_some());
        differences.push(difference(a, b, input));
        before = Some((a, b));
    }
    differences
}

/// The first node of a layer whose difference is larger than the noise explains, which has at least the size
/// that it has at the layer's end.
pub fn first_node(
    base: &[TracedNode],
    other: &[TracedNode],
    noisy: &[TracedNode],
    of_layer: &Difference,
) -> Option<String> {
    let noise: Vec<_> = pairs(base, noisy)
        .map(|(a, b)| (a, difference(a, b, None)))
        .collect();
    let mut others = pairs(base, other);
    let wrong = others.find_map(|(a, b)| {
        let noise = noise.iter().find(|(of, _)| std::ptr::eq(*of, a))?;
        let difference = difference(a, b, None);
        difference
            .exceeds(&noise.1.or(of_layer))
            .then_some(difference)
    });
    wrong.map(|difference| difference.node)
}

/// The nodes that both graphs have, by their names and how often these have occurred.
fn pairs<'t>(
    base: &'t [TracedNode],
    other: &'t [TracedNode],
) -> impl Iterator<Item = (&'t TracedNode, &'t TracedNode)> {
    base.iter().enumerate().filter_map(|(i, a)| {
        let is_same = |b: &&TracedNode| (&b.name, b.layer) == (&a.name, a.layer);
        let occurrence = base.iter().take(i).filter(is_same).count();
        Some((a, other.iter().filter(is_same).nth(occurrence)?))
    })
}

/// The difference of a node; with `input`, of what it adds to that.
fn difference(
    a: &TracedNode,
    b: &TracedNode,
    input: Option<(&TracedNode, &TracedNode)>,
) -> Difference {
    let (mut sizes, mut biases) = (Vec::new(), Vec::new());
    for (key, computed) in &b.rows {
        let Some(base) = a.rows.get(key).filter(|base| base.len() == computed.len()) else {
            continue;
        };
        let inputs = input.and_then(|(a, b)| Some((a.rows.get(key)?, b.rows.get(key)?)));
        let inputs = inputs.filter(|(a, b)| a.len() == base.len() && b.len() == base.len());
        let mut of_base = added(base, inputs.map(|of| of.0));
        let mut of_other = added(computed, inputs.map(|of| of.1));
        // A constant that is added to all logits changes nothing.
        if a.name == LOGITS {
            centre(&mut of_base);
            centre(&mut of_other);
        }
        let (mut along, mut apart, mut length) = (0.0, 0.0, 0.0);
        for (a, b) in of_base.iter().zip(&of_other) {
            let moved = b - a;
            along += moved * a;
            apart += moved * moved;
            length += a * a;
        }
        if length > 0.0 && length.is_finite() && apart.is_finite() {
            sizes.push((apart / length).sqrt());
            biases.push(along / length);
        }
    }
    let sizes = sorted(&sizes);
    let n = biases.len().max(1) as f64;
    let mean = biases.iter().sum::<f64>() / n;
    let squares: f64 = biases.iter().map(|bias| (bias - mean).powi(2)).sum();
    let node = a
        .weight
        .as_deref()
        .and_then(|weight| weight.rsplit('.').nth(1));
    Difference {
        layer: a.layer,
        node: node.unwrap_or(&a.name).to_owned(),
        sizes: [0.5, 0.9].map(|p| linear(&sizes, p).unwrap_or(0.0)),
        bias: [mean, (squares / n / n).sqrt()],
        n_not_finite: b.n_not_finite.saturating_sub(a.n_not_finite),
    }
}

/// llama.cpp's name of the logits.
const LOGITS: &str = "result_output";

/// What a layer has added to its input, if that is known.
fn added(row: &[f32], input: Option<&Vec<f32>>) -> Vec<f64> {
    let mut added: Vec<f64> = row.iter().copied().map(f64::from).collect();
    let values = input.into_iter().flatten();
    added
        .iter_mut()
        .zip(values)
        .for_each(|(value, &input)| *value -= f64::from(input));
    added
}

fn centre(row: &mut [f64]) {
    let mean = row.iter().sum::<f64>() / row.len().max(1) as f64;
    row.iter_mut().for_each(|value| *value -= mean);
}
