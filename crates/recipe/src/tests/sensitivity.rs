//! Maps of sensitivity on the fake engine: what is measured, resumed and refused.

use kl_formats::{Cell, Encoding, GgmlType, Kind, SensitivityMap};
use kl_measure::commands::output::Existing;
use kl_measure::input::Source;
use kl_stats::stats::Confidence;

use super::*;
use crate::settings::{MapInput, SensitivitySettings};
use crate::{Mapped, sensitivity};

fn kind(name: &str) -> GgmlType {
    name.parse().unwrap()
}

fn total(cell: &Cell) -> f64 {
    cell.klds.iter().sum::<f64>() / f64::from(cell.n_tokens.iter().sum::<u32>())
}

impl MapFolder {
    pub(super) fn map_settings(&self, name: &str) -> SensitivitySettings {
        SensitivitySettings {
            model: self.path("f16"),
            input: MapInput::Text(Source::one_text(&self.path("text"), 32)),
            max_tokens: Some(500),
            output: self.path(name),
            existing: Existing::by_flags(false, Some(false)),
            types: Vec::new(),
            measured_type: None,
            imatrix: None,
            tensors: None,
            max_singles: 120,
            seed: 1,
            part: None,
            confidence: Confidence::default(),
            run: exchangeable_run(),
        }
    }

    pub(super) fn map(&self, settings: &SensitivitySettings) -> Mapped {
        sensitivity(settings, &FakeEngine::default(), &()).unwrap()
    }

    fn refused(&self, settings: &SensitivitySettings) -> String {
        let refused = sensitivity(settings, &FakeEngine::default(), &());
        one_line(&refused.unwrap_err())
    }

    fn read(&self, name: &str) -> SensitivityMap {
        SensitivityMap::read(&self.path(name)).unwrap()
    }
}

#[test]
fn a_map_has_a_control_all_tensors_alone_and_together_and_checks() {
    let folder = MapFolder::new();
    let mapped = folder.map(&folder.map_settings("map"));
    let map = folder.read("map");
    assert!(!map.is_cut_off && !mapped.file.was_whole);
    assert_eq!(map.header.windows.len(), 17);
    assert_eq!(map.header.seed, Some(1));
    let n_windows = |cell: &Cell| cell.klds.len();
    let control = &map.cells[0];
    let wholes = map.cells.iter().filter(|cell| cell.exchanged.len() == 8);
    let kind_of = |cell: &Cell| cell.exchanged["output.weight"];
    let wholes: Vec<(GgmlType, &Cell)> = wholes.map(|cell| (kind_of(cell), cell)).collect();
    let kinds: Vec<GgmlType> = wholes.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, ["q8_0", "q2_K", "q3_K", "q4_K", "q6_K"].map(kind));
    let whole = wholes[2].1;
    assert!(control.exchanged.is_empty() && control.klds.iter().all(|kld| *kld == 0.0));
    assert_eq!((n_windows(control), n_windows(whole)), (16, 17));
    let tensors = map.header.tensors.iter().filter(|of| of.is_quantizable);
    let names: Vec<&str> = tensors.map(|of| of.name.as_str()).collect();
    assert_eq!(names.len(), 8);
    assert!(names.iter().all(|name| map.errors.contains_key(*name)));
    assert_eq!(whole.exchanged.len(), names.len());

    // Each alone, at the measured type or the nearest that fits: a row of 96 has blocks of 32.
    let singles = map.cells.iter().filter(|cell| cell.exchanged.len() == 1);
    let (measured, checks): (Vec<&Cell>, Vec<&Cell>) = singles.partition(|cell| {
        cell.exchanged.iter().all(|(name, of)| {
            *of == match name.as_str() {
                "blk.1.ffn_down.weight" => kind("q4_0"),
                _ => kind("q3_K"),
            }
        })
    });
    let alone = measured.iter().flat_map(|cell| cell.exchanged.keys());
    assert!(alone.eq(&names));
    // Six checks, and each role of one tensor at a type of many bits.
    let at_many_bits = |cell: &&&Cell| cell.exchanged.values().all(|of| of.bits() > 6.0);
    assert_eq!(checks.iter().filter(|cell| !at_many_bits(cell)).count(), 4);
    for role in ["token_embd.weight", "output.weight"] {
        let mut checks = checks.iter().filter(at_many_bits);
        let is_there = checks.any(|cell| cell.exchanged.contains_key(role));
        assert!(is_there, "{role}");
    }
    // The fake model's weights are as sensitive as it says, and add up.
    let sum: f64 = measured.iter().map(|cell| total(cell)).sum();
    assert!((0.7..1.4).contains(&(sum / total(whole))), "{sum}");
    let of = |name: &str| total(measured[names.iter().position(|of| *of == name).unwrap()]);
    assert!(of("blk.0.attn_v.weight") > 2.0 * of("blk.0.attn_q.weight"));
    // Tensors of doubtful share are looked at longer.
    let looks: Vec<usize> = measured.iter().map(|cell| n_windows(cell)).collect();
    assert!(looks.contains(&2) && looks.iter().any(|n| *n > 2));
    let sensitivity = mapped.sensitivity.unwrap();
    assert_eq!(sensitivity.tensors.len(), names.len());
    assert_eq!(sensitivity.control, Some(0.0));
}

