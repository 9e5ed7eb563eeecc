//! The hidden states of a model, and its output head: `Probe` finds the head, and the weights that decoding
//! uses, in the graph of one token, and `Tap` takes states out of the graphs of a window.

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Mutex};

use kl_formats::{Calls, HeadStep};
use llama_cpp_sys_2 as sys;

use super::LlamaCppModel;
use super::context::{Batch, Context, GraphWatch};
use super::ggml::{ModelTensor, Node};
use crate::gguf::Tensor;
use crate::{ContextOptions, EngineError};
use kl_system::locked;

/// Tokens of the context that shows the output head: llama.cpp's smallest.
const PROBE_N_CTX: u32 = 256;

/// The sizes of its batches; only one token is decoded.
const PROBE_CALLS: Calls = Calls::new(32, 32);

impl LlamaCppModel<'_> {
    /// The error for a model whose rows cannot be computed from hidden states.
    pub(super) fn no_states(&self, what: &str) -> EngineError {
        let known = self.facts.identity.architecture.as_deref();
        let architecture = known.unwrap_or("unknown");
        self.fault(format!(
            "hidden states cannot stand for its logits: {what} (architecture {architecture}): use --encoding u16"
        ))
    }

    /// Returns what the graph of one decoded token shows. The first call decodes that token.
    pub(super) fn probe(&self) -> Result<&Probe, EngineError> {
        if let Some(probe) = self.probe.get() {
            return Ok(probe);
        }
        let options = ContextOptions {
            n_ctx: PROBE_N_CTX,
            calls: PROBE_CALLS,
            threads: 1,
            ..ContextOptions::default()
        };
        let probe = Arc::new(Mutex::new(Probe::new(self.facts.n_vocab)));
        let mut context = Context::new(self, &options, Some(probe.clone()))?;
        let mut batch = Batch::default();
        batch.push(0, &[self.facts.bos_token.unwrap_or_default()], 0, 0);
        context.decode(batch, 0, 0)?;
        let nothing = Probe::new(0);
        Ok(self
            .probe
            .get_or_init(|| mem::replace(&mut *locked(&probe), nothing)))
    }

    /// The output head.
    pub(super) fn found_head(&self) -> Result<&Arc<FoundHead>, EngineError> {
        let found = self.probe()?.head.as_ref();
        found.map_err(|what| self.no_states(what))
    }

    /// The head, and its matrix in the model's file.
    pub(super) fn head_tensor(&self) -> Result<(&FoundHead, &Tensor), EngineError> {
        let head = self.found_head()?;
        let shape = [u64::from(head.n_embd), u64::from(self.facts.n_vocab)];
        let tensor = self.header.tensor(&head.name);
        let is_it = |of: &&Tensor| of.kind.id == head.type_id && of.shape == shape;
        let missing = || self.no_states(&format!("{} is not in the file", head.name));
        Ok((head, tensor.filter(is_it).ok_or_else(missing)?))
    }
}

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
    /// The name of the tensor of hidden states, if every graph of the model has one of this name: a graph
    /// can end after it.
    pub(super) states_name: Option<String>,
    /// The steps that follow the product, each with its values.
    pub(super) then: Vec<(HeadStep, Vec<f32>)>,
}

/// A graph's use of a weight.
#[derive(Default)]
pub(super) struct Use {
    /// Where the weight lies.
    pub(super) places: Vec<ModelTensor>,
    /// True if a device computes with a copy that the graph makes.
    pub(super) is_copied: bool,
    /// True if an operation uses it for which ggml may lack kernels for quantized weights.
    pub(super) is_unusual: bool,
}

/// Watches a graph: notes the weights that it uses, and goes back from its rows to the head.
pub(super) struct Probe {
    n_vocab: i64,
    /// The number of times that each name has occurred.
    names: HashMap<String, u32>,
    /// The head that was found, or the operation that `kl` cannot repeat.
    head: Result<Arc<FoundHead>, String>,
    /// The weights by their names.
    pub(super) used: HashMap<String, Use>,
}

impl Probe {
    fn new(n_vocab: u32) -> Self {
        Self {
            n_vocab: n_vocab.into(),
            names: HashMap::new(),
            head: Err("its graph does not name its rows".to_owned()),
            used: HashMap::new(),
        }
    }

    /// Notes the weights that an operation uses.
    fn note_weights(&mut self, node: Node<'_>) {
        for (i, input) in node.inputs() {
            let weight = input.as_weight();
            if weight.is_none() && !input.is_copy() {
                continue;
            }
            let found = self.used.entry(input.name()).or_default();
            let is_usual = matches!(
                node.op,
                sys::GGML_OP_MUL_MAT | sys::GGML_OP_MUL_MAT_ID | sys::GGML_OP_GET_ROWS
            );
            found.is_unusual |= i != 0 || !is_usual;
            found.is_copied |= weight.is_none();
            let is_new = weight.filter(|place| !found.places.contains(place));
            found.places.extend(is_new);
        }
    }

