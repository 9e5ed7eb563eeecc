//! Reports from numbers built by hand, which are the same on every machine.

use kl_formats::{Kind, States, TokenRecord, Values};
use kl_stats::score::LogitMetrics;
use kl_stats::stats::{
    ClusterRule, Clusters, Confidence, LlamaPerplexity, LogitSummary, PartNames, PromptStats,
    TokenTable, is_counted,
};
use serde_json::json;

use crate::{
    DivergentToken, Interrupted, ModelInfo, ModelReport, ModelResult, PromptReport, PromptsInfo,
    ReferenceInfo, StatesInfo, TimingInfo, TokenColumns, TopToken, Versions,
};

/// Versions that stay the same when the program's changes.
pub const VERSIONS: Versions = Versions {
    kl_version: "0",
    json_version: 2,
};

/// The names of the spans that records number.
pub const SPANS: [&str; 3] = ["prompt", "answer", "tool call"];

/// Records of `n_windows` windows of `n_rows` rows; the last row of a window has no next token.
pub fn records(n_windows: u32, n_rows: u32) -> Vec<TokenRecord> {
    let mut records = Vec::new();
    for window in 0..n_windows {
        for position in 0..n_rows {
            let i = window * n_rows + position;
            let kld = f64::from(i * 37 % 101 + window) / 4096.0;
            let has_next = position + 1 < n_rows;
            let nll = |nll: f64| if has_next { nll } else { f64::NAN };
            let ref_nll = f64::from(i * 13 % 32) / 16.0;
            let same_top = i % 10 != 3;
            records.push(TokenRecord {
                window,
                position,
                token: if has_next { i % 7 } else { u32::MAX },
                flags: 0,
                ref_top: i % 5,
                eval_top: if same_top { i % 5 } else { 5 },
                ref_top_rank: if same_top { 1 } else { 2 + i % 11 },
                eval_top_rank: if same_top { 1 } else { 2 + i % 13 },
                kld,
                reverse_kld: kld + f64::from(i % 3) / 8192.0,
                ref_nll: nll(ref_nll),
                eval_nll: nll(ref_nll + f64::from(i % 8) / 64.0 - 0.03125),
                ref_entropy: 1.5,
                ref_top_p: 0.5,
                eval_top_p: 0.25,
                ref_unknown_p: 0.0,
                group: 0,
                span: 0,
                acceptance: 1.0 - f64::from(i * 37 % 101) / 1024.0,
            });
        }
    }
    records
}

/// Records of greedy answers of `n` tokens, one for each of `differ_at`: the number of the token, from 1,
/// that the model would have chosen otherwise. The model ended the first `n_ended`; the others are cut.
pub fn greedy(n: u32, differ_at: &[u32], n_ended: u32) -> Vec<TokenRecord> {
    let mut records = records(differ_at.len() as u32, n + 1);
    records.retain(|record| record.next_token().is_some());
    for record in &mut records {
        let number = record.position + 1;
        let differs = differ_at.get(record.window as usize) == Some(&number);
        record.flags |= TokenRecord::NEXT_IS_GREEDY;
        if number == n && record.window < n_ended {
            record.flags |= TokenRecord::NEXT_ENDS_ANSWER;
        }
        record.ref_top = record.token;
        record.eval_top = record.token + u32::from(differs);
    }
    records
}

/// Makes every row at `position` one that is not finite.
pub fn exclude(records: &mut [TokenRecord], position: u32) {
    for record in records.iter_mut().filter(|r| r.position == position) {
        record.flags = TokenRecord::EVAL_NOT_FINITE;
        record.kld = f64::NAN;
    }
}

/// Removes the next token from every record, as where no file holds token ids.
pub fn without_next_tokens(records: &mut [TokenRecord]) {
    for record in records {
        record.token = u32::MAX;
        record.ref_nll = f64::NAN;
        record.eval_nll = f64::NAN;
    }
}

/// Distances between logits, one per record.
pub fn metrics(records: &[TokenRecord]) -> Vec<LogitMetrics> {
    let metrics = |record: &TokenRecord| LogitMetrics {
        mean_abs_diff: record.kld,
        max_abs_diff: 4.0 * record.kld,
        cosine_distance: record.kld / 8.0,
        jensen_shannon: record.kld / 4.0,
        smoothed_kld: record.kld / 2.0,
    };
    records.iter().map(metrics).collect()
}

