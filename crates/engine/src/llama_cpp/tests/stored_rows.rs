//! Rows in a file, of every type of weights.

use super::*;
use crate::gguf::tests::made;

const NAME: &str = "blk.0.ffn_up.weight";

#[test]
fn rows_of_every_type_are_checked_and_compared() {
    let original = gguf::read(&fixture("tiny-f16.gguf")).unwrap();
    let tensor = original.tensor(NAME).unwrap();
    let of_original = StoredRows::new(&original, tensor).unwrap();
    assert!(of_original.faulty(None).unwrap().is_empty());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zero.gguf");
    for kind in GgmlType::all().filter(|kind| kind.is_for_weights) {
        // All rows but the fourth are zero.
        let row = kind.bytes(256).unwrap() as usize;
        let mut model = made::Model {
            data_bytes: row * 512,
            ..made::Model::default()
        };
        model.tensor(NAME, &[256, 512], kind.id, 0);
        let mut bytes = model.bytes();
        let start = bytes.len() - row * 509;
        bytes[start..start + row].fill(0xff);
        std::fs::write(&path, bytes).unwrap();
        let header = gguf::read(&path).unwrap();
        let rows = StoredRows::new(&header, &header.tensors[0]).unwrap();
        let faulty = rows.faulty(None).unwrap();
        // Every scale of nvfp4 is finite.
        let broken = (kind.name != "nvfp4").then_some(0);
        for row in &faulty {
            let block = broken.filter(|_| row.index == 3);
            assert_eq!(row.block, block, "{kind}, row {}", row.index);
        }
        assert_eq!(faulty.len(), 511 + usize::from(broken.is_some()), "{kind}");
        // The original's rows do not become zero at any type.
        let error = rows.error(&of_original, 0).unwrap();
        assert_eq!(error.error, error.squares, "{kind}");
        assert!(error.expected < 0.95 * error.squares, "{kind}: {error:?}");
    }
}
