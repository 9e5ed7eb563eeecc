//! Files whose checksums are right and whose contents are not.

use super::super::member::{self, HEADER_BYTES};
use super::members::with_index;
use super::*;

fn header_member(change: impl Fn(&mut serde_json::Value)) -> Vec<u8> {
    let mut json = serde_json::to_value(sample().0).unwrap();
    change(&mut json);
    member::build(member::HEADER, format!("{MAGIC_LINE}{json}\n").as_bytes())
}

#[test]
fn hostile_headers_are_refused() {
    let scratch = Scratch::new();
    let open = |member: Vec<u8>| NativeReader::open(scratch.file(&member)).unwrap_err();
    for changes in [
        r#"{"n_vocab": 0}"#,
        r#"{"n_vocab": 4294967295}"#,
        r#"{"n_vocab": 18446744073709551615}"#,
        r#"{"n_ctx": 0}"#,
        r#"{"n_ctx": 4294967295}"#,
        r#"{"rows_per_piece": 0}"#,
        r#"{"rows_per_piece": 4294967295}"#,
        r#"{"n_rows": 18446744073709551615}"#,
        r#"{"encoding": 5}"#,
        r#"{"model": 5}"#,
        r#"{"prompts": {}}"#,
        r#"{"prompts": [{"n_tokens": 1}]}"#,
        r#"{"prompts": [{"prompt": "a"}]}"#,
        // Fewer than there are windows.
        r#"{"prompts": [{"prompt": "a", "n_tokens": 1}]}"#,
        // Groups that do not cover the windows.
        r#"{"groups": ["a"], "window_groups": []}"#,
        r#"{"groups": [], "window_groups": [[0, 9]]}"#,
        r#"{"groups": ["a"], "window_groups": [[0, 2]]}"#,
        r#"{"groups": ["a"], "window_groups": [[1, 9]]}"#,
        r#"{"groups": ["a", "a"], "window_groups": [[0, 9]]}"#,
        r#"{"groups": ["a"], "window_groups": [[0, 9, 1]]}"#,
        r#"{"groups": "a", "window_groups": [[0, 9]]}"#,
    ] {
        let object: serde_json::Map<_, _> = serde_json::from_str(changes).unwrap();
        let error = open(header_member(|json| {
            json.as_object_mut().unwrap().extend(object.clone());
        }));
        assert_fault(&error, "Header");
    }
    let error = open(header_member(|json| json["format_version"] = 2.into()));
    assert_fault(&error, "Unsupported");
    let error = open(header_member(|json| {
        json["writer"] = "x".repeat(1 << 20).into()
    }));
    assert_fault(&error, "TooLarge");
    let deep = format!("{MAGIC_LINE}{}\n", "[".repeat(1 << 19));
    let error = open(member::build(member::HEADER, deep.as_bytes()));
    assert_fault(&error, "Header");
    // Nothing but the header: its n_windows, whatever it is, allocates no memory.
    let error = open(header_member(|json| json["n_windows"] = u32::MAX.into()));
    assert_fault(&error, "Truncated");
}

/// A short JSON can make large values in memory, so only what there is of each
/// prompt may be long.
#[test]
fn nothing_but_prompts_makes_a_header_long() {
    let scratch = Scratch::new();
    let many = |json: &mut serde_json::Value| {
        json["backend"]["devices"] = vec![""; 1 << 19].into();
        json["prompts"] = serde_json::json!([]);
    };
    let error = NativeReader::open(scratch.file(&header_member(many))).unwrap_err();
    assert_fault(&error, "TooLarge");
    let mut own = sample().0;
    own.backend.as_mut().unwrap().devices = Some(vec![String::new(); 1 << 19]);
    let error = Writer::native(Vec::new(), Path::new("out"), &own).unwrap_err();
    assert_fault(&error, "Unwritable");
}

