//! References of hidden states for tests.

use std::io::Write;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::SampleWindow;
use crate::common::{self, about};
use crate::*;

/// Hidden states of `n_embd` numbers in f16, with an f32 head.
pub(crate) fn states(n_embd: u32, n_vocab: u32) -> States {
    let mut states = common::states(n_embd, Float::F16, 0, &[]);
    states.head.bytes = 4 * u64::from(n_embd) * u64::from(n_vocab);
    (states.calls.n_batch, states.calls.n_ubatch) = (4, 2);
    states.check = HeadCheck::default();
    states
}

/// A reference of hidden states, before it is written.
#[derive(Clone, Debug)]
pub(crate) struct Hidden {
    pub(crate) header: Header,
    /// The head's tensor, then the steps' values.
    pub(crate) head: Vec<u8>,
    pub(crate) check_rows: Vec<Vec<f32>>,
    /// The windows; their rows are states.
    pub(crate) windows: Vec<SampleWindow>,
}

impl Hidden {
    /// Windows of states, a head, and every kind of step after it. The first window's first row and
    /// its last are check rows.
    pub(crate) fn new(state_type: Float, n_vocab: u32, windows: Vec<SampleWindow>) -> Self {
        let n_embd = 3;
        let number = |i: u32| (i * 53 % 97) as f32 / 16.0 - 3.0;
        let tensor: Vec<u8> = (0..n_embd * n_vocab)
            .flat_map(|i| number(i).to_le_bytes())
            .collect();
        let values = (0..n_vocab + 1).flat_map(|i| number(i + 7).to_le_bytes());
        let mut states = states(n_embd, n_vocab);
        states.state_type = state_type;
        states.then = vec![
            HeadStep::Scale {
                factor: 0.1,
                bias: -0.5,
            },
            HeadStep::Tanh,
            HeadStep::Add { n_values: n_vocab },
            HeadStep::Mul { n_values: 1 },
        ];
        let first = windows.iter().find(|window| window.spec.n_rows > 1);
        let rows = first.map(|SampleWindow { spec, .. }| {
            let last = spec.first_scored + spec.n_rows - 1;
            [spec.first_scored, last].map(|position| CheckRow {
                window: spec.window,
                position,
            })
        });
        states.check = HeadCheck {
            n_rows: 64,
            mean_kld: 1.3e-5,
            max_kld: 0.1,
            rows: rows.into_iter().flatten().collect(),
        };
        let check_rows = (0..states.check.rows.len() as u32)
            .map(|i| (0..n_vocab).map(|t| number(t * 3 + i)).collect())
            .collect();
        let mut about = about(Kind::Kl, 8, n_vocab);
        about.first_scored = Some(1);
        about.states = Some(states);
        let header = Header {
            rows_per_piece: 2,
            ..Header::new(&about, Encoding::Hidden, &super::specs(&windows))
        };
        let mut hidden = Self {
            header,
            head: vec![0; tensor.len()].into_iter().chain(values).collect(),
            check_rows,
            windows,
        };
        hidden.set_tensor(tensor);
        hidden
    }

    /// Sets the head's tensor; the values after it stay.
    pub(crate) fn set_tensor(&mut self, tensor: Vec<u8>) {
        let of_tensor = &mut self.header.states.as_mut().unwrap().head;
        self.head.drain(..of_tensor.bytes as usize);
        of_tensor.bytes = tensor.len() as u64;
        of_tensor.sha256 = hex(&Sha256::digest(&tensor));
        self.head.splice(..0, tensor);
    }

    /// Returns the header's record of the states.
    pub(crate) fn states(&mut self) -> &mut States {
        self.header.states.as_mut().unwrap()
    }

    /// A writer of the file, up to its first window.
    pub(crate) fn writer<W: Write>(&self, out: W) -> Result<Writer<W>> {
        let mut writer = Writer::native(out, Path::new("out"), &self.header)?;
        writer.write_head(&self.head[..], &self.check_rows)?;
        Ok(writer)
    }

    /// The whole file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        super::written(self.writer(Vec::new()).unwrap(), &self.windows, 3)
    }
}
