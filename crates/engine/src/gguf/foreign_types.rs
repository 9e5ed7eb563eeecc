//! Types of tensors that a GGUF may state but llama.cpp does not have: those that ggml removed, and those of
//! its forks.

/// Types that ggml removed (`ggml.h`): the number, the name, and the type to use instead, which computes the
/// same; empty where there is none.
const REMOVED: [(u32, &str, &str); 8] = [
    (4, "q4_2", ""),
    (5, "q4_3", ""),
    (31, "q4_0_4_4", "Q4_0"),
    (32, "q4_0_4_8", "Q4_0"),
    (33, "q4_0_8_8", "Q4_0"),
    (36, "iq4_nl_4_4", "IQ4_NL"),
    (37, "iq4_nl_4_8", "IQ4_NL"),
    (38, "iq4_nl_8_8", "IQ4_NL"),
];

/// Types of Microsoft's BitNet (`3rdparty/llama.cpp/ggml/include/ggml.h`), whose numbers are also those of types
/// that ggml has or had.
const OF_BITNET: [(u32, &str); 3] = [(36, "i2_s"), (37, "i8_s"), (38, "tl1")];

/// Types of ik_llama.cpp (its `ggml/include/ggml.h`). Those whose name ends in `_r4`, `_r8` and `_r16` are
/// repacked.
const OF_IK_LLAMA: &str = "
    97 q8_0_x4, 98 q8_1_x4, 99 q8_2_x4, 133 q6_0, 134 iq1_bn, 135 iq2_bn, 136 q8_k64, 137 iq2_k, 138 iq3_k,
    139 iq4_k, 140 iq5_k, 141 iq6_k, 142 iq2_tn, 143 iq1_tn, 144 iq4_ks, 145 iq2_ks, 146 iq4_kss, 147 q8_k16,
    148 q8_k32, 149 q8_kr8, 150 q8_k128, 151 q8_kv, 152 iq5_ks, 153 iq2_kt, 154 iq3_kt, 155 iq4_kt,
    156 iq3_ks, 157 iq2_kl, 158 iq1_kt, 202 q4_0_r8, 206 q5_0_r4, 208 q8_0_r8, 210 q2_k_r4, 211 q3_k_r4,
    212 q4_k_r4, 213 q5_k_r4, 214 q6_k_r4, 216 iq2_xxs_r4, 217 iq2_xs_r4, 218 iq3_xxs_r4, 219 iq1_s_r4,
    220 iq4_nl_r4, 221 iq3_s_r4, 222 iq2_s_r4, 223 iq4_xs_r8, 229 iq1_m_r4, 230 bf16_r16, 233 q6_0_r4,
    335 iq2_bn_r4, 337 iq2_k_r4, 338 iq3_k_r4, 339 iq4_k_r4, 340 iq5_k_r4, 344 iq4_ks_r4, 352 iq5_ks_r4,
    398 q8_kv_r8, 399 q8_k_r8";

/// The first and the last number of ik_llama.cpp's own types, those to come among them: it leaves the numbers
/// below to ggml, but for 97 to 99.
const IK_LLAMA: std::ops::RangeInclusive<u32> = 133..=399;

/// The first number that ggml has not given to a type, and the last that it may give to one soon.
const NEXT: std::ops::RangeInclusive<u32> = 43..=96;

/// Names a type that is not known here, and states what to do. `architecture`: that of the file.
pub(super) fn explain(id: u32, architecture: &str) -> String {
    let of_bitnet = OF_BITNET.iter().find(|(of, _)| *of == id);
    let removed = REMOVED.iter().find(|(of, ..)| *of == id);
    let mut of_ik = OF_IK_LLAMA
        .split(',')
        .filter_map(|kind| kind.trim().split_once(' '));
    let ik = of_ik
        .find(|(of, _)| of.parse() == Ok(id))
        .map(|(_, name)| name);
    match (of_bitnet, removed, ik) {
        (Some((_, name)), ..) if architecture.contains("bitnet") => {
            of_fork(id, name, "Microsoft's BitNet")
        }
        (_, Some((_, name, "")), _) => {
            format!("{id} ({name}), which llama.cpp removed in 2023: quantize the original again")
        }
        (_, Some((_, name, other)), _) => format!(
            "{id} ({name}), which llama.cpp removed: use the {other} file of this model, which llama.cpp repacks while it loads"
        ),
        (.., Some(name)) => of_fork(id, name, "ik_llama.cpp"),
        _ if IK_LLAMA.contains(&id) => of_fork(id, "", "ik_llama.cpp"),
        _ if NEXT.contains(&id) => format!(
            "{id}, which this llama.cpp does not have: it is of a fork, such as those for TurboQuant, or of a newer llama.cpp; the page of the file names the program: evaluate with its llama-perplexity against a base file of kl (-w BASE --format llama.cpp), or use another quant"
        ),
        _ => format!(
            "{id}, which is of no program that is known: download the file again; if it is whole, use another quant"
        ),
    }
}

/// Names a type that only a fork of llama.cpp has.
fn of_fork(id: u32, name: &str, fork: &str) -> String {
    let name = if name.is_empty() {
        String::new()
    } else {
        format!(" ({name})")
    };
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
        let numbers = OF_IK_LLAMA
            .split(',')
            .map(|kind| kind.trim().split_once(' ').unwrap().0);
        let removed = REMOVED.iter().map(|(id, ..)| *id);
        for id in numbers.map(|n| n.parse().unwrap()).chain(removed) {
            assert_eq!(kl_formats::GgmlType::of(id), None, "{id}");
        }
    }
}