    /// Goes back from the rows to the product with the head.
    fn find(&self, rows: Node<'_>) -> Result<FoundHead, String> {
        let mut then = Vec::new();
        let mut node = rows;
        let (weight, states) = loop {
            let unknown = move || format!("kl does not know the operation {}", node.op_name());
            let input = move |i| node.input(i).ok_or_else(unknown);
            then.push(match node.op {
                sys::GGML_OP_MUL_MAT if input(0)?.ne[1] == self.n_vocab => {
                    break (input(0)?, input(1)?);
                }
                sys::GGML_OP_SCALE => {
                    let (factor, bias) = (node.f32_param(0), node.f32_param(1));
                    (HeadStep::Scale { factor, bias }, Vec::new())
                }
                sys::GGML_OP_UNARY if node.op_params[0] == sys::GGML_UNARY_OP_TANH as i32 => {
                    (HeadStep::Tanh, Vec::new())
                }
                op @ (sys::GGML_OP_ADD | sys::GGML_OP_MUL) => {
                    let values = self.read_values(input(1)?)?;
                    let n_values = values.len() as u32;
                    let is_sum = op == sys::GGML_OP_ADD;
                    let (add, mul) = (HeadStep::Add { n_values }, HeadStep::Mul { n_values });
                    (if is_sum { add } else { mul }, values)
                }
                _ => return Err(unknown()),
            });
            node = input(0)?;
        };
        then.reverse();
        let [n_embd, n_vocab, 1, 1] = weight.ne else {
            return Err(format!("its head {} is not a matrix", weight.name()));
        };
        if n_vocab != self.n_vocab || states.ne != [n_embd, 1, 1, 1] {
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
        match operand.ne {
            [n, 1, 1, 1] if operand.op == sys::GGML_OP_NONE && (n == 1 || n == self.n_vocab) => {
                operand.read(&mut values).map(|()| values)
            }
            _ => Err(format!("kl cannot apply {} to all rows", operand.name())),
        }
    }
}

impl GraphWatch for Probe {
    fn wants(&mut self, node: Node<'_>) -> bool {
        *self.names.entry(node.name()).or_default() += 1;
        self.note_weights(node);
        node.is_named(ROWS)
    }

    fn computed(&mut self, node: Node<'_>) -> bool {
        self.head = self.find(node).map(Arc::new);
        true
    }
}

/// Watches a context's graphs for the states that its head is multiplied with.
pub(super) struct Tap {
    head: Arc<FoundHead>,
    /// True if the graphs of the call end after the states.
    ends_early: bool,
    /// The states of the last decode call, n x n_embd, or why one could not be read.
    states: Result<Vec<f32>, String>,
    /// The number of states that each physical batch gave, without batches that gave none.
    groups: Vec<usize>,
}

impl Tap {
    pub(super) fn new(head: Arc<FoundHead>) -> Self {
        Self {
            head,
            ends_early: false,
            states: Ok(Vec::new()),
            groups: Vec::new(),
        }
    }

    /// Prepares for a decode call: unless its rows are wanted, its graphs end before the head where
    /// they can.
    pub(super) fn start(&mut self, wants_rows: bool) {
        self.ends_early = !wants_rows && self.head.states_name.is_some();
        self.states = Ok(Vec::new());
        self.groups.clear();
    }

    /// Takes the states of the last call. Each physical batch must have given the number in `groups`: a
    /// reader of the states will multiply exactly those together.
    pub(super) fn take(&mut self, groups: &[usize]) -> Result<Vec<f32>, String> {
        let states = mem::replace(&mut self.states, Ok(Vec::new()))?;
        if self.groups != groups {
            let found = &self.groups;
            return Err(format!(
                "the physical batches of its graphs gave {found:?} hidden states, not {groups:?}"
            ));
        }
        Ok(states)
    }
}

impl GraphWatch for Tap {
    fn wants(&mut self, node: Node<'_>) -> bool {
        match &self.head.states_name {
            Some(name) if self.ends_early => node.is_named(name),
            _ => {
                let is_head = |input: Node<'_>| input.name() == self.head.name;
                node.op == sys::GGML_OP_MUL_MAT && node.input(0).is_some_and(is_head)
            }
        }
    }

    /// A product does not change its operands, so the states are still there after it.
    fn computed(&mut self, node: Node<'_>) -> bool {
        let input = node.input(1);
        let shown = if self.ends_early { Some(node) } else { input };
        if let (Some(shown), Ok(states)) = (shown, &mut self.states) {
            let before = states.len();
            match shown.read(states) {
                Ok(()) => {
                    let n = (states.len() - before) / self.head.n_embd as usize;
                    self.groups.extend(Some(n).filter(|&n| n > 0));
                }
                Err(fault) => self.states = Err(fault),
            }
        }
        !self.ends_early
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_come_in_the_batches_of_the_call_or_not_at_all() {
        let head = FoundHead {
            n_embd: 2,
            name: "output.weight".to_owned(),
            type_id: 0,
            weight: None,
            states_name: None,
            then: Vec::new(),
        };
        let mut tap = Tap::new(head.into());
        assert_eq!(tap.take(&[]), Ok(Vec::new()));
        tap.groups = vec![7, 3];
        for groups in [&[5, 5][..], &[10]] {
            assert!(tap.take(groups).unwrap_err().contains("gave [7, 3]"));
        }
        tap.states = Ok(vec![1.0; 20]);
        assert_eq!(tap.take(&[7, 3]), Ok(vec![1.0; 20]));
        tap.states = Err("unreadable".to_owned());
        assert_eq!(tap.take(&[7, 3]), Err("unreadable".to_owned()));
        tap.start(true);
        assert_eq!(tap.take(&[]), Ok(Vec::new()));
    }
}
