//! Warnings about a map's numbers.

use kl_formats::{Cell, SensitivityMap};

use crate::report::Warning;

/// Below so many windows, their spread says little of other text.
const MIN_WINDOWS: u64 = 8;

/// The warnings that a map deserves.
pub fn doubts(map: &SensitivityMap) -> Vec<Warning> {
    few_windows(map)
        .into_iter()
        .chain(lost_tokens(map))
        .collect()
}

fn few_windows(map: &SensitivityMap) -> Option<Warning> {
    let n = map.header.windows.len() as u64;
    (n < MIN_WINDOWS).then_some(Warning::FewWindows {
        n,
        worth: None,
        n_blocks: None,
        n_parts: None,
        needed: MIN_WINDOWS,
        unit: "window",
    })
}

/// The warning about cells with tokens that have no finite KLD, where other cells have one.
fn lost_tokens(map: &SensitivityMap) -> Option<Warning> {
    let mut all = vec![0; map.header.windows.len()];
    for cell in &map.cells {
        for (most, n) in all.iter_mut().zip(&cell.n_tokens) {
            *most = u64::from(*n).max(*most);
        }
    }
    let lost = |cell: &Cell| {
        let of: u64 = all.iter().take(cell.n_tokens.len()).sum();
        let kept: u64 = cell.n_tokens.iter().map(|n| u64::from(*n)).sum();
        (of - kept, of)
    };
    let cells = map.cells.iter().map(|cell| (cell, lost(cell)));
    let cells: Vec<_> = cells.filter(|(_, (n, _))| *n > 0).collect();
    let share = |(n, of): (u64, u64)| n as f64 / of as f64;
    // One tensor says more than all of them together.
    let worst = cells.iter().min_by(|(a, a_lost), (b, b_lost)| {
        let fewer = a.exchanged.len().cmp(&b.exchanged.len());
        fewer.then(share(*b_lost).total_cmp(&share(*a_lost)))
    });
    let (cell, (n, of)) = worst?;
    let (tensor, kind) = cell.exchanged.first_key_value()?;
    Some(Warning::LostTokens {
        tensor: tensor.clone(),
        kind: *kind,
        n_tensors: cell.exchanged.len() as u64 - 1,
        n: *n,
        of: *of,
        n_cells: cells.len() as u64 - 1,
    })
}

#[cfg(test)]
mod tests {
    use kl_formats::Mixture;

    use super::*;
    use crate::report::sensitivity::testing as sample;

    fn cell(names: &[&str], n_tokens: &[u32]) -> Cell {
        let typed = names
            .iter()
            .map(|name| (format!("{name}.weight"), sample::kind("q2_K")));
        Cell {
            exchanged: typed.collect::<Mixture>(),
            from: 0,
            klds: vec![0.5; n_tokens.len()],
            n_tokens: n_tokens.to_vec(),
        }
    }

    #[test]
    fn cells_that_lost_tokens_and_few_windows_are_doubted() {
        let mut map = SensitivityMap {
            header: sample::header("a.gguf", 1000),
            errors: Default::default(),
            // The original has no finite row at one token of the second window.
            cells: vec![
                cell(&[], &[127, 126]),
                cell(&["one"], &[127, 126]),
                cell(&["two"], &[127]),
            ],
            is_cut_off: false,
        };
        assert_eq!(doubts(&map), []);
        map.cells.push(cell(&["one", "three", "two"], &[0, 0]));
        map.cells.push(cell(&["four"], &[127, 120]));
        map.cells.push(cell(&["three"], &[120, 113]));
        map.header.windows.truncate(7);
        let messages: Vec<String> = doubts(&map).iter().map(ToString::to_string).collect();
        assert!(messages[0].contains("rest on 7 windows"), "{messages:?}");
        let expected = "three.weight at q2_K: 20 of 253 tokens have no finite KLD and are left out, \
                        as in 2 more cells: it may hurt much more than it seems to; keep kl recipe \
                        from it with --types";
        assert_eq!(messages[1..], [expected]);
        map.cells.truncate(4);
        let messages: Vec<String> = doubts(&map).iter().map(ToString::to_string).collect();
        let expected = "one.weight and 2 more at q2_K: 253 of 253 tokens";
        assert!(messages[1].starts_with(expected), "{messages:?}");
    }
}
