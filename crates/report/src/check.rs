//! The result of `kl check`: whether a build computes a model, on its devices and with its settings. The
//! fields are the keys of the JSON.

use serde::{Deserialize, Serialize};

use super::layout::{list, wrapped};
use super::number::{count, count_of, or_undefined, percent, short_kld};
use super::result::{ModelInfo, Versions};
use super::table::Table;
use super::warning::Warning;

/// The name of the CPU alone.
pub const CPU: &str = "CPU";

/// A model that was run against itself under many settings.
#[derive(Serialize, Debug)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct Check {
    /// The program that wrote the document, and the version of its keys.
    #[serde(flatten)]
    pub versions: Versions,
    /// The verdict: whether all settings compute the model.
    pub verdict: Outcome,
    /// The effect of rounding alone on the rows of the user's own settings; null if these could not be run.
    pub floor: Option<Floor>,
    /// The model that was checked.
    pub model: ModelInfo,
    /// Tokens that each setting computed, but for slow ones.
    pub n_tokens: u64,
    /// The settings that all others are compared with.
    pub base: CellSettings,
    /// The plain settings again, with noise as large as rounding to 8 bits makes it in what weights are
    /// multiplied with: what is not much further off is rounding.
    pub noise: Moved,
    /// The settings, those of the user last.
    pub cells: Vec<CheckedCell>,
    /// The settings that could not be run.
    pub skipped: Vec<SkippedCell>,
    /// Warnings to read before you trust the result.
    pub warnings: Vec<Warning>,
}

/// The result of a check.
#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub enum Outcome {
    /// All settings agree but for rounding.
    Ok,
    /// Some setting computes something else.
    Wrong,
}

/// The effect of rounding alone on the rows of a set-up.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct Floor {
    /// The mean KLD from the CPU's rows, in nats.
    pub kld: f64,
    /// The share of tokens with the same top token.
    pub same_top: f64,
}

/// The way in which a model was run.
#[derive(Serialize, Debug, Clone, PartialEq)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct CellSettings {
    /// The devices that hold layers, `CPU` for none.
    pub device: String,
    /// Layers that were offloaded, the output layer among them: a number, `all` or `auto`.
    pub n_gpu_layers: String,
    /// True if the KV cache lies where its layers are.
    pub kv_offload: bool,
    /// Tokens that were computed at once.
    pub n_ubatch: u32,
    /// Most windows that were decoded in one call, each as a sequence of its own.
    pub n_seq: u32,
    /// `on`, `off` or `auto`.
    pub flash_attn: String,
    /// Threads of the CPU.
    pub threads: u32,
    /// The type of the KV cache's keys.
    pub type_k: String,
    /// The type of its values.
    pub type_v: String,
    /// Other flags of the user that place weights or work.
    pub placement: Vec<String>,
    /// True for all of the user's settings together.
    pub is_yours: bool,
}

impl CellSettings {
    /// The settings in words, without the device: what differs from `base`.
    fn words(&self, base: &Self) -> String {
        let batches = match (self.n_seq, self.n_ubatch) {
            (1, 1) => "single tokens".to_owned(),
            (1, n) => format!("batches of {}", count(n.into())),
            (n, _) => format!("{} at once", count_of(n.into(), "window")),
        };
        let flash_attn = match &*self.flash_attn {
            "on" => "flash attention".to_owned(),
            other => format!("-fa {other}"),
        };
        let threads = count_of(self.threads.into(), "thread");
        let layers = format!("-ngl {}", self.n_gpu_layers);
        let is_partly_on_device = self.device != CPU && self.n_gpu_layers != "all";
        let optional = [
            Some(batches),
            Some(flash_attn).filter(|_| self.flash_attn != base.flash_attn),
            Some(threads).filter(|_| self.threads != base.threads),
            Some(layers).filter(|_| is_partly_on_device),
        ];
        let words = optional.into_iter().flatten();
        Vec::from_iter(words.chain(self.placement.iter().cloned())).join(", ")
    }
}

