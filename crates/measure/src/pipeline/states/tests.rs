use kl_engine::{ContextOptions, Engine as _, EngineError, FakeEngine};
use kl_formats::{About, Header, Kind, Writer};

use super::*;
use crate::input::{Plan, Source};
use crate::pipeline::{Sources, write_reference};

/// A head that adds something to the first logit of each product after some of them.
struct Failing<'m> {
    head: Box<dyn Head + 'm>,
    after: usize,
    error: f32,
    rows: Vec<f32>,
}

impl Head for Failing<'_> {
    fn rows(&mut self, states: &[f32]) -> Result<&[f32], EngineError> {
        self.rows = self.head.rows(states)?.to_vec();
        match self.after.checked_sub(1) {
            Some(after) => self.after = after,
            None => self.rows[0] += self.error,
        }
        Ok(&self.rows)
    }

    fn device(&self) -> String {
        self.head.device()
    }

    fn is_shared(&self) -> bool {
        self.head.is_shared()
    }
}

/// Writes 9 windows of 15 rows, in calls of 4 tokens, with a head that adds `error` to a logit
/// after `after` products. The states of the first window are known.
fn written_with(after: usize, error: f32) -> (Result<(), Error>, RowError) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    std::fs::write(&path, "a model").unwrap();
    let engine = FakeEngine::default();
    let model = engine.load(&path, &Default::default()).unwrap();
    let options = ContextOptions {
        n_ctx: 16,
        calls: Calls::new(4, 4),
        threads: 1,
        shows_states: true,
        ..ContextOptions::default()
    };
    let source = Source {
        n_ctx: Some(16),
        ..Source::default()
    };
    let tokens: Vec<u32> = (0..135).map(|i| 1 + i % 100).collect();
    let windows = Plan::cut(&tokens, &source, Some(0)).windows;
    let mut states = model.describe_states(options.calls).unwrap();
    states.head.sha256 = model.head_sha256().unwrap();
    states.state_type = Float::F16;
    let mut about = About::new(Kind::Kl, "", 16, 128);
    about.states = Some(states.clone());
    let header = Header::new(&about, kl_formats::Encoding::Hidden, &windows);
    let mut writer = Writer::native(Vec::new(), &path, &header).unwrap();
    let section = || model.read_head().unwrap();
    writer.write_head(section(), &[]).unwrap();
    let failing = Box::new(Failing {
        head: model.load_head(&states, &mut section(), 1).unwrap(),
        after,
        error,
        rows: Vec::new(),
    });
    let decoder = model.decoder(&options).unwrap();
    let mut source = StateSource::new(decoder, failing, states);
    let (mut known, mut start) = (Vec::new(), Some(0));
    while let Some(at) = start {
        let outputs = source.decoder.decode_call(&windows[0], at, false).unwrap();
        assert!(outputs.rows.is_empty());
        known.extend(outputs.states);
        start = outputs.next;
    }
    source.known.insert(0, known);
    let written = write_reference(Sources::ready(&mut source), &windows, writer, |_| Ok(()));
    (written.map(|_| ()), source.checked)
}

#[test]
fn every_window_but_those_known_is_checked() {
    let (written, checked) = written_with(usize::MAX, 0.0);
    written.unwrap();
    // Windows 4 and 8 check their first call, which has the unscored BOS.
    assert_eq!(checked.n_rows, 8 * 4 - 2);
    assert!(checked.is_exact());
}

#[test]
fn the_first_row_that_is_not_the_models_own_stops_the_run() {
    // The second product is that of window 2, in its third call.
    let (written, checked) = written_with(1, 1e-3);
    let error = written.unwrap_err();
    let Error::RowMoved {
        window,
        position,
        kld,
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!((window, position), (2, 8));
    assert!(kld > 0.0 && kld < 1e-6, "{kld}");
    assert_eq!((checked.n_rows, checked.n_moved), (5, 1));
}

/// A head of one logit that rounds states to half precision, but not in a product of one.
struct RoundsMany(Vec<f32>);

impl Head for RoundsMany {
    fn rows(&mut self, states: &[f32]) -> Result<&[f32], EngineError> {
        let mut bytes = vec![0; 2 * states.len()];
        self.0 = states.to_vec();
        if states.len() > 1 {
            Float::F16.encode(states, &mut bytes);
            Float::F16.decode(&bytes, &mut self.0);
        }
        Ok(&self.0)
    }

    fn device(&self) -> String {
        "test".to_owned()
    }

    fn is_shared(&self) -> bool {
        false
    }
}

#[test]
fn a_type_is_dropped_if_rounding_shows_in_a_product_of_another_size() {
    let mut head = RoundsMany(Vec::new());
    let (f16, f32) = (Float::F16, Float::F32);
    let mut types_left = |sizes: &[usize]| {
        let types = [f16, Float::Bf16, f32];
        let mut types_left = types
            .map(|state_type| (state_type, RowError::default()))
            .to_vec();
        let sizes: BTreeSet<usize> = sizes.iter().copied().collect();
        let states = &[0.1, 0.2, 0.3];
        drop_changed_types(&mut head, &mut types_left, &sizes, 1, states).unwrap();
        types_left
            .iter()
            .map(|(state_type, _)| *state_type)
            .collect::<Vec<_>>()
    };
    // bf16 has fewer digits than f16: it always shows.
    assert_eq!(types_left(&[2, 3]), [f16, f32]);
    assert_eq!(types_left(&[1]), [f32]);
    // There are not so many states to try.
    assert_eq!(types_left(&[4]).len(), 3);
}

#[test]
fn each_call_with_scored_positions_has_its_turn() {
    let checked = |window, first_scored, n_rows| {
        let window = WindowSpec {
            window,
            tokens: Vec::new(),
            first_scored,
            n_rows,
        };
        let calls = Calls::new(16, 8);
        call_to_check(&window, calls)
    };
    let of_windows = |first_scored, n_rows| {
        let calls = (0..6).map(|window| checked(window, first_scored, n_rows));
        calls.collect::<Vec<_>>()
    };
    assert_eq!(of_windows(1, 63), [0, 16, 32, 48, 0, 16]);
    assert_eq!(of_windows(32, 32), [32, 48, 32, 48, 32, 48]);
    assert_eq!(of_windows(20, 5), [16; 6]);
    assert_eq!(of_windows(60, 5), [48, 64, 48, 64, 48, 64]);
}
