use std::any::Any;
use std::ffi::OsString;
use std::path::Path;

use kl_formats::{Encoding, Kind};

use super::check;
use crate::cli::request::Request;
use crate::cli::request::evaluate::EvaluateRequest;
use crate::cli::request::write::WriteRequest;
use crate::cli::{args, short_flags, usage};
use crate::commands::settings::{EvaluateSettings, ReferenceSource, WriteSettings};
use crate::engine::{CacheType, GpuLayers};
use crate::input::ScoreFrom;

fn command(line: &str) -> Result<Box<dyn Request>, String> {
    let args = short_flags::expand(line.split(' ').map(OsString::from))?;
    let cli = args::parse(&args).map_err(|error| usage::one_line(&error, &args))?;
    check(cli)
}

fn requested<R: Request>(line: &str) -> R {
    let request: Box<dyn Any> = command(line).unwrap();
    *request.downcast().unwrap()
}

fn written(line: &str) -> WriteSettings {
    requested::<WriteRequest>(line).0
}

fn evaluated(line: &str) -> EvaluateSettings {
    requested::<EvaluateRequest>(line).settings
}

#[test]
fn the_two_classic_calls() {
    let write = written("kl -m a -t t -w w");
    assert_eq!(write.input.n_ctx, Some(512));
    assert_eq!((write.input.score, write.run.max_rows), (None, None));
    let write = written("kl -m a -t t -w w --format kl.py");
    assert_eq!(write.input.score, Some(ScoreFrom::All), "as kl.py");
    let evaluate = evaluated("kl -m a -m b -r r -n 100");
    let (n_models, max_rows) = (evaluate.models.len(), evaluate.run.max_rows);
    assert_eq!((n_models, max_rows), (2, Some(100)));
    let ReferenceSource::File { n_ctx, .. } = evaluate.reference else {
        panic!("file")
    };
    assert_eq!((n_ctx, evaluate.results.sidecar), (None, None));
    assert_eq!(evaluate.results.reference, Path::new("r"));
    assert_eq!(evaluate.results.stats, []);
}

#[test]
fn a_reference_model_runs_as_the_others_but_where_it_has_flags_of_its_own() {
    let call = "kl -m a -m b -t t -c 64 --ref-model f -ngl 9 -dev X,Y -b 8 -ctk q8_0 -n 100";
    for (flags, n_gpu_layers, devices) in [
        ("", 9, &["X", "Y"][..]),
        (" --ref-ngl 3", 3, &["X", "Y"]),
        (" --ref-ngl=0 --ref-device Z", 0, &["Z"]),
    ] {
        let evaluate = evaluated(&format!("{call}{flags}"));
        let ReferenceSource::Model(model) = evaluate.reference else {
            panic!("model")
        };
        let run = model.run;
        assert_eq!((model.input.n_ctx, model.input.score), (Some(64), None));
        assert_eq!(run.model.n_gpu_layers, GpuLayers::Count(n_gpu_layers));
        assert_eq!(run.model.devices, devices);
        assert_eq!((run.n_batch, run.max_rows), (Some(8), Some(100)));
        // What -ctk changes is measured against a cache of f16.
        assert_eq!(run.type_k, CacheType::default());
        assert_eq!(evaluate.run.type_k.to_string(), "q8_0");
        assert_eq!(evaluate.models.len(), 2);
        assert_eq!(evaluate.run.model.n_gpu_layers, GpuLayers::Count(9));
    }
}

#[test]
fn rows_are_stored_as_the_flag_says() {
    for (flags, kind, encoding) in [
        ("", Kind::Kl, Encoding::U16),
        (" --encoding u16", Kind::Kl, Encoding::U16),
        (" --encoding f32", Kind::Kl, Encoding::F32),
        (" --encoding hidden --format kl", Kind::Kl, Encoding::Hidden),
        (" --format kl.py", Kind::KlPy, Encoding::F32),
        (" --format kl.py --encoding f32", Kind::KlPy, Encoding::F32),
    ] {
        let target = written(&format!("kl -m a -t t -w w{flags}")).target;
        assert_eq!((target.kind(), target.encoding()), (kind, encoding));
    }
}

#[test]
fn prompts_are_scored_from_where_the_flags_say() {
    for (flags, n_ctx, score) in [
        ("", None, None),
        (" -c 64 --score 3", Some(64), Some(ScoreFrom::Position(3))),
        (" --generate 5 --no-chat-template", None, None),
        (" --generate 5 --score all", None, Some(ScoreFrom::All)),
    ] {
        let input = written(&format!("kl -m a --prompts - -w w{flags}")).input;
        assert_eq!((input.n_ctx, input.score), (n_ctx, score));
        assert_eq!(input.generate.is_some(), flags.contains("--generate"));
    }
    for (given, path) in [
        ("starter", None),
        ("./starter", Some(Path::new("./starter"))),
    ] {
        let input = written(&format!("kl -m a --prompts {given} -w w")).input;
        assert_eq!(input.prompt_file(), path);
    }
    let range = command("kl -m a --prompts p -w w --generate 0").unwrap_err();
    assert!(range.contains("--generate"), "{range}");
}
