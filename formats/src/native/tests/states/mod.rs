//! Files of hidden states: what is written is read, and nothing else.

mod refused;

use std::io::Read;

use super::super::head_members::HEAD_PIECE_BYTES;
use super::*;
use crate::{About, Error, Float, Kind, Rows, Shard, Target};

/// All that a file holds; states as bits.
#[derive(Debug, PartialEq)]
pub(super) struct Found {
    header: Header,
    head: Vec<u8>,
    check_rows: Vec<Vec<f32>>,
    windows: Contents,
}

/// Windows whose states have every size, in several pieces.
pub(super) fn sample(state_type: Float) -> Hidden {
    let windows = [(2, 6, 1), (0, 3, 3), (1, 4, 2)].map(|(number, n_tokens, first_scored)| {
        let mut window = window(number, n_tokens, first_scored, N_VOCAB);
        let n = window.spec.n_rows * 3;
        window.rows = (0..n)
            .map(|i| 0.1 * (i * i) as f32 - number as f32)
            .collect();
        window
    });
    Hidden::new(state_type, N_VOCAB, windows.into())
}

pub(super) fn read_states(path: &Path) -> Result<Found> {
    let reader = NativeReader::open(path)?;
    let header = reader.header.clone();
    let entries: Vec<_> = reader.windows().copied().collect();
    let Rows::States(states, _) = reader.into_reference().into_rows() else {
        panic!("no states");
    };
    let mut head = Vec::new();
    let read = states.head().read_to_end(&mut head);
    read.map_err(|error| error.downcast::<Error>().unwrap())?;
    let check_rows = states.check_rows()?;
    let mut windows = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        let numbers = states.read_states(i, 0..entry.n_rows, &mut None)?;
        let bits = numbers.iter().map(|x| x.to_bits()).collect();
        windows.push((states.window(i)?, bits));
    }
    Ok(Found {
        header,
        head,
        check_rows,
        windows,
    })
}

/// Reads every byte, and every checksum.
pub(super) fn verify_states(path: &Path) -> Result<()> {
    NativeReader::open(path)?.verify_head()?;
    verify(path)
}

