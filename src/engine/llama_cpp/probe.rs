//! Finds the output head, and the steps that follow it, in the graph of one decoded token.

use std::collections::HashMap;

use kl_formats::HeadStep;
use llama_cpp_sys_2 as sys;

use super::context::Watch;
use super::node::{ModelTensor, Node};

/// The name that llama.cpp gives to the rows.
const ROWS: &str = "result_output";

/// The start of the names that ggml gives to tensors without one, numbered in the graph's order.
const UNNAMED: &str = "node_";

/// The output head, as one graph has shown it.
#[derive(Debug)]
pub(super) struct FoundHead {
    pub(super) n_embd: u32,
    /// The matrix's name.
    pub(super) name: String,
    /// ggml's number of its type.
    pub(super) type_id: u32,
    /// The matrix; `None` if the graph multiplied a copy of it.
    pub(super) weight: Option<ModelTensor>,
    /// The name of the tensor of hidden states, if that finds it in every graph of the model.
    pub(super) states_name: Option<String>,
    /// The steps that follow the product, each with its values.
    pub(super) then: Vec<(HeadStep, Vec<f32>)>,
}

/// Watches a graph for its rows, and goes back from them to the head.
pub(super) struct Probe {
    n_vocab: i64,
    /// The number of times that each name has occurred.
    names: HashMap<String, u32>,
    /// The head that was found, or the operation that `kl` cannot repeat.
    pub(super) found: Result<FoundHead, String>,
}

impl Probe {
    pub(super) fn new(n_vocab: u32) -> Self {
        Self {
            n_vocab: n_vocab.into(),
            names: HashMap::new(),
            found: Err("its graph does not name its rows".to_owned()),
        }
    }

    /// Goes back from the rows to the product with the head.
    fn find(&self, rows: Node<'_>) -> Result<FoundHead, String> {
        let mut then = Vec::new();
        let mut node = rows;
        let (weight, states) = loop {
            let unknown = move || format!("kl does not know the operation {}", node.op_name());
            let input = move |i| node.input(i).ok_or_else(unknown);
            then.push(match node.op() {
                sys::GGML_OP_MUL_MAT if input(0)?.shape()[1] == self.n_vocab => {
                    break (input(0)?, input(1)?);
                }
                sys::GGML_OP_SCALE => {
                    let (factor, bias) = (node.f32_param(0), node.f32_param(1));
                    (HeadStep::Scale { factor, bias }, Vec::new())
                }
                sys::GGML_OP_UNARY if node.param(0) == sys::GGML_UNARY_OP_TANH as i32 => {
                    (HeadStep::Tanh, Vec::new())
                }
                op @ (sys::GGML_OP_ADD | sys::GGML_OP_MUL) => {
                    let values = self.read_values(input(1)?)?;
                    let n_values = values.len() as u32;
                    match op {
                        sys::GGML_OP_ADD => (HeadStep::Add { n_values }, values),
                        _ => (HeadStep::Mul { n_values }, values),
                    }
                }
                _ => return Err(unknown()),
            });
            node = input(0)?;
        };
        then.reverse();
        let [n_embd, n_vocab, 1, 1] = weight.shape() else {
            return Err(format!("its head {} is not a matrix", weight.name()));
        };
        if n_vocab != self.n_vocab || states.shape() != [n_embd, 1, 1, 1] {
            return Err("its head is not multiplied with one state for each token".to_owned());
        }
        let name = states.name();
        let is_unique = self.names.get(&name) == Some(&1) && !name.starts_with(UNNAMED);
        Ok(FoundHead {
            n_embd: n_embd as u32,
            name: weight.name(),
            type_id: weight.type_id(),
            weight: weight.as_weight(),
            states_name: is_unique.then_some(name),
            then,
        })
    }

    /// Reads the weights that are added to all rows, or that these are multiplied with.
    fn read_values(&self, operand: Node<'_>) -> Result<Vec<f32>, String> {
        let mut values = Vec::new();
        match operand.shape() {
            [n, 1, 1, 1] if operand.op() == sys::GGML_OP_NONE && (n == 1 || n == self.n_vocab) => {
                operand.read(&mut values).map(|()| values)
            }
            _ => Err(format!("kl cannot apply {} to all rows", operand.name())),
        }
    }
}

impl Watch for Probe {
    fn wants(&mut self, node: Node<'_>) -> bool {
        *self.names.entry(node.name()).or_default() += 1;
        node.is_named(ROWS)
    }

    fn computed(&mut self, node: Node<'_>) -> bool {
        self.found = self.find(node);
        true
    }
}
