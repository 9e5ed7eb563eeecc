//! Models made for a test: of some keys alone, with more keys, or split into two files.

/// ggml's numbers of types of values.
const U16: u32 = 2;
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// Bytes before the key-value pairs: magic, version, counts of tensors and of pairs.
const START: usize = 24;

/// The alignment of tensors.
const ALIGNMENT: usize = 32;

/// A key of a GGUF, ggml's number of its value's type, and the value's bytes.
pub struct Pair(&'static str, u32, Vec<u8>);

impl Pair {
    pub fn text(key: &'static str, text: &str) -> Self {
        let length = (text.len() as u64).to_le_bytes();
        Self(key, STRING, [&length, text.as_bytes()].concat())
    }

    pub fn number(key: &'static str, number: u16) -> Self {
        Self(key, U16, number.to_le_bytes().to_vec())
    }

    pub fn float(key: &'static str, number: f32) -> Self {
        Self(key, F32, number.to_le_bytes().to_vec())
    }

    /// A list of integers, such as tokens.
    pub fn numbers(key: &'static str, numbers: &[i32]) -> Self {
        let length = (numbers.len() as u64).to_le_bytes();
        let numbers = numbers.iter().flat_map(|number| number.to_le_bytes());
        let start = [&I32.to_le_bytes()[..], &length].concat();
        Self(key, ARRAY, start.into_iter().chain(numbers).collect())
    }

    fn bytes(&self) -> Vec<u8> {
        let Self(key, kind, value) = self;
        let length = (key.len() as u64).to_le_bytes();
        let kind = kind.to_le_bytes();
        [&length[..], key.as_bytes(), &kind, value].concat()
    }
}

/// A GGUF of these pairs, without tensors.
pub fn gguf(pairs: &[Pair]) -> Vec<u8> {
    let empty = [b"GGUF".as_slice(), &3u32.to_le_bytes(), &[0; 16]].concat();
    with_pairs(&empty, pairs)
}

/// A GGUF with more pairs in front of its own.
pub fn with_pairs(gguf: &[u8], pairs: &[Pair]) -> Vec<u8> {
    let mut added: Vec<u8> = pairs.iter().flat_map(Pair::bytes).collect();
    let unfilled = added.len() + Pair::text("filler", "").bytes().len();
    let filler = " ".repeat(unfilled.next_multiple_of(ALIGNMENT) - unfilled);
    added.extend(Pair::text("filler", &filler).bytes());
    let n_pairs = Cursor(gguf, 16).u64() + pairs.len() as u64 + 1;
    [&gguf[..16], &n_pairs.to_le_bytes(), &added, &gguf[START..]].concat()
}

/// Sets the value of a key that a GGUF has, of four bytes.
pub fn set_value(gguf: &mut [u8], key: &str, value: [u8; 4]) {
    let mut places = gguf.windows(key.len());
    let place = places.position(|bytes| bytes == key.as_bytes());
    // The type of the value stands before it.
    let start = place.unwrap() + key.len() + 4;
    gguf[start..start + 4].copy_from_slice(&value);
}

/// Reads numbers at a position that moves on.
struct Cursor<'b>(&'b [u8], usize);

impl Cursor<'_> {
    fn u32(&mut self) -> u32 {
        self.1 += 4;
        u32::from_le_bytes(self.0[self.1 - 4..self.1].try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from(self.u32()) | u64::from(self.u32()) << 32
    }

    /// Skips a value (ggml's `docs/gguf.md`).
    fn skip_value(&mut self, kind: u32) {
        match kind {
            0 | 1 | 7 => self.1 += 1,
            2 | 3 => self.1 += 2,
            4..=6 => self.1 += 4,
            STRING => self.1 += self.u64() as usize,
            9 => {
                let (kind, n) = (self.u32(), self.u64());
                (0..n).for_each(|_| self.skip_value(kind));
            }
            _ => self.1 += 8,
        }
    }
}

