//! The output head of a model and the steps that follow it in some architectures, which make rows
//! of logits of hidden states.

use kl_formats::{HeadStep, HeadTensor};

use super::EngineError;

/// A model's output head, as one decoded token has shown it.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputHead {
    /// Numbers of a hidden state.
    pub n_embd: u32,
    /// The matrix, n_embd x n_vocab, as it stands in the model's file. Its hash may be missing: see
    /// [`Model::hashed_head`](super::Model::hashed_head).
    pub tensor: HeadTensor,
    /// The steps that follow the product, in order.
    pub then: Vec<HeadStep>,
}

/// Computes rows of logits from hidden states: one product, then the steps.
pub trait Head: Send {
    /// Entries in a row.
    fn n_vocab(&self) -> usize;

    /// The rows of `states`, n x n_embd: n x n_vocab logits, valid until the next call. Kernels sum
    /// in another order for another n: to the bit, rows are the model's where n is the number of
    /// states that its own physical batch had.
    ///
    /// # Errors
    /// A number of states that is not whole, or why the device cannot compute them.
    fn rows(&mut self, states: &[f32]) -> Result<&[f32], EngineError>;

    /// Where the rows are computed: `CPU`, `CUDA0`.
    fn device(&self) -> &str;

    /// Returns true if it uses the matrix of a loaded model, and so has no memory of its own for
    /// one.
    fn is_shared(&self) -> bool;
}

/// The outputs of one decode call.
#[derive(Clone, Copy, Debug)]
pub struct Outputs<'a> {
    /// The hidden states of the call's scored positions, in order: n x n_embd.
    pub states: &'a [f32],
    /// The model's own rows of the same positions, if they were asked for.
    pub rows: Option<&'a [&'a [f32]]>,
    /// The number of states that each physical batch brought, without those that brought none: the
    /// model computed the rows of each by one product.
    pub groups: &'a [usize],
}
