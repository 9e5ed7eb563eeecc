use super::*;
use crate::about::About;
use crate::kinds::Kind;
use crate::sidecar::SidecarHeader;

fn model(file_name: &str, hash: &str) -> Option<ModelIdentity> {
    let mut model = ModelIdentity::named(file_name);
    model.metadata_sha256 = Some(hash.to_owned());
    Some(model)
}

fn sidecar() -> SidecarHeader {
    let reference = ReferenceSummary {
        file_name: Some("ref.gz".to_owned()),
        fingerprint: Some("aa".to_owned()),
        ..ReferenceSummary::default()
    };
    let mut header = SidecarHeader::new(reference, 64, 512, None);
    header.model = model("q4.gguf", "11");
    header.writer = Some("kl 1.0.0".to_owned());
    header.backend = Some(BackendIdentity::default());
    header
}

fn native() -> Header {
    let mut about = About::new(Kind::Kl, "ref.gz", 64, 512);
    about.text = Some(TextIdentity::named("wiki.txt"));
    about.model = model("f16.gguf", "22");
    Header::new(&about, Encoding::U16, &[])
}

/// The differences of this header from one that is changed, as text with their effects.
fn changed<H>(header: &H, change: impl FnOnce(&mut H)) -> Vec<(String, Effect)>
where
    H: Clone,
    for<'h> RunKey: From<&'h H>,
{
    let mut there = header.clone();
    change(&mut there);
    let differences = RunKey::from(header).diff(&RunKey::from(&there)).into_iter();
    differences.map(|of| (of.to_string(), of.effect)).collect()
}

/// The same of one difference.
fn one<H>(header: &H, change: impl FnOnce(&mut H)) -> (String, Effect)
where
    H: Clone,
    for<'h> RunKey: From<&'h H>,
{
    let mut found = changed(header, change);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn told(text: &str, effect: Effect) -> (String, Effect) {
    (text.to_owned(), effect)
}

#[test]
fn a_run_does_not_differ_from_itself() {
    assert_eq!(changed(&sidecar(), |_| {}), []);
    assert_eq!(changed(&native(), |_| {}), []);
}

#[test]
fn names_of_files_that_hashes_know_are_only_recorded() {
    let renamed = one(&sidecar(), |of| of.model = model("renamed.gguf", "11"));
    let expected = "model.file_name: renamed.gguf there, q4.gguf here";
    assert_eq!(renamed, told(expected, Effect::Recorded));
    let other = changed(&sidecar(), |of| of.model = model("q5.gguf", "33"));
    let expected = "model.metadata_sha256: 33 there, 11 here";
    assert_eq!(other.last(), Some(&told(expected, Effect::Numbers)));
    let renamed = one(&sidecar(), |of| {
        of.reference.file_name = Some("r.gz".to_owned())
    });
    assert_eq!(renamed.1, Effect::Recorded);
    let other = changed(&sidecar(), |of| {
        of.reference.fingerprint = Some("bb".to_owned())
    });
    let expected = "reference.fingerprint: bb there, aa here";
    assert_eq!(other, [told(expected, Effect::Numbers)]);
}

#[test]
fn each_difference_has_its_effect() {
    let label = one(&sidecar(), |of| of.label = Some("night".to_owned()));
    assert_eq!(
        label,
        told("label: night there, none here", Effect::Recorded)
    );
    let program = one(&sidecar(), |of| of.writer = Some("kl 2.0.0".to_owned()));
    let expected = "writer: kl 2.0.0 there, kl 1.0.0 here";
    assert_eq!(program, told(expected, Effect::Program));
    let seed = one(&sidecar(), |of| of.seed = Some(3));
    assert_eq!(seed, told("seed: 3 there, text here", Effect::Numbers));
    let until = one(&sidecar(), |of| of.until = Some(0.1));
    assert_eq!(until, told("until: 0.1 there, none here", Effect::Numbers));
    let part = one(&sidecar(), |of| {
        of.shard = Some(Shard {
            index: 1,
            count: 2,
            n_windows: 4,
            n_rows: 8,
        });
    });
    assert_eq!(part.1, Effect::Numbers);
    let template = one(&native(), |of| of.chat_template = Some("cc".to_owned()));
    assert_eq!(
        template,
        told("chat_template: cc there, none here", Effect::Numbers)
    );
}

#[test]
fn what_the_user_chose_is_told_before_what_follows_from_it() {
    let found = changed(&native(), |of| {
        of.n_ctx = 32;
        of.n_rows = 7;
        of.text = Some(TextIdentity::named("other.txt"));
        of.model = model("f32.gguf", "44");
    });
    let keys: Vec<&str> = found
        .iter()
        .filter_map(|(text, _)| text.split(':').next())
        .collect();
    let first = [
        "model.file_name",
        "model.metadata_sha256",
        "text.name",
        "n_ctx",
    ];
    assert_eq!(keys.get(..4), Some(&first[..]));
    assert_eq!(keys.last(), Some(&"n_rows"));
}

#[test]
fn what_is_not_known_yet_equals_any_value() {
    let mut planned = sidecar();
    (planned.seed, planned.stride, planned.prompts) = (Some(5), Some(16), true);
    planned.groups = vec!["code".to_owned()];
    planned.n_vocab_compared = Some(500);
    let mut key = RunKey::from(&sidecar());
    assert!(!key.diff(&RunKey::from(&planned)).is_empty());
    key.forget_unplanned();
    assert_eq!(key.diff(&RunKey::from(&planned)), []);
    planned.until = Some(0.05);
    assert_eq!(key.diff(&RunKey::from(&planned)).len(), 1);
    // All entries of a row are compared where a header states no number.
    let mut all = sidecar();
    all.n_vocab_compared = Some(all.n_vocab);
    assert_eq!(RunKey::from(&all).diff(&RunKey::from(&sidecar())), []);
}

#[test]
fn a_reference_that_is_still_to_be_computed_is_known_by_its_model_and_text() {
    let about = |hash: &str, name: &str| {
        let mut about = About::new(Kind::Model, name, 64, 512);
        about.model = model(name, hash);
        ReferenceSummary::new(&about, None)
    };
    let mut held = about("11", "f16.gguf");
    held.fingerprint = Some("aa".to_owned());
    let is_other = |here: &ReferenceSummary| {
        let mut found = here.diff(&held, 64).into_iter();
        found.any(|of| of.effect == Effect::Numbers)
    };
    assert!(!is_other(&about("11", "renamed.gguf")));
    assert!(is_other(&about("22", "f16.gguf")));
}

#[test]
fn a_long_value_is_cut_between_characters() {
    let long = "é".repeat(90);
    let (text, _) = one(&sidecar(), |of| of.label = Some(long));
    let expected = format!("label: {}... there, none here", "é".repeat(80));
    assert_eq!(text, expected);
}

#[test]
fn caches_of_other_types_change_numbers_and_machines_only_last_bits() {
    let backend = |type_k: &str, threads: u32| BackendIdentity {
        type_k: Some(type_k.to_owned()),
        threads: Some(threads),
        ..BackendIdentity::default()
    };
    let found = backend("f16", 4).diff(&backend("q8_0", 8), 64);
    let known = found.iter().map(|of| (of.what, of.effect));
    let expected = [
        (Aspect::SetUp(Setting::Threads), Effect::Machine),
        (Aspect::SetUp(Setting::KeyType), Effect::Numbers),
    ];
    assert!(known.eq(expected), "{found:?}");
}
