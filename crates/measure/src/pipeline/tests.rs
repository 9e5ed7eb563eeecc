//! The pipeline without a model: a fake source of rows on both sides of a file.

mod in_turn;
mod kept_rows;
mod large;
mod possible;
mod states;

use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use kl_engine::{ContextOptions, Decoder, Engine, FakeDecoder, FakeEngine};
use kl_formats::{
    About, Calls, Encoding, Header, Kind, Reference, Row, Target, TokenRecord, WindowSpec, Writer,
};
use kl_stats::score::{RowPair, score};
use tempfile::NamedTempFile;

use super::*;
use crate::input::{Plan, ScoreFrom, Source};

const N_VOCAB: usize = 37;
const N_CTX: u32 = 16;

/// Records alone.
pub(super) const NOTHING_MORE: fn(&RowPair<'_>) = |_| ();

pub(super) fn plan(score: ScoreFrom) -> Plan {
    let tokens: Vec<u32> = (0..100).map(|i| (i * 7) % N_VOCAB as u32).collect();
    let source = Source {
        n_ctx: Some(N_CTX),
        score: Some(score),
        ..Source::default()
    };
    Plan::cut(&tokens, &source, Some(1))
}

pub(super) fn fake(seed: u64, n_batch: usize) -> Box<dyn Decoder> {
    fake_with(N_VOCAB, seed, n_batch)
}

fn fake_with(n_vocab: usize, seed: u64, n_batch: usize) -> Box<dyn Decoder> {
    let engine = FakeEngine {
        n_vocab: n_vocab as u32,
        ..FakeEngine::default()
    };
    let n_batch = n_batch as u32;
    let options = ContextOptions {
        calls: Calls::new(n_batch, n_batch),
        ..ContextOptions::default()
    };
    let path = Path::new("fake");
    Box::new(FakeDecoder::new(seed, &options, &engine, path))
}

fn about(kind: Kind, plan: &Plan) -> About {
    let mut about = About::new(kind, "", N_CTX, N_VOCAB as u32);
    about.add_bos = Some(true);
    about.seed = plan.seed;
    about
}

/// A writer of a native file with pieces of so many rows.
fn native_writer<W: Write>(out: W, plan: &Plan, encoding: Encoding, piece: u32) -> Writer<W> {
    let mut header = Header::new(&about(Kind::Kl, plan), encoding, &plan.windows);
    header.rows_per_piece = piece;
    Writer::native(out, Path::new("out"), &header).unwrap()
}

/// Writes the rows of the plan's windows, as the first fake model gives them in calls of `n_batch` tokens.
fn write<W: Write + Send + 'static>(
    writer: Writer<W>,
    plan: &Plan,
    n_batch: usize,
) -> Result<(), Error> {
    let source = Sources::ready(fake(1, n_batch));
    write_reference(source, &plan.windows, writer, |_| Ok(())).map(drop)
}

/// A native file of these windows, in pieces of so many rows.
pub(super) fn native(plan: &Plan, n_batch: usize, piece: u32) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    let writer = native_writer(file.reopen().unwrap(), plan, Encoding::F32, piece);
    write(writer, plan, n_batch).unwrap();
    file
}

/// kl.py's file of these windows.
fn klpy(plan: &Plan) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    let target = Target::new(Kind::KlPy, None).unwrap();
    let about = about(Kind::KlPy, plan);
    let writer = Writer::create(
        file.reopen().unwrap(),
        file.path(),
        target,
        &about,
        &plan.windows,
    );
    write(writer.unwrap(), plan, 5).unwrap();
    file
}

/// Opens a reference that is to be read; a fake head makes rows of hidden states.
fn open(path: impl AsRef<Path>) -> ReferenceRows<'static> {
    let engine: &'static FakeEngine = Box::leak(Box::default());
    let reference = Reference::open(path.as_ref()).unwrap();
    ReferenceRows::open(reference, |states, section| {
        engine.load_head(states, section, 1)
    })
    .unwrap()
}

/// The records of the second fake model in calls of `n_batch` tokens, as text.
fn read(file: &NamedTempFile, n_batch: usize, max_rows: Option<u64>) -> Vec<String> {
    let rows = open(file).choose(max_rows, None, false);
    bits(&records(&rows, 1, 2, n_batch))
}

