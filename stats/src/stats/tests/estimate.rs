use super::*;

#[test]
fn confidence_is_checked() {
    for (text, level) in [
        ("0.95", 0.95),
        (" 0.5 ", 0.5),
        ("1e-3", 1e-3),
        ("99%", 0.99),
        ("99.9 %", 0.999),
    ] {
        let confidence: Confidence = text.parse().expect(text);
        assert_eq!(confidence.level(), level);
    }
    for text in ["0", "1", "95", "-0.5", "inf", "NaN"] {
        let error = text.parse::<Confidence>().unwrap_err();
        assert!(error.contains("between 0 and 1"), "{error}");
    }
    for text in ["", "%", "high"] {
        let error = text.parse::<Confidence>().unwrap_err();
        assert!(error.ends_with(&format!("not '{text}'")), "{error}");
    }
}

#[test]
fn confidence_reads_as_it_prints() {
    assert_eq!(Confidence::default().to_string(), "0.95");
    assert_eq!("0.95".parse(), Ok(Confidence::default()));
    assert_eq!(
        serde_json::to_string(&Confidence::default()).unwrap(),
        "0.95"
    );
}

#[test]
fn json_has_null_for_what_is_not_finite() {
    let json = |value| serde_json::to_string(&value).unwrap();
    assert_eq!(
        json(Estimate::symmetric(1.5, f64::NAN)),
        r#"{"value":1.5,"lo":null,"hi":null}"#
    );
}
