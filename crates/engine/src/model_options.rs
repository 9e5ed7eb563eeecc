//! The options of a model and of its contexts: llama.cpp's flags as values.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use kl_formats::Calls;

/// The options with which a model is loaded: where it lies and is computed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelOptions {
    /// The layers to offload.
    pub n_gpu_layers: GpuLayers,
    /// The addresses (`HOST:PORT`) of servers, llama.cpp's ggml-rpc-server, whose devices compute too: `RPC0`,
    /// `RPC1`, ...
    pub rpc: Vec<String>,
    /// The names of the devices to offload to, or [`Self::NO_DEVICE`] alone; empty: llama.cpp's choice.
    pub devices: Vec<String>,
    /// The way to split the model across devices; `None`: by layers.
    pub split_mode: Option<SplitMode>,
    /// The share of the model for each device; `None`: in proportion to their free memory.
    pub tensor_split: Option<TensorSplit>,
    /// The device that holds what is not split, counted from 0; `None`: the first.
    pub main_gpu: Option<i32>,
    /// Tensors to keep on other devices. The first pattern that matches a tensor's name counts.
    pub tensor_overrides: Vec<TensorOverride>,
    /// True if the experts of all layers stay on the CPU.
    pub cpu_moe: bool,
    /// The number of first layers whose experts stay on the CPU.
    pub n_cpu_moe: u32,
    /// True if attention and the KV cache stay on the CPU.
    pub no_kv_offload: bool,
    /// True if the CPU computes what lies in its memory, large batches too.
    pub no_op_offload: bool,
    /// True if the model stays in memory: the system must not swap it out.
    pub use_mlock: bool,
    /// True if quantized weights are dequantized to f16 before the model runs, and to f32 where f16 would
    /// lose more of them than it does of any others.
    pub is_dequantized: bool,
    /// The room that must stay besides the model's weights: only [`GpuLayers::Auto`] uses it.
    pub room: Option<Box<Room>>,
    /// True if the file is mapped; `None`: unless a device cannot use it so.
    pub use_mmap: Option<bool>,
    /// True if weights can be exchanged in place: they are not mapped, and stay in their plain order.
    pub is_exchangeable: bool,
    /// True if the vocabulary is read but no weights: they are only looked for, by the names and shapes that
    /// the architecture needs. Nothing can be decoded.
    pub is_without_weights: bool,
}

impl ModelOptions {
    /// The name that stands alone in `devices` where no device is used.
    pub const NO_DEVICE: &str = "none";

    /// The options of a model that the CPU alone computes.
    pub fn on_cpu() -> Self {
        Self {
            devices: vec![Self::NO_DEVICE.to_owned()],
            ..Self::default()
        }
    }

    /// True if no device is used, not even for work that llama.cpp gives to devices without layers.
    pub fn is_on_cpu(&self) -> bool {
        self.devices == [Self::NO_DEVICE]
    }

    /// The overrides in llama.cpp's order: those of experts last.
    pub(super) fn all_overrides(&self) -> Vec<TensorOverride> {
        let of_experts = |layer: String| TensorOverride {
            pattern: layer + TensorOverride::EXPERTS,
            memory: TensorOverride::CPU.to_owned(),
        };
        let mut all = self.tensor_overrides.clone();
        if self.cpu_moe {
            all.push(of_experts(String::new()));
        } else {
            let layers = 0..self.n_cpu_moe.min(TensorOverride::MAX_LAYERS);
            all.extend(layers.map(|layer| of_experts(format!(r"blk\.{layer}"))));
        }
        all
    }

    /// Checks whether all weights of a model with `n_layers` layers are certain to lie where an
    /// accelerator computes: any override may move some to the CPU.
    pub(super) fn offloads_all(&self, n_layers: u32) -> bool {
        let has_all = matches!(self.n_gpu_layers, GpuLayers::Count(n) if n >= n_layers);
        has_all && self.tensor_overrides.is_empty() && !self.cpu_moe && self.n_cpu_moe == 0
    }

    /// The flags that move weights or work from where llama.cpp would put them, each with its value. `-ngl`
    /// and `-dev` are not among them.
    pub fn placement(&self) -> Vec<String> {
        let split_mode = self.split_mode.filter(|mode| *mode != SplitMode::Layer);
        let main_gpu = self.main_gpu.filter(|gpu| *gpu != 0);
        let split = self.tensor_split.as_ref();
        let overrides = Some(joined(&self.tensor_overrides)).filter(|all| !all.is_empty());
        let n_cpu_moe = Some(self.n_cpu_moe).filter(|&n| n > 0 && !self.cpu_moe);
        let flags = [
            split_mode.map(|mode| format!("-sm {mode}")),
            main_gpu.map(|gpu| format!("-mg {gpu}")),
            split.map(|split| format!("-ts {split}")),
            overrides.map(|overrides| format!("-ot {overrides}")),
            self.cpu_moe.then(|| "-cmoe".to_owned()),
            n_cpu_moe.map(|n| format!("-ncmoe {n}")),
            self.no_kv_offload.then(|| "-nkvo".to_owned()),
            self.no_op_offload.then(|| "--no-op-offload".to_owned()),
        ];
        flags.into_iter().flatten().collect()
    }
}

