use serde_json::json;

use super::*;

#[test]
fn the_first_difference_is_named_with_both_values() {
    let header = json!({"n_ctx": 64, "text": {"sha256": "aa", "name": "t"}, "seed": null});
    assert_eq!(first_difference(&header, &header), None);
    let mut other = header.clone();
    other["text"]["sha256"] = json!("bb");
    assert_eq!(
        first_difference(&header, &other).unwrap(),
        "text.sha256: aa there, bb here"
    );
    other["n_ctx"] = json!(65);
    assert!(
        first_difference(&header, &other)
            .unwrap()
            .starts_with("text")
    );
    other["writer"] = json!("kl 0.2.0");
    let difference = first_difference(&header, &other).unwrap();
    assert!(is_version(&difference), "{difference}");
    let (long, longer) = (json!({"a": "é".repeat(90)}), json!({"a": "é".repeat(91)}));
    let begins = format!("{}...", "é".repeat(80));
    assert_eq!(
        first_difference(&long, &longer).unwrap(),
        format!("a: {begins} there, {begins} here")
    );
    let more = json!({"n_ctx": 64, "text": header["text"], "seed": null, "stride": 3});
    assert_eq!(
        first_difference(&header, &more).unwrap(),
        "stride: none there, 3 here"
    );
}
