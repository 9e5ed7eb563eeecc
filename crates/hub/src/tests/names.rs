//! The meaning of names.

use super::has;
use crate::kinds::{Kind, Precision, is_quant, kind, up_to_quant};
use crate::{HubFile, Repository};

#[test]
fn paths_that_leave_the_cache_are_refused() {
    for path in "../x.gguf a/../../x /etc/x a//b a\\b C:x a/. a\nb"
        .split(' ')
        .chain([""])
    {
        assert!(!crate::names::is_safe(path), "{path:?}");
    }
    assert!(crate::names::is_safe("a b/ü-..x.gguf"));
}

/// A repository of files with these names.
fn listing(names: &[&str]) -> Repository {
    let file = |(i, name): (usize, &&str)| HubFile {
        repository: "me/M".to_owned(),
        commit: String::new(),
        path: (*name).to_owned(),
        size: i as u64,
        digest: String::new(),
    };
    let files = names.iter().enumerate().map(file).collect();
    let name = "me/M".to_owned();
    Repository { name, files }
}

fn paths(files: &[HubFile]) -> Vec<&str> {
    files.iter().map(|file| file.path.as_str()).collect()
}

#[test]
fn a_name_means_what_it_means_to_llama_cpp() {
    let taken = |names: &[&str], quant| paths(&listing(names).model(quant).unwrap()).join(" ");
    let all = [
        "M-IQ4_XS.gguf",
        "M-Q8_0.gguf",
        "M.Q4_K_M.gguf",
        "mmproj-Q4_K_M.gguf",
        "README.md",
    ];
    assert_eq!(taken(&all, None), "M.Q4_K_M.gguf");
    assert_eq!(taken(&all[..2], None), "M-Q8_0.gguf");
    assert_eq!(taken(&all[..1], None), "M-IQ4_XS.gguf");
    assert_eq!(taken(&all, Some("iq4_xs")), "M-IQ4_XS.gguf");
    let split = [
        "imatrix.gguf",
        "Q2_K/M-00002-of-00002.gguf",
        "Q2_K/M-00001-of-00002.gguf",
        "M-Q2_K-00001-of-00001.gguf",
    ];
    assert_eq!(taken(&split, Some("Q2_K")), "M-Q2_K-00001-of-00001.gguf");
    assert_eq!(
        taken(&split[..3], None),
        "Q2_K/M-00001-of-00002.gguf Q2_K/M-00002-of-00002.gguf"
    );
    has(
        &listing(&split[2..3]).model(None).unwrap_err(),
        &["part 2", "missing"],
    );
    let error = listing(&all).model(Some("Q4_K_S")).unwrap_err();
    has(&error, &["me/M: has no 'Q4_K_S': it has M.Q4_K_M.gguf, M-"]);
    // What llama.cpp does not do: a quant is not the end of another one.
    let types = ["M-BF16.gguf", "M-IQ4_XS.gguf", "M-f16.gguf"];
    assert_eq!(taken(&types, Some("F16")), "M-f16.gguf");
    has(
        &listing(&types[..2]).model(Some("F16")).unwrap_err(),
        &["has no 'F16': it has M-BF16.gguf"],
    );
    has(
        &listing(&all[3..]).model(None).unwrap_err(),
        &["me/M: has no '.gguf'"],
    );
    has(
        &listing(&[]).model(None).unwrap_err(),
        &["me/M: has no '.gguf'"],
    );
}

#[test]
fn a_file_is_found_by_its_path() {
    let repository = listing(&[
        "ref.gz",
        "a/M-00001-of-00002.gguf",
        "a/M-00002-of-00002.gguf",
    ]);
    assert_eq!(paths(&repository.file("ref.gz").unwrap()), ["ref.gz"]);
    assert_eq!(repository.file("a/M-00002-of-00002.gguf").unwrap().len(), 2);
    has(
        &repository.file("reff.gz").unwrap_err(),
        &["has no 'reff.gz': it has ref.gz"],
    );
}

