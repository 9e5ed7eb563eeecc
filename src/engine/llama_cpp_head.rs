//! The output head on one of ggml's backends.

use std::marker::PhantomData;

use super::{EngineError, Head};

/// An output head in the memory of a backend.
pub struct LlamaCppHead<'m> {
    model: PhantomData<&'m ()>,
}

impl Head for LlamaCppHead<'_> {
    fn n_vocab(&self) -> usize {
        todo!()
    }

    fn rows(&mut self, _states: &[f32]) -> Result<&[f32], EngineError> {
        todo!()
    }

    fn device(&self) -> &str {
        todo!()
    }

    fn is_shared(&self) -> bool {
        todo!()
    }
}