#[test]
fn hostile_indexes_are_refused() {
    let scratch = Scratch::new();
    let one = |json: &mut serde_json::Value| {
        json["n_windows"] = 1.into();
        json["n_rows"] = 2.into();
    };
    let head = header_member(one);
    let w = window(7, 4, 2, N_VOCAB);
    let header = header(Encoding::U16, N_VOCAB, std::slice::from_ref(&w));
    let pieces = encode(&writer(&header).window_format(), &w, 9).0;
    let mut members = vec![head];
    members.extend(pieces.iter().map(|piece| piece.clone().compress().packed));
    let start = members[0].len() as u64;
    let rows_at = start + members[1].len() as u64;
    let end = rows_at + members[2].len() as u64;
    let index = |n_windows: u32, counts: [u32; 5], offsets: &[u64]| {
        let mut plain = b"KL_INDEX".to_vec();
        plain.extend(n_windows.to_le_bytes());
        counts.iter().for_each(|v| plain.extend(v.to_le_bytes()));
        offsets.iter().for_each(|v| plain.extend(v.to_le_bytes()));
        plain
    };
    let good = index(1, [7, 4, 2, 2, 2], &[start, rows_at]);
    let read_with = |index: &[u8]| read(scratch.file(&with_index(members.concat(), index)));
    assert!(read_with(&good).is_ok());
    for bad in [
        index(0, [7, 4, 2, 2, 2], &[start, rows_at]),
        index(u32::MAX, [7, 4, 2, 2, 2], &[start, rows_at]),
        index(1, [6, 4, 2, 2, 2], &[start, rows_at]),
        index(1, [7, 3, 2, 2, 2], &[start, rows_at]),
        index(1, [7, u32::MAX, 2, 2, 2], &[start, rows_at]),
        index(1, [7, 4, 1, 2, 2], &[start, rows_at]),
        index(1, [7, 4, 2, u32::MAX, 2], &[start, rows_at]),
        index(1, [7, 4, 2, 2, u32::MAX], &[start, rows_at]),
        index(1, [7, 4, 2, 2, 1], &[start]),
        index(1, [7, 4, 2, 2, 2], &[start]),
        index(1, [7, 4, 2, 2, 2], &[start, rows_at, end]),
        index(1, [7, 4, 2, 2, 2], &[start, rows_at + 1]),
        index(1, [7, 4, 2, 2, 2], &[start, start]),
        index(1, [7, 4, 2, 2, 2], &[start, end]),
        index(1, [7, 4, 2, 2, 2], &[start, u64::MAX]),
        index(1, [7, 4, 2, 2, 2], &[0, rows_at]),
        index(1, [7, 4, 2, 2, 2], &[rows_at, start]),
        b"KL_INDEX".to_vec(),
        Vec::new(),
        vec![0; 1 << 20],
    ] {
        let error = read_with(&bad).unwrap_err();
        assert_fault(&error, "Corrupt");
    }
}

/// A window whose own checksum is wrong, in members whose checksums are right: only a reader of the
/// plain stream would trip over it, and a verifier.
#[test]
fn a_wrong_checksum_after_a_window_is_found_by_verify() {
    let scratch = Scratch::new();
    for n_rows in [2, 0] {
        let w = window(7, 4, 4 - n_rows, N_VOCAB);
        let header = header(Encoding::U16, N_VOCAB, std::slice::from_ref(&w));
        let mut pieces = encode(&writer(&header).window_format(), &w, 9).0;
        let mut write = |change: u8| {
            *pieces.last_mut().unwrap().plain.last_mut().unwrap() ^= change;
            let mut writer = writer(&header);
            for piece in &pieces {
                writer.append(piece.clone().compress()).unwrap();
            }
            writer.finish().unwrap()
        };
        assert!(verify(scratch.file(&write(0))).is_ok());
        let damaged = write(1);
        let path = scratch.file(&damaged);
        assert!(read(path).is_ok());
        let offset = NativeReader::open(path).unwrap().placed[0].offset();
        let expected = format!(
            "the checksum after the window's rows does not match, at window 7, byte {offset};"
        );
        let error = verify(path).unwrap_err();
        assert_fault(&error, "Corrupt");
        assert!(error.to_string().contains(&expected), "{error}");
    }
}

/// Sets the field at `at` of a member's header, and its checksums right again.
fn reseal(member: &mut [u8], at: usize, value: u32) {
    member[at..at + 4].copy_from_slice(&value.to_le_bytes());
    let body = crc32fast::hash(&member[HEADER_BYTES..]);
    member[36..40].copy_from_slice(&body.to_le_bytes());
    let crc = crc32fast::hash(&member[..40]);
    member[40..44].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn members_that_lie_about_their_size_are_refused() {
    let (header, windows) = sample();
    let bytes = write(&header, &windows, 3);
    let scratch = Scratch::new();
    let reader = NativeReader::open(scratch.file(&bytes)).unwrap();
    let (start, end) = (
        reader.placed[0].offsets[1] as usize,
        reader.placed[0].offsets[2] as usize,
    );
    for (at, value) in [
        (16, 0),
        (16, u32::MAX),
        (20, 0),
        (20, 35),
        (20, 37),
        (20, u32::MAX),
    ] {
        let mut damaged = bytes.clone();
        reseal(&mut damaged[start..end], at, value);
        let error = read(scratch.file(&damaged)).unwrap_err();
        assert_fault(&error, "Corrupt(Position { window: Some(2)");
    }
    // A header member that is a bomb: 65 MiB of zeros in 65 KiB.
    let bomb = member::build(member::HEADER, &vec![0; 65 << 20]);
    assert_fault(&read(scratch.file(&bomb)).unwrap_err(), "TooLarge");
    let mut bomb = bomb;
    reseal(&mut bomb, 20, 1000);
    assert_fault(&read(scratch.file(&bomb)).unwrap_err(), "Corrupt");
}
