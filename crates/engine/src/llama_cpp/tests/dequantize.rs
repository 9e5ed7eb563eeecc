//! Copies of models with dequantized weights.

use super::super::dequantize::{copy, describe, plain_kind};
use super::*;
use crate::gguf::Gguf;
use crate::gguf::tests::made;

const NAME: &str = "blk.0.ffn_up.weight";

/// The weights of a tensor, as f32.
fn weights(header: &Gguf, name: &str) -> Vec<f32> {
    let rows = StoredRows::new(header, header.tensor(name).unwrap()).unwrap();
    rows.weights(0..rows.n_rows).unwrap()
}

#[test]
fn every_quantized_tensor_is_dequantized_and_no_other_is_changed() {
    let original = gguf::read(&fixture("tiny-q4_K_M.gguf")).unwrap();
    let made = copy(&original).unwrap().unwrap();
    let header = gguf::read(made.path()).unwrap();
    assert_eq!(header.tensors.len(), original.tensors.len());
    let (mut n_dequantized, mut bytes) = (0, 0);
    for tensor in &original.tensors {
        let copied = header.tensor(&tensor.name).unwrap();
        let (was, is) = (tensor.kind.name, copied.kind.name);
        bytes += copied.bytes;
        if tensor.kind.block == 1 {
            assert_eq!(is, was, "{}", tensor.name);
            continue;
        }
        assert_eq!(is, "f16", "{}: {was}", tensor.name);
        n_dequantized += 1;
        // Each is off by half a unit in the last place at most; the smallest f16 is 6e-8.
        let both = weights(&original, &tensor.name).into_iter();
        for (weight, copied) in both.zip(weights(&header, &tensor.name)) {
            let bound = (weight.abs() / 2048.0).max(3e-8);
            assert!((weight - copied).abs() <= bound, "{weight} {copied}");
        }
    }
    assert!(n_dequantized > 10);
    let described = describe(&original).unwrap();
    assert!(described.bytes.abs_diff(header.file_bytes) < 4096);
    assert!(described.bytes > bytes && described.largest_tensor > 0);
    assert_eq!(describe(&header), None);
    assert!(copy(&header).unwrap().is_none());
}

#[test]
fn weights_that_f16_would_lose_become_f32() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made.gguf");
    // Blocks of 32 weights: a scale, then codes.
    let kept = |kind: &str, scale: &[u8]| {
        let kind = kind.parse::<GgmlType>().unwrap();
        let row = kind.bytes(256).unwrap() as usize;
        let mut model = made::Model {
            data_bytes: row * 4,
            ..made::Model::default()
        };
        model.tensor(NAME, &[256, 4], kind.id, 0);
        let mut bytes = model.bytes();
        let start = bytes.len() - row * 4;
        for block in bytes[start..].chunks_mut(kind.block_bytes as usize) {
            let (of_block, codes) = block.split_at_mut(scale.len());
            of_block.copy_from_slice(scale);
            (0..).zip(codes).for_each(|(i, code)| *code = 3 * i);
        }
        std::fs::write(&path, bytes).unwrap();
        let header = gguf::read(&path).unwrap();
        let kind = plain_kind(&header, &header.tensors[0]);
        kind.unwrap().name
    };
    // Scales in f16: 1, 0.01, 6e-8, and 32,768, with which weights are beyond 65,504.
    assert_eq!(kept("q8_0", &0x3c00_u16.to_le_bytes()), "f16");
    assert_eq!(kept("q8_0", &0x211f_u16.to_le_bytes()), "f16");
    assert_eq!(kept("q8_0", &0x0001_u16.to_le_bytes()), "f16");
    assert_eq!(kept("q8_0", &0x7800_u16.to_le_bytes()), "f32");
    // Exponents: of 1/2, and of 2^-31, where f16 ends at 2^-24.
    assert_eq!(kept("mxfp4", &[127]), "f16");
    assert_eq!(kept("mxfp4", &[97]), "f32");
}

#[test]
fn a_dequantized_model_has_the_identity_of_its_file() {
    hush();
    let path = fixture("tiny-q4_K_M.gguf");
    let options = ModelOptions {
        is_dequantized: true,
        ..ModelOptions::default()
    };
    let (file, other) = (load(&path), ENGINE.load(&path, &options).unwrap());
    let (facts, of_file) = (other.facts(), file.facts());
    assert_eq!(facts.identity, of_file.identity);
    assert_eq!(facts.path, of_file.path);
    assert!(facts.loaded_bytes > 2 * of_file.loaded_bytes);
    assert_eq!(Some(of_file.loaded_bytes), of_file.identity.size_bytes);
}
