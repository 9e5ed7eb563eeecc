//! The plan of a map: the cells to measure, their order, and when a tensor is known well enough. It needs no
//! model and no file.
//!
//! Every rule compares one tensor, or one group, with the whole model at the measured types. So the parts of
//! a run that is shared out together measure exactly what one run would.

use std::collections::BTreeMap;
use std::ops::Range;

use kl_formats::{Cell, GgmlType, Mixture};
use kl_measure::pipeline::shuffled;
use kl_stats::stats::Confidence;
use kl_stats::stats::probability::student_two_sided;

use super::original::{MeasuredTensor, Original};
use crate::mathematics::role_and_layer;
use crate::settings::SensitivitySettings;

/// The approximate number of groups, as a part of the most tensors that are measured one by one.
const GROUPS: f64 = 5.0 / 6.0;

/// The windows of a tensor's first round: fewer show nothing of their spread.
const FIRST_WINDOWS: usize = 2;

/// The windows that a cell is expected to take until it is known well enough, before any has.
const EXPECTED_WINDOWS: f64 = 8.0;

/// The part of the groups that are expected to be split, before any has been measured.
const EXPECTED_SPLIT: f64 = 0.4;

/// The most windows for cells that exchange no tensor, or all tensors at other types than the measured ones.
const WINDOWS_TOGETHER: usize = 16;

/// The probability that a tensor's share is within its doubt.
const LEVEL: f64 = 0.8;

/// A tensor's share of the KLD is known well enough if its doubt is at most this part of the share.
const ENOUGH: f64 = 0.2;

/// The doubt of all tensors' shares together that makes no difference to a recipe, as a part of the whole.
const NEGLIGIBLE: f64 = 0.05;

/// The bits of the types at which all tensors are exchanged together, besides the measured types.
const BITS_TOGETHER: [f64; 4] = [8.5, 6.5625, 4.5, 2.625];

/// The bits of the types at which each role is exchanged as a whole: one type of each block size. From about
/// 6 bits on, the types that ggml rounds activations to cost more than the weights' own types, which weight
/// errors do not show.
const BITS_OF_ROLES: [f64; 2] = [8.5, 6.5625];

/// The fewest bits of such a type.
const FEWEST_BITS_OF_ROLES: f64 = 6.0;

/// The windows for which a role is exchanged.
const WINDOWS_OF_ROLES: usize = 4;

/// Predicted cells that are measured too.
const CHECKS: usize = 6;

/// A piece of the work. Pieces are dealt out to the parts of a run.
pub struct WorkItem<'t> {
    /// The tensors that are exchanged, and their types.
    pub mixture: Mixture,
    /// The windows that it is measured over; `None` if it is measured until its share is known well enough.
    pub n_windows: Option<usize>,
    /// The tensors whose weight errors are computed. Those of a group may be measured one by one too.
    pub tensors: Vec<&'t MeasuredTensor>,
}

/// These tensors, each at its measured type.
pub fn at_measured_types<'t>(tensors: impl IntoIterator<Item = &'t MeasuredTensor>) -> Mixture {
    let typed = |tensor: &MeasuredTensor| (tensor.name.clone(), tensor.measured_type);
    tensors.into_iter().map(typed).collect()
}

/// The units of a model, each exchanged at once: its tensors, or if those are many, groups of tensors of one
/// role and similar depth. `max_singles`: the most tensors that are measured one by one from the start.
pub fn units(tensors: &[MeasuredTensor], max_singles: usize) -> Vec<Vec<&MeasuredTensor>> {
    if tensors.len() <= max_singles {
        return tensors.iter().map(|tensor| vec![tensor]).collect();
    }
    let roles = grouped(
        tensors
            .iter()
            .map(|tensor| (role_and_layer(&tensor.name).0, tensor)),
    );
    let n_groups = ((GROUPS * max_singles as f64) as usize / roles.len()).max(1);
    let groups = roles.into_iter().flat_map(|mut members| {
        members.sort_by_key(|tensor| role_and_layer(&tensor.name).1);
        let groups = members.chunks(members.len().div_ceil(n_groups));
        groups.map(<[_]>::to_vec).collect::<Vec<_>>()
    });
    groups.collect()
}

