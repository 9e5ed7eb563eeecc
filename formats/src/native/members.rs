//! Members as they are read from a file.

use super::member::{self, HEAD_BYTES, MIN_BYTES, MemberHead, Tag};
use super::{Header, MAX_HEADER_BYTES_WITH_PROMPTS};
use crate::error::Result;
use crate::source::Source;

/// The header, and where it ends.
pub(super) fn open_header(source: &Source) -> Result<(Header, u64)> {
    let name = &source.name;
    match source.array_at::<3>(0)? {
        None => return Err(name.not_a_reference(format!("it has {} bytes", source.len))),
        Some([0x1f, 0x8b, 0x08]) => {}
        Some(_) => return Err(name.not_a_reference("it is not gzip")),
    }
    let Some(bytes) = source.array_at::<HEAD_BYTES>(0)? else {
        return Err(name.truncated(None, source.len, "the file ends within its header"));
    };
    let Some(head) = member::read_head(&bytes).filter(|head| head.tag == Tag::HEADER) else {
        return Err(name.corrupt(
            None,
            0,
            "the first gzip member carries no intact kl field (kl's file, compressed again by \
             another program, would look so)",
        ));
    };
    if u64::from(head.member_bytes) > source.len {
        return Err(name.truncated(None, source.len, "the file ends within its header"));
    }
    if head.plain_bytes as usize > MAX_HEADER_BYTES_WITH_PROMPTS {
        return Err(name.too_large("a header of more than 64 MiB"));
    }
    let lines = unpack_at(source, 0, &head)?;
    Ok((Header::from_lines(&lines, name)?, head.member_bytes.into()))
}

/// The header of the member at `offset`, which must be whole and state `tag`.
pub(super) fn member_at(source: &Source, offset: u64, tag: Tag) -> Result<MemberHead> {
    let corrupt = |what| source.name.corrupt(None, offset, what);
    let bytes = source
        .array_at(offset)?
        .ok_or_else(|| corrupt("no member fits here"))?;
    let head = member::read_head(&bytes)
        .ok_or_else(|| corrupt("no gzip member with an intact kl field starts here"))?;
    if head.tag != tag {
        return Err(corrupt("a member does not hold what the index states"));
    }
    if offset
        .checked_add(head.member_bytes.into())
        .is_none_or(|end| end > source.len)
    {
        return Err(corrupt("a member reaches past the file's end"));
    }
    if !head.is_plausible() {
        return Err(corrupt("a member states more than its bytes can hold"));
    }
    Ok(head)
}

/// The plain bytes of the member at `offset`, whose header has been read.
pub(super) fn unpack_at(source: &Source, offset: u64, head: &MemberHead) -> Result<Vec<u8>> {
    let corrupt = |what| source.name.corrupt(None, offset, what);
    if u64::from(head.member_bytes) < MIN_BYTES || !head.is_plausible() {
        return Err(corrupt("a member states more than its bytes can hold"));
    }
    let mut packed = vec![0; head.member_bytes as usize - HEAD_BYTES];
    source.read_exact_at(&mut packed, offset + HEAD_BYTES as u64)?;
    let mut plain = vec![0; head.plain_bytes as usize];
    head.unpack(&packed, &mut plain).map_err(corrupt)?;
    Ok(plain)
}
