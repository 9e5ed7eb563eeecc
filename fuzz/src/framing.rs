//! Files around an input, with every length and checksum right: a fuzzer does not guess a CRC-32,
//! so what comes after one would never be tried. A part that is stored shows its bytes to the
//! fuzzer.

use super::on_disk::OnDisk;

/// The input as it is.
pub fn none(input: &[u8]) -> OnDisk {
    OnDisk::File(input.to_vec())
}

/// The input as gzip (RFC 1952), unless it is gzip already.
pub fn gzip(input: &[u8]) -> OnDisk {
    if input.starts_with(&[0x1f, 0x8b]) {
        return none(input);
    }
    let mut bytes = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    bytes.extend(stored(input));
    OnDisk::File(bytes)
}

/// The input as the members of a native file (LOGITS.md), unless it is gzip already: parts, each of
/// `kind`, `window`, `piece` (u8), `length` (u16) and so many plain bytes. Where no part is an
/// index (kind 3), one is made from the heads; the end member is always added.
pub fn members(input: &[u8]) -> OnDisk {
    if input.starts_with(&[0x1f, 0x8b]) {
        return none(input);
    }
    let (mut bytes, mut rest) = (Vec::new(), input);
    let mut index_at = None;
    let mut entries: Vec<(Vec<u8>, Vec<u64>)> = Vec::new();
    while let [kind, window, piece, low, high, after @ ..] = rest {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(after.len());
        let plain;
        (plain, rest) = after.split_at(length);
        let at = bytes.len() as u64;
        match (kind, entries.last_mut()) {
            (1, _) => entries.push((counts_of(plain), vec![at])),
            (2, Some((_, offsets))) => offsets.push(at),
            (3, _) => index_at = Some(at),
            _ => {}
        }
        bytes.extend(member(&[*kind, *window, *piece].map(u32::from), plain));
    }
    let index_at = index_at.unwrap_or_else(|| {
        let at = bytes.len() as u64;
        bytes.extend(member(&[3, 0, 0], &index(&entries)));
        at
    });
    let file_bytes = bytes.len() as u64 + 70;
    bytes.extend(end(index_at, file_bytes));
    OnDisk::File(bytes)
}

/// The counts of a window that the index repeats: all except the fourth, `n_vocab`.
fn counts_of(head: &[u8]) -> Vec<u8> {
    let mut counts = head.to_vec();
    counts.resize(20, 0);
    counts.drain(12..16);
    counts
}

fn index(entries: &[(Vec<u8>, Vec<u64>)]) -> Vec<u8> {
    let mut plain = b"KL_INDEX".to_vec();
    plain.extend((entries.len() as u32).to_le_bytes());
    for (counts, offsets) in entries {
        plain.extend(counts);
        plain.extend((offsets.len() as u32).to_le_bytes());
        plain.extend(offsets.iter().flat_map(|offset| offset.to_le_bytes()));
    }
    plain
}

/// A member with the extra field of kl.
fn member(tag: &[u32; 3], plain: &[u8]) -> Vec<u8> {
    let packed = stored(plain);
    let mut head = vec![0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 0xff];
    head.extend([32, 0, b'K', b'L', 28, 0]);
    let lengths = [44 + packed.len() as u32, plain.len() as u32];
    head.extend(lengths.iter().chain(tag).flat_map(|n| n.to_le_bytes()));
    sealed(head, &packed)
}

fn end(index_at: u64, file_bytes: u64) -> Vec<u8> {
    let mut head = vec![0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 0xff];
    head.extend([48, 0, b'K', b'L', 44, 0]);
    head.extend([70, 0, 4, 0, 0u32].iter().flat_map(|n| n.to_le_bytes()));
    head.extend([index_at, file_bytes].iter().flat_map(|n| n.to_le_bytes()));
    sealed(head, &[3, 0, 0, 0, 0, 0, 0, 0, 0, 0])
}

/// A member's header with its two checksums, and what follows.
fn sealed(mut head: Vec<u8>, packed: &[u8]) -> Vec<u8> {
    head.extend(crc32fast::hash(packed).to_le_bytes());
    head.extend(crc32fast::hash(&head).to_le_bytes());
    head.extend(packed);
    head
}

/// The input as `0.safetensors` and `1.safetensors` (TENSORS.md), unless it is a file already: of
/// each, `json`, `data` (u16), and so many bytes of a header and after it. The header's length is
/// computed.
pub fn safetensors(input: &[u8]) -> OnDisk {
    if input.get(2..9) == Some(b"\0\0\0\0\0\0{") {
        return OnDisk::Folder(vec![input.to_vec()]);
    }
    let (mut files, mut rest) = (Vec::new(), input);
    while let ([a, b, c, d, after @ ..], 0..2) = (rest, files.len()) {
        let (json, data);
        (json, rest) = split(after, [*a, *b]);
        (data, rest) = split(rest, [*c, *d]);
        files.push([&(json.len() as u64).to_le_bytes(), json, data].concat());
    }
    OnDisk::Folder(files)
}

