//! A new kind of reference, outside this crate, whose rows are computed when they are read: hidden
//! states, in blocks, and the head that turns each of them into a row of logits. Unlike the reader of
//! `kl`'s own file, its reader multiplies them, and so hands out rows.

use std::path::Path;

use kl_formats::{
    About, Checks, Encoding, Kind, ReadBlocks, ReadStream, Reference, Result, RowBlock, Rows,
    Target, WindowSpec, Writer, native,
};

const KIND: Kind = Kind::new("hidden states");

/// Numbers in a hidden state.
const D: usize = 3;

/// A hidden state.
type State = [f32; D];

#[derive(Debug, Clone)]
struct HiddenStates {
    /// Each window with the states of its scored positions.
    windows: Vec<(WindowSpec, Vec<State>)>,
    /// A line for each entry of the vocabulary.
    head: Vec<State>,
}

impl HiddenStates {
    /// The row of logits: head x state.
    fn row(&self, state: &State) -> impl Iterator<Item = f32> {
        let dot = move |line: &State| line.iter().zip(state).map(|(a, b)| a * b).sum();
        self.head.iter().map(dot)
    }
}

impl ReadBlocks for HiddenStates {
    fn rows_per_block(&self) -> u32 {
        2
    }

    fn n_blocks(&self, i: usize) -> u32 {
        self.windows[i].0.n_rows.div_ceil(self.rows_per_block())
    }

    fn window(&self, i: usize) -> Result<WindowSpec> {
        Ok(self.windows[i].0.clone())
    }

    fn block(&self, i: usize, b: u32, _reuse: Option<RowBlock>) -> Result<RowBlock> {
        let (window, states) = &self.windows[i];
        let blocks = states.chunks(self.rows_per_block() as usize);
        let states = blocks.skip(b as usize).take(1).flatten();
        let logits: Vec<f32> = states.flat_map(|state| self.row(state)).collect();
        let first_row = b * self.rows_per_block();
        let n_vocab = self.head.len();
        Ok(RowBlock::from_f32(
            window.window,
            first_row,
            n_vocab,
            &logits,
        ))
    }
}

/// The reference that opening such a file would return.
fn reference(states: HiddenStates) -> Reference {
    let mut about = About::new(KIND, "states", 8, states.head.len() as u32);
    about.checks = Checks::Nothing;
    let windows = states.windows.iter().map(|(window, _)| window.entry());
    let windows = windows.collect();
    Reference::new(about, Some(windows), Rows::Blocks(Box::new(states)))
}

fn sample() -> HiddenStates {
    let number = |i: usize| (i * 37 % 101) as f32 / 8.0 - 6.0;
    let state = |i: usize| [number(3 * i), number(3 * i + 1), number(3 * i + 2)];
    let window = |window: u32, n_tokens: u32, first_scored: u32| {
        let spec = WindowSpec {
            window,
            tokens: (0..n_tokens).map(|i| i % 5).collect(),
            first_scored,
            n_rows: n_tokens - first_scored,
        };
        let states = (0..spec.n_rows as usize).map(|i| state(7 * i + window as usize));
        let states = states.collect();
        (spec, states)
    };
    HiddenStates {
        windows: vec![window(1, 8, 1), window(0, 3, 0)],
        head: (0..5).map(|i| state(i + 50)).collect(),
    }
}

/// All windows and rows of a stream.
fn read(mut stream: Box<dyn ReadStream>) -> Result<Vec<(WindowSpec, Vec<f32>)>> {
    let mut windows = Vec::new();
    while let Some(window) = stream.next_window()? {
        let mut logits = Vec::new();
        while let Some(block) = stream.next_rows(3)? {
            let rows = block.rows();
            logits.extend(rows.flat_map(|row| (0..row.len()).map(move |i| row.get(i))));
        }
        windows.push((window, logits));
    }
    Ok(windows)
}

#[test]
fn rows_are_computed_when_they_are_read_and_can_be_stored() {
    let states = sample();
    let expected: Vec<_> = states
        .windows
        .iter()
        .map(|(window, of_window)| {
            let rows = of_window.iter().flat_map(|state| states.row(state));
            (window.clone(), rows.collect::<Vec<f32>>())
        })
        .collect();
    let found = read(reference(states.clone()).into_stream().unwrap()).unwrap();
    assert_eq!(found, expected);

    // Stored in kl's own file, with all that is known about them.
    let from = reference(states);
    let windows: Result<Vec<WindowSpec>> = from.read_windows().unwrap().collect();
    let windows = windows.unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    let target = Target::new(native::KIND, Some(Encoding::F32)).unwrap();
    let mut writer = Writer::create(
        file.as_file(),
        Path::new("out"),
        target,
        from.about(),
        &windows,
    )
    .unwrap();
    for (window, logits) in read(from.into_stream().unwrap()).unwrap() {
        writer.write_window(&window, logits.chunks(5)).unwrap();
    }
    writer.finish().unwrap();
    let stored = Reference::open(file.path()).unwrap();
    assert_eq!(
        (stored.kind(), stored.about().n_rows),
        (native::KIND, Some(10))
    );
    assert_eq!(read(stored.into_stream().unwrap()).unwrap(), expected);
}