fn joined(values: &[impl ToString]) -> String {
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    values.join(",")
}

/// The number of layers that are offloaded, the last ones first; the output layer counts as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuLayers {
    /// At most as many.
    Count(u32),
    /// All.
    All,
    /// As many as fit in the free memory of the devices, and the part that fits of one more layer.
    Auto,
}

impl GpuLayers {
    /// The number, as llama.cpp counts it.
    pub(super) fn number(self) -> Option<i32> {
        match self {
            Self::Count(n) => Some(i32::try_from(n).unwrap_or(i32::MAX)),
            Self::All | Self::Auto => None,
        }
    }
}

impl Default for GpuLayers {
    fn default() -> Self {
        Self::Count(0)
    }
}

impl FromStr for GpuLayers {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // llama.cpp's number is a signed one of 32 bits. Its -1 has meant all for years; since it has `auto`,
        // it means that.
        match (text, text.parse::<i32>()) {
            ("all", _) | (_, Ok(-1)) => Ok(Self::All),
            ("auto", _) => Ok(Self::Auto),
            (_, Ok(n @ 0..)) => Ok(Self::Count(n.cast_unsigned())),
            _ => Err("expected a number up to 2147483647, all or auto"),
        }
    }
}

impl fmt::Display for GpuLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(n) => n.fmt(f),
            Self::All => f.write_str("all"),
            Self::Auto => f.write_str("auto"),
        }
    }
}

/// The room that must stay in the memory of the devices besides a model's weights: for its contexts,
/// and for a second model.
#[derive(Debug, Clone, PartialEq)]
pub struct Room {
    /// The model's contexts.
    pub context: ContextOptions,
    /// The number of contexts that there will be.
    pub n_contexts: u32,
    /// A model that will be loaded later, with as many contexts.
    pub second_model: Option<SecondModel>,
}

/// A model that will be loaded to the same devices as another.
#[derive(Debug, Clone, PartialEq)]
pub struct SecondModel {
    /// Its file.
    pub path: PathBuf,
    /// The number of its layers that will be offloaded; [`GpuLayers::Auto`] counts as all.
    pub n_gpu_layers: GpuLayers,
    /// Its contexts.
    pub context: ContextOptions,
}

/// The modes in which layers are split between several devices, by llama.cpp's names and numbers
/// (`llama_split_mode`).
#[derive(strum::Display, Debug, Clone, Copy, PartialEq, Eq)]
#[strum(serialize_all = "lowercase")]
pub enum SplitMode {
    /// The whole model lies on one device.
    None,
    /// Each device holds whole layers: llama.cpp's default.
    Layer,
    /// Rows of each matrix are split.
    Row,
    /// Each tensor is split.
    Tensor,
}

/// The share of a model that each device holds, in proportion.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorSplit(pub(super) Vec<f32>);

impl FromStr for TensorSplit {
    type Err = &'static str;

    /// Parses numbers between commas or slashes.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split([',', '/']);
        let numbers: Result<Vec<f32>, _> = parts.map(|part| part.trim().parse()).collect();
        let is_share = |n: &f32| (0.0..f32::INFINITY).contains(n);
        match numbers {
            Ok(all)
                if all.iter().all(is_share)
                    && (f32::MIN_POSITIVE..f32::INFINITY).contains(&all.iter().sum()) =>
            {
                Ok(Self(all))
            }
            _ => Err("expected numbers from 0 on, not all of them 0, as in 3,1"),
        }
    }
}

impl fmt::Display for TensorSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&joined(&self.0))
    }
}

/// Where tensors lie whose names match a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorOverride {
    /// A regular expression of C++ (ECMAScript), which may match anywhere in the name.
    pub(super) pattern: String,
    /// The name of a device, or of its memory.
    pub(super) memory: String,
}

impl TensorOverride {
    /// ggml's name of the CPU, and of its memory.
    pub(super) const CPU: &str = "CPU";

    /// The names of the matrices of experts, from the layer's number on.
    const EXPERTS: &str = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps";

    /// Most layers of a model (`LLAMA_MAX_LAYERS`).
    const MAX_LAYERS: u32 = 512;