/// The records of a fake model, evaluated by so many sources in calls of `n_batch` tokens.
fn records(
    rows: &ReferenceRows<'_>,
    n_sources: usize,
    seed: u64,
    n_batch: usize,
) -> Vec<TokenRecord> {
    let mut records = Vec::new();
    let sources = sources(n_sources, || Ok(fake(seed, n_batch)));
    evaluate(sources, rows, NOTHING_MORE, |step| {
        if let Step::Window(window) = step {
            records.extend(window.records);
        }
        Ok(())
    })
    .unwrap();
    records
}

/// So many sources that `make` makes.
fn sources<'s, S: LogitSource + 's>(
    n: usize,
    make: impl Fn() -> Result<S, Error> + Sync + 's,
) -> Sources<'s> {
    Sources {
        n,
        make: Box::new(move || Ok(Box::new(make()?))),
        device: None,
        n_windows: n,
    }
}

/// The records that `evaluate` should give, from the rows themselves.
fn expected(plan: &Plan, seed: u64) -> Vec<TokenRecord> {
    let rows = |window: &WindowSpec, seed| {
        let mut all: Vec<Vec<f32>> = Vec::new();
        let sink = &mut |_: usize, rows: &[&[f32]]| {
            all.extend(rows.iter().map(|row| row.to_vec()));
            Ok::<(), Error>(())
        };
        fake(seed, 100).decode(&[window], sink).unwrap();
        all
    };
    let mut records = Vec::new();
    for window in &plan.windows {
        let pairs = rows(window, 1).into_iter().zip(rows(window, seed));
        for ((reference, evaluated), position) in pairs.zip(window.first_scored..) {
            let next = window.tokens.get(position as usize + 1).copied();
            let score = score(&RowPair::new(Row::F32(&reference), &evaluated, next));
            records.push(TokenRecord {
                window: window.window,
                position,
                ..score
            });
        }
    }
    records
}

/// Bits, so that NaN equals NaN.
fn bits(records: &[TokenRecord]) -> Vec<String> {
    records.iter().map(|record| format!("{record:?}")).collect()
}

#[test]
fn what_is_written_is_scored_row_by_row_whatever_the_batches_and_pieces() {
    for score in [ScoreFrom::All, ScoreFrom::Half, ScoreFrom::Position(15)] {
        let plan = plan(score);
        let expected = bits(&expected(&plan, 2));
        assert_eq!(expected.len() as u64, plan.n_rows());
        for (write_batch, piece, read_batch) in [(1, 1, 1), (3, 4, 7), (100, 5, 2), (16, 1000, 16)]
        {
            let file = native(&plan, write_batch, piece);
            assert_eq!(read(&file, read_batch, None), expected);
        }
    }
}

#[test]
fn several_sources_give_what_one_gives_in_the_same_order() {
    let plan = plan(ScoreFrom::All);
    for file in [native(&plan, 4, 5), klpy(&plan)] {
        for max_rows in [None, Some(20)] {
            let one = read(&file, 3, max_rows);
            for n_sources in [2, 3, 9] {
                let rows = open(&file).choose(max_rows, None, false);
                assert_eq!(bits(&records(&rows, n_sources, 2, 3)), one);
            }
        }
    }
}

