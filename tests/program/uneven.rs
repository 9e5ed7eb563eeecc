//! Windows of very different length: ratios and means leave out each cluster in turn.

use std::fs::File;
use std::io::BufWriter;

use kl_formats::{
    ModelIdentity, ReferenceSummary, SidecarHeader, SidecarWriter, TokenRecord, TokenTexts,
};
use serde_json::Value;

use crate::numbers::number;
use crate::session::Session;

/// The number of tokens in each of twelve windows.
const LENGTHS: [u32; 12] = [512, 40, 77, 300, 12, 64, 128, 90, 256, 33, 18, 410];

/// Two models, and the sums of their KLDs in these windows.
const MODELS: [(&str, &str); 2] = [
    (
        "a",
        "1.82001708 0.105464267 0.278029934 1.14397888 0.0352089524 0.200441107 0.462558862 \
         0.293086672 0.843869397 0.0877133277 0.091455171 1.34046085",
    ),
    (
        "b",
        "1.20850721 0.0882664211 0.15948416 0.890344218 0.0126945346 0.163503814 0.22402015 \
         0.218194843 0.4508315 0.0546602235 0.041691472 0.788706436",
    ),
];

/// Writes the sidecar of a model, in which all tokens of a window are alike.
fn write(session: &Session, name: &str, sums: &str) {
    let mut header = SidecarHeader::new(ReferenceSummary::default(), 1024, 64, None);
    header.model = Some(ModelIdentity::named(format!("{name}.gguf")));
    header.label = Some(name.to_owned());
    let path = session.path(&format!("{name}.kls"));
    let file = BufWriter::new(File::create(&path).unwrap());
    let mut sidecar = SidecarWriter::create(file, &path, &header).unwrap();
    for (window, (n, sum)) in (0..).zip(LENGTHS.into_iter().zip(sums.split(' '))) {
        let sum: f64 = sum.parse().unwrap();
        for position in 0..n {
            let record = TokenRecord {
                window,
                position,
                kld: sum / f64::from(n),
                ref_top_rank: 1,
                eval_top_rank: 1,
                ..TokenRecord::default()
            };
            sidecar.push(&record).unwrap();
        }
    }
    sidecar.finish(&TokenTexts::default()).unwrap();
}

#[track_caller]
fn six_digits(got: &Value, expected: f64) {
    let got = number(got);
    assert!((got / expected - 1.0).abs() < 5e-6, "{got}, not {expected}");
}

/// The figures are numpy's and scipy's: each cluster left out in turn, on the logarithm, and Student's t.
#[test]
fn ratios_and_means_leave_out_each_cluster_in_turn() {
    let session = Session::new();
    for (name, sums) in MODELS {
        write(&session, name, sums);
    }
    let run = session.ok("report a.kls b.kls --json report.json");
    run.prints(&["by window (12 clusters, worth 7 of equal length)"]);
    run.warns(&["the intervals rest on 12 windows that are worth 7 of equal length"]);
    let report = session.read_json("report.json");
    for (key, expected) in [
        ("/clusters/n_effective", 6.036770),
        ("/models/1/ratio_to_best/value", 1.55834),
        ("/models/1/ratio_to_best/se_ln", 0.0580882),
        ("/models/1/ratio_to_best/lo", 1.34263),
        ("/models/1/ratio_to_best/hi", 1.80871),
        ("/models/1/ratio_to_best/upper", 1.75152),
        ("/models/1/ratio_to_best/p", 0.000592674),
        ("/models/1/kld/mean/value", 0.003454786),
        ("/models/1/kld/mean/cluster_lo", 0.003220097),
        ("/models/1/kld/mean/cluster_hi", 0.003706580),
    ] {
        six_digits(report.pointer(key).unwrap(), expected);
    }
}