/// The distance of rows from those of the plain settings.
#[derive(Serialize, Debug, Clone, Default)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct Moved {
    /// The mean KLD in nats; null where no row is finite.
    pub kld: Option<f64>,
    /// The largest.
    pub largest_kld: Option<f64>,
    /// The share of tokens with the same top token.
    pub same_top: Option<f64>,
    /// Rows that hold no finite numbers.
    pub n_not_finite: u64,
}

/// A setting that was checked.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct CheckedCell {
    /// The way in which the model was run.
    pub settings: CellSettings,
    /// The verdict: whether it computes the model.
    pub verdict: CellVerdict,
    #[serde(flatten)]
    pub moved: Moved,
    /// Where a wrong one differs first; null if its layers, computed apart, do not differ.
    pub first_difference: Option<FirstDifference>,
}

/// The difference between a setting's rows and those of the plain settings.
#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub enum CellVerdict {
    /// Not at all, to the bit.
    Same,
    /// No more than rounding explains.
    Rounding,
    /// More than that.
    Wrong,
}

/// The first difference of a graph.
#[derive(Serialize, Debug, Clone, PartialEq, Eq)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct FirstDifference {
    /// The layer, from 0; null after the last one.
    pub layer: Option<u32>,
    /// The weight that the first node of the layer which differs multiplies, or llama.cpp's name of the
    /// node; null if none of the layer's nodes differs where each is computed apart.
    pub node: Option<String>,
}

/// A setting that could not be run.
#[derive(Serialize, Debug, Clone)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct SkippedCell {
    /// The way in which the model was to be run.
    pub settings: CellSettings,
    /// The reason, in one line.
    pub why: String,
}

impl Check {
    /// The verdict, and the table of settings, in lines of at most 80 columns.
    pub fn text(&self) -> String {
        let mut text = wrapped(&self.sentence());
        if let Some(floor) = self.floor.filter(|_| self.verdict == Outcome::Ok) {
            let (kld, same) = (short_kld(floor.kld), percent(floor.same_top));
            text.push('\n');
            text += &wrapped(&format!(
                "The floor of your settings: a mean KLD of {kld} nats from the CPU's rows, and {same} the same top token. Whoever compares rows of this build with rows of another one cannot tell less from rounding. Runs with equal flags on this machine share the rounding: between them, less can be told."
            ));
        }
        text += &self.table().text();
        for skipped in &self.skipped {
            let (device, words) = (&skipped.settings.device, skipped.settings.words(&self.base));
            text += &wrapped(&format!("Skipped: {device}, {words}: {}", skipped.why));
        }
        text
    }

    fn table(&self) -> Table<&CheckedCell> {
        let kld = |value: Option<f64>| or_undefined(value, short_kld);
        let same_top = |moved: &Moved| or_undefined(moved.same_top, percent);
        let (noise, base) = (&self.noise, &self.base);
        let [mean_kld, largest_kld] = [noise.kld, noise.largest_kld].map(kld);
        let noise_note = format!(
            "Rounding: about what inputs of 8 bits do to each product, which moves the CPU's own rows by {mean_kld} nats on average and {largest_kld} at most, and keeps {} of top tokens.",
            same_top(noise),
        );
        let (tokens, words) = (count_of(self.n_tokens, "token"), base.words(base));
        let threads = count_of(base.threads.into(), "thread");
        let types = format!("-ctk {} -ctv {}", base.type_k, base.type_v);
        let title =
            format!("{tokens} on the CPU with {words} and {threads}, {types}, against others:");
        let has_not_finite = self.cells.iter().any(|cell| cell.moved.n_not_finite > 0);
        let table = Table::new(title, &self.cells)
            .left("device", |cell| cell.settings.device.clone())
            .left("settings", |CheckedCell { settings, .. }| {
                let yours = if settings.is_yours { "yours: " } else { "" };
                yours.to_owned() + &settings.words(&self.base)
            })
            .right("mean KLD", |cell| kld(cell.moved.kld))
            .right("largest", |cell| kld(cell.moved.largest_kld))
            .right("same top", |cell| same_top(&cell.moved))
            .right("not finite", |cell| count(cell.moved.n_not_finite))
            .shown_if(has_not_finite)
            .left("verdict", |cell| cell.verdict.to_string());
        table.notes([noise_note]).gap(2)
    }

