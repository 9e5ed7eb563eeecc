//! `kl pick`: of a folder, of a repository with names as publishers give them, cut off and continued.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::gguf::Gguf;
use crate::hub::FakeHub;
use crate::session::{Run, Session, fixture, labels, send, wait_until};

/// A text that is long enough to tell the fixtures' quants apart.
const TEXT: &str = "-t short.txt --window 64";

/// A session with the fixtures' quants and their original in a folder.
fn shelf() -> Session {
    let session = Session::with_text();
    fs::create_dir(session.path("quants")).unwrap();
    for (alias, name) in [
        ("f16", "tiny-F16.gguf"),
        ("q8", "tiny-Q8_0.gguf"),
        ("q4", "tiny-Q4_K_M.gguf"),
        ("q2", "tiny-Q2_K.gguf"),
    ] {
        fs::copy(fixture(alias), session.path(&format!("quants/{name}"))).unwrap();
    }
    session
}

fn picked(json: &Value) -> &str {
    json["pick"]["label"].as_str().unwrap_or_default()
}

/// A folder as downloads leave it.
#[test]
fn what_cannot_be_read_is_left_out_and_the_others_go_on() {
    let session = shelf();
    let in_folder = |name: &str| session.path(&format!("quants/{name}"));
    let whole = fs::read(in_folder("tiny-Q4_K_M.gguf")).unwrap();
    fs::write(in_folder("tiny-Q4_0.gguf"), &whole[..whole.len() / 2]).unwrap();
    fs::write(in_folder("tiny-Q4_1.gguf"), "not here yet").unwrap();
    fs::write(in_folder("tiny-Q5_0.gguf"), "").unwrap();
    fs::create_dir(in_folder("tiny-Q6_K.gguf")).unwrap();
    std::os::unix::fs::symlink("/none", in_folder("tiny-Q5_1.gguf")).unwrap();
    // What is there twice is measured once.
    let line = format!("pick quants quants/tiny-Q2_K.gguf {TEXT} --json pick.json");
    let run = session.ok(&line);
    assert!(run.stderr.contains(" 6 quants, "), "{}", run.stderr);
    let json = session.read_json("pick.json");
    assert_eq!(labels(&json), ["tiny-Q8_0", "tiny-Q4_K_M", "tiny-Q2_K"]);
    let left_out = json["left_out"].as_array().unwrap().iter();
    let left_out: BTreeMap<_, _> = left_out
        .map(|of| (of["file"].as_str().unwrap(), of["why"].as_str().unwrap()))
        .collect();
    for (name, why) in [
        ("tiny-Q4_0.gguf", "incomplete at byte"),
        ("tiny-Q4_1.gguf", "not a GGUF model"),
        ("tiny-Q5_0.gguf", "it has 0 bytes"),
        ("tiny-Q5_1.gguf", "cannot be read"),
    ] {
        assert!(left_out[name].contains(why), "{left_out:?}");
    }
    assert_eq!(left_out.len(), 4);
}

