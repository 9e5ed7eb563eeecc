//! References of hidden states: how they are chosen, tried, written, and checked while written.

use std::io::Read as _;

use kl_engine::{Engine as _, FakeStates};
use kl_formats::{
    Float, Header, Kind, NativeReader, ReadBlocks as _, Reference, Row, Rows, States,
};

use super::*;

impl Folder {
    pub(super) fn states_settings(&self, name: &str, encoding: Encoding) -> WriteSettings {
        WriteSettings {
            target: target(Kind::Kl, Some(encoding)),
            ..self.write_settings(name)
        }
    }

    fn header(&self, name: &str) -> Header {
        let reader = NativeReader::open(&self.path(name)).unwrap();
        reader.header.clone()
    }

    fn states(&self, name: &str) -> States {
        self.header(name).states.unwrap()
    }

    /// Bits of every row of a reference, computed from hidden states if it has those.
    fn rows(&self, name: &str) -> Vec<Vec<u32>> {
        let reference = Reference::open(&self.path(name)).unwrap();
        let n_windows = reference.about().n_windows.unwrap() as usize;
        match reference.rows() {
            Rows::States(file, states) => (0..n_windows)
                .flat_map(|i| of_states(file, states, i))
                .collect(),
            Rows::Blocks(file) => {
                let bits = |row: Row<'_>| (0..row.len()).map(|i| row.get(i).to_bits()).collect();
                let blocks = (0..n_windows).flat_map(|i| {
                    (0..file.n_blocks(i)).map(move |b| file.block(i, b, None).unwrap())
                });
                let rows = blocks.flat_map(|block| block.rows().map(bits).collect::<Vec<_>>());
                rows.collect()
            }
            rows => panic!("a file without blocks: {rows:?}"),
        }
    }
}

fn of_states(reader: &NativeReader, states: &States, window: usize) -> Vec<Vec<u32>> {
    let engine = FakeEngine::default();
    let mut head = engine.load_head(states, &mut reader.head(), 1).unwrap();
    let n_vocab = reader.header.n_vocab as usize;
    let entry = reader.window(window).unwrap().entry();
    let groups = states.row_batches(&entry);
    let rows = groups.flat_map(|rows| {
        let of_group = reader.read_states(window, rows, &mut None).unwrap();
        let logits = head.rows(&of_group).unwrap();
        let bits = logits.iter().map(|logit| logit.to_bits());
        bits.collect::<Vec<_>>()
    });
    rows.collect::<Vec<_>>()
        .chunks(n_vocab)
        .map(<[u32]>::to_vec)
        .collect()
}

/// An engine whose models have such states.
pub(super) fn with(states: FakeStates) -> FakeEngine {
    FakeEngine {
        states,
        ..FakeEngine::default()
    }
}

#[test]
fn hidden_states_give_the_rows_that_f32_would_hold() {
    let folder = Folder::new();
    folder.write("ref");
    let physical = [None, Some(3), Some(16), Some(5), None];
    for (n_batch, n_ubatch) in [1, 7, 16, 64, 500].into_iter().zip(physical) {
        let mut settings = folder.states_settings("states", Encoding::Hidden);
        settings.run.n_batch = Some(n_batch);
        settings.run.n_ubatch = n_ubatch;
        settings.existing = Existing::Replace;
        let written = written(&settings);
        let checked = written.checked.unwrap();
        assert!(checked.is_exact() && checked.max_kld == 0.0 && checked.mean_kld == 0.0);
        assert_eq!(folder.rows("states"), folder.rows("ref"), "{n_batch}");
        let (states, header) = (folder.states("states"), folder.header("states"));
        assert_eq!(states.state_type, Float::F16);
        assert_eq!(header.encoding, Encoding::Hidden);
        // Two windows of 64 and what is left: the trial goes over the first.
        assert_eq!((states.check.n_rows, states.check.max_kld), (64, 0.0));
        let one_call_each = written.file.n_rows.div_ceil(64) - 1;
        let most = one_call_each * u64::from(n_batch.min(64));
        assert!((one_call_each..=most).contains(&(checked.n_rows - 64)));
    }
}

