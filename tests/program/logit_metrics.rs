//! `--stats logits`: distances in logit space, symmetric and smoothed divergences.

use crate::numbers::number;
use crate::session::Session;

#[test]
fn a_base_file_has_no_logits_to_compare() {
    let session = Session::new();
    // Nor has a file converted from it.
    session.ok("convert @base of-base.gz --format kl --bos 1 -q");
    for reference in ["@base", "of-base.gz"] {
        let json = session.json(&format!("-m @q2 -r {reference} --stats logits"));
        let result = &json["models"][0];
        assert_eq!(json["reference"]["log_probabilities"], true);
        assert!(result["logits"].is_null());
        assert_eq!(result["logits_not_available"], "log_probabilities_only");
        assert!(number(&result["jensen_shannon"]["mean"]["value"]) > 0.0);
    }
}