/// The values of each key, in the order of the keys' first occurrence.
fn grouped<K: PartialEq, V>(pairs: impl Iterator<Item = (K, V)>) -> Vec<Vec<V>> {
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for (key, value) in pairs {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, values)) => values.push(value),
            None => groups.push((key, vec![value])),
        }
    }
    groups.into_iter().map(|(_, values)| values).collect()
}

/// The pieces of this run's part, of a map over `n_windows`, in the order in which they are measured.
pub fn pieces<'t>(
    original: &'t Original,
    settings: &SensitivitySettings,
    n_windows: usize,
    n_together: usize,
) -> Vec<WorkItem<'t>> {
    let Original {
        tensors,
        types,
        measured_type,
        ..
    } = original;
    let piece = |mixture, n_windows, tensors| WorkItem {
        mixture,
        n_windows,
        tensors,
    };
    let units = units(tensors, settings.max_singles).into_iter();
    let of_units = units.map(|unit| piece(at_measured_types(unit.iter().copied()), None, unit));
    let mut pieces = Vec::from_iter(of_units);
    let of_all = windows_together(n_windows, n_together);
    for kind in types_of_bits(&BITS_TOGETHER, types, *measured_type) {
        let typed = tensors
            .iter()
            .map(|tensor| (tensor.name.clone(), tensor.nearest(kind)));
        pieces.push(piece(typed.collect(), Some(of_all), Vec::new()));
    }
    let of_roles = WINDOWS_OF_ROLES.next_multiple_of(n_together.max(1));
    let roles = roles(tensors, types, *measured_type).into_iter();
    pieces.extend(roles.map(|role| piece(role, Some(of_roles.min(n_windows)), Vec::new())));
    for (tensor, kind) in checks(tensors, types, settings.seed) {
        let mixture = [(tensor.name.clone(), kind)].into();
        pieces.push(piece(mixture, None, vec![tensor]));
    }
    match settings.part {
        Some(part) => part.keep(pieces),
        None => pieces,
    }
}

/// Splits `n_windows` into rounds: each doubles the number measured before it. A call decodes `n_together`
/// windows, and each round consists of whole calls.
pub fn rounds(n_windows: usize, n_together: usize) -> impl Iterator<Item = Range<usize>> {
    let first = FIRST_WINDOWS.next_multiple_of(n_together.max(1));
    let ends = std::iter::successors(Some(first), |end| end.checked_mul(2));
    let mut start = 0;
    let rounds = ends.map(move |end| {
        let round = start..end.min(n_windows);
        start = round.end;
        round
    });
    rounds.take_while(|round| !round.is_empty())
}

/// The number of windows for cells that exchange no tensor, or all.
pub fn windows_together(n_windows: usize, n_together: usize) -> usize {
    let most = WINDOWS_TOGETHER.next_multiple_of(n_together.max(1));
    most.min(n_windows)
}

/// True if a cell is measured well enough, compared with the `whole` model over the same windows: its share of
/// the whole's KLD is known to a fifth, or its doubt makes no difference to a recipe of `n_units` units.
///
/// Tokens that are hard for a model are hard with any of its tensors exchanged, which cancels in the share.
pub fn is_enough(cell: &Cell, whole: &Cell, n_units: usize) -> bool {
    let Some((share, doubt)) = share(cell, whole) else {
        return false;
    };
    let negligible = NEGLIGIBLE / (n_units.max(1) as f64).sqrt();
    doubt <= (ENOUGH * share).max(negligible)
}

