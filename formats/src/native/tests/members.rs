//! Members taken apart and put together in another way, with all checksums right.

use super::member::{MemberHeader, Tag};
use super::*;
use crate::native::index;
use crate::window::PlacedWindow;
use crate::{Error, Fault};

/// A member: its tag and its plain bytes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Part {
    pub(super) tag: Tag,
    pub(super) plain: Vec<u8>,
}

/// The sample's members up to the index, and the index's entries.
fn taken_apart() -> (Vec<Part>, Vec<PlacedWindow>) {
    let (header, windows) = sample();
    parts_of(&write(&header, &windows, 3))
}

/// The members of a file up to the index, and the index's entries.
pub(super) fn parts_of(bytes: &[u8]) -> (Vec<Part>, Vec<PlacedWindow>) {
    let reader = NativeReader::open(Scratch::new().file(bytes)).unwrap();
    let mut rest = bytes;
    let mut parts = Vec::new();
    loop {
        let head: MemberHeader = member::read_header(rest.first_chunk().unwrap()).unwrap();
        if head.tag == member::INDEX {
            return (parts, reader.placed.to_vec());
        }
        let bytes;
        (bytes, rest) = rest.split_at(head.member_bytes as usize);
        let mut plain = vec![0; head.plain_bytes as usize];
        member::inflate(bytes, &mut plain).unwrap();
        let tag = head.tag;
        parts.push(Part { tag, plain });
    }
}

/// A file of these parts. The entries' offsets are made right: they are those of the members in
/// their order.
pub(super) fn put_together(parts: &[Part], mut entries: Vec<PlacedWindow>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut offsets = Vec::new();
    for part in parts {
        offsets.push(bytes.len() as u64);
        bytes.extend(member::build(part.tag, &part.plain));
    }
    let before = |part: &&Part| matches!(part.tag[0], 0 | 5 | 6);
    let before = parts.iter().take_while(before).count().max(1);
    let mut offsets = offsets.into_iter().skip(before);
    for offset in entries.iter_mut().flat_map(|entry| &mut entry.offsets) {
        *offset = offsets.next().unwrap_or(*offset);
    }
    with_index(bytes, &index::encode(&entries))
}

/// The file that ends with this index.
pub(super) fn with_index(mut bytes: Vec<u8>, index: &[u8]) -> Vec<u8> {
    let index_offset = bytes.len() as u64;
    bytes.extend(member::build(member::INDEX, index));
    let file_bytes = (bytes.len() + member::END_BYTES) as u64;
    bytes.extend(member::build_end(index_offset, file_bytes));
    bytes
}

/// Checks that a reader returns only what was written, and that an error names the file and, inside
/// a window, the window. Returns the error, if there is one.
fn check(bytes: &[u8]) -> Option<Error> {
    let (header, windows) = sample();
    let scratch = Scratch::new();
    let written = read(scratch.file(&write(&header, &windows, 3))).unwrap();
    let path = scratch.file(bytes);
    let error = match read(path) {
        // A change to what the header merely states is not an error.
        Ok((_, contents)) => {
            assert_eq!(contents, written.1);
            return verify(path).err();
        }
        Err(error) => error,
    };
    check_message(&error, path);
    assert!(verify(path).is_err(), "{error}");
    let is_located = matches!(&error.fault, Fault::Corrupt(at, _) if at.window.is_some());
    assert!(is_located || NativeReader::open(path).is_err(), "{error}");
    Some(error)
}

#[test]
fn taken_apart_and_put_together_it_is_the_same() {
    let (parts, entries) = taken_apart();
    let (header, windows) = sample();
    assert_eq!(
        put_together(&parts, entries),
        write(&header, &windows, 3),
        "and so what the tests below change is all that is changed"
    );
}

/// Rows of unknown form, of more bytes than are left, and more or fewer than a piece has.
#[test]
fn rows_that_do_not_fill_their_member_are_refused() {
    let (whole, entries) = taken_apart();
    let rows = whole
        .iter()
        .position(|part| part.tag[0] == member::ROWS)
        .unwrap();
    let put = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut parts = whole.clone();
        change(&mut parts[rows].plain);
        check(&put_together(&parts, entries.clone())).map(|error| error.to_string())
    };
    assert_eq!(put(&|_| {}), None);
    for form in [0u32, 1, 3, u32::MAX] {
        // The piece's second row is exact.
        let set = |plain: &mut Vec<u8>| plain[28..32].copy_from_slice(&form.to_le_bytes());
        let error = put(&set).unwrap();
        assert!(error.contains("does not hold the rows"), "{form}: {error}");
    }
    assert!(put(&|plain| plain.truncate(28)).is_some());
    assert!(put(&|plain| plain.clear()).is_some());
    assert!(put(&|plain| plain.extend([0; 4])).is_some());
    assert!(put(&|plain| plain.resize(200, 0)).is_some());
}