    /// Longest pattern, in bytes: the C++ library compiles nested groups on its stack.
    const MAX_PATTERN: usize = 1000;
}

impl FromStr for TensorOverride {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((pattern, _)) if pattern.len() > Self::MAX_PATTERN => {
                Err(format!("a pattern has at most {} bytes", Self::MAX_PATTERN))
            }
            Some((pattern, memory)) if !memory.is_empty() => Ok(Self {
                pattern: pattern.to_owned(),
                memory: memory.to_owned(),
            }),
            _ => Err(r"expected PATTERN=DEVICE, as in 'blk\.0\.=CPU'".to_owned()),
        }
    }
}

impl fmt::Display for TensorOverride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.pattern, self.memory)
    }
}

/// The options with which a context is created.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ContextOptions {
    /// Tokens in a window.
    pub n_ctx: u32,
    /// The rule by which a window is split into decode calls. Memory holds the rows of one call at
    /// most.
    pub calls: Calls,
    /// Most windows that a call decodes, each as a sequence of its own; 0 means 1.
    pub n_seq: u32,
    /// True if each sequence has a KV cache of its own, so that sequences can grow and end apart from
    /// each other; else all share one.
    pub has_own_caches: bool,
    /// Decode threads.
    pub threads: u32,
    /// The use of the fused kernel for attention.
    pub flash_attn: FlashAttention,
    /// Type of the K cache.
    pub type_k: CacheType,
    /// Type of the V cache.
    pub type_v: CacheType,
    /// True if the context shows hidden states, for [`super::Decoder::decode_call`].
    pub shows_states: bool,
    /// True if what weights are multiplied with gets noise as large as rounding to 8 bits makes it, in blocks
    /// of 32: to find how far roundings alone move the model's rows. Only on the CPU.
    pub is_noisy: bool,
    /// True if it decodes as llama.cpp's programs do, to be timed: a layer with a sliding window forgets what
    /// it has passed, and a lone token is decoded alone.
    pub is_as_deployed: bool,
}

/// Most bytes for llama.cpp's output buffer: 128 rows of 128k entries.
const OUTPUT_BUFFER_BYTES: u64 = 64 << 20;
/// llama.cpp's own default physical batch.
const MAX_DEFAULT_BATCH: u64 = 512;

/// Most tokens of a call where the CPU decodes: as many as have 64 MiB of logits, at most 512.
pub fn default_batch(n_vocab: u32) -> u32 {
    let rows = OUTPUT_BUFFER_BYTES / (4 * u64::from(n_vocab.max(1)));
    rows.min(MAX_DEFAULT_BATCH) as u32
}

/// Most bytes for llama.cpp's mask of attention, which has two for each token of a call at each
/// position of the window: from 131,072 positions on, calls have fewer than 512 tokens.
const MASK_BYTES: u64 = 128 << 20;

/// The default rule where the CPU decodes windows of at most `n_ctx` tokens: equal calls of at most
/// [`default_batch`] tokens, and of fewer where the window is so long that the mask of attention
/// would outgrow its bound.
pub fn default_calls(n_vocab: u32, n_ctx: u32) -> Calls {
    let masked = MASK_BYTES / (2 * u64::from(n_ctx.max(1)));
    let most = u64::from(default_batch(n_vocab)).min(masked);
    Calls::equal(most as u32, n_ctx)
}

/// The use of the fused kernel for attention, by llama.cpp's number (`llama_flash_attn_type`).
#[derive(strum::Display, strum::EnumString, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[strum(serialize_all = "lowercase")]
pub enum FlashAttention {
    /// Always.
    On = 1,
    /// Never.
    Off = 0,
    /// If the backend supports it.
    #[default]
    Auto = -1,
}

/// A type of the K or V cache that llama.cpp's `-ctk` and `-ctv` accept, in the order of its help, by ggml's
/// number.
#[derive(
    strum::Display,
    strum::EnumString,
    strum::VariantArray,
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Default,
)]
#[strum(serialize_all = "snake_case")]
pub enum CacheType {
    #[default]
    F16 = 1,
    F32 = 0,
    Bf16 = 30,
    Q8_0 = 8,
    Q4_0 = 2,
    Q4_1 = 3,
    Iq4Nl = 20,
    Q5_0 = 6,
    Q5_1 = 7,
}

