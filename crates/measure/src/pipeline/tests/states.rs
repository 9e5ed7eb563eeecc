//! References of hidden states: whatever the batches, a row is that of the product that it was in
//! when it was written.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kl_engine::{EngineError, Head};
use kl_formats::{Calls, CheckRow, Float, HeadCheck, HeadTensor, Kind, States};
use sha2::{Digest, Sha256};

use super::*;

const N_EMBD: usize = 2;

/// A head whose rows show how many states they were computed with, as ggml's last bits may.
#[derive(Default)]
struct Counting {
    rows: Vec<f32>,
    n_products: Arc<AtomicUsize>,
    /// The error of every other logit.
    error: f32,
}

fn row(state: &[f32], n: usize, error: f32) -> impl Iterator<Item = f32> + use<> {
    let (place, shift) = (state[0], state[1]);
    (0..N_VOCAB).map(move |i| {
        let wave = (place * 0.37 + shift + i as f32 * 0.61).sin() * 3.0;
        wave + n as f32 / 128.0 + error * (i % 2) as f32
    })
}

impl Head for Counting {
    fn rows(&mut self, states: &[f32]) -> Result<&[f32], EngineError> {
        self.n_products.fetch_add(1, Ordering::Relaxed);
        let n = states.len() / N_EMBD;
        let states = states.chunks_exact(N_EMBD);
        self.rows = states.flat_map(|state| row(state, n, self.error)).collect();
        Ok(&self.rows)
    }

    fn device(&self) -> String {
        "FAKE1".to_owned()
    }

    fn is_shared(&self) -> bool {
        true
    }
}

/// The state at a position.
fn state(window: u32, position: u32) -> [f32; N_EMBD] {
    [window as f32 + 0.5, position as f32]
}

fn states(n_batch: u32, n_ubatch: u32) -> States {
    let head = [0; 4 * N_EMBD * N_VOCAB];
    let check = |window, position| CheckRow { window, position };
    States {
        n_embd: N_EMBD as u32,
        state_type: Float::F16,
        head: HeadTensor {
            name: "output.weight".to_owned(),
            type_name: "f32".to_owned(),
            type_id: 0,
            bytes: head.len() as u64,
            sha256: kl_formats::hex(&Sha256::digest(head)),
        },
        then: Vec::new(),
        calls: Calls::new(n_batch, n_ubatch),
        check: HeadCheck {
            rows: vec![check(0, 8), check(0, 15), check(1, 9), check(0, 14)],
            ..HeadCheck::default()
        },
    }
}

/// The rows of a window, as a model with these batches computes them.
fn rows(spec: &WindowSpec, n_batch: u32, n_ubatch: u32) -> Vec<Vec<f32>> {
    let groups = states(n_batch, n_ubatch).row_batches(&spec.entry());
    let rows = groups.flat_map(|group| {
        let n = group.len();
        group.map(move |i| row(&state(spec.window, spec.first_scored + i), n, 0.0).collect())
    });
    rows.collect()
}

/// Writes the states of the plan's windows, and beside it the rows that they make.
fn write_both(folder: &Path, plan: &Plan, n_batch: u32, n_ubatch: u32) {
    let states = states(n_batch, n_ubatch);
    let mut about = about(Kind::Kl, plan);
    about.states = Some(states.clone());
    let create = |name| File::create(folder.join(name)).unwrap();
    let target = Target::new(Kind::Kl, Some(Encoding::Hidden)).unwrap();
    let path = folder.join("hidden");
    let mut writer =
        Writer::create(create("hidden"), &path, target, &about, &plan.windows).unwrap();
    let check_row = |check: &CheckRow| {
        let window = plan.windows.iter().find(|spec| spec.window == check.window);
        let spec = window.unwrap();
        rows(spec, n_batch, n_ubatch).swap_remove((check.position - spec.first_scored) as usize)
    };
    let check_rows: Vec<_> = states.check.rows.iter().map(check_row).collect();
    let head = vec![0; states.head.bytes as usize];
    writer.write_head(&*head, &check_rows).unwrap();
    let mut of_rows = native_writer(create("rows"), plan, Encoding::F32, 5);
    for spec in &plan.windows {
        let positions = spec.first_scored..spec.first_scored + spec.n_rows;
        let states = positions.map(|position| state(spec.window, position));
        writer.write_window(spec, states).unwrap();
        let rows = rows(spec, n_batch, n_ubatch);
        of_rows.write_window(spec, rows).unwrap();
    }
    writer.finish().unwrap();
    of_rows.finish().unwrap();
}

