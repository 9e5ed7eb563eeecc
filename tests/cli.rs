//! The main job, end to end: what a person types and what comes of it.

mod common;

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use common::{Session, fixture, short_text};
use kl_formats::sidecar::{SidecarReader, TokenRecord};

#[test]
fn a_reference_is_written_and_a_quant_evaluated_against_it() {
    let session = Session::new();
    session.write("short.txt", short_text());
    let write = session.ok(&[
        "-m",
        "@tiny-f16.gguf",
        "-t",
        "short.txt",
        "-w",
        "ref.gz",
        "-c",
        "64",
    ]);
    assert_eq!(write.stdout, "", "nothing but results on stdout");
    for said in [
        "model",
        "windows",
        "scored positions",
        "at most",
        "free",
        "wrote ref.gz",
    ] {
        assert!(write.stderr.contains(said), "'{said}' in {}", write.stderr);
    }

    let read = session.ok(&["-m", "@tiny-q4_K_M.gguf", "-r", "ref.gz"]);
    for said in [
        "mean",
        "windows, not tokens, independent",
        "99.9 %",
        "maximum",
        "reverse KLD",
        "same top token",
        "ratio",
        "BPW",
        "tokens/s",
    ] {
        assert!(read.stdout.contains(said), "'{said}' in {}", read.stdout);
    }
    assert_eq!(
        session.files(),
        ["ref.gz", "short.txt", "tiny-q4_K_M.gguf.kls"]
    );
}

#[test]
fn sliding_windows_score_all_of_each_or_only_what_is_new() {
    let session = Session::new();
    session.reference(&["--stride", "16", "--max-windows", "5", "--score", "new"]);
    let json = session.json(&["-m", "@tiny-q8_0.gguf", "-r", "ref.gz"]);
    assert_eq!(json["reference"]["stride"], 16);
    assert_eq!(json["models"][0]["n_tokens"], 64 + 4 * 16);
    let records = SidecarReader::open(&session.path("tiny-q8_0.gguf.kls"))
        .unwrap()
        .read_all()
        .unwrap();
    let new = |record: &&TokenRecord| record.window > 0;
    assert!(
        records
            .iter()
            .filter(new)
            .all(|record| record.position >= 48)
    );

    session.reference(&["--stride", "16", "--max-windows", "5", "--force"]);
    let output = session.ok(&["-m", "@tiny-q8_0.gguf", "-r", "ref.gz", "-q", "--json", "-"]);
    assert!(
        output
            .stderr
            .contains("windows overlap, one every 16 of 64")
    );
    let json: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(json["models"][0]["n_tokens"], 5 * 64);

    session.fails(
        &[
            "-m",
            "@tiny-f16.gguf",
            "-t",
            "@eval.txt",
            "-w",
            "no.gz",
            "-c",
            "64",
            "--stride",
            "64",
        ],
        1,
        &["--stride 64 leaves tokens out"],
    );
}

#[test]
fn several_models_end_with_a_table_whose_best_is_marked() {
    let session = Session::new();
    session.reference(&[]);
    let read = session.ok(&[
        "-m",
        "@tiny-q2_K.gguf",
        "-m",
        "@tiny-q8_0.gguf",
        "-m",
        "@tiny-q4_K_M.gguf",
        "-r",
        "ref.gz",
        "-q",
        "--json",
        "all.json",
    ]);
    let table: Vec<&str> = read
        .stdout
        .lines()
        .filter(|line| line.starts_with('|'))
        .collect();
    assert_eq!(table.len(), 5, "header, rule, three models: {table:#?}");
    assert!(
        table[3].contains("q8_0") && table[3].contains('*'),
        "{table:#?}"
    );
    assert!(
        !table[2].contains('*'),
        "q2_K is best at nothing: {table:#?}"
    );

    let json = session.read_json("all.json");
    let mean = |model: usize| {
        json["models"][model]["kld"]["mean"]["value"]
            .as_f64()
            .unwrap()
    };
    assert!(
        mean(1) < mean(2) && mean(2) < mean(0),
        "q8_0 < q4_K_M < q2_K"
    );
}