/// The bits of a state that was stored.
fn stored_bits(state_type: Float, state: &[f32]) -> Vec<u32> {
    let mut bytes = vec![0; state.len() * state_type.bytes()];
    state_type.encode(state, &mut bytes);
    let mut out = vec![0.0; state.len()];
    state_type.decode(&bytes, &mut out);
    out.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn states_of_every_type_are_read_as_written() {
    for state_type in [Float::F16, Float::Bf16, Float::F32] {
        let hidden = sample(state_type);
        let scratch = Scratch::new();
        let path = scratch.file(&hidden.bytes());
        verify_states(path).unwrap();
        let windows = hidden.windows.iter().map(|window| {
            let bits = stored_bits(state_type, &window.rows);
            (window.spec.clone(), bits)
        });
        let expected = Found {
            windows: windows.collect(),
            header: hidden.header,
            head: hidden.head,
            check_rows: hidden.check_rows,
        };
        assert_eq!(read_states(path).unwrap(), expected);
        let about = Reference::open(path).unwrap().about().clone();
        assert_eq!((about.encoding, about.n_vocab), ("hidden", N_VOCAB));
        assert_eq!(about.states, expected.header.states);
    }
}

#[test]
fn any_rows_of_a_window_can_be_read() {
    let hidden = sample(Float::F32);
    let scratch = Scratch::new();
    let reference = Reference::open(scratch.file(&hidden.bytes())).unwrap();
    let listed: Result<Vec<_>> = reference.read_windows().unwrap().collect();
    assert_eq!(listed.unwrap(), specs(&hidden.windows));
    let Rows::States(states, _) = reference.rows() else {
        panic!("no states");
    };
    let n_rows = hidden.windows[0].spec.n_rows;
    let mut last = None;
    for start in 0..=n_rows {
        for end in start..=n_rows {
            let numbers = states.read_states(0, start..end, &mut last);
            assert_eq!(
                numbers.unwrap(),
                hidden.windows[0].rows[start as usize * 3..end as usize * 3]
            );
        }
    }
    states.prefetch(0, 0);
}

#[test]
fn a_head_of_several_pieces() {
    let mut hidden = sample(Float::F16);
    let n_embd = 1 << 20;
    hidden.states().n_embd = n_embd;
    hidden.set_tensor(vec![0x40; (N_VOCAB * 4 * n_embd) as usize]);
    hidden.states().check.rows.clear();
    hidden.check_rows.clear();
    hidden.windows.clear();
    (hidden.header.n_windows, hidden.header.n_rows) = (0, 0);
    assert!(hidden.head.len() as u64 > HEAD_PIECE_BYTES);
    let scratch = Scratch::new();
    let path = scratch.file(&hidden.bytes());
    verify_states(path).unwrap();
    assert!(read_states(path).unwrap().head == hidden.head);
}

#[test]
fn a_file_is_not_larger_than_projected() {
    let hidden = sample(Float::Bf16);
    let mut about = About::new(Kind::Kl, "", 8, N_VOCAB);
    let target = Target::new(Kind::Kl, Some(Encoding::Hidden)).unwrap();
    let specs = specs(&hidden.windows);
    assert_eq!(target.projected_bytes(&about, &specs), u64::MAX);
    about.states = hidden.header.states.clone();
    let projected = target.projected_bytes(&about, &specs);
    assert!((hidden.bytes().len() as u64..80_000).contains(&projected));
    let states = about.states.as_mut().unwrap();
    states.head.bytes += 1 << 40;
    assert!(target.projected_bytes(&about, &specs) > projected + (1 << 40));
}

#[test]
fn parts_give_the_bytes_of_the_whole() {
    let hidden = sample(Float::F16);
    let whole = hidden.bytes();
    let scratches = [Scratch::new(), Scratch::new(), Scratch::new()];
    let open = |i: usize, bytes: &[u8]| NativeReader::open(scratches[i].file(bytes)).unwrap();
    let [a, b] = [0, 1].map(|index| {
        let mut part = hidden.clone();
        let own = part.windows.into_iter().skip(index).step_by(2);
        part.windows = own.collect();
        let rows = part.windows.iter();
        part.header.n_rows = rows.map(|window| u64::from(window.spec.n_rows)).sum();
        part.header.n_windows = part.windows.len() as u32;
        part.header.shard = Some(Shard {
            index: index as u32,
            count: 2,
            n_windows: 3,
            n_rows: hidden.header.n_rows,
        });
        open(index, &part.bytes())
    });
    assert_eq!(a.header.of_whole(), b.header.of_whole());
    let writer = || {
        let header = a.header.of_whole();
        Writer::native(Vec::new(), Path::new("out"), &header).unwrap()
    };
    let mut merged = writer();
    for (i, part) in [(0, &a), (0, &b), (1, &a)] {
        merged.copy_window(part, i).unwrap();
    }
    assert!(merged.finish().unwrap() == whole);

    let mut other = hidden.clone();
    other.set_tensor(vec![1; 60]);
    let other = open(2, &other.bytes());
    assert!(writer().copy_window(&other, 0).is_err(), "another head");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_states_are_read_as_written(
        windows in any_windows(N_VOCAB), at_once in 1usize..9, which in 0usize..3
    ) {
        let state_type = [Float::F16, Float::Bf16, Float::F32][which];
        let mut hidden = Hidden::new(state_type, N_VOCAB, windows);
        // Rows of 5 numbers, as the windows have them.
        hidden.states().n_embd = N_VOCAB;
        hidden.set_tensor(vec![1; (4 * N_VOCAB * N_VOCAB) as usize]);
        let bytes = written(hidden.writer(Vec::new()).unwrap(), &hidden.windows, at_once);
        let found = read_states(Scratch::new().file(&bytes)).unwrap();
        prop_assert_eq!(found.header, hidden.header);
        for (window, (spec, bits)) in hidden.windows.iter().zip(found.windows) {
            prop_assert_eq!(&window.spec, &spec);
            prop_assert_eq!(bits, stored_bits(state_type, &window.rows));
        }
    }
}
