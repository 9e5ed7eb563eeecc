//! `kl check` on the device.

use serde_json::json;

use crate::device::{Device, session};

#[test]
fn a_device_is_checked_with_all_its_settings() {
    let (session, device) = (session(), Device::new());
    let line = format!(
        "check -m @q4 -t short.txt -c 32 -n 64 {} -ngl 99",
        device.flags
    );
    let found = session.json(&line);
    assert_eq!(found["verdict"], json!("ok"), "{found}");
    let cells = found["cells"].as_array().unwrap();
    let of_device = cells
        .iter()
        .filter(|cell| cell["settings"]["device"] != json!("CPU"));
    assert!(of_device.count() >= 7, "{found}");
}