pub fn logits(records: &[TokenRecord], only_log_probabilities: bool) -> LogitSummary {
    let mut counted = records.to_vec();
    counted.retain(is_counted);
    let metrics = metrics(&counted);
    let (confidence, rule) = (Confidence::default(), ClusterRule::default());
    let table = TokenTable::from_records(records);
    LogitSummary::from_metrics(&table, &metrics, only_log_probabilities, confidence, rule)
}

/// A model of a known size.
pub fn model(path: &str, size_bytes: u64) -> ModelInfo {
    ModelInfo {
        path: path.to_owned(),
        name: Some("tiny\tstories".to_owned()),
        architecture: Some("llama".to_owned()),
        size_bytes: Some(size_bytes),
        file_bytes: Some(size_bytes),
        n_params: Some(2_000_000),
        bpw: Some(size_bytes as f64 * 8.0 / 2e6),
        ..ModelInfo::default()
    }
}

/// A report with the statistics of `records` and nothing optional.
pub fn plain(path: &str, records: &[TokenRecord]) -> ModelReport {
    ModelReport {
        set_up: reference().backend,
        result: result(path, 1_250_000, records, &[]),
        ..ModelReport::default()
    }
}

/// A result of records, whose groups have these names.
pub fn result(
    path: &str,
    size_bytes: u64,
    records: &[TokenRecord],
    groups: &[&str],
) -> ModelResult {
    let model = model(path, size_bytes);
    let names: Vec<String> = groups.iter().map(|name| (*name).to_owned()).collect();
    let (confidence, rule) = (Confidence::default(), ClusterRule::default());
    let names = PartNames {
        groups: &names,
        spans: &SPANS.map(str::to_owned),
    };
    let table = TokenTable::from_records(records);
    let clusters = Clusters::by_rule(&table.windows(), rule);
    let statistics = table.summarise(&clusters, names, confidence);
    ModelResult {
        label: model.default_label().to_owned(),
        model,
        n_vocab_compared: Some(512),
        summary: statistics.summary,
        breakdown: statistics.breakdown,
        ..ModelResult::default()
    }
}

/// The same with everything optional that a run over text can print.
pub fn full(path: &str, records: &[TokenRecord]) -> ModelReport {
    let mut report = plain(path, records);
    report.result.n_vocab_compared = Some(500);
    ModelReport {
        llama_perplexity: LlamaPerplexity::of_records(records),
        logits: Some(logits(records, false)),
        max_at_text: Some(" an\n".to_owned()),
        sidecar: Some("model.kls".to_owned()),
        timing: Some(timing()),
        top: Some(top()),
        ..report
    }
}

pub fn timing() -> TimingInfo {
    TimingInfo {
        load_s: 0.0625,
        decode_s: 190.0,
        score_s: 7.5,
        read_s: 2.0,
        write_s: 0.5,
        tokenize_s: None,
        generate_s: None,
        core_wait_s: Some(30.0),
        wall_s: 200.0,
        tokens_per_s: 28_864.0,
        device: Some(crate::DeviceTime {
            busy_s: 188.0,
            waited_cpu_s: 2.0,
            waited_file_s: 10.0,
            busy_share: 0.94,
        }),
    }
}

/// Two tokens with large KLDs, the second at a window's end.
pub fn top() -> Vec<DivergentToken> {
    let top = |token, text: &str, p| TopToken {
        token,
        text: Some(text.to_owned()),
        p: Some(p),
    };
    let at =
        |window, position, kld, context: &str, [ref_top, eval_top]: [TopToken; 2]| DivergentToken {
            window,
            position,
            kld,
            context: context.to_owned(),
            token: None,
            token_text: None,
            ref_top,
            eval_top,
        };
    let tops = [top(3, " there", 0.75), top(5, ",", 0.5)];
    let middle = DivergentToken {
        token: Some(3),
        token_text: Some(" there".to_owned()),
        ..at(1, 62, 0.5, "Once upon a \"time\"\n", tops)
    };
    let tops = [top(4, ".", 0.875), top(4, ".", 0.625)];
    vec![middle, at(2, 79, 0.25, "the end", tops)]
}

