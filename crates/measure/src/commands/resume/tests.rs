use serde_json::{Value, json};

use super::*;

#[test]
fn the_first_difference_is_named_with_both_values() {
    let header = json!({"n_ctx": 64, "text": {"sha256": "aa", "name": "t"}, "seed": null});
    let differs = |one: &Value, other: &Value| first_difference(one, other).unwrap();
    assert_eq!(first_difference(&header, &header), None);
    let mut other = header.clone();
    other["text"]["sha256"] = json!("bb");
    assert_eq!(differs(&header, &other), "text.sha256: aa there, bb here");
    other["n_ctx"] = json!(65);
    assert!(differs(&header, &other).starts_with("text"));
    other["writer"] = json!("kl 0.2.0");
    let difference = differs(&header, &other);
    assert!(is_version(&difference), "{difference}");
    let [long, longer] = [90, 91].map(|n| json!({"a": "é".repeat(n)}));
    let begins = format!("{}...", "é".repeat(80));
    let expected = format!("a: {begins} there, {begins} here");
    assert_eq!(differs(&long, &longer), expected);
    let mut more = header.clone();
    more["stride"] = json!(3);
    assert_eq!(differs(&header, &more), "stride: none there, 3 here");
}