#[test]
fn the_json_has_the_keys_that_people_script_against() {
    let session = Session::new();
    session.reference(&[]);
    let json = session.json(&["-m", "@tiny-q4_K_M.gguf", "-r", "ref.gz"]);
    assert_eq!(json["kl_version"], env!("CARGO_PKG_VERSION"));
    let model = &json["models"][0];
    for pointer in [
        "/model/path",
        "/model/name",
        "/model/size_bytes",
        "/model/n_params",
        "/model/bpw",
        "/n_tokens",
        "/n_excluded",
        "/kld/mean/value",
        "/kld/mean/lo",
        "/kld/mean/hi",
        "/kld/mean/se",
        "/kld/mean/cluster_lo",
        "/kld/mean/cluster_hi",
        "/kld/std",
        "/kld/min",
        "/kld/max",
        "/kld/max_at/window",
        "/kld/max_at/position",
        "/kld/max_at/token",
        "/kld/quantiles/0/p",
        "/kld/quantiles/0/value",
        "/kld/quantiles/0/lo",
        "/kld/quantiles/0/hi",
        "/reverse_kld/mean",
        "/agreement/ref_top1/value",
        "/agreement/ref_top5/lo",
        "/agreement/ref_top10/hi",
        "/agreement/eval_top5/value",
        "/agreement/eval_top10/value",
        "/perplexity/ref",
        "/perplexity/eval",
        "/perplexity/ln_ratio/value",
        "/perplexity/ln_ratio/se",
        "/delta_p/mean",
        "/delta_p/rms",
        "/delta_p/quantiles",
        "/timing/load_s",
        "/timing/decode_s",
        "/timing/score_s",
        "/timing/wall_s",
        "/timing/tokens_per_s",
    ] {
        assert!(
            model.pointer(pointer).is_some_and(|value| !value.is_null()),
            "{pointer}: {model:#}"
        );
    }
    let quantiles: Vec<f64> = model["kld"]["quantiles"]
        .as_array()
        .unwrap()
        .iter()
        .map(|quantile| quantile["p"].as_f64().unwrap())
        .collect();
    assert_eq!(quantiles, [0.5, 0.9, 0.95, 0.99, 0.999]);
    assert_eq!(json["reference"]["kind"], "kl");
    assert_eq!(json["reference"]["n_ctx"], 64);
}

#[test]
fn the_model_against_itself_is_exactly_zero() {
    let session = Session::new();
    session.reference(&["--encoding", "f32"]);
    let json = session.json(&["-m", "@tiny-f16.gguf", "-r", "ref.gz"]);
    let model = &json["models"][0];
    assert_eq!(model["is_reference_model"], true);
    assert_eq!(model["n_excluded"], 0);
    for pointer in [
        "/kld/mean/value",
        "/kld/max",
        "/kld/min",
        "/reverse_kld/max",
    ] {
        assert_eq!(
            model.pointer(pointer).unwrap().as_f64(),
            Some(0.0),
            "{pointer}"
        );
    }
    for share in [
        "ref_top1",
        "ref_top5",
        "ref_top10",
        "eval_top5",
        "eval_top10",
    ] {
        assert_eq!(model["agreement"][share]["value"], 1.0, "{share}");
    }
    assert_eq!(model["perplexity"]["ln_ratio"]["value"].as_f64(), Some(0.0));
}

#[test]
fn u16_changes_the_result_in_the_sixth_digit_at_most() {
    let session = Session::new();
    session.reference(&["--encoding", "f32"]);
    let exact = session.json(&["-m", "@tiny-q4_K_M.gguf", "-r", "ref.gz"]);
    session.reference(&["--force"]);
    let coded = session.json(&["-m", "@tiny-q4_K_M.gguf", "-r", "ref.gz"]);
    let mean =
        |json: &serde_json::Value| json["models"][0]["kld"]["mean"]["value"].as_f64().unwrap();
    let error = (mean(&coded) - mean(&exact)).abs();
    assert!(error < 1e-6 && error > 0.0, "{error}");
}