/// The input as a zip of arrays (TENSORS.md), unless it is a zip already: members, each of `how`,
/// `repeats`, `name` (u8), `dict`, `data` (u16), and so many bytes of its name, of the array's
/// dict, whose magic and length are computed, and after it. `how`'s first bit stands for an array
/// without magic and dict, the second for deflate; then the data's last 1 to 4 bytes come `repeats`
/// times, until there are 258 more each time.
pub fn npz(input: &[u8]) -> OnDisk {
    if input.starts_with(b"PK") {
        return none(input);
    }
    let (mut bytes, mut directory, mut n_members, mut rest) = (Vec::new(), Vec::new(), 0u16, input);
    while let [how, repeats, name, a, b, c, d, after @ ..] = rest {
        let (dict, data);
        let name_bytes;
        (name_bytes, rest) = split(after, [*name, 0]);
        (dict, rest) = split(rest, [*a, *b]);
        (data, rest) = split(rest, [*c, *d]);
        let mut plain = Vec::new();
        if how & 1 == 0 {
            plain.extend(b"\x93NUMPY\x01\0");
            plain.extend((dict.len() as u16).to_le_bytes());
        }
        plain.extend([dict, data].concat());
        let is_deflated = how & 2 != 0 && !plain.is_empty();
        let packed = match is_deflated {
            false => plain.clone(),
            true => repeated(&mut plain, usize::from(how >> 2 & 3) + 1, *repeats),
        };
        let mut fixed = vec![
            20,
            0,
            0,
            0,
            if is_deflated { 8 } else { 0 },
            0,
            0,
            0,
            0x21,
            0,
        ];
        let sizes = [
            crc32fast::hash(&plain),
            packed.len() as u32,
            plain.len() as u32,
        ];
        fixed.extend(sizes.iter().flat_map(|n| n.to_le_bytes()));
        fixed.extend([name_bytes.len() as u8, 0, 0, 0]);
        let at = bytes.len() as u32;
        directory.extend([&b"PK\x01\x02\x14\0"[..], &fixed, &[0; 10]].concat());
        directory.extend(at.to_le_bytes());
        directory.extend(name_bytes);
        bytes.extend([b"PK\x03\x04", &fixed[..], name_bytes, &packed].concat());
        n_members += 1;
    }
    let lengths = [directory.len() as u32, bytes.len() as u32];
    bytes.extend(directory);
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    bytes.extend([n_members; 2].iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend(lengths.iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend([0, 0]);
    OnDisk::File(bytes)
}

/// Splits after `length` bytes, or at the end if there are fewer.
fn split(bytes: &[u8], length: [u8; 2]) -> (&[u8], &[u8]) {
    bytes.split_at(usize::from(u16::from_le_bytes(length)).min(bytes.len()))
}

/// Deflates `plain` in stored blocks, then, to both, 258 bytes `repeats` times, copied from
/// `distance` (1 to 4) bytes before: a block of fixed codes (RFC 1951, 3.2.6).
fn repeated(plain: &mut Vec<u8>, distance: usize, repeats: u8) -> Vec<u8> {
    let distance = distance.min(plain.len());
    let mut packed = stored_blocks(plain, false);
    let pattern = plain[plain.len() - distance..].to_vec();
    plain.extend(pattern.iter().cycle().take(258 * usize::from(repeats)));
    // Each code's first bit first: the last block, of fixed codes; length 258, distance; the end.
    let code = distance - 1;
    let copy = [1, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, code >> 1, code & 1];
    let bits: Vec<u8> = [1, 1, 0]
        .into_iter()
        .chain(copy.repeat(repeats.into()))
        .chain([0; 7])
        .map(|bit| bit as u8)
        .collect();
    let byte = |bits: &[u8]| bits.iter().rev().fold(0, |byte, bit| byte << 1 | bit);
    packed.extend(bits.chunks(8).map(byte));
    packed
}

/// Deflate's stored blocks, then gzip's trailer.
fn stored(plain: &[u8]) -> Vec<u8> {
    let mut bytes = stored_blocks(plain, true);
    bytes.extend(crc32fast::hash(plain).to_le_bytes());
    bytes.extend((plain.len() as u32).to_le_bytes());
    bytes
}

/// Deflate's stored blocks (RFC 1951, 3.2.4).
fn stored_blocks(plain: &[u8], are_last: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Nothing at all is one empty block.
    let n_blocks = plain.len().div_ceil(0xffff).max(1);
    for i in 0..n_blocks {
        let block = plain.chunks(0xffff).nth(i).unwrap_or_default();
        let length = block.len() as u16;
        bytes.push(u8::from(are_last && i + 1 == n_blocks));
        bytes.extend(length.to_le_bytes());
        bytes.extend((!length).to_le_bytes());
        bytes.extend(block);
    }
    bytes
}
