//! A comparison built by hand, which is the same on every machine: for the tests of every output.

use std::path::Path;

use kl_formats::{BackendIdentity, TokenRecord};
use kl_stats::stats::{
    ClusterRule, Clustering, Clusters, Confidence, Estimate, IdenticalOutput, Paired,
    PairedComparison, Ratio, Run, SharePoint, SpanRatio, WindowSums,
};

use super::made_up;
use crate::comparison::{
    ComparedModel, ComparedPair, ComparedReference, Comparison, DEFAULT_NEAR, InDepth,
    InDepthToken, NotCompared, PairKind, RatioToBest,
};
use crate::few_windows;
use crate::{TopToken, WorstText, WorstToken};

const WINDOWS: u32 = 12;
const ROWS: u32 = 80;

/// Six models: the noise floor, the best, one that cannot be told from it, two that are worse, and
/// stored rows of a model of unknown size.
pub fn comparison() -> Comparison {
    let mut models = vec![
        model("tiny-f16", 4_000_000, 0.001),
        ComparedModel {
            indistinguishable_from_best: true,
            ..model("tiny-q4_K_M", 1_250_000, 0.5)
        },
        ComparedModel {
            indistinguishable_from_best: true,
            ..farther("tiny-iq4_xs", 1_150_000, 0.52, [1.04, 0.0002], [0.42, 0.42])
        },
        farther("tiny-q4_0", 1_200_000, 1.0, [2.0, 0.0061], [0.004, 0.012]),
        farther("tiny-q2_K", 850_000, 4.5, [9.0, 0.0427], [1e-9, 4e-9]),
        farther("other.npz", 0, 6.0, [12.0, 0.06], [1e-7, 3e-7]),
    ];
    for i in [1, 2, 4] {
        models[i].pareto = true;
    }
    (models[0].is_reference_model, models[0].is_noise_floor) = (true, true);
    let stored = &mut models[5];
    stored.set_up = BackendIdentity::default();
    (stored.model.size_bytes, stored.model.file_bytes) = (None, None);
    stored.model.bpw = None;
    for worst in &mut stored.top {
        worst.text = None;
        (worst.ref_top.text, worst.eval_top.text) = (None, None);
    }
    let (best, size) = (PairKind::Best, PairKind::Size);
    let pairs = [
        (best, 2, 1, [1.04, 0.0002], 0.42, 0.49),
        (best, 3, 1, [2.0, 0.0061], 0.004, 0.31),
        (best, 4, 1, [9.0, 0.0427], 1e-9, 0.04),
        (best, 5, 1, [12.0, 0.06], 1e-7, 0.02),
        (size, 4, 2, [8.65, 0.0425], 1e-9, 0.05),
        (size, 2, 3, [0.52, -0.0059], 0.006, 0.68),
    ];
    let pairs = pairs.map(
        |(kind, a, b, [times, less], p, share): (_, usize, usize, _, _, _)| ComparedPair {
            kind,
            a: models[a].label.clone(),
            b: models[b].label.clone(),
            paired: Paired {
                n_tokens: u64::from(WINDOWS * ROWS),
                ratio: Some(ratio(times, p)),
                difference: difference(less),
                share_a_nearer: Some(share),
            },
        },
    );
    let clusters = Clustering {
        n: WINDOWS.into(),
        n_effective: WINDOWS.into(),
        windows_per_block: 1,
        autocorrelation: Some(0.125),
        ..Clustering::default()
    };
    let another = "was evaluated against another reference (wiki.gz): report it apart";
    Comparison {
        versions: made_up::VERSIONS,
        reference: reference(),
        confidence: Confidence::default(),
        near: DEFAULT_NEAR,
        for_context: None,
        floor: None,
        clusters: Some(clusters),
        models,
        pairs: pairs.to_vec(),
        not_compared: vec![
            NotCompared::new(Path::new("old.kls"), another),
            NotCompared::new(Path::new("q5_1.kls.partial"), "is not done yet"),
        ],
        warnings: Vec::from_iter(few_windows(&clusters, WINDOWS.into(), "window")),
    }
}

/// 200 greedy answers, cut at 64 tokens, of which the share `e^(-t / life)` is the same for t tokens.
pub fn identical(life: f64) -> IdenticalOutput {
    const N_TOKENS: u32 = 64;
    let share = |tokens: u32| (-f64::from(tokens) / life).exp();
    let n_differ = (200.0 * (1.0 - share(N_TOKENS))).round() as u64;
    let identical = 1.0 - n_differ as f64 / 200.0;
    let half = -life * (0.5 + 0.5 * identical).ln();
    let within = |share: f64| Estimate::within(share, share.powf(1.2), share.powf(0.8));
    let points = (0..=N_TOKENS).map(|tokens| {
        let Estimate {
            value: share,
            lo,
            hi,
        } = within(share(tokens));
        SharePoint {
            tokens,
            share,
            lo,
            hi,
        }
    });
    IdenticalOutput {
        n_answers: 200,
        n_near_ties: 0,
        n_unknown: 0,
        n_cut_short: 0,
        cut_at: Some(N_TOKENS),
        n_differ,
        half_differ_within: Some(half.ceil() as u32).filter(|_| n_differ > 0),
        n_ended: (200 - n_differ) / 2,
        same_to_the_end: Some(within(identical)),
        curve: points.collect(),
    }
}

