//! A small native file of hidden states.

use super::*;

/// Hidden states of 4 numbers in f16, a head in bf16, and every kind of step.
pub fn hidden(n_vocab: u32) -> Vec<u8> {
    let mut about = about(Kind::Kl, 3, n_vocab);
    let tensor = vec![0x3f; 4 * 2 * n_vocab as usize];
    let mut states = common::states(4, Float::F16, 30, &tensor);
    states.then = vec![
        HeadStep::Scale {
            factor: 0.5,
            bias: 0.0,
        },
        HeadStep::Tanh,
        HeadStep::Add { n_values: n_vocab },
        HeadStep::Mul { n_values: 1 },
    ];
    about.states = Some(states);
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
