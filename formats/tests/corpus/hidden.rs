//! A small native file of hidden states.

use sha2::{Digest, Sha256};

use super::*;

/// Hidden states of 4 numbers in f16, a head in bf16, and every kind of step.
pub fn hidden(n_vocab: u32) -> Vec<u8> {
    let mut about = about(Kind::Kl, 3, n_vocab);
    let tensor = vec![0x3f; 4 * 2 * n_vocab as usize];
    about.states = Some(States {
        n_embd: 4,
        state_type: Float::F16,
        head: HeadTensor {
            name: "output.weight".into(),
            type_name: "bf16".into(),
            type_id: 30,
            bytes: tensor.len() as u64,
            sha256: hex(&Sha256::digest(&tensor)),
        },
        then: vec![
            HeadStep::Scale {
                factor: 0.5,
                bias: 0.0,
            },
            HeadStep::Tanh,
            HeadStep::Add { n_values: n_vocab },
            HeadStep::Mul { n_values: 1 },
        ],
        calls: Calls {
            n_batch: 2,
            n_ubatch: 1,
            is_equal: false,
        },
        check: HeadCheck {
            rows: vec![CheckRow {
                window: 1,
                position: 2,
            }],
            ..HeadCheck::default()
        },
    });
    let mut header = Header::new(&about, Encoding::Hidden, &windows());
    header.rows_per_piece = 2;
    let mut writer = Writer::native(Vec::new(), Path::new(""), &header).unwrap();
    let head = [tensor, rows(1, n_vocab), rows(1, 1)].concat();
    writer.write_head(&head[..], &[row(0, n_vocab)]).unwrap();
    written(writer, &windows(), 4)
}

/// The parts of such a file whose header states a head and check rows of the largest sizes there are.
pub fn large(n_vocab: u32) -> Vec<u8> {
    let parts = parts(&hidden(n_vocab));
    let (header, others) = parts[5..].split_at(u16::from_le_bytes([parts[3], parts[4]]).into());
    let lines = str::from_utf8(header).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(lines.lines().nth(1).unwrap()).unwrap();
    let states = &mut json["states"];
    states["n_embd"] = MAX_N_EMBD.into();
    states["head"]["bytes"] = (u64::from(MAX_N_EMBD) * u64::from(MAX_N_VOCAB) * 2).into();
    states["then"][2]["n_values"] = MAX_N_VOCAB.into();
    json["n_vocab"] = MAX_N_VOCAB.into();
    json["rows_per_piece"] = 1.into();
    let lines = format!("{}{json}\n", native::MAGIC_LINE);
    let length = (lines.len() as u16).to_le_bytes();
    [&parts[..3], &length, lines.as_bytes(), others].concat()
}
