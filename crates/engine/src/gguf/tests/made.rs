//! Models made byte by byte, for tests.

use super::super::pieces::MAGIC;

pub(crate) const U8: u32 = 0;
pub(crate) const U16: u32 = 2;
pub(crate) const U32: u32 = 4;
pub(crate) const I32: u32 = 5;
pub(crate) const F32: u32 = 6;
pub(crate) const BOOL: u32 = 7;
pub(crate) const STRING: u32 = 8;
pub(crate) const ARRAY: u32 = 9;
pub(crate) const U64: u32 = 10;

/// The parts of a GGUF.
#[derive(Clone, Default)]
pub(crate) struct Model {
    pub(crate) pairs: Vec<Vec<u8>>,
    pub(crate) infos: Vec<Vec<u8>>,
    pub(crate) data_bytes: usize,
}

pub(crate) fn string(s: &str) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes(), s.as_bytes()].concat()
}

pub(crate) fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

impl Model {
    pub(crate) fn pair(&mut self, key: &str, kind: u32, value: &[u8]) -> &mut Self {
        self.pairs
            .push([&string(key)[..], &kind.to_le_bytes(), value].concat());
        self
    }

    pub(crate) fn tensor(
        &mut self,
        name: &str,
        shape: &[u64],
        kind: u32,
        offset: u64,
    ) -> &mut Self {
        let n_dims = (shape.len() as u32).to_le_bytes();
        self.infos.push(
            [
                &string(name)[..],
                &n_dims,
                &words(shape),
                &kind.to_le_bytes(),
                &words(&[offset]),
            ]
            .concat(),
        );
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let counts = words(&[self.infos.len() as u64, self.pairs.len() as u64]);
        let start = [&MAGIC[..], &3u32.to_le_bytes(), &counts].concat();
        let mut bytes = [start, self.pairs.concat(), self.infos.concat()].concat();
        bytes.resize(bytes.len().next_multiple_of(32) + self.data_bytes, 0);
        bytes
    }
}