#[test]
fn what_is_measured_besides_sees_the_rows_of_its_record() {
    let file = native(&plan(ScoreFrom::Half), 4, 5);
    for n_sources in [1, 3] {
        let mut seen = 0;
        let rows = open(&file).choose(Some(20), None, false);
        let make = || Ok(fake(2, 3));
        let measure = |pair: &RowPair<'_>| (pair.next, score(pair));
        evaluate(sources(n_sources, make), &rows, measure, |step| {
            if let Step::Window(window) = step {
                seen += window.records.len();
                assert_eq!(window.measured.len(), window.records.len());
                for (record, (next, score)) in window.records.into_iter().zip(window.measured) {
                    let again = TokenRecord {
                        window: record.window,
                        position: record.position,
                        ..score
                    };
                    assert_eq!(record.next_token(), next);
                    assert_eq!(bits(&[record]), bits(&[again]));
                }
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, 20);
    }
}

#[test]
fn a_source_that_cannot_be_made_is_left_out_if_another_can() {
    let file = native(&plan(ScoreFrom::All), 4, 4);
    let made = AtomicUsize::new(0);
    let run = |allowed: usize| {
        made.store(0, Ordering::Relaxed);
        let mut n_rows = 0;
        let make = || match made.fetch_add(1, Ordering::Relaxed) {
            n if n < allowed => Ok(fake(2, 4)),
            _ => Err(Error::WorkerLost),
        };
        let rows = open(&file);
        let done = evaluate(sources(2, make), &rows, NOTHING_MORE, |step| {
            if let Step::Window(window) = step {
                n_rows += window.records.len() as u64;
            }
            Ok(())
        });
        done.map(|timing| (n_rows, timing.refused))
    };
    assert_eq!(run(1).unwrap(), (plan(ScoreFrom::All).n_rows(), 1));
    assert_eq!(run(2).unwrap(), (plan(ScoreFrom::All).n_rows(), 0));
    assert!(matches!(run(0), Err(Error::WorkerLost)));
}

#[test]
fn a_part_is_exactly_as_long_as_asked_and_taken_from_the_whole() {
    let plan = plan(ScoreFrom::All);
    let file = native(&plan, 4, 4);
    let whole = read(&file, 4, None);
    for max_rows in [1, 15, 16, 17, 50, plan.n_rows() - 1] {
        let part = read(&file, 4, Some(max_rows));
        assert_eq!(part.len() as u64, max_rows);
        assert!(part.iter().all(|record| whole.contains(record)));
    }
    assert_eq!(read(&file, 4, Some(plan.n_rows() + 9)), whole);
    // In kl.py's own order.
    assert_eq!(read(&klpy(&plan), 4, Some(20)), whole[..20]);
}

#[test]
fn a_reference_is_bad_if_its_file_is_damaged_and_not_if_the_disk_fails() {
    let file = native(&plan(ScoreFrom::All), 4, 4);
    let n_bytes = file.as_file().metadata().unwrap().len();
    file.as_file().set_len(n_bytes / 2).unwrap();
    let is_bad =
        |path: &Path| Error::from(Reference::open(path).unwrap_err()).is_of_bad_reference();
    assert!(is_bad(file.path()) && !is_bad(Path::new("none")));
    assert!(Error::inconsistent("").is_of_bad_reference());
    assert!(!Error::WorkerLost.is_of_bad_reference() && !Error::Interrupted.is_of_bad_reference());
}

#[test]
fn a_token_outside_the_vocabulary_is_located() {
    let file = native(&plan(ScoreFrom::All), 4, 4);
    let rows = open(&file);
    let make = || Ok(fake_with(5, 1, 4));
    let error = evaluate(sources(1, make), &rows, NOTHING_MORE, |_| Ok(())).unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with("window 0, position 2"), "{error}");
}

#[test]
fn a_caller_can_stop_either_way() {
    let plan = plan(ScoreFrom::All);
    let file = native(&plan, 4, 4);
    let rows = open(&file);
    let make = || Ok(fake(2, 4));
    let stopped = evaluate(sources(2, make), &rows, NOTHING_MORE, |_| {
        Err(Error::Interrupted)
    });
    assert!(matches!(stopped, Err(Error::Interrupted)));

    let writer = native_writer(Vec::new(), &plan, Encoding::U16, 4);
    let stopped = write_reference(Sources::ready(fake(1, 4)), &plan.windows, writer, |_| {
        Err(Error::Interrupted)
    });
    assert!(matches!(stopped, Err(Error::Interrupted)));
}

/// A disk that is full after some bytes.
struct FullDisk(usize);

impl Write for FullDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.0 {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "no space left"));
        }
        self.0 -= bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_disk_that_fills_up_is_the_error_that_is_returned() {
    let plan = plan(ScoreFrom::All);
    let whole = native(&plan, 4, 4).as_file().metadata().unwrap().len();
    for room in [2000, 5000, whole as usize - 1] {
        let writer = native_writer(FullDisk(room), &plan, Encoding::F32, 4);
        let error = write(writer, &plan, 4).unwrap_err().to_string();
        assert!(error.contains("no space left"), "{room}: {error}");
    }
}