#[test]
fn a_map_is_resumed_after_any_cell_to_the_same_bytes() {
    let folder = MapFolder::new();
    let short = |name: &str| SensitivitySettings {
        max_tokens: Some(120),
        ..folder.map_settings(name)
    };
    folder.map(&short("whole"));
    let whole = folder.bytes("whole");
    let lines: Vec<usize> = (1..=whole.len())
        .filter(|&n| whole[n - 1] == b'\n')
        .collect();
    let mut settings = short("map");
    settings.existing = Existing::Resume;
    settings.run.threads = 2;
    let partial = folder.path("map.partial");
    // After each line, within one, and within the header.
    let cuts = lines.iter().flat_map(|&end| [end, end.saturating_sub(7)]);
    for cut in cuts.chain([40]) {
        fs::write(&partial, &whole[..cut]).unwrap();
        let _ = fs::remove_file(folder.path("map"));
        folder.map(&settings);
        let is_whole = folder.bytes("map") == whole;
        assert!(is_whole || cut < lines[0], "cut at {cut}");
    }
    // The last was made anew: its header has other threads, and so its last line another checksum.
    let again = folder.map(&settings);
    let cells = &whole[lines[0]..lines[lines.len() - 2]];
    let bytes = folder.bytes("map");
    let has_cells = bytes.windows(cells.len()).any(|of| of == cells);
    assert!(again.file.was_whole && has_cells);

    // A copy of what was being written, and a damaged map.
    fs::write(folder.path("map"), &whole[..lines[7]]).unwrap();
    assert!(!folder.map(&settings).file.was_whole);
    assert!(folder.bytes("map") == whole && !folder.path("map.partial").exists());
    let mut damaged = whole.clone();
    damaged[lines[7] + 3] ^= 1;
    fs::write(folder.path("map"), &damaged).unwrap();
    says(folder.refused(&settings), &["line 9", "--force"]);
    assert!(folder.bytes("map") == damaged);
    fs::write(folder.path("map"), &whole).unwrap();

    settings.seed = 2;
    assert!(folder.refused(&settings).contains("seed: 1 there, 2 here"));
    settings.existing = Existing::by_flags(false, Some(false));
    assert!(folder.refused(&settings).contains("exists already"));
}

/// The windows of a smaller `-n` are the first of a larger one's: a map is extended, or has more than is asked for.
#[test]
fn a_map_grows_and_is_used_where_it_has_more() {
    let folder = MapFolder::new();
    let with = |name: &str, max_tokens: u64, existing: Existing| SensitivitySettings {
        max_tokens: Some(max_tokens),
        types: ["q4_K", "q2_K"].map(kind).to_vec(),
        existing,
        ..folder.map_settings(name)
    };
    let new = || Existing::by_flags(false, Some(false));
    folder.map(&with("long", 300, new()));
    folder.map(&with("short", 120, new()));
    let (long, short) = (folder.read("long"), folder.read("short"));
    assert_eq!(
        (long.header.windows.len(), short.header.windows.len()),
        (10, 4)
    );

    // A whole map, and one that was cut off.
    let bytes = folder.bytes("short");
    let lines = Vec::from_iter((1..=bytes.len()).filter(|&n| bytes[n - 1] == b'\n'));
    let half = lines[lines.len() / 2];
    for (whole, cut_off) in [(Some(&bytes[..]), None), (None, Some(&bytes[..half]))] {
        let _ = fs::remove_file(folder.path("short"));
        for (name, bytes) in [("short", whole), ("short.partial", cut_off)] {
            if let Some(bytes) = bytes {
                fs::write(folder.path(name), bytes).unwrap();
            }
        }
        let grown = folder.map(&with("short", 300, Existing::Resume));
        assert!(!grown.file.was_whole && !folder.path("short.partial").exists());
        let grown = folder.read("short");
        assert_eq!(grown.header, long.header);
        for cell in &grown.cells {
            let same = long
                .cells
                .iter()
                .find(|of| of.exchanged == cell.exchanged)
                .unwrap();
            let n = cell.klds.len().min(same.klds.len());
            assert_eq!(cell.klds[..n], same.klds[..n], "{:?}", cell.exchanged);
            // A cell of 4 windows is not measured less well than in the map of more.
            assert!(n == same.klds.len(), "{n} of {}", same.klds.len());
        }
        assert_eq!(grown.cells.len(), long.cells.len());
    }

    // Nothing is left to do for fewer windows, and nothing is lost.
    let bytes = folder.bytes("long");
    let used = folder.map(&with("long", 60, Existing::Resume));
    assert!(used.file.was_whole && folder.bytes("long") == bytes);
    let lines = Vec::from_iter((1..=bytes.len()).filter(|&n| bytes[n - 1] == b'\n'));
    let half = lines[lines.len() / 2];
    fs::remove_file(folder.path("long")).unwrap();
    fs::write(folder.path("long.partial"), &bytes[..half]).unwrap();
    folder.map(&with("long", 60, Existing::Resume));
    let (finished, begun) = (folder.bytes("long"), &bytes[..lines[0]]);
    assert!(finished.starts_with(begun));
    let n_windows = |of: &Cell| of.klds.len();
    let found = Vec::from_iter(folder.read("long").cells.iter().map(n_windows));
    assert!(
        found.contains(&2) && found.iter().any(|&n| n > 2),
        "{found:?}"
    );

    // Other windows are another run.
    let mut other = with("long", 300, Existing::Resume);
    other.seed = 2;
    says(folder.refused(&other), &["seed: 1 there, 2 here"]);
}

