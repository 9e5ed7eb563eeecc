//! Takes hidden states out of the graphs of a context.

use llama_cpp_sys_2 as sys;

use super::context::Watch;
use super::node::Node;
use super::probe::Found;

/// Watches a context's graphs for the states that its head is multiplied with.
pub(super) struct Tap {
    n_vocab: i64,
    n_embd: usize,
    /// The head's name, by which its product is recognised.
    head: String,
    /// The name of the tensor after which a graph can end, if it has one.
    last: Option<String>,
    ends_early: bool,
    /// The states of the last decode call, n x n_embd.
    pub(super) states: Vec<f32>,
    /// The number of them that each physical batch brought, without those that brought none.
    pub(super) groups: Vec<usize>,
    /// Why a state could not be taken.
    pub(super) fault: Option<String>,
}

impl Tap {
    pub(super) fn new(found: &Found, n_vocab: usize) -> Self {
        Self {
            n_vocab: n_vocab as i64,
            n_embd: found.n_embd as usize,
            head: found.name.clone(),
            last: found.states.clone(),
            ends_early: false,
            states: Vec::new(),
            groups: Vec::new(),
            fault: None,
        }
    }

    /// Prepares for a decode call: unless its rows are wanted, its graphs end before the head where
    /// they can.
    pub(super) fn start(&mut self, wants_rows: bool) {
        self.ends_early = !wants_rows && self.last.is_some();
        self.states.clear();
        self.groups.clear();
        self.fault = None;
    }

    /// Checks that each physical batch of the last call has brought as many states as `groups` has:
    /// a reader of the states will multiply just those together.
    pub(super) fn check(&self, groups: &[usize]) -> Result<(), String> {
        match &self.fault {
            Some(fault) => Err(fault.clone()),
            None if self.groups == groups => Ok(()),
            None => Err(format!(
                "its graphs gave {} hidden states in {} physical batches, not {} in {}",
                self.groups.iter().sum::<usize>(),
                self.groups.len(),
                groups.iter().sum::<usize>(),
                groups.len()
            )),
        }
    }

    fn is_head_product(&self, node: Node<'_>) -> bool {
        node.op() == sys::GGML_OP_MUL_MAT
            && node.shape()[0] == self.n_vocab
            && node.input(0).is_some_and(|head| head.name() == self.head)
    }

    fn take(&mut self, states: Node<'_>) -> Result<(), String> {
        let before = self.states.len();
        states.read(&mut self.states)?;
        let taken = self.states.len() - before;
        if states.shape()[0] != self.n_embd as i64 {
            return Err(format!(
                "its hidden states {} have another width",
                states.name()
            ));
        }
        if taken > 0 {
            self.groups.push(taken / self.n_embd);
        }
        Ok(())
    }
}

impl Watch for Tap {
    fn wants(&mut self, node: Node<'_>) -> bool {
        match &self.last {
            Some(last) if self.ends_early => node.is_named(last),
            _ => self.is_head_product(node),
        }
    }

    /// A product leaves what it multiplies as it is, so the states are still there after it.
    fn computed(&mut self, node: Node<'_>) -> bool {
        let states = match self.ends_early {
            true => Some(node),
            false => node.input(1),
        };
        if let Some(Err(fault)) = states.map(|states| self.take(states)) {
            self.fault = Some(fault);
        }
        !self.ends_early
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_come_in_the_batches_of_the_call_or_not_at_all() {
        let found = Found {
            n_embd: 2,
            name: "output.weight".to_owned(),
            type_id: 0,
            weight: None,
            states: None,
            then: Vec::new(),
            values: Vec::new(),
        };
        let mut tap = Tap::new(&found, 5);
        assert_eq!(tap.check(&[]), Ok(()));
        tap.groups = vec![7, 3];
        assert_eq!(tap.check(&[7, 3]), Ok(()));
        for (groups, expected) in [(&[5, 5][..], "not 10 in 2"), (&[10], "not 10 in 1")] {
            assert!(tap.check(groups).unwrap_err().ends_with(expected));
        }
        tap.fault = Some("unreadable".to_owned());
        assert_eq!(tap.check(&[7, 3]), Err("unreadable".to_owned()));
        tap.start(true);
        assert_eq!(tap.check(&[]), Ok(()));
    }
}
