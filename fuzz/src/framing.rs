//! Files around an input, with every length and checksum right: nobody guesses a CRC-32, so what
//! stands behind one would never be tried. A part that is stored shows its bytes to the fuzzer.

/// The input as it is.
pub fn none(input: &[u8]) -> Vec<u8> {
    input.to_vec()
}

/// The input as gzip (RFC 1952), unless it is gzip already.
pub fn gzip(input: &[u8]) -> Vec<u8> {
    if input.starts_with(&[0x1f, 0x8b]) {
        return input.to_vec();
    }
    let mut bytes = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    bytes.extend(stored(input));
    bytes
}

/// The input as the members of a native file (LOGITS.md), unless it is gzip already: parts, each of
/// `kind`, `window`, `piece` (u8), `length` (u16) and so many plain bytes. Where no part is an index
/// (kind 3), one is made of what the heads state; the end member follows by itself.
pub fn members(input: &[u8]) -> Vec<u8> {
    if input.starts_with(&[0x1f, 0x8b]) {
        return input.to_vec();
    }
    let (mut bytes, mut rest) = (Vec::new(), input);
    let mut index_at = None;
    let mut entries: Vec<(Vec<u8>, Vec<u64>)> = Vec::new();
    while let [kind, window, piece, low, high, behind @ ..] = rest {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(behind.len());
        let plain;
        (plain, rest) = behind.split_at(length);
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
    bytes
}

/// Of a block's counts those that the index has: without the fourth, `n_vocab`.
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
    head.extend(crc32(packed).to_le_bytes());
    head.extend(crc32(&head).to_le_bytes());
    head.extend(packed);
    head
}

/// Deflate's stored blocks (RFC 1951, 3.2.4), then gzip's trailer.
fn stored(plain: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Nothing at all is one empty block.
    let n_blocks = plain.len().div_ceil(0xffff).max(1);
    for i in 0..n_blocks {
        let block = plain.chunks(0xffff).nth(i).unwrap_or_default();
        let length = block.len() as u16;
        bytes.push(u8::from(i + 1 == n_blocks));
        bytes.extend(length.to_le_bytes());
        bytes.extend((!length).to_le_bytes());
        bytes.extend(block);
    }
    bytes.extend(crc32(plain).to_le_bytes());
    bytes.extend((plain.len() as u32).to_le_bytes());
    bytes
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| match crc & 1 {
            0 => crc >> 1,
            _ => (crc >> 1) ^ 0xedb8_8320,
        })
    })
}