#[test]
fn results_are_the_same_bits_from_run_to_run_and_for_any_order_of_models() {
    let session = Session::new();
    session.reference(&[]);
    let first = fs::read(session.path("ref.gz")).unwrap();
    session.reference(&["--force"]);
    assert_eq!(
        fs::read(session.path("ref.gz")).unwrap(),
        first,
        "the reference"
    );

    session.ok(&[
        "-m",
        "@tiny-q4_K_M.gguf",
        "-r",
        "ref.gz",
        "--sidecar",
        "a.kls",
        "-q",
    ]);
    session.ok(&[
        "-m",
        "@tiny-q2_K.gguf",
        "-m",
        "@tiny-q4_K_M.gguf",
        "-r",
        "ref.gz",
        "-q",
    ]);
    assert_eq!(
        fs::read(session.path("a.kls")).unwrap(),
        fs::read(session.path("tiny-q4_K_M.gguf.kls")).unwrap(),
        "the sidecar"
    );

    session.ok(&[
        "-m",
        "@tiny-q4_K_M.gguf",
        "-r",
        "ref.gz",
        "--contexts",
        "2",
        "-q",
    ]);
    assert_eq!(
        fs::read(session.path("a.kls")).unwrap(),
        fs::read(session.path("tiny-q4_K_M.gguf.kls")).unwrap(),
        "the sidecar of two contexts"
    );
}

#[test]
fn score_half_and_n_choose_what_is_scored() {
    let session = Session::new();
    session.reference(&["--score", "half"]);
    let json = session.json(&[
        "-m",
        "@tiny-q8_0.gguf",
        "-r",
        "ref.gz",
        "--sidecar",
        "half.kls",
    ]);
    let records = SidecarReader::open(&session.path("half.kls"))
        .unwrap()
        .read_all()
        .unwrap();
    assert!(
        records
            .iter()
            .all(|record| (32..64).contains(&record.position))
    );
    assert_eq!(
        json["models"][0]["n_tokens"].as_u64(),
        Some(records.len() as u64)
    );

    session.reference(&["-n", "100", "--force"]);
    let json = session.json(&["-m", "@tiny-q8_0.gguf", "-r", "ref.gz"]);
    assert_eq!(json["models"][0]["n_tokens"], 100);
    assert_eq!(json["reference"]["seed"], 123);

    session.reference(&["--force"]);
    let json = session.json(&[
        "-m",
        "@tiny-q8_0.gguf",
        "-r",
        "ref.gz",
        "-n",
        "200",
        "--sidecar",
        "n.kls",
    ]);
    assert_eq!(json["models"][0]["n_tokens"], 200);
    let records = SidecarReader::open(&session.path("n.kls"))
        .unwrap()
        .read_all()
        .unwrap();
    let windows: Vec<u32> = records
        .iter()
        .step_by(64)
        .map(|record| record.window)
        .collect();
    assert_ne!(windows, [0, 1, 2, 3], "a sample, not the text's front");
    assert!(
        records[199].next_token().is_some(),
        "the token after the last row is known"
    );
}

#[test]
fn a_part_of_a_reference_gives_the_numbers_that_the_whole_gives_there() {
    let session = Session::new();
    session.reference(&[]);
    let read = |name: &str, more: &[&str]| {
        let args = [
            "-m",
            "@tiny-q4_K_M.gguf",
            "-r",
            "ref.gz",
            "-q",
            "--sidecar",
            name,
        ];
        session.ok(&[&args, more].concat());
        SidecarReader::open(&session.path(name))
            .unwrap()
            .read_all()
            .unwrap()
    };
    let whole = read("whole.kls", &[]);
    let part = read("part.kls", &["-n", "100"]);
    assert_eq!(part.len(), 100);
    // As text, so that the NaN of a window's last row equals itself.
    let whole: Vec<String> = whole.iter().map(|record| format!("{record:?}")).collect();
    for record in part {
        assert!(whole.contains(&format!("{record:?}")), "{record:?}");
    }
}