#[test]
fn quants_are_chosen_by_patterns() {
    let repository = listing(&[
        "Qwen-Q4_K_M.gguf",
        "Qwen.IQ4_XS.gguf",
        "UD-Q4_K_XL/Qwen-UD-Q4_K_XL-00001-of-00002.gguf",
        "UD-Q4_K_XL/Qwen-UD-Q4_K_XL-00002-of-00002.gguf",
        "Qwen.i1-IQ1_S.gguf",
        "Qwen-q8_0.gguf",
        "mmproj-Q4_0.gguf",
    ]);
    let chosen = |patterns: &str| -> String {
        let patterns: Vec<String> = patterns.split(',').map(str::to_owned).collect();
        let models = repository.quants(&patterns).unwrap();
        models
            .iter()
            .map(|parts| format!("{}{} ", parts[0].size, "+".repeat(parts.len() - 1)))
            .collect()
    };
    assert_eq!(chosen("Q4_*"), "2+ 0 ");
    assert_eq!(chosen("q4_k_m,IQ*"), "0 4 1 ");
    assert_eq!(chosen("Q8_0,Q*"), "5 2+ 0 ");
    assert_eq!(chosen("UD-*"), "2+ ");
    assert_eq!(chosen("*"), "2+ 5 4 1 0 ");
    assert_eq!(chosen("IQ?_S"), "4 ");
    has(
        &repository.quants(&["Q4_K_S".to_owned()]).unwrap_err(),
        &["has no 'Q4_K_S'", "Qwen-Q4_K_M.gguf"],
    );
}

#[test]
fn the_names_of_publishers_say_what_a_file_is() {
    use Kind::{Companion, MaybeDraft, Model, Other, Piece, WithDraft};
    for (path, expected, quant) in [
        ("Qwen3-4B-UD-Q4_K_XL.gguf", Model, "ud-q4_k_xl"),
        ("X-Q2_K_L.gguf", Model, "q2_k_l"),
        ("BF16/X-BF16-00001-of-00002.gguf", Model, "bf16"),
        ("X.i1-IQ3_M.gguf", Model, "iq3_m"),
        ("X.f16.gguf", Model, "f16"),
        ("X_IQ4_KSS.gguf", Model, "iq4_kss"),
        ("ggml-model-q4_0.gguf", Model, "q4_0"),
        ("X-TQ1_0.gguf", Model, "tq1_0"),
        ("gpt-oss-20b-MXFP4.gguf", Model, "mxfp4"),
        ("X-MXFP4_MOE.GGUF", Model, "mxfp4_moe"),
        ("X-Q4_K_M-imat.gguf", Model, "q4_k_m"),
        ("X-imatrix-Q4_K_M.gguf", Model, "q4_k_m"),
        ("UD-IQ1_S/X-00001-of-00003.gguf", Model, "ud-iq1_s"),
        ("X.gguf", Model, ""),
        ("smtp-helper-7B-Q4_K_M.gguf", Model, "q4_k_m"),
        ("OpenAssistant-7B.Q5_K_S.gguf", Model, "q5_k_s"),
        ("mmproj-F16.gguf", Companion, "f16"),
        ("X.mmproj-Q8_0.gguf", Companion, "q8_0"),
        ("MMPROJ-X-f16.gguf", Companion, "f16"),
        ("X-imatrix.gguf", Companion, ""),
        ("X-BF16.imatrix.gguf", Companion, ""),
        ("imatrix_unsloth.gguf", Companion, ""),
        ("mtp-gemma-4-31B-it.gguf", Companion, ""),
        ("mtp-X-Q8_0.gguf", Companion, "q8_0"),
        ("MTP/x-Q8_0-MTP.gguf", Companion, "q8_0"),
        ("MTP-GGUF/x-Q8_0.gguf", Companion, "q8_0"),
        ("MTP-Q8_0/x-00001-of-00002.gguf", Companion, "q8_0"),
        ("Q8_0-MTP/x.gguf", Companion, "q8_0"),
        ("X-MTP/x-Q8_0.gguf", Model, "q8_0"),
        ("eagle3-X-Q4_K_M.gguf", Companion, "q4_k_m"),
        ("EAGLE3-LLaMA3.1-Instruct-8B-f16.gguf", Companion, "f16"),
        ("dflash-X-BF16.gguf", Companion, "bf16"),
        ("dspark-X-BF16.gguf", Companion, "bf16"),
        ("assistant/X-Q8_0.gguf", Companion, "q8_0"),
        ("Qwen3.6-27B-MTP-Q8_0.gguf", WithDraft, "q8_0"),
        ("Qwen3-mtp-tuned-Q4_K_M.gguf", WithDraft, "q4_k_m"),
        (
            "Qwen3.6-MTP-UD-Q4_K_XL/Q-00001-of-00002.gguf",
            Model,
            "ud-q4_k_xl",
        ),
        ("X-Q8_0-MTP.gguf", MaybeDraft, "q8_0"),
        ("X-Q8_0_MTP.gguf", MaybeDraft, "q8_0"),
        ("gemma-4-E4B-it-assistant.Q4_K_M.gguf", MaybeDraft, "q4_k_m"),
        ("X-DRAFT-0.6B-Q8_0.gguf", MaybeDraft, "q8_0"),
        ("X-eagle3-Q8_0.gguf", MaybeDraft, "q8_0"),
        ("X.Q8_0.gguf.part1of2", Piece, ""),
        ("X.Q8_0.gguf-split-a", Piece, ""),
        ("X.imatrix.dat", Other, ""),
        ("config.json", Other, ""),
    ] {
        assert_eq!(kind(path), expected, "{path}");
        let named = up_to_quant(path);
        let has_it = named.ends_with(&format!("-{quant}")) || named == quant;
        assert!(quant.is_empty() || has_it, "{path}: {named}");
        assert!(quant.is_empty() || is_quant(quant), "{quant}");
    }
}