#[test]
fn a_pick_of_a_folder_keeps_to_its_limits() {
    let session = shelf();
    let run = session.ok(&format!(
        "pick quants {TEXT} --json all.json --csv all.csv --html all.html"
    ));
    run.prints(&["Pick Q8_0: of the quants that fit ", "★", "prompt", "gen."]);
    let all = session.read_json("all.json");
    assert_eq!(picked(&all), "tiny-Q8_0");
    assert_eq!(labels(&all), ["tiny-Q8_0", "tiny-Q4_K_M", "tiny-Q2_K"]);
    assert_eq!(all["is_original"], true);
    // The model was trained on fewer than 8,192.
    assert_eq!(all["context"], 512);
    let model = &all["models"][1];
    for number in [
        &model["speed"]["prompt"]["tokens_per_s"],
        &model["speed"]["generation"]["lo"],
        &model["memory"]["weights"],
        &model["memory"]["kv_cache"],
        &model["memory"]["compute"],
    ] {
        assert!(number.as_f64().unwrap() > 0.0, "{model}");
    }
    let csv = session.read_text("all.csv");
    assert!(
        csv.lines()
            .next()
            .unwrap()
            .ends_with(",fits,on_front,is_near_enough,is_pick")
    );
    assert_eq!(
        csv.lines().filter(|line| line.ends_with(",true")).count(),
        1
    );
    assert!(
        session
            .read_text("all.html")
            .contains("Pick Q8_0: of the quants")
    );
    // What was measured stays, and other limits need no model again.
    session.fails(
        &format!("pick quants {TEXT}"),
        1,
        &["quants-pick: exists", "--resume"],
    );
    let again = |more: &str| session.json(&format!("pick quants {TEXT} --resume {more}"));
    let memory = |i: usize| {
        let memory = &all["models"][i]["memory"];
        ["weights", "kv_cache", "compute"]
            .iter()
            .map(|part| memory[part].as_u64().unwrap())
            .sum::<u64>()
    };
    let smaller = again(&format!("--memory {}", memory(0) - 1));
    assert_eq!(picked(&smaller), "tiny-Q4_K_M");
    assert_eq!(smaller["models"][0]["fits"], false);
    assert_eq!(smaller["models"][1]["speed"], all["models"][1]["speed"]);
    let upper = |i: usize| {
        all["models"][i]["kld"]["mean"]["cluster_hi"]
            .as_f64()
            .unwrap()
    };
    let below = again(&format!(
        "--memory {} --max-kld {}",
        memory(0) - 1,
        1.01 * upper(1)
    ));
    assert_eq!(picked(&below), "tiny-Q4_K_M");
    let run = session.ends(
        &format!("pick quants {TEXT} --resume --memory {}", memory(2) - 1),
        3,
    );
    run.prints(&[
        "No quant fits",
        "the smallest, Q2_K, takes",
        "--cache-types",
    ]);
    let run = session.ends(&format!("pick quants {TEXT} --resume --max-kld 1e-9"), 3);
    run.prints(&["No quant", "is surely below", "the nearest is Q8_0"]);
}

#[test]
fn of_many_quants_those_stop_that_cannot_be_picked() {
    let session = shelf();
    for i in 0..9 {
        for quant in ["Q4_K_M", "Q2_K"] {
            let copy = session.path(&format!("quants/copy{i}-{quant}.gguf"));
            fs::copy(session.path(&format!("quants/tiny-{quant}.gguf")), copy).unwrap();
        }
    }
    let call = "pick quants -t starter --window 16 -n 2000";
    let run = session.ok(&format!("{call} --max-kld 0.05 --json stopped.json"));
    run.prints(&["Stopped", "surely above 0.0500 nats, after ", "× stopped"]);
    // A line each, and no reports beside the table.
    assert_eq!(run.stderr.matches("  stopped after ").count(), 10);
    assert!(!run.stdout.contains("PARTIAL"), "{}", run.stdout);
    let json = session.read_json("stopped.json");
    assert_eq!(labels(&json).len(), 11);
    assert!(!picked(&json).ends_with("Q2_K"));
    let stopped = json["stopped"].as_array().unwrap();
    assert_eq!(stopped.len(), 10);
    for quant in stopped {
        assert!(quant["label"].as_str().unwrap().ends_with("Q2_K"));
        let [n, of] = ["n_windows", "of"].map(|key| quant["stopped"][key].as_u64().unwrap());
        assert!(of >= 100 && n == of.div_ceil(10), "{quant}");
        assert!(quant["kld"]["mean"]["value"].as_f64().unwrap() > 0.05);
    }
    let json = session.json(&format!("{call} --max-kld 0.5 --resume"));
    assert_eq!(json["stopped"].as_array().unwrap().len(), 0);
    assert_eq!(labels(&json).len(), 21);
}

#[test]
fn without_an_original_the_largest_quant_takes_its_place() {
    let session = shelf();
    session.remove("quants/tiny-F16.gguf");
    let run = session.ok(&format!("pick quants {TEXT} --json p.json -q"));
    run.prints(&["what it lost itself", "--original"]);
    let pick = session.read_json("p.json");
    assert_eq!(pick["is_original"], false);
    assert_eq!(labels(&pick), ["tiny-Q4_K_M", "tiny-Q2_K"]);
    assert_eq!(pick["left_out"][0]["file"], "tiny-Q8_0.gguf");
    session.fails("pick none.gguf quants", 1, &["none.gguf: cannot be read"]);
    fs::create_dir(session.path("empty")).unwrap();
    session.fails("pick empty", 2, &["empty: holds no model"]);
    session.fails(
        "pick quants --quants Q9*",
        2,
        &["has no 'Q9*': it has tiny-Q"],
    );
    // With a single file, there is nothing to choose.
    session.fails("pick quants/tiny-Q8_0.gguf", 1, &["no other quant"]);
    let of_two = session.json(&format!(
        "pick quants/tiny-Q8_0.gguf quants/tiny-Q2_K.gguf --original @f16 {TEXT} -w two"
    ));
    assert_eq!(labels(&of_two), ["tiny-Q8_0", "tiny-Q2_K"]);
    assert_eq!(of_two["is_original"], true);
}

