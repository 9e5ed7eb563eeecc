//! The hidden states that writers and readers refuse.

use std::io::{self, Read};

use super::super::members::{Part, number, parts_of, put_together};
use super::*;
use crate::{CheckRow, Kind};

#[test]
fn writers_refuse_a_head_that_the_header_does_not_state() {
    let hidden = sample(Float::F16);
    let write = |header: &Header, head: &[u8], rows: &[Vec<f32>]| {
        let mut writer = Writer::native(Vec::new(), Path::new("out"), header).unwrap();
        let error = writer.write_head(head, rows).unwrap_err();
        assert_fault(&error, "Unwritable");
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
    let error = hidden
        .writer(Vec::new())
        .unwrap()
        .write_head(head, rows)
        .unwrap_err();
    assert!(error.to_string().contains("none comes next"), "{error}");
    let rows_of_logits = window.rows.chunks(5);
    let error = hidden
        .writer(Vec::new())
        .unwrap()
        .write_window(&window.spec, rows_of_logits);
    assert!(error.unwrap_err().to_string().contains("of 3 entries"));

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
    let hidden = sample(Float::Bf16);
    let refused = |change: fn(&mut Header)| {
        let mut header = hidden.header.clone();
        change(&mut header);
        let error = Writer::native(Vec::new(), Path::new("out"), &header).unwrap_err();
        assert_fault(&error, "Unwritable");
    };
    refused(|header| header.states = None);
    refused(|header| header.encoding = Encoding::U16);
    refused(|header| header.log_probabilities = true);
    refused(|header| header.rows_per_piece = u32::MAX);
    // A conversion to rows of logits has no states.
    let mut about = About::new(Kind::Kl, "", 8, N_VOCAB);
    about.states = hidden.header.states.clone();
    let header = Header::new(&about, Encoding::F32, &[]);
    assert_eq!(header.states, None);
    about.states = None;
    let target = Target::new(Kind::Kl, Some(Encoding::Hidden)).unwrap();
    assert!(Writer::create(Vec::new(), Path::new("out"), target, &about, &[]).is_err());
}

#[test]
fn a_check_row_is_one_of_the_files_rows() {
    let scratch = Scratch::new();
    let open = |change: fn(&mut Hidden)| {
        let mut hidden = sample(Float::F16);
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

/// A member of the head is bounded by the header before it is unpacked.
#[test]
fn hostile_heads_are_refused() {
    let scratch = Scratch::new();
    let hidden = sample(Float::F16);
    let header = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut json = serde_json::to_value(&hidden.header).unwrap();
        change(&mut json);
        member::build(member::HEADER, format!("{MAGIC_LINE}{json}\n").as_bytes())
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
        assert_fault(&error, "Header");
    }
    // As large as a header may make it: nothing is allocated for what is not there.
    let large = header(&|json| {
        json["n_vocab"] = crate::MAX_N_VOCAB.into();
        json["states"]["n_embd"] = crate::MAX_N_EMBD.into();
        json["states"]["head"]["bytes"] = (1u64 << 46).into();
        json["states"]["then"] = serde_json::json!([]);
    });
    assert_fault(&open(&large), "Truncated");
    let piece = |bytes: usize| member::build([member::HEAD_PIECE, 0, 0], &vec![0; bytes]);
    for bytes in [0, 1 << 20, (16 << 20) + 1] {
        let error = open(&[large.clone(), piece(bytes)].concat());
        assert_fault(&error, "Corrupt");
    }
    let error = open(&[large, piece(16 << 20)].concat());
    assert_fault(&error, "Truncated");
}

/// With all lengths and checksums right.
#[test]
fn a_head_with_members_missing_or_in_another_order_is_refused() {
    let hidden = sample(Float::F16);
    let whole = hidden.bytes();
    let (parts, entries) = parts_of(&whole);
    assert!(put_together(&parts, entries.clone()) == whole);
    let scratch = Scratch::new();
    let check = |parts: &[Part]| {
        let path = scratch.file(&put_together(parts, entries.clone()));
        let error = read_states(path).unwrap_err();
        check_message(&error, path);
    };
    for i in 0..parts.len() {
        let mut fewer = parts.clone();
        fewer.remove(i);
        check(&fewer);
        let mut more = parts.clone();
        more.insert(i, parts[i].clone());
        check(&more);
        for j in 0..i {
            let mut swapped = parts.clone();
            swapped.swap(i, j);
            check(&swapped);
        }
    }
}

#[test]
fn a_tensor_that_is_not_the_headers_is_found() {
    let (mut parts, entries) = parts_of(&sample(Float::F16).bytes());
    let head = parts
        .iter_mut()
        .find(|part| part.tag[0] == member::HEAD_PIECE)
        .unwrap();
    head.plain[59] ^= 1;
    let scratch = Scratch::new();
    let path = scratch.file(&put_together(&parts, entries));
    assert!(read_states(path).is_ok());
    let reference = Reference::open(path).unwrap();
    let Rows::States(states, _) = reference.rows() else {
        panic!("no states");
    };
    let error = states.verify_head().unwrap_err().to_string();
    assert!(error.contains("SHA-256"), "{error}");
    states.verify_window(0).unwrap();
}

/// The numbers of a header that concern its states, by JSON pointer.
const NUMBERS: [&str; 15] = [
    "/format_version",
    "/n_ctx",
    "/n_vocab",
    "/rows_per_piece",
    "/states/n_embd",
    "/states/head/type_id",
    "/states/head/bytes",
    "/states/then/0/factor",
    "/states/then/2/n_values",
    "/states/then/3/n_values",
    "/states/n_batch",
    "/states/n_ubatch",
    "/states/check/n_rows",
    "/states/check/max_kld",
    "/states/check/rows/1/position",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Some are only information; then the contents are read as written.
    #[test]
    fn extreme_headers_change_nothing_or_are_refused(
        key in prop::sample::select(&NUMBERS[..]), value in number()
    ) {
        let hidden = sample(Float::F16);
        let bytes = hidden.bytes();
        let scratch = Scratch::new();
        let written = read_states(scratch.file(&bytes)).unwrap();
        let (mut parts, entries) = parts_of(&bytes);
        let mut json = serde_json::to_value(&hidden.header).unwrap();
        *json.pointer_mut(key).unwrap() = value;
        parts[0].plain = format!("{MAGIC_LINE}{json}\n").into_bytes();
        let path = scratch.file(&put_together(&parts, entries));
        match read_states(path) {
            Ok(found) => {
                prop_assert_eq!(found.windows, written.windows);
                prop_assert_eq!((found.head, found.check_rows), (written.head, written.check_rows));
            }
            Err(error) => check_message(&error, path),
        }
    }
}