/// The windows that are still to be decoded for these pieces, so far as can be known: a cell that is measured until it is
/// known well enough takes as many as single tensors took so far, and as many groups are split as were so far.
pub fn windows_left(
    pieces: &[WorkItem<'_>],
    cells: &[Cell],
    whole: &Cell,
    n_windows: usize,
    n_units: usize,
) -> u64 {
    let by_mixture = BTreeMap::from_iter(cells.iter().map(|cell| (&cell.exchanged, cell)));
    let cell_of = |mixture: &Mixture| by_mixture.get(mixture).copied();
    let n_measured = |mixture: &Mixture| cell_of(mixture).map_or(0, |cell| cell.klds.len());
    let is_known = |cell: &Cell| cell.klds.len() >= n_windows || is_enough(cell, whole, n_units);
    let is_group = |piece: &&WorkItem<'_>| piece.n_windows.is_none() && piece.tensors.len() > 1;
    let is_split = |cell: &Cell| is_split(cell, whole, n_units);

    let known = || {
        cells
            .iter()
            .filter(|cell| is_known(cell) && !cell.exchanged.is_empty())
    };
    let few = known()
        .filter(|cell| cell.exchanged.len() == 1)
        .map(|cell| cell.klds.len());
    let expected_windows = mean_with(EXPECTED_WINDOWS.min(n_windows as f64), few);
    let left_of_cell = |mixture: &Mixture| match cell_of(mixture) {
        Some(cell) if is_known(cell) => 0.0,
        _ => (expected_windows - n_measured(mixture) as f64).max(FIRST_WINDOWS as f64),
    };

    let groups = pieces.iter().filter(is_group);
    let done_groups = groups.filter_map(|group| cell_of(&group.mixture));
    let done_groups = done_groups.filter(|cell| is_known(cell) || is_split(cell));
    let split_share = mean_with(
        EXPECTED_SPLIT,
        done_groups.map(|cell| usize::from(is_split(cell))),
    );
    let left_of_singles = |piece: &WorkItem<'_>| {
        let singles = piece
            .tensors
            .iter()
            .map(|tensor| at_measured_types([*tensor]));
        singles.map(|single| left_of_cell(&single)).sum::<f64>()
    };

    let left_of_piece = |piece: &WorkItem<'_>| match (piece.n_windows, cell_of(&piece.mixture)) {
        (Some(n), _) => n.saturating_sub(n_measured(&piece.mixture)) as f64,
        (None, _) if piece.tensors.len() < 2 => left_of_cell(&piece.mixture),
        (None, Some(cell)) if is_split(cell) => left_of_singles(piece),
        (None, Some(cell)) if is_known(cell) => 0.0,
        (None, _) => left_of_cell(&piece.mixture) + split_share * left_of_singles(piece),
    };
    pieces.iter().map(left_of_piece).sum::<f64>().round() as u64
}

/// The mean of these numbers, and of one more that is expected.
fn mean_with(expected: f64, numbers: impl Iterator<Item = usize>) -> f64 {
    let (sum, n) = numbers.fold((expected, 1.0), |(sum, n), number| {
        (sum + number as f64, n + 1.0)
    });
    sum / n
}

/// True if a group's tensors are measured one by one: it has more of the KLD than units have on average.
pub fn is_split(group: &Cell, whole: &Cell, n_units: usize) -> bool {
    let share = share(group, whole);
    share.is_some_and(|(share, _)| share * n_units as f64 > 1.0)
}

/// A cell's KLD as a share of the whole's over the same windows, and half the width of its interval;
/// `None` for fewer than two windows, or if the whole's KLD is 0.
fn share(cell: &Cell, whole: &Cell) -> Option<(f64, f64)> {
    let pairs = || cell.klds.iter().zip(&whole.klds);
    let n = pairs().count();
    let (own, all) = pairs().fold((0.0, 0.0), |(own, all), (a, b)| (own + a, all + b));
    if n < 2 || all <= 0.0 {
        return None;
    }
    let share = own / all;
    let squares: f64 = pairs().map(|(a, b)| (a - share * b).powi(2)).sum();
    let error = (squares * n as f64 / (n - 1) as f64).sqrt() / all;
    let level = Confidence::new(LEVEL).unwrap_or_default();
    Some((share, error * student_two_sided(level, (n - 1) as f64)))
}