#[test]
fn equal_calls_are_recorded_where_steps_would_split_differently() {
    let folder = Folder::new();
    let with_n_ctx = |n_ctx: u32| {
        let mut settings = folder.states_settings("states", Encoding::Hidden);
        settings.run.n_batch = None;
        settings.existing = Existing::Replace;
        settings.input.n_ctx = Some(n_ctx);
        written(&settings);
        let backend = folder.header("states").provenance.backend.unwrap();
        (folder.header("states"), backend.equal_calls)
    };
    let (header, equal_calls) = with_n_ctx(512);
    assert!(!header.states.unwrap().calls.is_equal && equal_calls.is_none());
    // 800 tokens and BOS: 265 and 265, then 136 and 136, not 265 and 7.
    let (header, equal_calls) = with_n_ctx(530);
    assert_eq!(equal_calls, Some(true));
    let states = header.states.unwrap();
    assert!(states.calls.is_equal);
    let windows = Reference::open(&folder.path("states")).unwrap();
    let sizes = |i: usize| {
        let entry = windows.windows().unwrap()[i];
        Vec::from_iter(states.row_batches(&entry).map(|rows| rows.len()))
    };
    assert_eq!((sizes(0), sizes(1)), (vec![265; 2], vec![136; 2]));
    assert_eq!(folder.rows("states").len(), 802);
    // It is evaluated as it was written.
    fs::rename(folder.path("states"), folder.path("ref")).unwrap();
    let mut settings = folder.evaluate_settings(&["copy"]);
    settings.run.n_batch = None;
    settings.results.sidecar = Some(folder.path("kls"));
    evaluated(&settings);
    let sidecar = SidecarReader::open(&folder.path("kls")).unwrap();
    let set_up = sidecar.header.backend.as_ref().unwrap();
    assert!(set_up.n_batch == Some(265) && set_up.equal_calls == Some(true));
}

#[test]
fn the_file_holds_some_rows_of_the_model_itself() {
    let folder = Folder::new();
    folder.write("ref");
    written(&folder.states_settings("states", Encoding::Hidden));
    let positions = folder.states("states").check.rows;
    let found = positions.iter().map(|row| (row.window, row.position));
    assert!(found.eq((0..8).map(|i| (0, 9 * i))));
    let reference = Reference::open(&folder.path("states")).unwrap();
    let Rows::States(file, states) = reference.rows() else {
        panic!("hidden states")
    };
    let rows = folder.rows("ref");
    for (own, at) in file.check_rows().unwrap().iter().zip(positions) {
        let own: Vec<u32> = own.iter().map(|logit| logit.to_bits()).collect();
        assert_eq!(own, rows[at.position as usize]);
    }
    let mut head = Vec::new();
    file.head().read_to_end(&mut head).unwrap();
    assert_eq!(head.len() as u64, states.head.bytes);
}

#[test]
fn what_hidden_states_cannot_give_is_refused_at_once() {
    let folder = Folder::new();
    let refused = |encoding, states| {
        let settings = folder.states_settings("states", encoding);
        let error = write(&settings, &with(states), &()).unwrap_err();
        assert!(!folder.path("states").exists() && !folder.path("states.partial").exists());
        says(&error, &["f16:", "use --encoding ", "u16"]);
        error
    };
    let error = refused(Encoding::Hidden, FakeStates::Never { error: 0.5 });
    says(error, &["(fake: ", " nats off)"]);
    says(refused(Encoding::Hidden, FakeStates::Unknown), &["FAKE"]);
    // The other encodings do not need them.
    for encoding in [Encoding::U16, Encoding::F32] {
        let mut settings = folder.states_settings("rows", encoding);
        settings.existing = Existing::Replace;
        let written = write(&settings, &with(FakeStates::Unknown), &()).unwrap();
        assert_eq!(written.checked, None);
    }
}

#[test]
fn a_row_that_fails_its_check_while_the_file_is_written_leaves_nothing() {
    let folder = Folder::new();
    let text = "7 some words, and more of them. ".repeat(100);
    fs::write(folder.path("text"), text).unwrap();
    let mut settings = folder.states_settings("states", Encoding::Hidden);
    // Every window is one call, a few rows of which are checked.
    settings.run.n_batch = Some(64);
    // None of the trial's rows is moved.
    let engine = with(FakeStates::Rarely { error: 1e-2 });
    let error = write(&settings, &engine, &()).unwrap_err();
    let path = folder.path("states");
    let kept = format!("nothing of {} was kept, use --encoding ", path.display());
    says(error, &["f16: window ", &kept]);
    assert!(!path.exists() && !folder.path("states.partial").exists());
}
