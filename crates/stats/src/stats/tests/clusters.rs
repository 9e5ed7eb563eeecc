use super::*;
use crate::stats::oracle::runs;

/// Windows with these means, of one token each.
fn windows(means: impl IntoIterator<Item = f64>) -> WindowSums {
    let means: Vec<f64> = means.into_iter().collect();
    WindowSums::from_tokens(&runs((0..means.len() as u32).map(|i| (i, 0))), &means)
}

fn in_groups(windows: impl IntoIterator<Item = (u32, u32)>) -> WindowSums {
    let runs = runs(windows);
    WindowSums::from_tokens(&runs, &vec![1.0; runs.len()])
}

#[test]
fn there_are_10_to_30_blocks_of_equal_length() {
    let lengths = |n: u32| {
        let windows = in_groups((0..n).map(|window| (window, 0)));
        let clusters = Clusters::by_rule(&windows, ClusterRule::Block);
        let mut lengths = vec![0; clusters.clustering.n as usize];
        for window in 0..n {
            lengths[clusters.of_window(window).number as usize] += 1;
        }
        lengths
    };
    assert_eq!(
        [1, 4, 20, 21, 33].map(|n| lengths(n).len()),
        [1, 2, 10, 10, 10]
    );
    assert_eq!(
        [100, 300, 450, 10_000].map(|n| lengths(n).len()),
        [10, 20, 30, 30]
    );
    assert_eq!(lengths(33), [4, 3, 3, 4, 3, 3, 4, 3, 3, 3]);
    assert_eq!(lengths(5), [3, 2]);
}

#[test]
fn auto_uses_blocks_where_neighbours_resemble_each_other() {
    let of = |windows: &WindowSums| Clusters::by_rule(windows, ClusterRule::Auto).clustering;
    let articles = of(&windows((0..100).map(|i| f64::from(i / 10 % 2))));
    assert_eq!(articles.kind, ClusterKind::Block);
    assert!(articles.windows_per_block > 1 && articles.n < 100);
    let alternating = of(&windows((0..100).map(|i| f64::from(i % 2))));
    assert_eq!(alternating.kind, ClusterKind::Window);
    assert_eq!((alternating.windows_per_block, alternating.n), (1, 100));
    let few = of(&windows((0..19).map(|i| f64::from(i / 5 % 2))));
    assert!(few.kind == ClusterKind::Window && few.autocorrelation.unwrap() > 0.5);
}

#[test]
fn blocks_are_of_the_windows_that_are_there() {
    let means = in_groups([900, 7, 3, 40, 8].map(|window| (window, 0)));
    let clusters = Clusters::by_rule(&means, ClusterRule::Block);
    assert_eq!((means.count(), clusters.clustering.n), (5, 2));
    assert_eq!(
        [3, 7, 8, 40, 900].map(|window| clusters.of_window(window).number),
        [0, 0, 0, 1, 1]
    );
    let windows = Clusters::by_rule(&means, ClusterRule::Window);
    assert_eq!(
        [3, 900].map(|window| windows.of_window(window).number),
        [0, 4]
    );
}

/// Two groups, whose windows alternate, as prompts' do.
#[test]
fn blocks_never_straddle_groups() {
    let two = (0..60).map(|window| (window, window % 2));
    let clusters = Clusters::by_rule(&in_groups(two.chain([(60, 7)])), ClusterRule::Block);
    let Clustering {
        n,
        windows_per_block,
        ..
    } = clusters.clustering;
    // Of 30, 30 and 1 windows.
    assert_eq!((windows_per_block, n), (6, 5 + 5 + 1));
    assert_eq!(clusters.of_window(0), clusters.of_window(10));
    assert_ne!(clusters.of_window(0), clusters.of_window(1));
    assert_ne!(clusters.of_window(0), clusters.of_window(12));
    assert_eq!(clusters.of_window(60).stratum, 7);
    let few = in_groups((0..24).map(|window| (window, window / 4)));
    let clusters = Clusters::by_rule(&few, ClusterRule::Block);
    assert_eq!(clusters.clustering.n, 12);
}
