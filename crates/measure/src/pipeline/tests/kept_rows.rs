//! Rows in memory, of a model and of its file.

use std::collections::HashMap;

use super::*;

/// The windows and KLDs of an evaluation against `rows`.
fn klds(rows: &ReferenceRows<'_>, seed: u64) -> Vec<(u32, Vec<f64>)> {
    let records = records(rows, 1, seed, 5);
    let windows = TokenRecord::windows(&records);
    let klds = windows.map(|of| (of[0].window, of.iter().map(|record| record.kld).collect()));
    klds.collect()
}

#[test]
fn kept_rows_are_those_of_the_model_and_of_its_file() {
    let plan = plan(ScoreFrom::Text);
    let n_rows = |windows: &[WindowSpec]| kl_formats::n_rows(windows) as usize;
    let mut n = 0;
    let of_model = KeptRows::keep(Sources::ready(fake(1, 7)), plan.windows.clone(), |rows| {
        n += rows;
        Ok(())
    });
    let (of_model, _) = of_model.unwrap();
    assert_eq!(n, n_rows(&plan.windows));
    let all = klds(&ReferenceRows::kept(&of_model, 0..plan.windows.len()), 2);
    assert!(all.iter().flat_map(|(_, klds)| klds).any(|kld| *kld > 0.1));
    assert_eq!(klds(&ReferenceRows::kept(&of_model, 1..3), 2), all[1..3]);
    let control = klds(&ReferenceRows::kept(&of_model, 0..2), 1);
    let mut control = control.iter().flat_map(|(_, klds)| klds);
    assert!(control.all(|kld| *kld == 0.0));

    let file = native(&plan, 7, 3);
    let rows = open(&file).with_order(vec![4, 2]);
    let windows = [4, 2].map(|i: usize| plan.windows[i].clone()).to_vec();
    let file = Sources::ready(FileRows::new(&rows, HashMap::new()));
    let (of_file, _) = KeptRows::keep(file, windows, |_| Ok(())).unwrap();
    let of_file = klds(&ReferenceRows::kept(&of_file, 0..2), 2);
    assert_eq!(of_file, [all[4].clone(), all[2].clone()]);
}
