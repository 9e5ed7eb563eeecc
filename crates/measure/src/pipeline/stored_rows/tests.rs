use std::sync::Condvar;

use kl_engine::{Engine as _, FakeEngine};
use kl_formats::{About, Kind, Reference, Row, Rows};

use super::*;
use crate::pipeline::ReferenceRows;

/// Two blocks of a row each, which can only be read at the same time.
#[derive(Debug, Default)]
struct Together {
    reading: Mutex<usize>,
    both: Condvar,
}

fn window() -> WindowSpec {
    WindowSpec {
        window: 0,
        tokens: vec![0, 0],
        first_scored: 0,
        n_rows: 2,
    }
}

impl ReadBlocks for Together {
    fn window(&self, _i: usize) -> kl_formats::Result<WindowSpec> {
        Ok(window())
    }

    fn rows_per_block(&self) -> u32 {
        1
    }

    fn n_rows(&self, _i: usize) -> u32 {
        2
    }

    fn block(
        &self,
        _i: usize,
        block: u32,
        _reuse: Option<RowBlock>,
    ) -> kl_formats::Result<RowBlock> {
        let mut reading = locked(&self.reading);
        *reading += 1;
        self.both.notify_all();
        let patience = Duration::from_secs(20);
        let waited = self.both.wait_timeout_while(reading, patience, |n| *n < 2);
        assert!(!waited.unwrap().1.timed_out(), "one read at a time");
        Ok(RowBlock::from_f32(0, block, 1, &[block as f32]))
    }
}

#[test]
fn blocks_are_read_side_by_side_and_come_in_order() {
    let (about, entries) = (About::new(Kind::Kl, "", 2, 1), vec![window().entry()]);
    let rows = Rows::Blocks(Box::new(Together::default()));
    let reference = Reference::new(about, Some(entries), rows);
    let engine = FakeEngine::default();
    let head = |states: &_, section: &mut dyn std::io::Read| engine.load_head(states, section, 1);
    let rows = ReferenceRows::open(reference, head).unwrap();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build();
    let row_value = |i: usize, row: Row<'_>| (i, row.get(0));
    let made = pool.unwrap().install(|| {
        let mut window = rows.next_window().unwrap().unwrap();
        window.map(2, row_value)
    });
    assert_eq!(made.unwrap(), [(0, 0.0), (1, 1.0)]);
}
