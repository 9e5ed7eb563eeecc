//! The values in the layers of a fake model: numbers that are as good as random, but for noise, and for a fault of
//! a device.

use std::collections::BTreeMap;

use kl_formats::WindowSpec;

use super::row::{mix, row};
use super::{FakeEngine, FakeModel};
use crate::{ContextOptions, ModelOptions, Nodes, TracedNode};

/// The name of the device that the engine has where it has a fault.
pub const FAKE_DEVICE: &str = "FAKE0";

/// Layers of the models, and values of a layer's output.
const N_LAYERS: u32 = 3;
const N_VALUES: usize = 16;

/// The size of the noise, and of a device's roundings, in relation to what they are added to.
const NOISE: f32 = 1e-2;
const ROUNDING: f32 = 1e-3;

/// A kernel of a device that computes something else.
#[derive(Debug, Clone, Copy)]
pub struct FakeFault {
    /// The layer to whose output it adds this part too much; `None`: the rows are not finite.
    pub layer: Option<u32>,
    pub size: f32,
    /// The largest physical batch that it computes.
    pub most: u32,
}

/// The way in which a context moves what it computes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Moved {
    noise: f32,
    fault: Option<FakeFault>,
}

impl Moved {
    /// Moves a row of logits, or what a layer adds, that stands for a hash.
    pub(super) fn move_row(self, values: &mut [f32], hash: u64, layer: Option<u32>) {
        let noise = row(values.len(), mix(hash ^ u64::from(self.noise.to_bits())));
        let fault = self.fault.filter(|of| layer.is_none() || of.layer == layer);
        for (value, noise) in values.iter_mut().zip(noise) {
            *value += self.noise * noise;
            match fault {
                Some(of) if of.layer.is_none() => *value = f32::NAN,
                Some(of) => *value *= 1.0 + of.size,
                None => {}
            }
        }
    }
}

impl FakeEngine {
    pub(super) fn moved(&self, model: &ModelOptions, options: &ContextOptions) -> Moved {
        let is_on_device = self.fault.is_some() && !model.is_on_cpu();
        let rounding = if is_on_device { ROUNDING } else { 0.0 };
        let fault = self
            .fault
            .filter(|of| is_on_device && options.calls.n_ubatch <= of.most);
        Moved {
            noise: if options.is_noisy { NOISE } else { rounding },
            fault,
        }
    }
}

impl FakeModel {
    pub(super) fn traced(
        &self,
        options: &ContextOptions,
        windows: &[WindowSpec],
        positions: &[usize],
        nodes: Nodes,
    ) -> Vec<TracedNode> {
        let moved = self.engine.moved(&self.facts.options, options);
        let node = |name: &str, layer, weight: Option<&str>| {
            let mut node = TracedNode {
                name: name.to_owned(),
                occurrence: 0,
                layer: Some(layer),
                weight: weight.map(|of| format!("blk.{layer}.{of}.weight")),
                rows: BTreeMap::new(),
                n_not_finite: 0,
            };
            for (i, window) in windows.iter().enumerate() {
                for &position in positions.iter().filter(|&&at| at < window.tokens.len()) {
                    let hash = mix(u64::from(window.tokens[position]) << 32 | position as u64);
                    let mut values = vec![0.0; N_VALUES];
                    let first = if weight.is_some() { layer } else { 0 };
                    for layer in first..=layer {
                        let mut added = row(N_VALUES, mix(hash ^ u64::from(layer)));
                        if name != "norm" {
                            moved.move_row(&mut added, hash, Some(layer));
                        }
                        values
                            .iter_mut()
                            .zip(added)
                            .for_each(|(value, added)| *value += added);
                    }
                    node.rows.insert((i, position), values);
                }
            }
            node
        };
        match nodes {
            Nodes::LayerOutputs => (0..N_LAYERS)
                .map(|layer| node("l_out", layer, None))
                .collect(),
            Nodes::OfLayer(layer) => {
                let layer = layer.unwrap_or_default();
                vec![
                    node("norm", layer, Some("norm")),
                    node("ffn_out", layer, Some("ffn_down")),
                ]
            }
        }
    }
}