fn with_head(folder: &Path, head: Counting) -> Result<ReferenceRows<'static>, Error> {
    let reference = Reference::open(&folder.join("hidden")).unwrap();
    ReferenceRows::open(reference, |_, section| {
        let mut bytes = Vec::new();
        section.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len(), 4 * N_EMBD * N_VOCAB);
        Ok(Box::new(head))
    })
}

#[test]
fn computed_rows_are_the_stored_ones_whatever_the_batches() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for score in [ScoreFrom::All, ScoreFrom::Half, ScoreFrom::Position(3)] {
        let plan = plan(score);
        for (n_batch, n_ubatch) in [(16, 16), (7, 7), (7, 3), (1, 1), (512, 5)] {
            write_both(folder, &plan, n_batch, n_ubatch);
            for max_rows in [None, Some(20)] {
                let stored = open(folder.join("rows")).choose(max_rows, None, false);
                let expected = bits(&records(&stored, 1, 2, 4));
                for (n_sources, n_batch) in [(1, 1), (1, 4), (2, 7), (3, 16), (1, 100)] {
                    let rows = with_head(folder, Counting::default()).unwrap();
                    let rows = rows.choose(max_rows, None, false);
                    assert_eq!(rows.n_scored(), stored.n_scored());
                    let found = bits(&records(&rows, n_sources, 2, n_batch));
                    assert_eq!(found, expected);
                }
            }
        }
    }
}

#[test]
fn each_product_is_computed_once() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(ScoreFrom::Half);
    write_both(folder.path(), &plan, 7, 3);
    let head = Counting::default();
    let n_products = Arc::clone(&head.n_products);
    let rows = with_head(folder.path(), head).unwrap();
    n_products.store(0, Ordering::Relaxed);
    records(&rows, 2, 2, 5);
    let groups = |spec: &WindowSpec| states(7, 3).row_batches(&spec.entry()).count();
    let expected: usize = plan.windows.iter().map(groups).sum();
    assert_eq!(n_products.load(Ordering::Relaxed), expected);
}

#[test]
fn the_models_own_rows_are_checked_when_a_reference_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_both(folder, &plan(ScoreFrom::Half), 7, 3);
    let here = |error| {
        let head = Counting {
            error,
            ..Counting::default()
        };
        with_head(folder, head).map(|rows| rows.rows_here.clone().unwrap())
    };
    let exact = here(0.0).unwrap();
    assert!(exact.device == "FAKE1" && exact.shares_model_head);
    assert_eq!(exact.error.n_rows, 4);
    assert!(exact.error.is_exact());
    // Half of the entries lower by x: a KLD of about x²/8.
    let near = here(0.01).unwrap().error;
    assert_eq!((near.n_rows, near.n_moved), (4, 4));
    assert!((1e-6..3e-5).contains(&near.max_kld), "{near:?}");
    assert!(near.mean_kld > 0.0 && near.mean_kld <= near.max_kld);
    let error = here(2.0).unwrap_err().to_string();
    assert!(error.contains("FAKE1") && !error.contains('\n'), "{error}");
    assert!(here(f32::NAN).is_err());
}

#[test]
fn a_window_that_is_asked_for_in_part_is_that_of_its_products() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let plan = plan(ScoreFrom::All);
    write_both(folder, &plan, 7, 3);
    let part = WindowSpec {
        first_scored: 5,
        n_rows: 6,
        ..plan.windows[2].clone()
    };
    let logits = |rows: ReferenceRows<'_>| {
        let rows = rows.with_order(vec![2]);
        let mut all = Vec::new();
        let sink = &mut |_: usize, rows: &[&[f32]]| {
            all.extend(rows.concat());
            Ok::<_, Error>(())
        };
        let mut file = FileRows::new(&rows, Default::default());
        file.decode(&[&part], sink).unwrap();
        all
    };
    let stored = logits(open(folder.join("rows")));
    assert_eq!(stored.len(), 6 * N_VOCAB);
    let computed = with_head(folder, Counting::default()).unwrap();
    assert_eq!(logits(computed), stored);
}