/// The mixtures that exchange one role as a whole, at types of many bits.
fn roles(tensors: &[MeasuredTensor], types: &[GgmlType], measured: GgmlType) -> Vec<Mixture> {
    let mut kinds = types_of_bits(&BITS_OF_ROLES, types, measured);
    kinds.retain(|kind| kind.bits() >= FEWEST_BITS_OF_ROLES);
    let typed = tensors.iter().flat_map(|tensor| {
        let possible = kinds.iter().filter(|kind| tensor.types.contains(kind));
        possible.map(|kind| {
            let role = role_and_layer(&tensor.name).0;
            ((role, *kind), (tensor.name.clone(), *kind))
        })
    });
    let roles = grouped(typed).into_iter();
    roles.map(Mixture::from_iter).collect()
}

/// The types that are nearest to these bits, each once, without the measured one.
fn types_of_bits(bits: &[f64], types: &[GgmlType], measured: GgmlType) -> Vec<GgmlType> {
    let mut chosen: Vec<GgmlType> = Vec::new();
    for bits in bits {
        let far = |kind: &GgmlType| (kind.bits() - bits).abs();
        let nearest = types.iter().min_by(|a, b| far(a).total_cmp(&far(b)));
        chosen.extend(nearest.filter(|kind| **kind != measured && !chosen.contains(kind)));
    }
    chosen
}

