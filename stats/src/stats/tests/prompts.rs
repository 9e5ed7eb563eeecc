use serde_json::json;

use super::*;

fn record(window: u32, kld: f64, eval_top: u32) -> TokenRecord {
    TokenRecord {
        window,
        position: 0,
        token: u32::MAX,
        flags: 0,
        ref_top: 7,
        eval_top,
        ref_top_rank: 1,
        eval_top_rank: 1,
        kld,
        reverse_kld: 2.0 * kld,
        ref_nll: f64::NAN,
        eval_nll: f64::NAN,
        ref_entropy: 1.0,
        ref_top_p: 0.5,
        eval_top_p: 0.25,
        ref_unknown_p: 0.0,
        group: 0,
        span: 0,
        acceptance: 0.9,
    }
}

fn metrics(x: f64) -> LogitMetrics {
    LogitMetrics {
        mean_abs_diff: x,
        max_abs_diff: 4.0 * x,
        cosine_distance: 0.5 * x,
        jensen_shannon: 0.25 * x,
        smoothed_kld: 2.0 * x,
    }
}

#[test]
fn each_prompt_has_its_own_numbers_in_the_order_of_the_file() {
    let left_out = TokenRecord {
        flags: TokenRecord::EVAL_NOT_FINITE,
        ..record(5, f64::NAN, 7)
    };
    let records = [
        record(5, 0.25, 7),
        left_out,
        record(5, 0.75, 8),
        record(2, 1.0, 7),
        TokenRecord {
            window: 3,
            ..left_out
        },
    ];
    let measured = [
        metrics(1.0),
        LogitMetrics::EXCLUDED,
        metrics(3.0),
        metrics(4.0),
        LogitMetrics::EXCLUDED,
    ];
    let prompts = PromptStats::of_each(&records, Some(&measured));
    let expected = json!([
        {"window": 2, "n_tokens": 1, "n_infinite": 0, "kld": {"mean": 1.0, "max": 1.0}, "reverse_kld_mean": 2.0,
         "ref_top1": 1.0, "mean_abs_diff": 4.0, "cosine_distance": 2.0,
         "smoothed_kld": {"mean": 8.0, "max": 8.0}},
        {"window": 3, "n_tokens": 0, "n_infinite": 0, "kld": null, "reverse_kld_mean": null, "ref_top1": null,
         "mean_abs_diff": null, "cosine_distance": null, "smoothed_kld": null},
        {"window": 5, "n_tokens": 2, "n_infinite": 0, "kld": {"mean": 0.5, "max": 0.75}, "reverse_kld_mean": 1.0,
         "ref_top1": 0.5, "mean_abs_diff": 2.0, "cosine_distance": 1.0,
         "smoothed_kld": {"mean": 4.0, "max": 6.0}},
    ]);
    assert_eq!(serde_json::to_value(prompts).unwrap(), expected);
    let plain = serde_json::to_value(PromptStats::of_each(&records, None)).unwrap();
    assert_eq!(
        plain[0].get("mean_abs_diff"),
        None,
        "absent unless measured"
    );
    assert!(PromptStats::of_each(&[], None).is_empty());
}