/// Values that break code which does not check them.
fn extreme(old: u32) -> impl Strategy<Value = u32> {
    prop_oneof![
        prop::sample::select(vec![0, 1, 2, 1 << 16, 1 << 31, u32::MAX - 1, u32::MAX]),
        Just(old.wrapping_add(1)),
        Just(old.wrapping_sub(1)),
        Just(old.rotate_left(16)),
    ]
}

/// An index of a u32, modulo the length in words, and an extreme value for it.
fn any_extreme() -> impl Strategy<Value = (prop::sample::Index, u32)> {
    (
        any::<prop::sample::Index>(),
        (0..100u32).prop_flat_map(extreme),
    )
}

fn set(bytes: &mut [u8], (at, value): (prop::sample::Index, u32)) {
    let words = bytes.len() / 4;
    let at = 4 * at.index(words);
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// The header's numbers, by JSON pointer.
const NUMBERS: [&str; 8] = [
    "/format_version",
    "/n_ctx",
    "/n_vocab",
    "/first_scored",
    "/n_windows",
    "/n_rows",
    "/rows_per_piece",
    "/text/n_tokens",
];

pub(super) fn number() -> impl Strategy<Value = serde_json::Value> {
    prop_oneof![
        (0..100u32).prop_flat_map(extreme).prop_map(Into::into),
        prop::sample::select(vec![u64::MAX, 1 << 32, 1 << 63]).prop_map(Into::into),
        prop::sample::select(vec![-1.0, 0.5, 1e300]).prop_map(Into::into),
        Just(serde_json::Value::Null),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Members dropped, doubled and moved, and other bytes between them.
    #[test]
    fn members_out_of_place_are_found(
        moves in prop::collection::vec((0usize..12, 0usize..12, 0..3), 1..4),
        trailing in prop::collection::vec(any::<u8>(), 0..2),
    ) {
        let (whole, entries) = taken_apart();
        let mut parts = whole.clone();
        for (from, to, kind) in moves {
            let part = match kind {
                0 => parts.remove(from % parts.len()),
                _ => parts[from % parts.len()].clone(),
            };
            if kind < 2 {
                parts.insert(to % (parts.len() + 1), part);
            } else {
                let at = to % parts.len();
                parts[at] = part;
            }
        }
        let mut bytes = put_together(&parts, entries);
        bytes.extend(&trailing);
        let is_same = parts == whole && trailing.is_empty();
        prop_assert_eq!(check(&bytes).is_none(), is_same);
    }

    /// Counts and offsets of the index, wherever it points.
    #[test]
    fn extreme_indexes_are_refused(changes in prop::collection::vec(any_extreme(), 1..4)) {
        let (parts, entries) = taken_apart();
        let members = parts.iter().flat_map(|part| member::build(part.tag, &part.plain));
        let whole = index::encode(&entries);
        let mut index = whole.clone();
        changes.into_iter().for_each(|change| set(&mut index, change));
        let bytes = with_index(members.collect(), &index);
        prop_assert_eq!(check(&bytes).is_none(), index == whole);
    }

    /// A window's counts: those before the tokens.
    #[test]
    fn extreme_heads_are_refused(
        i in 0usize..3, changes in prop::collection::vec(any_extreme(), 1..4)
    ) {
        let (whole, entries) = taken_apart();
        let mut parts = whole.clone();
        let head = parts.iter_mut().filter(|part| part.tag[0] == member::WINDOW).nth(i).unwrap();
        changes.into_iter().for_each(|change| set(&mut head.plain[..20], change));
        let is_same = parts == whole;
        prop_assert_eq!(check(&put_together(&parts, entries)).is_none(), is_same);
    }

    /// The header's numbers. Some are only information; then the contents are read as written.
    #[test]
    fn extreme_headers_change_nothing_or_are_refused(
        key in prop::sample::select(&NUMBERS[..]), value in number()
    ) {
        let (mut parts, entries) = taken_apart();
        let mut json = serde_json::to_value(sample().0).unwrap();
        *json.pointer_mut(key).unwrap() = value;
        parts[0].plain = format!("{MAGIC_LINE}{json}\n").into_bytes();
        check(&put_together(&parts, entries));
    }

    /// The statements of members about themselves.
    #[test]
    fn members_with_other_tags_are_refused(
        i in 0usize..12, window in 0u32..4, piece in 0u32..4, kind in 0u32..6
    ) {
        let (mut parts, entries) = taken_apart();
        let at = i % parts.len();
        let tag = [kind, window, piece];
        let is_same = std::mem::replace(&mut parts[at].tag, tag) == tag;
        prop_assert_eq!(check(&put_together(&parts, entries)).is_none(), is_same);
    }
}
