//! Where weights lie: the flags move them, and the numbers stay.

use serde_json::Value;

use crate::device::{Device, Server, bounds, has_servers, rpc_flags};
use crate::numbers::number;
use crate::session::Session;

/// Evaluates a model against `ref.gz` with these flags, and returns the result and llama.cpp's log.
#[track_caller]
fn evaluate(session: &Session, model: &str, flags: &str) -> (Value, String) {
    let line = format!("-m {model} -r ref.gz --force -v --json out.json {flags}");
    let log = session.ok(&line).stderr;
    (session.read_json("out.json")["models"][0].clone(), log)
}

#[track_caller]
fn is_near(result: &Value, flags: &str) {
    assert_eq!(result["n_excluded"], 0);
    let row = number(&result["kld"]["max"]);
    assert!(row < bounds().row, "{flags}: {row} nats");
}

/// MiB of weights that the log finds in the memory whose name contains `memory`.
fn weights(log: &str, memory: &str) -> f64 {
    let lines = log.lines().filter(|line| line.contains(memory));
    let lines = lines.filter(|line| line.contains("model buffer size"));
    let sizes = lines.filter_map(|line| line.split(['=', ' ']).rev().nth(1)?.parse::<f64>().ok());
    sizes.sum()
}

#[test]
fn work_that_stays_on_the_cpu_gives_the_same_rows() {
    let (session, device) = (Session::with_text(), Device::new());
    session.ok("-m @f16 -t short.txt -c 64 -w ref.gz --encoding f32 -q");
    let all = device.all_layers();
    let fewer = format!("{} -ngl 2", device.flags);
    for (layers, placement, is_recorded) in [
        (&all, "-nkvo", true),
        (&fewer, "--no-op-offload", true),
        (&all, r"-ot blk\.0\..*=CPU", true),
        (&all, "-ot output=CPU", true),
        (&all, "--no-mmap", false),
        (&all, "--mmap", false),
    ] {
        let (result, _) = evaluate(&session, "@f16", &format!("{layers} {placement}"));
        is_near(&result, placement);
        let recorded = result["set_up"]["placement"].to_string();
        let shown = placement.replace('\\', r"\\");
        assert_eq!(recorded.contains(&shown), is_recorded, "{recorded}");
    }
}

#[test]
fn experts_can_stay_on_the_cpu() {
    let (session, device) = (Session::with_text(), Device::new());
    let mixtral = "@architectures/mixtral.gguf";
    let write = format!("-m {mixtral} -t short.txt -c 64 -w ref.gz");
    session.ok(&format!("{write} --encoding f32 -q"));
    let all = device.all_layers();
    let (_, log) = evaluate(&session, mixtral, &all);
    let with_experts = weights(&log, "CPU");
    for flags in ["-cmoe", "-ncmoe 9"] {
        let flags = format!("{all} {flags}");
        let (result, log) = evaluate(&session, mixtral, &flags);
        is_near(&result, &flags);
        assert!(weights(&log, "CPU") > with_experts, "{flags}: {log}");
    }
}

#[test]
fn all_layers_fit_where_there_is_room() {
    let (session, device) = (Session::with_text(), Device::new());
    let flags = format!("{} -ngl auto", device.flags);
    let write = "-m @f16 -t short.txt -c 64 -w ref.gz --encoding f32 -q";
    session.ok(&format!("{write} {flags}"));
    let (result, log) = evaluate(&session, "@f16", &flags);
    assert_eq!(number(&result["kld"]["max"]), 0.0);
    assert_eq!(result["set_up"]["n_gpu_layers"], 4);
    assert!(log.contains("4 of 4 fit on the devices"), "{log}");
    if !has_servers() {
        // With two models 2 GiB stay free, which is all that Mesa's driver for the CPU has.
        return;
    }
    let line = format!("-m @q8 --ref-model @f16 -t short.txt -c 64 --no-sidecar {flags}");
    let log = session.ok(&line).stderr;
    assert_eq!(log.matches("4 of 4 fit on the devices").count(), 2, "{log}");
}

#[test]
fn a_model_is_split_between_servers_as_told() {
    if !has_servers() {
        return;
    }
    let (session, servers) = (Session::with_text(), [Server::start(), Server::start()]);
    session.ok("-m @f16 -t short.txt -c 64 -w ref.gz --encoding f32 -q");
    let split = format!("{} -ngl 99", rpc_flags(&servers));
    let without_first = split.replace("RPC0,", "").replace("-ts 1,1 ", "");
    let mut on_first = Vec::new();
    for flags in [
        split.replace("-ts 1,1", "-ts 1,3"),
        split.replace("-ts 1,1", "-ts 3,1"),
        split.replace("-ts 1,1", "-ts 0,1"),
        split.replace("-sm layer", "-sm none -mg 0"),
        without_first,
    ] {
        let (result, log) = evaluate(&session, "@f16", &flags);
        is_near(&result, &flags);
        on_first.push(weights(&log, &servers[0].address));
    }
    let [one_in_four, three_in_four, none, all, not_named] = on_first[..] else {
        panic!("five splits")
    };
    assert!(0.0 < one_in_four && one_in_four < three_in_four && three_in_four < all);
    assert_eq!((none, not_named), (0.0, 0.0));
    // llama.cpp's name of a server's memory, which is not recorded: it holds the address.
    let memory = format!("RPC0[{}]", servers[0].address);
    let (result, _) = evaluate(&session, "@f16", &format!("{split} -ot blk={memory}"));
    let set_up = result["set_up"].to_string();
    assert!(set_up.contains("-ot blk=RPC0\""), "{set_up}");
    assert!(!set_up.contains(&servers[0].address), "{set_up}");
    let devices = split.split(" -ts").next().unwrap();
    for (flags, what) in [
        ("-ngl 99 -ts 1,1,1", "the devices are RPC0, RPC1"),
        ("-ngl 99 -sm none -mg 2", "the devices are RPC0, RPC1"),
        ("-ngl 99 -sm row", "(use --split-mode layer)"),
        ("-ngl 99 -ot blk=CUDA0", "available are CPU, RPC0, RPC1"),
        ("-ngl auto -sm row", "cannot be fitted to the free memory"),
    ] {
        let line = format!("-m @f16 -r ref.gz --force -q {devices} {flags}");
        session.fails(&line, 1, &[what]);
    }
}