/// A GGUF, cut where its parts are.
pub struct Gguf {
    bytes: Vec<u8>,
    /// Where the key-value pairs end.
    pairs_end: usize,
    /// Each tensor's info without its offset, and its data.
    tensors: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Gguf {
    /// Cuts a file.
    pub fn read(bytes: Vec<u8>) -> Self {
        let mut cursor = Cursor(&bytes, 8);
        let (n_tensors, n_pairs) = (cursor.u64(), cursor.u64());
        for _ in 0..n_pairs {
            cursor.skip_value(STRING);
            let kind = cursor.u32();
            cursor.skip_value(kind);
        }
        let pairs_end = cursor.1;
        let mut infos = Vec::new();
        for _ in 0..n_tensors {
            let start = cursor.1;
            cursor.skip_value(STRING);
            let n_dimensions = cursor.u32() as usize;
            cursor.1 += 8 * n_dimensions + 4;
            let info = bytes[start..cursor.1].to_vec();
            infos.push((info, Cursor(&bytes, cursor.1).u64() as usize));
            cursor.1 += 8;
        }
        let data = &bytes[cursor.1.next_multiple_of(ALIGNMENT)..];
        let ends = infos.iter().skip(1).map(|(_, offset)| *offset);
        let ends: Vec<usize> = ends.chain([data.len()]).collect();
        let tensors = infos.into_iter().zip(ends);
        let tensors = tensors.map(|((info, start), end)| (info, data[start..end].to_vec()));
        Self {
            tensors: tensors.collect(),
            pairs_end,
            bytes,
        }
    }

    /// One of two parts, as llama-gguf-split writes it.
    pub fn part(&self, part: u16) -> Vec<u8> {
        self.part_of(part, 2)
    }

    /// One of some parts, with about as many tensors as the others.
    pub fn part_of(&self, part: u16, count: u16) -> Vec<u8> {
        let start = |part: u16| self.tensors.len() * usize::from(part) / usize::from(count);
        let tensors = &self.tensors[start(part)..start(part + 1)];
        let (n_pairs, pairs) = if part == 0 {
            let pairs = &self.bytes[START..self.pairs_end];
            (Cursor(&self.bytes, 16).u64(), pairs)
        } else {
            (0, &[][..])
        };
        let n_tensors = self.tensors.len() as i32;
        let of_split = [
            Pair::number("split.no", part),
            Pair::number("split.count", count),
            Pair("split.tensors.count", I32, n_tensors.to_le_bytes().to_vec()),
        ];
        let of_split: Vec<u8> = of_split.iter().flat_map(Pair::bytes).collect();
        self.with(n_pairs + 3, &[pairs, &of_split].concat(), tensors)
    }

    /// All of it.
    pub fn whole(&self) -> Vec<u8> {
        let n_pairs = Cursor(&self.bytes, 16).u64();
        self.with(n_pairs, &self.bytes[START..self.pairs_end], &self.tensors)
    }

    /// The index of a tensor.
    pub fn index(&self, name: &str) -> usize {
        let is_named = |info: &[u8]| info[8..].starts_with(name.as_bytes());
        let mut tensors = self.tensors.iter();
        tensors.position(|(info, _)| is_named(info)).unwrap()
    }

    /// The data of a tensor.
    pub fn data(&mut self, name: &str) -> &mut [u8] {
        let index = self.index(name);
        &mut self.tensors[index].1
    }

    /// The data of every tensor.
    pub fn all_data(&mut self) -> impl Iterator<Item = &mut Vec<u8>> {
        self.tensors.iter_mut().map(|(_, data)| data)
    }

    /// The number of tensors.
    pub fn n_tensors(&self) -> u16 {
        self.tensors.len() as u16
    }

    /// Removes the tensors of a layer.
    pub fn remove_layer(&mut self, layer: u32) {
        let start = format!("blk.{layer}.");
        self.tensors
            .retain(|(info, _)| !info[8..].starts_with(start.as_bytes()));
    }

    /// Adds a copy of a tensor under another name of the same length.
    pub fn add_copy(&mut self, name: &str, other: &str) {
        assert_eq!(name.len(), other.len());
        let (mut info, data) = self.tensors[self.index(name)].clone();
        info[8..8 + name.len()].copy_from_slice(other.as_bytes());
        self.tensors.push((info, data));
    }

    /// Sets the type that a tensor states.
    pub fn set_type(&mut self, name: &str, kind: u32) {
        let index = self.index(name);
        let info = &mut self.tensors[index].0;
        let at = info.len() - 4;
        info[at..].copy_from_slice(&kind.to_le_bytes());
    }

    pub fn remove(&mut self, name: &str) {
        self.tensors.remove(self.index(name));
    }

    /// The whole file, in which a tensor begins where the one before it does.
    pub fn with_overlap(&self, name: &str) -> Vec<u8> {
        let (mut file, index) = (self.whole(), self.index(name));
        let offset = |index: usize| {
            let info: &[u8] = &self.tensors[index].0;
            let start = file.windows(info.len()).position(|bytes| bytes == info);
            start.unwrap() + info.len()
        };
        let (from, to) = (offset(index - 1), offset(index));
        file.copy_within(from..from + 8, to);
        file
    }

    /// The whole file, whose first tensor lies at 16 bytes past a multiple of 32.
    pub fn with_alignment_of_16(&self) -> Vec<u8> {
        let file = self.whole();
        let infos: usize = self.tensors.iter().map(|(info, _)| info.len() + 8).sum();
        let data = (self.pairs_end + infos).next_multiple_of(ALIGNMENT);
        let alignment = Pair("general.alignment", U32, 16u32.to_le_bytes().to_vec());
        // The data move by what the pairs take, and by 16 bytes more.
        let added = alignment.bytes().len();
        let empty = Pair::text("filler", "").bytes().len();
        let end = self.pairs_end + infos + added + empty;
        let filler = " ".repeat((2 * ALIGNMENT + 16 - end % ALIGNMENT) % ALIGNMENT);
        let pairs = [alignment.bytes(), Pair::text("filler", &filler).bytes()].concat();
        let n_pairs = Cursor(&file, 16).u64() + 2;
        let header = &file[START..self.pairs_end + infos];
        [
            &file[..16],
            &n_pairs.to_le_bytes(),
            &pairs,
            header,
            &file[data..],
        ]
        .concat()
    }

    /// A file with the start of this one, and these pairs and tensors.
    fn with(&self, n_pairs: u64, pairs: &[u8], tensors: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
        let mut file = self.bytes[..8].to_vec();
        file.extend((tensors.len() as u64).to_le_bytes());
        file.extend(n_pairs.to_le_bytes());
        file.extend_from_slice(pairs);
        let mut offset = 0u64;
        for (info, data) in tensors {
            file.extend_from_slice(info);
            file.extend(offset.to_le_bytes());
            offset += data.len().next_multiple_of(ALIGNMENT) as u64;
        }
        for (_, data) in tensors {
            file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
            file.extend_from_slice(data);
        }
        file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
        file
    }
}