/// A digit that has changed in a map that was cut off is an error, never another map.
#[test]
fn no_changed_digit_of_a_map_that_was_cut_off_is_resumed() {
    let folder = MapFolder::new();
    let mut settings = SensitivitySettings {
        max_tokens: Some(60),
        types: ["q4_K", "q2_K"].map(kind).to_vec(),
        tensors: Some(regex::Regex::new("attn_q").unwrap()),
        ..folder.map_settings("map")
    };
    folder.map(&settings);
    let whole = folder.bytes("map");
    fs::remove_file(folder.path("map")).unwrap();
    settings.existing = Existing::Resume;
    let end = whole
        .windows(8)
        .position(|bytes| bytes == b"{\"n_line")
        .unwrap();
    let partial = folder.path("map.partial");
    let digits = (0..end).filter(|&i| whole[i].is_ascii_digit());
    for i in digits.step_by(13) {
        let mut damaged = whole[..end].to_vec();
        damaged[i] = if damaged[i] == b'7' { b'3' } else { b'7' };
        fs::write(&partial, &damaged).unwrap();
        says(folder.refused(&settings), &["checksum", "--force"]);
        assert!(folder.bytes("map.partial") == damaged && !folder.path("map").exists());
    }
    // Lines of version 0.1.0 have no checksums: nothing shows that they are as they were written.
    let text = String::from_utf8(whole[..end].to_vec()).unwrap();
    let without = |line: &str| {
        line.rfind(",\"crc32\"")
            .map(|at| line[..at].to_owned() + "}\n")
    };
    let earlier: String = text.lines().filter_map(without).collect();
    fs::write(&partial, &earlier).unwrap();
    says(folder.refused(&settings), &["have no checksums", "--force"]);
    assert_eq!(fs::read_to_string(&partial).unwrap(), earlier);
    fs::write(&partial, &whole[..end]).unwrap();
    folder.map(&settings);
    assert!(folder.bytes("map") == whole);
}

#[test]
fn an_exact_reference_gives_the_rows() {
    let folder = MapFolder::new();
    folder.write("ref");
    let mut settings = folder.map_settings("map");
    settings.input = MapInput::Reference(folder.path("ref"));
    folder.map(&settings);
    let map = folder.read("map");
    assert!(map.header.reference.is_some());
    assert_eq!(map.header.n_ctx, 64);
    assert!(map.cells[0].klds.iter().all(|kld| *kld == 0.0));

    settings.existing = Existing::Replace;
    settings.model = folder.path("q4");
    says(folder.refused(&settings), &["does not hold the rows of"]);
    let mut rounded = folder.write_settings("rounded");
    rounded.target = target(Kind::Kl, Some(Encoding::U16));
    written(&rounded);
    settings.input = MapInput::Reference(folder.path("rounded"));
    says(folder.refused(&settings), &["--encoding f32 or hidden"]);
}

#[test]
fn only_tensors_that_match_are_measured() {
    let folder = MapFolder::new();
    let mut settings = folder.map_settings("map");
    settings.tensors = Some(regex::Regex::new("attn_[qv]").unwrap());
    settings.types = ["q4_K", "q2_K"].map(kind).to_vec();
    folder.map(&settings);
    let map = folder.read("map");
    assert_eq!(map.errors.len(), 4);
    let of_others = |cell: &Cell| cell.exchanged.keys().any(|name| !name.contains("attn"));
    assert!(!map.cells.iter().any(of_others));
    assert!(map.cells.iter().any(|cell| cell.exchanged.len() == 4));
}
