//! Types of tensors that a GGUF may state but llama.cpp does not have: those that ggml removed, and those of
//! its forks.

/// A type that llama.cpp does not have.
struct ForeignType {
    /// Its number in a GGUF.
    id: u32,
    name: &'static str,
}

impl ForeignType {
    const fn new(id: u32, name: &'static str) -> Self {
        Self { id, name }
    }

    fn find(types: &[Self], id: u32) -> Option<&'static str> {
        types
            .iter()
            .find(|kind| kind.id == id)
            .map(|kind| kind.name)
    }
}

/// A type that ggml removed.
struct RemovedType {
    id: u32,
    name: &'static str,
    /// The type to use instead, which computes the same, where there is one.
    successor: Option<&'static str>,
}

impl RemovedType {
    const fn new(id: u32, name: &'static str, successor: Option<&'static str>) -> Self {
        Self {
            id,
            name,
            successor,
        }
    }
}

/// Types that ggml removed (`ggml.h`).
const REMOVED: [RemovedType; 8] = [
    RemovedType::new(4, "q4_2", None),
    RemovedType::new(5, "q4_3", None),
    RemovedType::new(31, "q4_0_4_4", Some("Q4_0")),
    RemovedType::new(32, "q4_0_4_8", Some("Q4_0")),
    RemovedType::new(33, "q4_0_8_8", Some("Q4_0")),
    RemovedType::new(36, "iq4_nl_4_4", Some("IQ4_NL")),
    RemovedType::new(37, "iq4_nl_4_8", Some("IQ4_NL")),
    RemovedType::new(38, "iq4_nl_8_8", Some("IQ4_NL")),
];

/// Types of Microsoft's BitNet (`3rdparty/llama.cpp/ggml/include/ggml.h`), whose numbers are also those of types
/// that ggml has or had.
const OF_BITNET: [ForeignType; 3] = [
    ForeignType::new(36, "i2_s"),
    ForeignType::new(37, "i8_s"),
    ForeignType::new(38, "tl1"),
];

/// Types of ik_llama.cpp (its `ggml/include/ggml.h`). Those whose name ends in `_r4`, `_r8` and `_r16` are
/// repacked.
static OF_IK_LLAMA: [ForeignType; 57] = [
    ForeignType::new(97, "q8_0_x4"),
    ForeignType::new(98, "q8_1_x4"),
    ForeignType::new(99, "q8_2_x4"),
    ForeignType::new(133, "q6_0"),
    ForeignType::new(134, "iq1_bn"),
    ForeignType::new(135, "iq2_bn"),
    ForeignType::new(136, "q8_k64"),
    ForeignType::new(137, "iq2_k"),
    ForeignType::new(138, "iq3_k"),
    ForeignType::new(139, "iq4_k"),
    ForeignType::new(140, "iq5_k"),
    ForeignType::new(141, "iq6_k"),
    ForeignType::new(142, "iq2_tn"),
    ForeignType::new(143, "iq1_tn"),
    ForeignType::new(144, "iq4_ks"),
    ForeignType::new(145, "iq2_ks"),
    ForeignType::new(146, "iq4_kss"),
    ForeignType::new(147, "q8_k16"),
    ForeignType::new(148, "q8_k32"),
    ForeignType::new(149, "q8_kr8"),
    ForeignType::new(150, "q8_k128"),
    ForeignType::new(151, "q8_kv"),
    ForeignType::new(152, "iq5_ks"),
    ForeignType::new(153, "iq2_kt"),
    ForeignType::new(154, "iq3_kt"),
    ForeignType::new(155, "iq4_kt"),
    ForeignType::new(156, "iq3_ks"),
    ForeignType::new(157, "iq2_kl"),
    ForeignType::new(158, "iq1_kt"),
    ForeignType::new(202, "q4_0_r8"),
    ForeignType::new(206, "q5_0_r4"),
    ForeignType::new(208, "q8_0_r8"),
    ForeignType::new(210, "q2_k_r4"),
    ForeignType::new(211, "q3_k_r4"),
    ForeignType::new(212, "q4_k_r4"),
    ForeignType::new(213, "q5_k_r4"),
    ForeignType::new(214, "q6_k_r4"),
    ForeignType::new(216, "iq2_xxs_r4"),
    ForeignType::new(217, "iq2_xs_r4"),
    ForeignType::new(218, "iq3_xxs_r4"),
    ForeignType::new(219, "iq1_s_r4"),
    ForeignType::new(220, "iq4_nl_r4"),
    ForeignType::new(221, "iq3_s_r4"),
    ForeignType::new(222, "iq2_s_r4"),
    ForeignType::new(223, "iq4_xs_r8"),
    ForeignType::new(229, "iq1_m_r4"),
    ForeignType::new(230, "bf16_r16"),
    ForeignType::new(233, "q6_0_r4"),
    ForeignType::new(335, "iq2_bn_r4"),
    ForeignType::new(337, "iq2_k_r4"),
    ForeignType::new(338, "iq3_k_r4"),
    ForeignType::new(339, "iq4_k_r4"),
    ForeignType::new(340, "iq5_k_r4"),
    ForeignType::new(344, "iq4_ks_r4"),
    ForeignType::new(352, "iq5_ks_r4"),
    ForeignType::new(398, "q8_kv_r8"),
    ForeignType::new(399, "q8_k_r8"),
];