/// The first two models of a comparison in depth, from their records; `None` if they share no token.
pub fn in_depth(comparison: &Comparison, [a, b]: [&[TokenRecord]; 2]) -> Option<InDepth> {
    const N_TOP: usize = 10;
    let spans = made_up::SPANS.map(str::to_owned);
    let paired =
        PairedComparison::in_depth(a, b, &spans, &clusters(a), comparison.confidence, N_TOP)?;
    let word = |word: &str| Some(word.to_owned());
    let describe = |token| InDepthToken {
        token,
        text: Some(WorstText {
            before: "Once upon a \"time\"\nthere was a dragon who".to_owned(),
            next: word(" lived"),
        }),
        ref_top_text: word(" lived"),
        top_a_text: word(" loved"),
        top_b_text: word(" was"),
    };
    let top = paired.top.iter().copied().map(describe).collect();
    let models = [&comparison.models[0], &comparison.models[1]];
    Some(InDepth::new(comparison, models, paired, top))
}

/// The clusters of records.
pub fn clusters(records: &[TokenRecord]) -> Clusters {
    let klds: Vec<f64> = records.iter().map(|record| record.kld).collect();
    Clusters::by_rule(
        &WindowSums::from_tokens(&Run::from_records(records), &klds),
        ClusterRule::Auto,
    )
}

/// A model whose mean KLD is so many times that of the best, and so many nats more, with the p-value of the ratio
/// and Holm's.
fn farther(
    label: &str,
    size_bytes: u64,
    scale: f64,
    [times, nats]: [f64; 2],
    [p, p_holm]: [f64; 2],
) -> ComparedModel {
    // One of them is twice as much worse in tool calls, by more than chance.
    let (more, p_of_span) = if label == "tiny-q4_0" {
        (2.0, 0.004)
    } else {
        (1.1, 0.5)
    };
    ComparedModel {
        ratio_to_best: Some(RatioToBest {
            ratio: ratio(times, p),
            p_holm: Some(p_holm),
        }),
        ratio_to_best_by_span: vec![
            in_span("answer", 0.9 * times, 1.0 / more, p_of_span),
            in_span("tool call", 0.9 * more * times, more, p_of_span),
        ],
        difference_to_best: Some(difference(nats)),
        ..model(label, size_bytes, scale)
    }
}

/// A ratio on the tokens of a span, which is so many times that on the others.
fn in_span(label: &str, value: f64, times: f64, p_holm: f64) -> SpanRatio {
    SpanRatio {
        label: label.to_owned(),
        n_tokens: if label == "answer" { 840 } else { 120 },
        ratio: Some(ratio(value, 0.004)),
        to_others: Some(ratio(times, p_holm / 4.0)),
        p_holm: Some(p_holm),
    }
}

fn difference(value: f64) -> Estimate {
    Estimate::within(value, value - 0.0004, value + 0.0005)
}

/// A ratio whose interval is 11 % wide to either side.
pub fn ratio(value: f64, p: f64) -> Ratio {
    Ratio {
        value,
        se_ln: Some(0.05),
        lo: Some(0.9 * value),
        hi: Some(1.11 * value),
        upper: Some(1.09 * value),
        p: Some(p),
    }
}

fn reference() -> ComparedReference {
    let reference = made_up::reference();
    ComparedReference {
        file_name: Some(reference.path),
        kind: reference.kind,
        model: reference.model,
        text: reference.text,
        fingerprint: Some("0123abcd".to_owned()),
        backend: reference.backend,
        n_ctx: ROWS,
        n_vocab: 512,
        ..ComparedReference::default()
    }
}

/// A model whose KLDs are `scale` times those of made-up records.
pub fn model(label: &str, size_bytes: u64, scale: f64) -> ComparedModel {
    let path = format!("{label}.gguf");
    let mut result = made_up::result(&path, size_bytes, &records(scale), &[]);
    result.label = label.to_owned();
    result.summary.identical_output = Some(identical(40.0 / scale));
    let shares = (0..20).map(|i| f64::from(i) / 20.0);
    let ccdf = shares.map(|share| (scale * 0.025 * share, 1.0 - share));
    let means = (0..WINDOWS).map(|i| 0.012 + f64::from(i % 5) / 1000.0);
    let by_window = means.zip(0..).map(|(mean, i)| (f64::from(i), scale * mean));
    ComparedModel {
        result,
        sidecar: format!("{path}.kls"),
        is_as_near: label == "tiny-q4_K_M",
        set_up: made_up::reference().backend.unwrap_or_default(),
        ccdf: ccdf.collect(),
        by_window: by_window.collect(),
        top: vec![
            worst(scale, "Once upon a \"time\"\n", true),
            worst(scale / 2.0, "</script>", false),
        ],
        ..ComparedModel::default()
    }
}

pub fn records(scale: f64) -> Vec<TokenRecord> {
    let mut records = made_up::records(WINDOWS, ROWS);
    for record in &mut records {
        record.kld *= scale;
        record.reverse_kld *= scale;
        record.span = 1 + u32::from(record.position % 8 == 7);
    }
    records
}

fn worst(kld: f64, before: &str, has_next: bool) -> WorstToken {
    let top = |token, text: &str, p| TopToken {
        token,
        text: Some(text.to_owned()),
        p: Some(p),
    };
    WorstToken {
        window: 1,
        position: 62,
        kld,
        next_token: has_next.then_some(3),
        text: Some(WorstText {
            before: before.to_owned(),
            next: has_next.then(|| " there".to_owned()),
        }),
        ref_top: top(3, " there", 0.75),
        eval_top: top(5, ",", 0.5),
    }
}
