//! Takes hidden states out of the graphs of a context.

use std::mem;

use llama_cpp_sys_2 as sys;

use super::context::Watch;
use super::node::Node;
use super::probe::FoundHead;

/// Watches a context's graphs for the states that its head is multiplied with.
pub(super) struct Tap {
    n_embd: usize,
    /// The head's name, by which its product is recognised.
    head_name: String,
    /// The name of the tensor of states, after which a graph can end, if it has one of its own.
    states_name: Option<String>,
    ends_early: bool,
    /// The states of the last decode call, n x n_embd.
    states: Vec<f32>,
    /// The number of states that each physical batch gave, without batches that gave none.
    groups: Vec<usize>,
    /// Why a state could not be read.
    fault: Option<String>,
}

impl Tap {
    pub(super) fn new(head: &FoundHead) -> Self {
        Self {
            n_embd: head.n_embd as usize,
            head_name: head.name.clone(),
            states_name: head.states_name.clone(),
            ends_early: false,
            states: Vec::new(),
            groups: Vec::new(),
            fault: None,
        }
    }

    /// Prepares for a decode call: unless its rows are wanted, its graphs end before the head where
    /// they can.
    pub(super) fn start(&mut self, wants_rows: bool) {
        self.ends_early = !wants_rows && self.states_name.is_some();
        self.states.clear();
        self.groups.clear();
        self.fault = None;
    }

    /// Takes the states of the last call. Each physical batch must have given as many as `groups` has:
    /// a reader of the states will multiply exactly those together.
    pub(super) fn take(&mut self, groups: &[usize]) -> Result<Vec<f32>, String> {
        match self.fault.take() {
            Some(fault) => Err(fault),
            None if self.groups == groups => Ok(mem::take(&mut self.states)),
            None => Err(format!(
                "its graphs gave {} hidden states in {} physical batches, not {} in {}",
                self.groups.iter().sum::<usize>(),
                self.groups.len(),
                groups.iter().sum::<usize>(),
                groups.len()
            )),
        }
    }
}

impl Watch for Tap {
    fn wants(&mut self, node: Node<'_>) -> bool {
        match &self.states_name {
            Some(name) if self.ends_early => node.is_named(name),
            _ => {
                node.op() == sys::GGML_OP_MUL_MAT
                    && node
                        .input(0)
                        .is_some_and(|head| head.name() == self.head_name)
            }
        }
    }

    /// A product does not change its operands, so the states are still there after it.
    fn computed(&mut self, node: Node<'_>) -> bool {
        let states = match self.ends_early {
            true => Some(node),
            false => node.input(1),
        };
        let before = self.states.len();
        if let Some(Err(fault)) = states.map(|states| states.read(&mut self.states)) {
            self.fault = Some(fault);
        }
        match (self.states.len() - before) / self.n_embd {
            0 => {}
            taken => self.groups.push(taken),
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
        let mut tap = Tap::new(&head);
        assert_eq!(tap.take(&[]), Ok(Vec::new()));
        tap.groups = vec![7, 3];
        for (groups, expected) in [(&[5, 5][..], "not 10 in 2"), (&[10], "not 10 in 1")] {
            assert!(tap.take(groups).unwrap_err().ends_with(expected));
        }
        tap.states = vec![1.0; 20];
        assert_eq!(tap.take(&[7, 3]), Ok(vec![1.0; 20]));
        tap.fault = Some("unreadable".to_owned());
        assert_eq!(tap.take(&[7, 3]), Err("unreadable".to_owned()));
        tap.start(true);
        assert_eq!(tap.take(&[]), Ok(Vec::new()));
    }
}
