//! Windows of very different length: ratios and means leave out each cluster in turn.

use std::fs::File;
use std::io::BufWriter;

use kl_formats::{
    ModelIdentity, ReferenceSummary, SidecarHeader, SidecarWriter, TokenRecord, TokenTexts,
};
use serde_json::Value;

use crate::numbers::number;
use crate::session::{Session, fixture};

/// Made-up windows: the number of tokens of each, and its group.
struct Windows(Vec<(u32, u32)>);

impl Windows {
    fn of(lengths: impl IntoIterator<Item = u32>) -> Self {
        Self(lengths.into_iter().map(|n| (n, 0)).collect())
    }

    /// Writes the sidecar of a model with these sums of KLDs, in which all tokens of a window are alike.
    fn write(&self, session: &Session, name: &str, sums: &[f64]) {
        let mut header = SidecarHeader::new(ReferenceSummary::default(), 1024, 64, None);
        header.model = Some(ModelIdentity::named(format!("{name}.gguf")));
        header.label = Some(name.to_owned());
        header.groups = ["one", "other"].map(str::to_owned).into();
        let path = session.path(&format!("{name}.kls"));
        let file = BufWriter::new(File::create(&path).unwrap());
        let mut sidecar = SidecarWriter::create(file, &path, &header).unwrap();
        for (window, (&(n, group), sum)) in (0..).zip(self.0.iter().zip(sums)) {
            for position in 0..n {
                let kld = sum / f64::from(n);
                sidecar
                    .push(&TokenRecord {
                        window,
                        position,
                        group,
                        kld,
                        reverse_kld: kld,
                        ref_nll: 2.0,
                        eval_nll: 2.0,
                        ref_top_rank: 1,
                        eval_top_rank: 1,
                        ref_entropy: 1.0,
                        ref_top_p: 0.5,
                        eval_top_p: 0.5,
                        ..TokenRecord::default()
                    })
                    .unwrap();
            }
        }
        sidecar.finish(&TokenTexts::default()).unwrap();
    }

    /// The ratio of two models' sums, as `kl report --pair` gives it.
    fn ratio(&self, a: &[f64], b: &[f64]) -> Value {
        let session = Session::new();
        self.write(&session, "a", a);
        self.write(&session, "b", b);
        let pair = session.json("report a.kls b.kls --pair --cluster window");
        pair["ratio"].clone()
    }
}

#[track_caller]
fn six_digits(got: &Value, expected: f64) {
    let got = number(got);
    assert!((got / expected - 1.0).abs() < 5e-6, "{got}, not {expected}");
}

/// value, se_ln, lo, hi, p, upper.
#[track_caller]
fn is_ratio(got: &Value, expected: [f64; 6]) {
    let keys = ["value", "se_ln", "lo", "hi", "p", "upper"];
    for (key, expected) in keys.into_iter().zip(expected) {
        six_digits(&got[key], expected);
    }
}

/// The figures of this test and the next are numpy's and scipy's: each cluster left out in turn, on the
/// logarithm, and Student's t.
#[test]
#[rustfmt::skip]
fn a_ratio_leaves_out_each_cluster_in_turn() {
    let (a, b) = ([3.0, 5.0, 4.0, 8.0], [2.0, 4.0, 5.0, 6.0]);
    let equal = Windows::of([3; 4]);
    is_ratio(&equal.ratio(&a, &b), [1.17647, 0.131702, 0.773667, 1.78899, 0.305061, 1.60394]);
    is_ratio(&equal.ratio(&b, &a), [0.85, 0.131702, 0.558974, 1.29255, 0.305061, 1.15884]);
    is_ratio(&equal.ratio(&a.map(|x| 10.0 * x), &b), [11.7647, 0.131702, 7.73667, 17.8899, 0.000332884, 16.0394]);
    let strata = Windows(vec![(3, 0), (3, 0), (3, 1), (3, 1)]);
    is_ratio(&strata.ratio(&a, &b), [1.17647, 0.100735, 0.762685, 1.81475, 0.248014, 1.5788]);
    is_ratio(&Windows::of([5, 9, 7, 19]).ratio(&a, &b), [1.17647, 0.131702, 0.684629, 2.02165, 0.33739, 1.7071]);
    let harm: Vec<f64> = (0..10).map(|i| 50.0 * (2e-4 + if i % 5 == 4 { 2e-5 } else { 1e-3 })).collect();
    is_ratio(&Windows::of([50; 10]).ratio(&harm, &[50.0 * 2e-4; 10]), [5.02, 0.126161, 3.77362, 6.67805, 4.46931e-07, 6.32619]);
}