#[test]
fn quants_and_caches_share_a_budget() {
    let session = shelf();
    let line = format!("pick quants {TEXT} --cache-types f16,q4_0 -c 100000");
    let all = session.json(&line);
    let kv_cache = |label: &str| {
        let mut models = all["models"].as_array().unwrap().iter();
        let model = models.find(|model| model["label"] == label);
        model.unwrap()["memory"]["kv_cache"].as_f64().unwrap()
    };
    let [f16, q4] = ["f16", "q4_0"].map(|kind| kv_cache(&format!("tiny-Q8_0-k_{kind}-v_{kind}")));
    // 18 bytes in place of 64 for 32 values, of a context that was not run.
    assert!((q4 / f16 - 18.0 / 64.0).abs() < 1e-6, "{q4} {f16}");
    assert_eq!(labels(&all).len(), 6);
    let all_of = |model: &Value| {
        let memory = &model["memory"];
        let parts = ["weights", "kv_cache", "compute"].map(|part| memory[part].as_u64().unwrap());
        parts.iter().sum::<u64>()
    };
    let models = all["models"].as_array().unwrap().iter();
    let with_f16 = models.filter(|model| model["label"].as_str().unwrap().ends_with("v_f16"));
    let limit = with_f16.map(all_of).min().unwrap() - 1;
    let within = session.json(&format!("{line} --resume --memory {limit}"));
    assert!(picked(&within).ends_with("-k_q4_0-v_q4_0"), "{within}");
}

/// The quants of a repository, as publishers name them, each a copy of a fixture with a little noise of its own.
const QUANTS: [(&str, &str); 12] = [
    ("q8", "Q8_0/X-Q8_0.gguf"),
    ("q8", "X-UD-Q8_K_XL.gguf"),
    ("q8", "X.Q6_K.gguf"),
    ("q4", "X-UD-Q4_K_XL.gguf"),
    ("q4", "X-Q4_K_M.gguf"),
    ("q4", "X_Q4_K_L.gguf"),
    ("q4", "X_IQ4_KSS.gguf"),
    ("q4", "X.i1-IQ3_M.gguf"),
    ("q2", "X-Q2_K_L.gguf"),
    ("q2", "X-Q2_K.gguf"),
    ("q2", "X.i1-IQ2_M.gguf"),
    ("q2", "X-TQ1_0.gguf"),
];

/// Files of a repository that are neither a quant nor the original.
const OTHERS: [&str; 7] = [
    "mmproj-F16.gguf",
    "X-imatrix.gguf",
    "imatrix_unsloth.dat",
    "mtp-X-Q8_0.gguf",
    "MTP/X-Q4_0-MTP.gguf",
    "X.Q5_K_M.gguf.part1of2",
    "README.md",
];

/// The quant with some of its weights changed: the last bits of the first bytes of each tensor, as many as `amount`.
fn variant(alias: &str, amount: usize) -> Vec<u8> {
    let mut file = Gguf::read(fs::read(fixture(alias)).unwrap());
    for data in file.all_data() {
        if data.len() > 20_000 {
            for byte in data.iter_mut().skip(200).step_by(97).take(10 * amount) {
                *byte ^= 1;
            }
        }
    }
    file.whole()
}

fn repository(folder: &Path) -> PathBuf {
    let repository = folder.join("me/X-GGUF");
    for (amount, (alias, name)) in QUANTS.into_iter().enumerate() {
        let path = repository.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, variant(alias, amount)).unwrap();
    }
    let original = Gguf::read(fs::read(fixture("f16")).unwrap());
    fs::create_dir_all(repository.join("BF16")).unwrap();
    for part in [0, 1] {
        let name = format!("BF16/X-BF16-0000{}-of-00002.gguf", part + 1);
        fs::write(repository.join(name), original.part(part)).unwrap();
    }
    for name in OTHERS {
        let path = repository.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy(fixture("q2"), path).unwrap();
    }
    // A type of weights that this llama.cpp does not know.
    let mut new = Gguf::read(fs::read(fixture("q2")).unwrap());
    new.set_type("blk.0.attn_q.weight", 199);
    fs::write(repository.join("X-Q3_NEW.gguf"), new.whole()).unwrap();
    repository
}

