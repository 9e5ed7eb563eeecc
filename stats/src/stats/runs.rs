//! Adjacent tokens of a window, and the pieces in which it is divided.

use kl_formats::TokenRecord;

/// Positions in a piece of a window. The parts that a long window may be divided into are of whole
/// pieces, so the sums of pieces are all that is kept of its tokens to choose them.
pub(super) const PIECE: u32 = 256;

/// Adjacent tokens of one piece of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub window: u32,
    /// The window's group; 0 without groups.
    pub group: u32,
    /// The piece: its tokens are at positions from `piece` times 256 on.
    pub piece: u32,
    /// The number of tokens.
    pub n: usize,
}

impl Run {
    /// Adds the next token to `runs`: its window, its group and its position.
    pub fn add(runs: &mut Vec<Self>, window: u32, group: u32, position: u32) {
        let piece = position / PIECE;
        match runs.last_mut() {
            Some(run) if (run.window, run.group, run.piece) == (window, group, piece) => run.n += 1,
            _ => runs.push(Self {
                window,
                group,
                piece,
                n: 1,
            }),
        }
    }

    /// The runs of records.
    pub fn of<'r>(records: impl IntoIterator<Item = &'r TokenRecord>) -> Vec<Self> {
        let mut runs = Vec::new();
        for record in records {
            Self::add(&mut runs, record.window, record.group, record.position);
        }
        runs
    }

    /// The runs of tokens of short windows, each with its window and its group.
    pub fn of_each(tokens: impl IntoIterator<Item = (u32, u32)>) -> Vec<Self> {
        let mut runs = Vec::new();
        for (window, group) in tokens {
            Self::add(&mut runs, window, group, 0);
        }
        runs
    }
}