    /// The verdict: for each device what is computed wrongly, and where it differs first.
    fn sentence(&self) -> String {
        if self.verdict == Outcome::Ok {
            let n = count_of(self.cells.len() as u64, "setting");
            return format!("This build computes the model: {n} agree to rounding.");
        }
        let is_wrong = |cell: &&CheckedCell| cell.verdict == CellVerdict::Wrong;
        let mut text = String::new();
        for cells in self
            .cells
            .chunk_by(|a, b| a.settings.device == b.settings.device)
        {
            let (wrong, right): (Vec<_>, Vec<_>) = cells.iter().partition(is_wrong);
            if let [first, ..] = *wrong {
                let device = &first.settings.device;
                let (condition, place) = (self.condition(&wrong, &right), first_place(&wrong));
                text += &format!("On {device}{condition}, this model is computed wrongly{place}. ");
            }
        }
        if !self.cells.iter().all(|cell| is_wrong(&cell)) {
            text += "All other settings agree to rounding.";
        }
        text
    }

    /// The condition that the wrong settings of a device meet, and the right ones do not.
    fn condition(&self, wrong: &[&CheckedCell], right: &[&CheckedCell]) -> String {
        if right.is_empty() {
            return String::new();
        }
        let has_several_windows = |cell: &&CheckedCell| cell.settings.n_seq > 1;
        if wrong.iter().all(has_several_windows) && !right.iter().any(has_several_windows) {
            return ", with several windows at once".to_owned();
        }
        let sizes = wrong.iter().map(|cell| cell.settings.n_ubatch);
        let smallest = sizes.clone().min().unwrap_or(0);
        let largest = sizes.max().unwrap_or(0);
        let at_most = match largest {
            1 => ", one token at a time".to_owned(),
            n => format!(", with batches of at most {n} tokens"),
        };
        let tokens = count_of(smallest.into(), "token");
        let at_least = format!(", with batches of {tokens} or more");
        let batches = [
            (0..=u32::MAX, String::new()),
            (0..=largest, at_most),
            (smallest..=u32::MAX, at_least),
        ];
        for (kernel, has_kernel) in [
            ("", None),
            (", with flash attention", Some(true)),
            (", without flash attention", Some(false)),
        ] {
            for (sizes, batch) in &batches {
                let holds = |cell: &&CheckedCell| {
                    let may_use_kernel = cell.settings.flash_attn != "off";
                    has_kernel.is_none_or(|has_kernel| has_kernel == may_use_kernel)
                        && sizes.contains(&cell.settings.n_ubatch)
                };
                if wrong.iter().all(holds) && !right.iter().any(holds) {
                    return format!("{kernel}{batch}");
                }
            }
        }
        let settings = wrong.iter().map(|cell| cell.settings.words(&self.base));
        format!(", with {}", list(settings.collect()))
    }
}

/// Where wrong settings differ first.
fn first_place(wrong: &[&CheckedCell]) -> String {
    let first_difference = wrong
        .iter()
        .filter_map(|cell| cell.first_difference.as_ref())
        .min_by_key(|difference| difference.layer.unwrap_or(u32::MAX));
    let Some(first) = first_difference else {
        return ", though its layers agree where each is computed apart".to_owned();
    };
    let node = first
        .node
        .as_ref()
        .map_or_else(String::new, |node| format!(" ({node})"));
    match first.layer {
        Some(layer) => format!(": layer {layer} is the first that differs{node}"),
        None => format!(": its layers agree, and the output differs{node}"),
    }
}
