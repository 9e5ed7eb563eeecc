//! Files of hidden states: what is written is read, and nothing else.

use std::io::{self, Read};

use super::super::head::PIECE_BYTES;
use super::*;
use crate::{About, CheckRow, Error, Rows, Shard, StateType, Target};

/// All that a file holds; states as bits.
#[derive(Debug, PartialEq)]
pub(super) struct Found {
    header: Header,
    head: Vec<u8>,
    check_rows: Vec<Vec<f32>>,
    windows: Contents,
}

/// Windows whose states have every size, in several pieces.
pub(super) fn sample(state_type: StateType) -> Hidden {
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
    let header = reader.header().clone();
    let entries: Vec<_> = reader.windows().copied().collect();
    let Rows::States(states) = reader.into_reference().into_rows() else {
        panic!("no states");
    };
    let mut head = Vec::new();
    let read = states.head().read_to_end(&mut head);
    read.map_err(|error| error.downcast::<Error>().unwrap())?;
    let check_rows = states.check_rows()?;
    let mut windows = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        let mut numbers = vec![7.0];
        states.read(i, 0..entry.n_rows, &mut numbers)?;
        assert_eq!(numbers[0], 7.0, "states are appended");
        let bits = numbers[1..].iter().map(|x| x.to_bits()).collect();
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
fn stored_bits(state_type: StateType, state: &[f32]) -> Vec<u32> {
    let mut bytes = vec![0; state.len() * state_type.bytes()];
    state_type.encode(state, &mut bytes);
    let mut out = vec![0.0; state.len()];
    state_type.decode_into(&bytes, &mut out);
    out.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn states_of_every_type_are_read_as_written() {
    for state_type in [StateType::F16, StateType::Bf16, StateType::F32] {
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
    let hidden = sample(StateType::F32);
    let scratch = Scratch::new();
    let reference = Reference::open(scratch.file(&hidden.bytes())).unwrap();
    let listed: Result<Vec<_>> = reference.read_windows().unwrap().collect();
    assert_eq!(listed.unwrap(), specs(&hidden.windows));
    let Rows::States(states) = reference.rows() else {
        panic!("no states");
    };
    let n_rows = hidden.windows[0].spec.n_rows;
    for start in 0..=n_rows {
        for end in start..=n_rows {
            let mut numbers = Vec::new();
            states.read(0, start..end, &mut numbers).unwrap();
            assert_eq!(
                numbers,
                hidden.windows[0].rows[start as usize * 3..end as usize * 3]
            );
        }
    }
    states.prefetch(0);
}

#[test]
fn rows_cannot_be_read_without_computing_them() {
    let scratch = Scratch::new();
    let path = scratch.file(&sample(StateType::F16).bytes());
    for error in [
        Reference::open(path).unwrap().into_stream().unwrap_err(),
        NativeReader::open(path)
            .unwrap()
            .block(0, 0, None)
            .unwrap_err(),
    ] {
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        check_message(&error, path);
    }
}

#[test]
fn a_head_of_several_pieces() {
    let mut hidden = sample(StateType::F16);
    let n_embd = 1 << 20;
    hidden.states().n_embd = n_embd;
    hidden.set_tensor(vec![0x40; (N_VOCAB * 4 * n_embd) as usize]);
    hidden.states().check.rows.clear();
    hidden.check_rows.clear();
    hidden.windows.clear();
    (hidden.header.n_windows, hidden.header.n_rows) = (0, 0);
    assert!(hidden.head.len() as u64 > PIECE_BYTES);
    let scratch = Scratch::new();
    let path = scratch.file(&hidden.bytes());
    verify_states(path).unwrap();
    assert!(read_states(path).unwrap().head == hidden.head);
}

#[test]
fn a_file_is_not_larger_than_projected() {
    let hidden = sample(StateType::Bf16);
    let mut about = About::new(KIND, "", 8, N_VOCAB);
    let target = Target::new(KIND, Some(Encoding::Hidden)).unwrap();
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
fn writers_refuse_a_head_that_the_header_does_not_state() {
    let hidden = sample(StateType::F16);
    let write = |header: &Header, head: &[u8], rows: &[Vec<f32>]| {
        let mut writer = Writer::native(Vec::new(), Path::new("out"), header).unwrap();
        let error = writer.write_head(head, rows).unwrap_err();
        assert!(matches!(error, Error::Unwritable { .. }), "{error}");
        error.to_string()
    };
    let (header, head, rows) = (&hidden.header, &hidden.head[..], &hidden.check_rows[..]);
    assert!(write(header, &head[1..], rows).contains("shorter"));
    assert!(write(header, &[head, &[0]].concat(), rows).contains("longer"));
    let mut other = head.to_vec();
    other[59] ^= 1;
    assert!(write(header, &other, rows).contains("SHA-256"));
    other[59] ^= 1;
    other[60] ^= 1;
    Writer::native(Vec::new(), Path::new("out"), header)
        .unwrap()
        .write_head(&other[..], rows)
        .expect("the hash is of the tensor alone");
    assert!(write(header, head, &rows[1..]).contains("check rows"));
    assert!(write(header, head, &[rows[0].clone(), vec![0.5]]).contains("check rows"));

    let bare = || Writer::native(Vec::new(), Path::new("out"), header).unwrap();
    let window = &hidden.windows[0];
    assert!(bare().finish().is_err(), "no head");
    let states = window.rows.chunks(3);
    let error = bare().write_window(&window.spec, states).unwrap_err();
    assert!(error.to_string().contains("without their head"), "{error}");
    let error = hidden.writer().write_head(head, rows).unwrap_err();
    assert!(
        error.to_string().contains("where none comes next"),
        "{error}"
    );
    let rows_of_logits = window.rows.chunks(5);
    let error = hidden
        .writer()
        .write_window(&window.spec, rows_of_logits)
        .unwrap_err();
    assert!(error.to_string().contains("5 entries, not 3"), "{error}");

    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("no disk"))
        }
    }
    let error = bare().write_head(Broken, rows).unwrap_err().to_string();
    assert_eq!(error, "out: cannot read the head for it: no disk");
}

#[test]
fn headers_and_encodings_agree() {
    let hidden = sample(StateType::Bf16);
    let refused = |change: fn(&mut Header)| {
        let mut header = hidden.header.clone();
        change(&mut header);
        let error = Writer::native(Vec::new(), Path::new("out"), &header).unwrap_err();
        assert!(matches!(error, Error::Unwritable { .. }), "{error}");
    };
    refused(|header| header.states = None);
    refused(|header| header.encoding = Encoding::U16);
    refused(|header| header.encoding = Encoding::Hidden16);
    refused(|header| header.format_version = 3);
    refused(|header| header.log_probabilities = true);
    refused(|header| header.rows_per_piece = u32::MAX);
    // A conversion to rows of logits has no states.
    let mut about = About::new(KIND, "", 8, N_VOCAB);
    about.states = hidden.header.states.clone();
    let header = Header::new(&about, Encoding::F32, &[]);
    assert_eq!((header.format_version, header.states), (3, None));
    about.states = None;
    let target = Target::new(KIND, Some(Encoding::Hidden)).unwrap();
    assert!(Writer::create(Vec::new(), Path::new("out"), target, &about, &[]).is_err());
}

#[test]
fn a_check_row_is_one_of_the_files_rows() {
    let scratch = Scratch::new();
    let open = |change: fn(&mut Hidden)| {
        let mut hidden = sample(StateType::F16);
        change(&mut hidden);
        NativeReader::open(scratch.file(&hidden.bytes())).map(|_| ())
    };
    open(|_| {}).unwrap();
    for change in [
        (|hidden| hidden.states().check.rows[0].window = 3) as fn(&mut Hidden),
        |hidden| hidden.states().check.rows[1].position = 0,
        |hidden| hidden.states().check.rows[1].position = 6,
        |hidden| {
            hidden.states().check.rows[0] = CheckRow {
                window: 0,
                position: 2,
            }
        },
    ] {
        let error = open(change).unwrap_err().to_string();
        assert!(error.contains("the check row of position"), "{error}");
    }
    // Its window may be in another part.
    open(|hidden| {
        hidden.states().check.rows[0].window = 3;
        hidden.header.shard = Some(Shard {
            index: 0,
            count: 2,
            n_windows: 6,
            n_rows: 12,
        });
    })
    .unwrap();
}

#[test]
fn parts_give_the_bytes_of_the_whole() {
    let hidden = sample(StateType::F16);
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
    assert_eq!(a.header().of_whole(), b.header().of_whole());
    let writer = || {
        let header = a.header().of_whole();
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
    let mut merged = writer();
    merged.copy_window(&a, 0).unwrap();
    assert!(merged.copy_window(&other, 1).is_err(), "another head");
    assert!(writer().copy_window(&other, 0).is_err(), "another head");
}

/// A member of the head is bounded by the header before it is unpacked.
#[test]
fn hostile_heads_are_refused() {
    let scratch = Scratch::new();
    let hidden = sample(StateType::F16);
    let header = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut json = serde_json::to_value(&hidden.header).unwrap();
        change(&mut json);
        member::build(Tag::HEADER, format!("{MAGIC_LINE}{json}\n").as_bytes())
    };
    let open = |bytes: &[u8]| NativeReader::open(scratch.file(bytes)).unwrap_err();
    let numbers: [(&str, serde_json::Value); 16] = [
        ("/states/n_embd", 0.into()),
        ("/states/n_embd", 4.into()),
        ("/states/n_embd", u32::MAX.into()),
        ("/states/n_embd", u64::MAX.into()),
        ("/n_vocab", crate::MAX_N_VOCAB.into()),
        ("/states/type", "f64".into()),
        ("/states/head/type_id", 5.into()),
        ("/states/head/type_id", 24.into()),
        ("/states/head/type", "q6_K".into()),
        ("/states/head/bytes", 0.into()),
        ("/states/head/bytes", u64::MAX.into()),
        ("/states/then/2/n_values", u32::MAX.into()),
        ("/states/then/0/factor", 1e300.into()),
        ("/states/then/1/op", "exp".into()),
        ("/states/n_ubatch", 0.into()),
        ("/states/check/rows/0/position", u32::MAX.into()),
    ];
    for (key, value) in numbers {
        let error = open(&header(&|json| {
            *json.pointer_mut(key).unwrap() = value.clone()
        }));
        assert!(
            matches!(error, Error::Header { .. }),
            "{key} {value}: {error}"
        );
    }
    // As large as a header may make it: nothing is allocated for what is not there.
    let large = header(&|json| {
        json["n_vocab"] = crate::MAX_N_VOCAB.into();
        json["states"]["n_embd"] = crate::MAX_N_EMBD.into();
        json["states"]["head"]["bytes"] = (1u64 << 46).into();
        json["states"]["then"] = serde_json::json!([]);
    });
    assert!(matches!(open(&large), Error::Truncated { .. }));
    let piece = |bytes: usize| member::build(Tag::of_head(0), &vec![0; bytes]);
    for bytes in [0, 1 << 20, (16 << 20) + 1] {
        let error = open(&[large.clone(), piece(bytes)].concat());
        assert!(matches!(error, Error::Corrupt { .. }), "{bytes}: {error}");
    }
    let error = open(&[large, piece(16 << 20)].concat());
    assert!(matches!(error, Error::Truncated { .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_states_are_read_as_written(
        windows in any_windows(N_VOCAB), at_once in 1usize..9, which in 0usize..3
    ) {
        let state_type = [StateType::F16, StateType::Bf16, StateType::F32][which];
        let mut hidden = Hidden::new(state_type, N_VOCAB, windows);
        // Rows of 5 numbers, as the windows have them.
        hidden.states().n_embd = N_VOCAB;
        hidden.set_tensor(vec![1; (4 * N_VOCAB * N_VOCAB) as usize]);
        let bytes = written(hidden.writer(), &hidden.windows, at_once);
        let found = read_states(Scratch::new().file(&bytes)).unwrap();
        prop_assert_eq!(found.header, hidden.header);
        for (window, (spec, bits)) in hidden.windows.iter().zip(found.windows) {
            prop_assert_eq!(&window.spec, &spec);
            prop_assert_eq!(bits, stored_bits(state_type, &window.rows));
        }
    }
}
