//! The values that the nodes of a model's graphs hold while windows are decoded; and noise that is
//! added to the inputs of layers, as the rounding of activations adds it.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use kl_formats::{Random, WindowSpec};
use llama_cpp_sys_2 as sys;

use super::LlamaCppModel;
use super::context::{Batch, Context, GraphWatch};
use super::ggml::Node;
use crate::{ContextOptions, EngineError, Nodes, TracedNode};
use kl_system::locked;

/// Operations that compute nothing.
const VIEWS: [sys::ggml_op; 5] = [
    sys::GGML_OP_NONE,
    sys::GGML_OP_VIEW,
    sys::GGML_OP_RESHAPE,
    sys::GGML_OP_PERMUTE,
    sys::GGML_OP_TRANSPOSE,
];

impl LlamaCppModel<'_> {
    /// The nodes' rows, in the order in which the graphs compute them.
    pub(super) fn traced(
        &self,
        options: &ContextOptions,
        windows: &[WindowSpec],
        positions: &[usize],
        nodes: Nodes,
    ) -> Result<Vec<TracedNode>, EngineError> {
        let tracer = Arc::new(Mutex::new(Tracer {
            wanted: Some(nodes),
            positions: positions.to_vec(),
            is_noisy: options.is_noisy,
            ..Tracer::default()
        }));
        let mut context = Context::new(self, options, Some(tracer.clone()))?;
        // The sequences before it are empty: their places must not count.
        let sequence = options.n_seq.max(1) as usize - 1;
        for (index, window) in windows.iter().enumerate() {
            context.clear()?;
            let n_tokens = window.tokens.len();
            for start in (0..n_tokens).step_by(options.calls.n_ubatch as usize) {
                let end = n_tokens.min(start + options.calls.n_ubatch as usize);
                let mut batch = Batch::default();
                batch.push(sequence, &window.tokens[start..end], start, 0);
                locked(&tracer).begin(index, start..end);
                context.decode(batch, window.window, start)?;
            }
        }
        drop(context);
        let nodes = mem::take(&mut locked(&tracer).nodes);
        Ok(nodes)
    }
}

/// Watches the graphs of one physical batch after another.
#[derive(Default)]
pub(super) struct Tracer {
    /// The nodes to keep; `None`: none.
    wanted: Option<Nodes>,
    /// The positions of each window whose rows are kept.
    positions: Vec<usize>,
    is_noisy: bool,
    /// The window that is decoded, by its index, and the positions of this batch.
    window: usize,
    batch: Range<usize>,
    /// The number of times that each name has come in this batch.
    seen: HashMap<String, usize>,
    nodes: Vec<TracedNode>,
    /// The address of the tensor that was given noise last.
    noisy_input: usize,
    /// The random numbers of the noise.
    random: Random,
}

impl Tracer {
    /// Only adds noise.
    pub(super) fn noise() -> Self {
        Self {
            is_noisy: true,
            ..Self::default()
        }
    }

    fn begin(&mut self, window: usize, batch: Range<usize>) {
        (self.window, self.batch) = (window, batch);
        self.seen.clear();
    }

    fn is_kept(&self, node: Node<'_>, (name, layer): (&str, Option<u32>)) -> bool {
        let is_named = match self.wanted {
            Some(Nodes::LayerOutputs) => name == "l_out" || name == "result_output",
            Some(Nodes::OfLayer(Some(wanted))) => layer == Some(wanted),
            Some(Nodes::OfLayer(None)) => name.starts_with("result_"),
            None => false,
        };
        is_named && !VIEWS.contains(&node.op)
    }

    /// Adds noise to what a weight is about to be multiplied with, as large as rounding to 8 bits in blocks of
    /// 32 makes it. All nodes before it are computed, since each of them was wanted.
    fn add_noise(&mut self, product: Node<'_>) {
        let is_product = matches!(product.op, sys::GGML_OP_MUL_MAT | sys::GGML_OP_MUL_MAT_ID);
        let weight = product
            .input(0)
            .filter(|of| is_product && of.as_weight().is_some());
        let Some(input) = weight.and(product.input(1)) else {
            return;
        };
        // Several weights in a row have one input.
        let place = std::ptr::from_ref(&*input).addr();
        let mut values = Vec::new();
        if mem::replace(&mut self.noisy_input, place) == place || input.read(&mut values).is_err() {
            return;
        }
        for block in values.chunks_mut(32) {
            let most = block
                .iter()
                .fold(0.0f32, |most, value| most.max(value.abs()));
            for value in block {
                *value += even(&mut self.random) * most / 127.0;
            }
        }
        input.write(&values);
    }

    /// Keeps the rows of a node that has one for each token of the batch; of a long row some values,
    /// evenly spaced.
    fn keep(&mut self, node: Node<'_>, (name, layer): (&str, Option<u32>), values: &[f32]) {
        const MOST_VALUES: usize = 8192;
        let n_tokens = self.batch.len();
        let last = node.ne.iter().rev().find(|&&n| n > 1).copied();
        if n_tokens > 1 && last != i64::try_from(n_tokens).ok() {
            return;
        }
        let seen = self.seen.entry(name.to_owned()).or_default();
        let occurrence = mem::replace(seen, *seen + 1);
        let is_same = |of: &TracedNode| of.name == name && of.occurrence == occurrence;
        let place = self.nodes.iter().position(is_same).unwrap_or_else(|| {
            let weight = node.input(0).filter(|input| input.as_weight().is_some());
            self.nodes.push(TracedNode {
                name: name.to_owned(),
                occurrence,
                layer,
                weight: weight.map(Node::name),
                rows: BTreeMap::new(),
                n_not_finite: 0,
            });
            self.nodes.len() - 1
        });
        let traced = &mut self.nodes[place];
        let n_values = (values.len() / n_tokens.max(1)).max(1);
        let step = n_values.div_ceil(MOST_VALUES);
        for (position, row) in self.batch.clone().zip(values.chunks(n_values)) {
            traced.n_not_finite += usize::from(row.iter().any(|value| !value.is_finite()));
            if self.positions.contains(&position) {
                let values = row.iter().step_by(step).copied().collect();
                traced.rows.insert((self.window, position), values);
            }
        }
    }
}

impl GraphWatch for Tracer {
    fn wants(&mut self, node: Node<'_>) -> bool {
        if self.is_noisy {
            self.add_noise(node);
            return true;
        }
        self.is_kept(node, name_and_layer(&node.name()))
    }

    fn computed(&mut self, node: Node<'_>) -> bool {
        let full_name = node.name();
        let name = name_and_layer(&full_name);
        let mut values = Vec::new();
        if self.is_kept(node, name) && node.read(&mut values).is_ok() {
            self.keep(node, name, &values);
        }
        true
    }
}

/// The name that llama.cpp gives to a node, and its layer; `None` outside of layers.
fn name_and_layer(name: &str) -> (&str, Option<u32>) {
    let parts = name.rsplit_once('-');
    parts
        .and_then(|(name, layer)| Some((name, Some(layer.parse().ok()?))))
        .unwrap_or((name, None))
}

/// A number between -1/2 and 1/2, as good as random.
fn even(random: &mut Random) -> f32 {
    (random.bits() >> 40) as f32 / (1u64 << 24) as f32 - 0.5
}