/// Twelve windows of 12 to 512 tokens.
#[test]
#[rustfmt::skip]
fn a_mean_leaves_out_each_cluster_in_turn() {
    let session = Session::new();
    let windows = Windows::of([512, 40, 77, 300, 12, 64, 128, 90, 256, 33, 18, 410]);
    windows.write(&session, "a", &[
        1.82001708, 0.105464267, 0.278029934, 1.14397888, 0.0352089524, 0.200441107, 0.462558862, 0.293086672,
        0.843869397, 0.0877133277, 0.091455171, 1.34046085,
    ]);
    windows.write(&session, "b", &[
        1.20850721, 0.0882664211, 0.15948416, 0.890344218, 0.0126945346, 0.163503814, 0.22402015, 0.218194843,
        0.4508315, 0.0546602235, 0.041691472, 0.788706436,
    ]);
    let run = session.ok("report a.kls b.kls --json report.json");
    run.prints(&["by window (12 clusters, worth 7 of equal length)"]);
    run.warns(&["the intervals rest on 12 windows that are worth 7 of equal length"]);
    let report = session.read_json("report.json");
    six_digits(&report["clusters"]["n_effective"], 6.036770);
    let a = &report["models"][1];
    is_ratio(&a["ratio_to_best"], [1.55834, 0.0580882, 1.34263, 1.80871, 0.000592674, 1.75152]);
    let mean = &a["kld"]["mean"];
    for (key, expected) in [("value", 0.003454786), ("cluster_lo", 0.003220097), ("cluster_hi", 0.003706580)] {
        assert!((number(&mean[key]) - expected).abs() < 5e-10, "{key}: {mean}");
    }
}

/// The sums of KLDs of seventeen quants in 33 windows, and in ten blocks of these.
#[test]
#[rustfmt::skip]
fn ratios_of_real_quants() {
    let quants = std::fs::read_to_string(fixture("quants.csv")).unwrap();
    let sums = |name: &str| -> Vec<f64> {
        let mut lines = quants.lines().map(|line| line.split(','));
        let mut line = lines.find(|line| line.clone().next() == Some(name)).unwrap();
        line.nth(1);
        line.map(|sum| sum.parse().unwrap()).collect()
    };
    let (windows, blocks) = (Windows::of([127; 33]), Windows::of([127; 10]));
    let in_blocks = |name: &str| {
        let mut blocks = vec![0.0; 10];
        sums(name).iter().enumerate().for_each(|(window, sum)| blocks[window * 10 / 33] += sum);
        blocks
    };
    is_ratio(&windows.ratio(&sums("q4_1"), &sums("q8_0")), [25.9048, 0.0504773, 23.3736, 28.71, 1.89036e-35, 28.2172]);
    is_ratio(&blocks.ratio(&in_blocks("q4_1"), &in_blocks("q8_0")), [25.9048, 0.0500665, 23.1309, 29.0113, 2.43638e-13, 28.3948]);
    is_ratio(&windows.ratio(&sums("rec3.498"), &sums("iq3_s")), [0.972078, 0.0539632, 0.870891, 1.08502, 0.603349, 1.06512]);
    let p_holm = |names: &[&str]| {
        let session = Session::new();
        names.iter().for_each(|name| windows.write(&session, name, &sums(name)));
        let report = session.json("report . --cluster window");
        let models = report["models"].as_array().unwrap().clone();
        models.into_iter().map(|model| (model["label"].as_str().unwrap().to_owned(), model["ratio_to_best"]["p_holm"].clone())).collect::<Vec<_>>()
    };
    let names: Vec<&str> = quants.lines().skip(1).map(|line| line.split(',').next().unwrap()).collect();
    let all = p_holm(&names);
    assert_eq!(all[0].0, "q8_0");
    let largest = all[1..].iter().max_by(|(_, p), (_, q)| number(p).total_cmp(&number(q))).unwrap();
    six_digits(&largest.1, 2.55723e-29);
    let six = p_holm(&["iq4_nl", "q4_1", "iq4_xs", "rec4.488", "q4_0", "q3_K_M"]);
    assert_eq!(six[0].0, "iq4_nl");
    for (label, p) in [("q4_1", 0.353659), ("iq4_xs", 3.37569e-07), ("rec4.488", 0.000796266), ("q4_0", 2.35625e-05), ("q3_K_M", 4.64933e-13)] {
        six_digits(&six.iter().find(|(of, _)| of == label).unwrap().1, p);
    }
}