/// Each name as publishers give it: whether it is a quant, the original, or neither.
#[test]
fn a_pick_knows_quants_from_the_original_and_from_neither() {
    for (path, is_model, is_original) in [
        ("X-UD-Q4_K_XL.gguf", true, false),
        ("X-Q2_K_L.gguf", true, false),
        ("Q2_K_L/X-Q2_K_L-00001-of-00002.gguf", true, false),
        ("X.i1-IQ3_M.gguf", true, false),
        ("X_IQ4_KSS.gguf", true, false),
        ("X-MXFP4_MOE.gguf", true, false),
        ("BF16/X-BF16-00001-of-00002.gguf", true, true),
        ("BF16/X-00001-of-00002.gguf", true, true),
        ("X.f16.gguf", true, true),
        ("X-fp32.gguf", true, true),
        ("mmproj-F16.gguf", false, true),
        ("X-imatrix.gguf", false, false),
        ("imatrix_unsloth.dat", false, false),
        ("mtp-X-Q8_0.gguf", false, false),
        ("MTP/X-BF16-MTP.gguf", false, true),
        ("X.Q5_K_M.gguf.part1of2", false, false),
        ("README.md", false, false),
    ] {
        let beside = "X-Q6_K.gguf";
        let second = path.replace("-00001-of", "-00002-of");
        let mut names = vec![path, beside];
        names.extend((second != path).then_some(&*second));
        let all = listing(&names);
        let chosen = all.quants(&["*".to_owned()]).unwrap();
        let chosen: Vec<&str> = chosen.iter().flat_map(|parts| paths(parts)).collect();
        assert_eq!(chosen.contains(&path), is_model, "{path}");
        assert_eq!(Precision::of_name(path).is_float(), is_original, "{path}");
        let original = all.original().unwrap();
        let original = original.map(|parts| paths(&parts)[0].to_owned());
        let expected = (is_model && is_original).then(|| path.to_owned());
        assert_eq!(original, expected, "{path}");
    }
    // bf16 before f16 before f32.
    let all = listing(&["X-F32.gguf", "X-F16.gguf", "X-BF16.gguf"]);
    assert_eq!(paths(&all.original().unwrap().unwrap()), ["X-BF16.gguf"]);
    let all = listing(&["X-F32.gguf", "X-F16.gguf"]);
    assert_eq!(paths(&all.original().unwrap().unwrap()), ["X-F16.gguf"]);
}