/// The first and the last number of ik_llama.cpp's own types, those to come among them: it leaves the numbers
/// below to ggml, but for 97 to 99.
const IK_LLAMA: std::ops::RangeInclusive<u32> = 133..=399;

/// The first number that ggml has not given to a type, and the last that it may give to one soon.
const NEXT: std::ops::RangeInclusive<u32> = 43..=96;

/// Names a type that is not known here, and states what to do. `architecture`: that of the file.
pub(super) fn explain(id: u32, architecture: &str) -> String {
    let bitnet = ForeignType::find(&OF_BITNET, id).filter(|_| architecture.contains("bitnet"));
    if let Some(name) = bitnet {
        return explain_fork(id, Some(name), "Microsoft's BitNet");
    }
    if let Some(RemovedType {
        name, successor, ..
    }) = REMOVED.iter().find(|kind| kind.id == id)
    {
        return match successor {
            None => format!(
                "{id} ({name}), which llama.cpp removed in 2023: quantize the original again"
            ),
            Some(other) => format!(
                "{id} ({name}), which llama.cpp removed: use the {other} file of this model, which llama.cpp repacks while it loads"
            ),
        };
    }
    match ForeignType::find(&OF_IK_LLAMA, id) {
        Some(name) => explain_fork(id, Some(name), "ik_llama.cpp"),
        _ if IK_LLAMA.contains(&id) => explain_fork(id, None, "ik_llama.cpp"),
        _ if NEXT.contains(&id) => format!(
            "{id}, which this llama.cpp does not have: it is of a fork, such as those for TurboQuant, or of a newer llama.cpp; the page of the file names the program: evaluate with its llama-perplexity against a base file of kl (-w BASE --format llama.cpp), or use another quant"
        ),
        _ => format!(
            "{id}, which is of no program that is known: download the file again; if it is whole, use another quant"
        ),
    }
}

/// Names a type that only a fork of llama.cpp has.
fn explain_fork(id: u32, name: Option<&str>, fork: &str) -> String {
    let name = name.map_or_else(String::new, |name| format!(" ({name})"));
    format!(
        "{id}{name}, which only {fork} has: evaluate with {fork}'s llama-perplexity against a base file of kl (-w BASE --format llama.cpp), or use a quant of llama.cpp's types"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_names_its_program_and_what_to_do() {
        for (id, words) in [
            (
                4,
                "(q4_2), which llama.cpp removed in 2023: quantize the original",
            ),
            (31, "(q4_0_4_4), which llama.cpp removed: use the Q4_0 file"),
            (
                38,
                "(iq4_nl_8_8), which llama.cpp removed: use the IQ4_NL file",
            ),
            (
                97,
                "(q8_0_x4), which only ik_llama.cpp has: evaluate with ik_llama.cpp's",
            ),
            (139, "(iq4_k), which only ik_llama.cpp has"),
            (158, "(iq1_kt), which only ik_llama.cpp has"),
            (199, "199, which only ik_llama.cpp has"),
            (344, "(iq4_ks_r4), which only ik_llama.cpp has"),
            (
                45,
                "45, which this llama.cpp does not have: it is of a fork",
            ),
            (120, "120, which is of no program that is known"),
            (u32::MAX, "which is of no program that is known: download"),
        ] {
            let explained = explain(id, "llama");
            assert!(explained.contains(words), "{explained}");
            assert!(!explained.contains("newer kl"), "{explained}");
        }
        let bitnet = explain(36, "bitnet-b1.58");
        assert!(
            bitnet.contains("(i2_s), which only Microsoft's BitNet has"),
            "{bitnet}"
        );
    }

    #[test]
    fn no_type_is_known_twice() {
        let ik_llama = OF_IK_LLAMA.iter().map(|kind| kind.id);
        for id in ik_llama.chain(REMOVED.iter().map(|kind| kind.id)) {
            assert_eq!(kl_formats::GgmlType::of(id), None, "{id}");
        }
    }
}
