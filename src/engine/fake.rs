use kl_formats::WindowHead;

use super::{EngineError, LogitSource};

/// Rows that depend on the tokens before them alone, as a causal model's do, without a model:
/// what the pipeline is tested with.
#[derive(Debug, Clone)]
pub struct Fake {
    /// Entries in a row.
    pub n_vocab: usize,
    /// Rows handed out at a time.
    pub n_batch: usize,
    /// Two fakes of the same seed are the same model.
    pub seed: u64,
}

impl LogitSource for Fake {
    type Error = EngineError;

    fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    fn decode<E: From<EngineError>>(
        &mut self,
        window: &WindowHead,
        mut sink: impl FnMut(&[&[f32]]) -> Result<(), E>,
    ) -> Result<(), E> {
        let scored = window.first_scored as usize..(window.first_scored + window.n_rows) as usize;
        let mut state = self.seed;
        let mut rows: Vec<Vec<f32>> = Vec::new();
        for (position, &token) in window.tokens.iter().enumerate() {
            state = mix(state ^ u64::from(token));
            if scored.contains(&position) {
                rows.push(
                    (0..self.n_vocab)
                        .map(|entry| logit(mix(state ^ entry as u64)))
                        .collect(),
                );
            }
        }
        for rows in rows.chunks(self.n_batch) {
            let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
            sink(&rows)?;
        }
        Ok(())
    }
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    value ^ (value >> 29)
}

/// A number between -8 and 8.
fn logit(bits: u64) -> f32 {
    (bits >> 40) as f32 / (1u64 << 24) as f32 * 16.0 - 8.0
}