pub fn tokens(records: &[TokenRecord]) -> TokenColumns {
    TokenColumns::of(records, |ids| format!("{ids:?}"))
}

pub fn prompts(records: &[TokenRecord]) -> Vec<PromptReport> {
    let labels = ["What is a noun?", "A prompt of\ntwo lines"].map(str::to_owned);
    let stats = PromptStats::of_each(records, Some(&metrics(records)));
    PromptReport::of_each(&labels, stats)
}

/// A native reference of a text, with all that its header can record.
pub fn reference() -> ReferenceInfo {
    let text = json!({"name": "wiki.txt", "bytes": 4096, "sha256": "00ff", "n_tokens": 1000});
    let backend = json!({
        "llama_cpp": "b1", "devices": ["CPU"], "n_gpu_layers": 0, "n_batch": 512, "n_ubatch": 512,
        "threads": 2, "flash_attn": "auto", "type_k": "f16", "type_v": "f16",
    });
    ReferenceInfo {
        path: "ref.gz".to_owned(),
        kind: Some(Kind::Kl),
        n_ctx: 80,
        n_vocab: 512,
        encoding: "u16".to_owned(),
        model: Some(model("tiny-f16.gguf", 4_000_000)),
        first_scored: Some(0),
        n_windows: Some(3),
        text: serde_json::from_value(text).unwrap(),
        backend: serde_json::from_value(backend).unwrap(),
        seed: Some(1),
        stride: Some(40),
        ..ReferenceInfo::default()
    }
}

/// A native reference of hidden states, whose rows are off a little wherever they are computed.
pub fn reference_of_states() -> ReferenceInfo {
    let states = json!({
        "n_embd": 64, "type": "f16", "n_batch": 128, "n_ubatch": 128,
        "head": {
            "name": "token_embd.weight", "type": "q6_K", "type_id": 14, "bytes": 26880,
            "sha256": "00ff",
        },
        "then": [
            {"op": "scale", "factor": 0.5, "bias": 0.0}, {"op": "tanh"},
            {"op": "add", "n_values": 512},
        ],
        "check": {"n_rows": 64, "mean_kld": 0.000_007_629_394_5, "max_kld": 0.000_061_035_156, "rows": []},
    });
    let states: States = serde_json::from_value(states).unwrap();
    let moved = kl_stats::score::RowError {
        n_rows: 8,
        mean_kld: 1e-5,
        max_kld: 0.000_123,
        ..Default::default()
    };
    ReferenceInfo {
        encoding: "hidden".to_owned(),
        states: Some(StatesInfo {
            here: Some(crate::RowsHere {
                device: "CUDA0".to_owned(),
                error: moved,
                is_exact: Some(false),
                shares_model_head: false,
            }),
            ..StatesInfo::new(&states)
        }),
        ..reference()
    }
}

/// A native reference of two prompts, converted from log-probabilities.
pub fn reference_of_prompts() -> ReferenceInfo {
    ReferenceInfo {
        prompts: Some(PromptsInfo {
            n_prompts: 2,
            n_conversations: 2,
            chat_template: Some("00ff".to_owned()),
            generated: Some(5),
            ..PromptsInfo::default()
        }),
        stride: None,
        log_probabilities: true,
        values: Values::FlooredLogProbabilities,
        ..reference()
    }
}

/// A reference that another program wrote, which records little about itself.
pub fn foreign_reference(path: &str, kind: Kind) -> ReferenceInfo {
    ReferenceInfo {
        path: path.to_owned(),
        kind: Some(kind),
        n_ctx: 120,
        n_vocab: 512,
        encoding: "u16".to_owned(),
        log_probabilities: true,
        values: match kind {
            Kind::LlamaCpp => Values::FlooredLogProbabilities,
            _ => Values::LogProbabilities,
        },
        ..ReferenceInfo::default()
    }
}

pub fn interrupted(n_windows: u64, of: Option<u64>) -> Option<Interrupted> {
    Some(Interrupted {
        n_windows,
        of,
        why: None,
    })
}