impl CacheType {
    /// Every type, in the order of llama.cpp's help.
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Checks whether it stores blocks of elements in fewer bits than 16 for each.
    pub fn is_quantized(self) -> bool {
        !matches!(self, Self::F16 | Self::F32 | Self::Bf16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_that_stay_on_the_cpu_are_noticed() {
        let all = ModelOptions {
            n_gpu_layers: GpuLayers::Count(3),
            ..ModelOptions::default()
        };
        assert!(all.offloads_all(3) && !all.offloads_all(4));
        let (mut experts, mut tensors) = (all.clone(), all);
        experts.n_cpu_moe = 1;
        tensors.tensor_overrides = vec!["blk=CPU".parse().unwrap()];
        assert!(!experts.offloads_all(3) && !tensors.offloads_all(3));
    }

    #[test]
    fn values_are_read_as_llama_cpp_reads_them() {
        for (text, layers) in [
            ("0", GpuLayers::Count(0)),
            ("99", GpuLayers::Count(99)),
            ("all", GpuLayers::All),
            ("-1", GpuLayers::All),
            ("auto", GpuLayers::Auto),
        ] {
            assert_eq!(text.parse(), Ok(layers));
        }
        for wrong in ["", "-2", "2147483648", "1.5", "Auto", "some"] {
            assert!(wrong.parse::<GpuLayers>().is_err(), "{wrong}");
        }
        let split = |text: &str| text.parse::<TensorSplit>();
        assert_eq!(split("3,1").unwrap().0, [3.0, 1.0]);
        assert_eq!(split("0.5/0,2.25").unwrap().to_string(), "0.5,0,2.25");
        for wrong in ["", "1,", "a", "1,-1", "nan", "inf,1", "0,0", "3e38,3e38"] {
            assert!(split(wrong).is_err(), "{wrong}");
        }
        // A pattern ends at the first equals sign.
        let parsed: TensorOverride = r"blk\.(1|2)\..*=RPC0[127.0.0.1:50052]".parse().unwrap();
        let (pattern, memory) = (parsed.pattern, parsed.memory);
        assert_eq!(
            (&*pattern, &*memory),
            (r"blk\.(1|2)\..*", "RPC0[127.0.0.1:50052]")
        );
        for wrong in ["", "x", "x=", &format!("{}=CPU", "(".repeat(1001))] {
            assert!(wrong.parse::<TensorOverride>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn experts_are_overridden_layer_by_layer() {
        let overrides = |n_cpu_moe| {
            let options = ModelOptions {
                n_cpu_moe,
                ..ModelOptions::default()
            };
            options.all_overrides()
        };
        let patterns: Vec<String> = overrides(2).iter().map(ToString::to_string).collect();
        let experts = r"ffn_(up|down|gate|gate_up)_(ch|)exps=CPU";
        let expected = [0, 1].map(|layer| format!(r"blk\.{layer}\.{experts}"));
        assert_eq!(patterns, expected);
        assert_eq!(overrides(u32::MAX - 1).len(), 512);
    }

    #[test]
    fn a_placement_is_written_as_flags() {
        assert!(ModelOptions::default().placement().is_empty());
        let options = ModelOptions {
            split_mode: Some(SplitMode::Row),
            tensor_split: "3,1".parse().ok(),
            tensor_overrides: vec!["a=CPU".parse().unwrap(), "b=CUDA1".parse().unwrap()],
            cpu_moe: true,
            no_kv_offload: true,
            ..ModelOptions::default()
        };
        let flags = ["-sm row", "-ts 3,1", "-ot a=CPU,b=CUDA1", "-cmoe", "-nkvo"];
        assert_eq!(options.placement(), flags);
        assert_eq!(options.all_overrides().len(), 3);
    }

    #[test]
    fn the_default_calls_keep_the_output_buffer_and_the_mask_bounded() {
        for (n_vocab, n_ctx, n_batch) in [
            (512, 512, 512),
            (32_000, 512, 512),
            (128_256, 512, 128),
            (152_064, 512, 103),
            // None is below 64 tokens: with fewer ggml's CPU backend computes attention otherwise.
            (262_144, 512, 64),
            (u32::MAX, 512, 64),
            (0, 512, 512),
            (512, 1 << 17, 512),
            (512, 1 << 18, 256),
            (512, 1 << 22, 64),
            (128_256, 1 << 18, 130),
        ] {
            assert_eq!(
                default_calls(n_vocab, n_ctx).n_batch,
                n_batch,
                "{n_vocab} {n_ctx}"
            );
        }
    }

    #[test]
    fn cache_types_are_named_as_in_llama_cpp() {
        let all = CacheType::ALL;
        let names: Vec<String> = all.iter().map(CacheType::to_string).collect();
        assert_eq!(
            names.join(" "),
            "f16 f32 bf16 q8_0 q4_0 q4_1 iq4_nl q5_0 q5_1"
        );
        assert_eq!(CacheType::default().to_string(), "f16");
        let plain = all.iter().filter(|kind| !kind.is_quantized()).count();
        assert_eq!(plain, 3);
    }
}