#[test]
fn drafts_are_not_taken_for_the_model_beside_them() {
    let taken = |names: &[&str], quant| match listing(names).model(quant) {
        Ok(files) => paths(&files).join(" "),
        Err(error) => error.to_string(),
    };
    let gemma = [
        "MTP/g-Q8_0-MTP.gguf",
        "g-UD-Q4_K_XL.gguf",
        "g-assistant-Q8_0.gguf",
        "mtp-g.gguf",
    ];
    assert_eq!(taken(&gemma, None), "g-UD-Q4_K_XL.gguf");
    let lacks = taken(&gemma, Some("Q8_0"));
    let expected =
        "has no 'Q8_0': it has g-UD-Q4_K_XL.gguf; MTP/g-Q8_0-MTP.gguf is named as a draft";
    assert!(lacks.contains(expected), "{lacks}");
    // Where all names say so, all are models.
    let all_mtp = ["Q-Q4_K_M-MTP.gguf", "Q-Q8_0-MTP.gguf", "mmproj-Q8_0.gguf"];
    assert_eq!(taken(&all_mtp, Some("q8_0")), "Q-Q8_0-MTP.gguf");
    let quants = listing(&all_mtp).quants(&["Q*".to_owned()]).unwrap();
    assert_eq!(quants.len(), 2);
    let mtp = ["Q-mtp-Q4_K_M.gguf", "Q-mtp-Q8_0.gguf", "mtp-Q.gguf"];
    assert_eq!(taken(&mtp, None), "Q-mtp-Q4_K_M.gguf");
    assert_eq!(taken(&mtp, Some("Q8_0")), "Q-mtp-Q8_0.gguf");
    // One without a draft in it comes first.
    let both = ["Q-MTP-Q4_K_M.gguf", "Q-Q4_K_M.gguf"];
    assert_eq!(taken(&both, None), "Q-Q4_K_M.gguf");
    let only_drafts = taken(&["mtp-Q.gguf", "README.md"], None);
    assert!(
        only_drafts.contains("mtp-Q.gguf is named as a draft"),
        "{only_drafts}"
    );
    let pieces = taken(&["X.Q8_0.gguf.part1of2", "X.Q2_K.gguf"], Some("Q8_0"));
    assert!(pieces.contains("part1of2 is a piece of a GGUF"), "{pieces}");
    let folder = ["Q2_K/M-00001-of-00002.gguf", "Q2_K/M-00002-of-00002.gguf"];
    assert_eq!(taken(&folder, Some("Q2_K")), folder.join(" "));
}

#[test]
fn a_model_of_many_parts_is_found_at_once() {
    let name = |i: u32| format!("M-Q4_K_M-{i:05}-of-60000.gguf");
    let names: Vec<String> = (1..=60_000).map(name).collect();
    let repository = listing(&names.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(repository.model(None).unwrap().len(), 60_000);
    assert_eq!(
        repository.quants(&["Q*".to_owned()]).unwrap()[0].len(),
        60_000
    );
    // Many models, each asked for by several patterns.
    let names: Vec<String> = (0..100_000).map(|i| format!("M{i}-Q4_0.gguf")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let patterns = ["Q4_0", "Q4*", "*"].map(str::to_owned);
    let some = listing(&names[..1000]).quants(&patterns).unwrap();
    assert_eq!(some.len(), 1000);
    has(
        &listing(&names).quants(&patterns).unwrap_err(),
        &["me/M: 'Q4_0' matches 100000 models", "narrower patterns"],
    );
}