/// Random cells that are otherwise only predicted, to be measured too: single tensors at other types than their
/// measured one. Each type has about as many.
fn checks<'t>(
    tensors: &'t [MeasuredTensor],
    types: &[GgmlType],
    seed: u64,
) -> Vec<(&'t MeasuredTensor, GgmlType)> {
    let mut chosen: Vec<(&MeasuredTensor, GgmlType)> = Vec::new();
    let mut order = shuffled(tensors.len(), seed);
    let indices = shuffled(types.len(), seed.wrapping_add(1)).into_iter();
    let kinds: Vec<GgmlType> = indices.filter_map(|i| types.get(i).copied()).collect();
    for kind in kinds.iter().cycle().take(CHECKS * kinds.len()) {
        let is_predicted =
            |tensor: &MeasuredTensor| tensor.types.contains(kind) && tensor.measured_type != *kind;
        let mut left = order.iter();
        let found = left.position(|&i| tensors.get(i).is_some_and(is_predicted));
        if chosen.len() < CHECKS
            && let Some(found) = found
            && let Some(tensor) = tensors.get(order.remove(found))
        {
            chosen.push((tensor, *kind));
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn kind(name: &str) -> GgmlType {
        name.parse().unwrap()
    }

    fn tensor(name: &str) -> MeasuredTensor {
        MeasuredTensor {
            name: name.to_owned(),
            types: ["q8_0", "q4_K", "q3_K", "q2_K"].map(kind).to_vec(),
            measured_type: kind("q3_K"),
        }
    }

    fn model(n_layers: usize) -> Vec<MeasuredTensor> {
        let layers = 0..n_layers;
        let of_layer = layers.flat_map(|layer| {
            let roles = ["attn_q", "attn_k", "ffn_up", "ffn_down"];
            roles.map(|role| tensor(&format!("blk.{layer}.{role}.weight")))
        });
        let mut tensors = vec![tensor("token_embd.weight")];
        tensors.extend(of_layer);
        tensors
    }

    fn cell(klds: &[f64]) -> Cell {
        Cell {
            klds: klds.to_vec(),
            n_tokens: vec![127; klds.len()],
            ..Cell::default()
        }
    }

    #[test]
    fn many_tensors_are_grouped_by_role_and_depth() {
        let few = model(29);
        assert_eq!(units(&few, 120).len(), few.len());
        assert_eq!(units(&few, few.len() - 1).len(), 1 + 4 * 15);
        let many = model(100);
        let units = units(&many, 120);
        assert_eq!(units.len(), 1 + 4 * 20);
        let names =
            |unit: &[&MeasuredTensor]| Vec::from_iter(unit.iter().map(|of| of.name.clone()));
        assert_eq!(names(&units[0]), ["token_embd.weight"]);
        let expected = [95, 96, 97, 98, 99].map(|i| format!("blk.{i}.attn_q.weight"));
        assert_eq!(names(&units[20]), expected);
        let all: BTreeSet<String> = units.iter().flat_map(|unit| names(unit)).collect();
        assert_eq!(all.len(), many.len());
    }

    #[test]
    fn rounds_double_and_are_whole_calls() {
        let of = |n, together| rounds(n, together).collect::<Vec<_>>();
        assert_eq!(of(12, 1), [0..2, 2..4, 4..8, 8..12]);
        assert_eq!(of(40, 5), [0..5, 5..10, 10..20, 20..40]);
        assert_eq!(of(3, 1), [0..2, 2..3]);
        assert!(of(0, 1).is_empty());
    }

    #[test]
    fn a_cell_is_enough_where_its_share_is_known() {
        let whole = cell(&[10.0, 20.0, 5.0, 40.0]);
        // The same share of each window: nothing is in doubt.
        assert!(is_enough(&cell(&[1.0, 2.0, 0.5, 4.0]), &whole, 20));
        assert!(is_enough(&cell(&[1.0, 2.0]), &whole, 20));
        // Large and uneven, then uneven but tiny; one window shows nothing.
        assert!(!is_enough(&cell(&[5.0, 1.0, 4.0, 2.0]), &whole, 20));
        assert!(is_enough(&cell(&[0.05, 0.01, 0.04, 0.02]), &whole, 20));
        assert!(!is_enough(&cell(&[1.0]), &whole, 20));
        // scipy: t(0.9, 3) * sqrt(4 / 3 * sum((k - r w)^2)) / sum(w) of k = [2, 1, 1, 6].
        let (share, doubt) = share(&cell(&[2.0, 1.0, 1.0, 6.0]), &whole).unwrap();
        assert!((share - 2.0 / 15.0).abs() < 1e-12);
        assert!((doubt - PINNED_DOUBT).abs() < 1e-9, "{doubt}");
    }

    /// `t.ppf(0.9, 3) * sqrt(4 / 3 * ((k - k.sum() / w.sum() * w) ** 2).sum()) / w.sum()`
    const PINNED_DOUBT: f64 = 0.0490086138901614;

    #[test]
    fn groups_with_more_than_their_share_are_split() {
        let whole = cell(&[10.0, 10.0]);
        assert!(is_split(&cell(&[3.0, 3.0]), &whole, 5));
        assert!(!is_split(&cell(&[1.0, 1.0]), &whole, 5));
    }

    const FIRST: &[&str] = &["blk.0.ffn_up.weight", "blk.1.ffn_up.weight"];
    const SECOND: &[&str] = &["blk.2.ffn_up.weight", "blk.3.ffn_up.weight"];
    const ALL_AT_ANOTHER_TYPE: &[&str] = &["token_embd.weight"];

    /// Windows that are left of two groups and of a cell of 4 windows, once cells of these tensors have been measured
    /// over so many windows, of 16, with this KLD in each; the whole's is 10.
    fn left(cells: &[(&[&str], usize, f64)]) -> u64 {
        let tensors = |names: &[&str]| Vec::from_iter(names.iter().map(|name| tensor(name)));
        let of_pieces = [
            (FIRST, None),
            (SECOND, None),
            (ALL_AT_ANOTHER_TYPE, Some(4)),
        ];
        let of_pieces = of_pieces.map(|(names, n_windows)| (tensors(names), n_windows));
        let pieces = of_pieces.iter().map(|(tensors, n_windows)| WorkItem {
            mixture: at_measured_types(tensors),
            n_windows: *n_windows,
            tensors: tensors.iter().collect(),
        });
        let cells = cells.iter().map(|(names, n, kld)| Cell {
            exchanged: at_measured_types(&tensors(names)),
            ..cell(&vec![*kld; *n])
        });
        let (pieces, cells) = (Vec::from_iter(pieces), Vec::from_iter(cells));
        windows_left(&pieces, &cells, &cell(&[10.0; 16]), 16, 2)
    }

    #[test]
    fn the_windows_that_are_left_follow_from_those_that_took_so_far() {
        // Two groups of 8 windows, after each 0.4 of two tensors of 8, and the cell of 4: 32.8.
        assert_eq!(left(&[]), 33);
        // The first is small after 2 windows: of the second, 0.4 / 2 is expected to be split.
        assert_eq!(left(&[(FIRST, 2, 0.1)]), 8 + 3 + 4);
        // It is large: its two tensors follow, and the next group, and (0.4 + 1) / 2 of its two.
        assert_eq!(left(&[(FIRST, 2, 9.0)]), 16 + 8 + 11 + 4);
        // One of them took 2 windows: (8 + 2) / 2 for each cell that follows.
        let one: &[&str] = &["blk.0.ffn_up.weight"];
        assert_eq!(left(&[(FIRST, 2, 9.0), (one, 2, 4.0)]), 5 + 5 + 7 + 4);
        // Another has begun.
        let half = (ALL_AT_ANOTHER_TYPE, 3, 1.0);
        assert_eq!(left(&[(FIRST, 2, 0.1), (SECOND, 2, 0.1), half]), 1);
        let whole = (ALL_AT_ANOTHER_TYPE, 4, 1.0);
        assert_eq!(left(&[(FIRST, 2, 0.1), (SECOND, 2, 0.1), whole]), 0);
    }

    #[test]
    fn roles_are_exchanged_whole_at_many_bits() {
        let tensors = model(2);
        let of = |types: &[&str]| {
            let types: Vec<GgmlType> = types.iter().map(|name| kind(name)).collect();
            roles(&tensors, &types, kind("q3_K"))
        };
        let mixtures = of(&["q8_0", "q4_K", "q3_K", "q2_K"]);
        assert_eq!(mixtures.len(), 5);
        assert!(mixtures[0].keys().eq(["token_embd.weight"]));
        assert!(
            mixtures[1]
                .keys()
                .eq(["blk.0.attn_q.weight", "blk.1.attn_q.weight"])
        );
        assert!(mixtures.iter().flatten().all(|(_, of)| *of == kind("q8_0")));
        assert!(of(&["q4_K", "q2_K"]).is_empty());
    }

    #[test]
    fn types_together_span_the_bits() {
        let all = ["q8_0", "q6_K", "q5_0", "q4_K", "q4_0", "q3_K", "q2_K"].map(kind);
        let of = |types: &[GgmlType]| types_of_bits(&BITS_TOGETHER, types, kind("q3_K"));
        assert_eq!(of(&all), ["q8_0", "q6_K", "q4_K", "q2_K"].map(kind));
        assert_eq!(of(&[kind("q4_0")]), [kind("q4_0")]);
        assert_eq!(of(&[kind("q3_K")]), []);
    }

    #[test]
    fn checks_are_spread_over_tensors_and_types() {
        let tensors = model(10);
        let types = tensors[0].types.clone();
        let chosen = checks(&tensors, &types, 5);
        assert_eq!(chosen, checks(&tensors, &types, 5));
        assert_ne!(chosen, checks(&tensors, &types, 6));
        assert_eq!(chosen.len(), CHECKS);
        for kind in ["q8_0", "q4_K", "q2_K"].map(kind) {
            assert!(chosen.iter().filter(|(_, of)| *of == kind).count() >= 1);
        }
        assert!(chosen.iter().all(|(of, kind)| of.measured_type != *kind));
        let names: BTreeSet<&String> = chosen.iter().map(|(of, _)| &of.name).collect();
        assert_eq!(names.len(), CHECKS);
    }
}
