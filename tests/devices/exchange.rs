//! Weights are exchanged in the device's memory.

use std::path::Path;

use kl::engine::{
    ContextOptions, Decoder, Engine, GpuLayers, LlamaCpp, Model, ModelOptions, Quantization,
};
use kl_formats::{GgmlType, Mixture, WindowSpec};
use llama_cpp_2::{LogOptions, send_logs_to_tracing};

use crate::device::Device;
use crate::session::Session;

/// Of some that follow each other, the rows have as many bytes: a device that keeps anything of the type
/// before would not notice.
const TYPES: [&str; 10] = [
    "q8_0", "q6_K", "q5_1", "q4_K", "q4_0", "iq4_nl", "iq4_xs", "q3_K", "iq3_s", "q2_K",
];

fn logits(decoder: &mut dyn Decoder) -> Vec<u32> {
    let window = WindowSpec {
        window: 0,
        tokens: (1..41).collect(),
        first_scored: 0,
        n_rows: 40,
    };
    let (mut logits, mut start) = (Vec::new(), Some(0));
    while let Some(at) = start {
        let outputs = decoder.decode_call(&window, at, true).unwrap();
        let rows = outputs.rows.iter().copied().flatten();
        logits.extend(rows.map(|logit| logit.to_bits()));
        start = outputs.next;
    }
    logits
}

/// Loads a model so that some layers lie on the device, and all weights as in its file.
fn load<'e>(engine: &'e LlamaCpp, path: &Path, n_layers: u32, flags: &str) -> Box<dyn Model + 'e> {
    let options = ModelOptions {
        n_gpu_layers: GpuLayers::Count(n_layers),
        devices: values(flags, "-dev"),
        tensor_split: values(flags, "-ts").join(",").parse().ok(),
        is_exchangeable: true,
        ..ModelOptions::default()
    };
    engine.load(path, &options).unwrap()
}

/// The values of a flag.
fn values(flags: &str, flag: &str) -> Vec<String> {
    let mut words = flags.split(' ').skip_while(|word| *word != flag);
    let values = words.nth(1).unwrap_or_default().split(',');
    let values = values.filter(|value| !value.is_empty());
    values.map(str::to_owned).collect()
}

#[test]
fn exchanged_weights_give_the_logits_of_the_file() {
    send_logs_to_tracing(LogOptions::default().with_logs_enabled(false));
    let (session, device) = (Session::new(), Device::new());
    let engine = LlamaCpp::default();
    engine.add_servers(&values(&device.flags, "--rpc")).unwrap();
    let devices = engine.devices().unwrap();
    let is_there = |name: &String| devices.iter().any(|device| device.name == *name);
    if !values(&device.flags, "-dev").iter().all(is_there) {
        return; // The program under test has a backend that these tests were built without.
    }
    let options = ContextOptions {
        n_ctx: 64,
        ..ContextOptions::default()
    };
    let (input, output) = (session.path("@f16"), session.path("quantized.gguf"));
    // All, and only the output and one layer: the embeddings are the output too, in memory of their own.
    for (n_layers, types) in [(99, &TYPES[..]), (2, &["q3_K", "iq3_s"])] {
        let model = load(&engine, &input, n_layers, &device.flags);
        let weights = model.weights().unwrap();
        let names = weights.exchangeable().unwrap();
        assert_eq!(names.len(), 22);
        let mixture = |kind: &str| -> Mixture {
            let kind: GgmlType = kind.parse().unwrap();
            names.iter().map(|name| (name.clone(), kind)).collect()
        };
        let of_model = || logits(&mut *model.decoder(&options).unwrap());
        let original = of_model();
        let exchanged = |mixture: &Mixture| {
            weights.exchange(mixture, None, &|| false).unwrap();
            of_model()
        };
        let of_types: Vec<_> = types.iter().map(|it| exchanged(&mixture(it))).collect();
        assert!(exchanged(&Mixture::new()) == original, "{n_layers} layers");
        for (kind, exchanged) in types.iter().zip(of_types) {
            let quantization = Quantization {
                input: &input,
                output: &output,
                mixture: &mixture(kind),
                imatrix: None,
                threads: 1,
            };
            engine.quantize(&quantization).unwrap();
            let written = load(&engine, &output, n_layers, &device.flags);
            let expected = logits(&mut *written.decoder(&options).unwrap());
            assert!(exchanged == expected, "{kind}, {n_layers} layers");
            assert!(exchanged != original, "{kind}, {n_layers} layers");
        }
    }
}