/// Removes what differs from run to run: speeds, what follows from them, and the folder.
fn without_speeds(mut pick: Value, folder: &str) -> String {
    for key in ["undecided", "warnings"] {
        pick[key] = Value::Null;
    }
    // Several are as near, and of those the fastest is picked.
    assert!(!picked(&pick).is_empty());
    pick["pick"] = Value::Null;
    for model in pick["models"].as_array_mut().unwrap() {
        model["speed"] = Value::Null;
        model["on_front"] = Value::Null;
    }
    serde_json::to_string_pretty(&pick)
        .unwrap()
        .replace(folder, "FOLDER")
}

#[test]
fn a_repository_is_measured_with_disk_for_two_and_continued_wherever_it_is_killed() {
    let mut session = Session::with_text();
    let folder = tempfile::tempdir().unwrap();
    repository(folder.path());
    let hub = FakeHub::serve(folder.path());
    session.hub = Some(hub.endpoint.clone());
    let line = |folder: &str| {
        format!(
            "pick hf:me/X-GGUF --discard {TEXT} -w {folder} --memory 1GiB --json {folder}.json -q"
        )
    };
    let n_blobs = || {
        let blobs = session.path("hf/hub/models--me--X-GGUF/blobs");
        let entries = fs::read_dir(blobs).into_iter().flatten().flatten();
        // One that is being loaded has an ending.
        let stems = entries.filter_map(|entry| Some(entry.path().file_stem()?.to_owned()));
        stems.collect::<BTreeSet<_>>().len()
    };
    let most = Cell::new(0);
    let mut child = session.spawn(&line("whole"));
    wait_until(&mut child, || {
        most.set(most.get().max(n_blobs()));
        false
    });
    let run = Run::from(child.wait_with_output().unwrap());
    assert_eq!(run.code, 0, "{}", run.stderr);
    // Of the original, both parts.
    assert!((1..=2).contains(&most.get()), "{} files", most.get());
    assert_eq!(n_blobs(), 0);
    let whole = session.read_json("whole.json");
    assert_eq!(labels(&whole).len(), QUANTS.len());
    assert_eq!(whole["is_original"], true);
    let left_out = whole["left_out"].as_array().unwrap();
    assert_eq!(left_out.len(), 1, "{left_out:?}");
    assert!(
        left_out[0]["file"]
            .as_str()
            .unwrap()
            .ends_with("X-Q3_NEW.gguf")
    );
    for name in OTHERS {
        assert_eq!(hub.served(&format!("me/X-GGUF/{name}")), 0, "{name}");
    }
    // Killed when so many sidecars are there, whole or begun, in places that a seed gives.
    let n_files = || {
        fs::read_dir(session.path("parts"))
            .into_iter()
            .flatten()
            .count()
    };
    for n in [1, 2, 5, 9, 12] {
        let mut child = session.spawn(&format!("{} --resume", line("parts")));
        wait_until(&mut child, || n_files() >= n);
        send("-KILL", child.id());
        child.wait().unwrap();
    }
    session.ok(&format!("{} --resume", line("parts")));
    let parts = session.read_json("parts.json");
    let [parts, whole] =
        [(parts, "parts"), (whole, "whole")].map(|(pick, folder)| without_speeds(pick, folder));
    for (part, whole) in parts.lines().zip(whole.lines()) {
        assert_eq!(part, whole);
    }
    assert_eq!(parts.len(), whole.len());
    // The same files in a folder are the same quants.
    let local = folder.path().join("me/X-GGUF");
    let line = format!(
        "pick {} {TEXT} --quants Q4_*,IQ4_*,Q3_NEW -w local",
        local.display()
    );
    let local = session.json(&line);
    let names = labels(&local).into_iter().collect::<BTreeSet<_>>();
    let expected = ["X-UD-Q4_K_XL", "X-Q4_K_M", "X_Q4_K_L", "X_IQ4_KSS"];
    assert_eq!(names, expected.into_iter().collect());
    assert_eq!(local["is_original"], true);
    assert_eq!(local["left_out"][0]["file"], "X-Q3_NEW.gguf");
}