#[test]
fn a_batch_smaller_than_a_window_streams_it() {
    let session = Session::new();
    session.reference(&["-b", "7", "-ub", "7", "--encoding", "f32"]);
    let json = session.json(&["-m", "@tiny-f16.gguf", "-r", "ref.gz"]);
    assert_eq!(json["reference"]["backend"]["n_batch"], 7);
    assert_eq!(
        json["models"][0]["kld"]["max"].as_f64(),
        Some(0.0),
        "the file's batch is used"
    );

    let run = session.ok(&[
        "-m",
        "@tiny-f16.gguf",
        "-r",
        "ref.gz",
        "-b",
        "64",
        "-ub",
        "64",
        "-q",
    ]);
    assert!(
        run.stderr.contains("--n-batch 7 to match"),
        "{}",
        run.stderr
    );
}

#[test]
fn text_comes_from_stdin_too() {
    let session = Session::new();
    let args = [
        "-m",
        "@tiny-f16.gguf",
        "-t",
        "-",
        "-w",
        "ref.gz",
        "-c",
        "64",
        "-q",
    ];
    let mut child = session
        .command(&args)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(short_text().as_bytes())
        .unwrap();
    assert!(child.wait().unwrap().success());
    let from_stdin = session.json(&["-m", "@tiny-q8_0.gguf", "-r", "ref.gz"]);
    assert_eq!(from_stdin["reference"]["text"]["name"], "-");
    session.reference(&["--force"]);
    let from_file = session.json(&["-m", "@tiny-q8_0.gguf", "-r", "ref.gz"]);
    assert_eq!(
        from_stdin["models"][0]["kld"],
        from_file["models"][0]["kld"]
    );
}

#[test]
fn a_pipe_that_closes_is_no_error() {
    let session = Session::new();
    session.reference(&[]);
    let args = ["-m", "@tiny-q8_0.gguf", "-r", "ref.gz", "-q", "--json", "-"];
    let mut child = session
        .command(&args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn quiet_and_verbose() {
    let session = Session::new();
    session.reference(&[]);
    let quiet = session.ok(&["-m", "@tiny-q8_0.gguf", "-r", "ref.gz", "-q"]);
    assert_eq!(quiet.stderr, "");
    let verbose = session.ok(&["-m", "@tiny-q8_0.gguf", "-r", "ref.gz", "-v"]);
    assert!(
        verbose.stderr.contains("model buffer size"),
        "{}",
        verbose.stderr
    );
}

#[test]
fn the_fixtures_model_was_trained() {
    let session = Session::new();
    let eval = fixture("eval.txt");
    let text = eval.to_str().unwrap();
    session.ok(&[
        "-m",
        "@tiny-f16.gguf",
        "-t",
        text,
        "-w",
        "ref.gz",
        "-c",
        "256",
        "-n",
        "2000",
        "-q",
    ]);
    let json = session.json(&["-m", "@tiny-q8_0.gguf", "-r", "ref.gz"]);
    let perplexity = json["models"][0]["perplexity"]["ref"].as_f64().unwrap();
    assert!(perplexity < 50.0, "{perplexity} of a vocabulary of 1024");
}

#[test]
fn what_moves_results_is_warned_of_and_the_noise_floor_is_named() {
    let session = Session::new();
    session.reference(&["-b", "32"]);
    let model = ["-m", "@tiny-f16.gguf", "-r", "ref.gz", "-q"];
    let same = session.ok(&model);
    assert_eq!(same.stderr, "");
    assert!(same.stdout.contains("the noise floor"), "{}", same.stdout);
    let quant = session.ok(&["-m", "@tiny-q8_0.gguf", "-r", "ref.gz", "-q"]);
    assert!(!quant.stdout.contains("noise floor"));
    for (flags, said) in [
        (["-b", "16"], "the batch is 16 here and was 32"),
        (["-ub", "8"], "the physical batch is 8 here and was 32"),
        (["-fa", "on"], "flash attention is on here and was auto"),
        (["-ctk", "q8_0"], "cached keys is q8_0 here and was f16"),
        (["-ctv", "f32"], "cached values is f32 here and was f16"),
    ] {
        let run = session.ok(&[&model[..], &flags].concat());
        let warned = run.stderr.lines().any(|line| line.contains(said));
        assert!(warned, "{flags:?}: {}", run.stderr);
    }
    // Flags given twice: the last one counts, and this session's is --threads 1.
    let mut command = session.command(&model);
    let output = command.args(["--threads", "2"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("threads is 2 here and was 1"), "{stderr}");
}
