//! The settings under which a model is checked: plain ones on the CPU, then one after another on each
//! device, and all of the user's together.

use std::ops::Range;

use kl_engine::{ContextOptions, FlashAttention, GpuLayers, ModelOptions};
use kl_formats::Calls;
use kl_report::check::{CPU, CellSettings};

use crate::commands::settings::RunSettings;

/// Most tokens that a device computes at once: llama.cpp's own physical batch.
const MAX_N_UBATCH: u32 = 512;

/// A setting: where the model lies, and how it is run.
#[derive(Debug, Clone)]
pub struct CheckSetting {
    pub settings: CellSettings,
    pub model: ModelOptions,
    pub context: ContextOptions,
    /// The windows that are run: a quarter of them if the setting is slow.
    pub windows: Range<usize>,
}

impl CheckSetting {
    /// This setting with the noise of rounding.
    pub fn with_noise(&self) -> Self {
        let mut noisy = self.clone();
        noisy.context.is_noisy = true;
        noisy
    }

    /// This setting with the largest batches, so that nodes have the same names.
    pub fn with_plain_batches(&self) -> Self {
        let mut plain = self.clone();
        let n_ubatch = MAX_N_UBATCH.min(self.context.n_ctx);
        plain.context.calls = Calls::new(n_ubatch, n_ubatch);
        plain
    }
}

/// The values that all settings have in common.
pub struct Cells<'c> {
    pub run: &'c RunSettings,
    pub n_ctx: u32,
    pub n_windows: usize,
    /// Windows of a setting that decodes several at once; 1: the model, or `kl`, decodes one at a time.
    pub n_together: u32,
    /// Layers that can be offloaded, with the output layer.
    pub n_layers: u32,
    /// The devices that can hold layers, by name.
    pub devices: Vec<String>,
}

impl Cells<'_> {
    /// The plain settings, on the CPU: one batch after another of as many tokens as llama.cpp computes at
    /// once, without flash attention unless the cache needs it.
    pub fn plain(&self) -> CheckSetting {
        let flash_attn = if self.run.type_v.is_quantized() {
            FlashAttention::On
        } else {
            FlashAttention::Off
        };
        self.cell(
            &ModelOptions::on_cpu(),
            MAX_N_UBATCH,
            flash_attn,
            self.run.threads,
        )
    }

    /// A quarter of the windows: slow settings run only these, and layers are only compared in these.
    pub fn few_windows(&self) -> Range<usize> {
        0..self.n_windows.div_ceil(4)
    }

    fn cell(
        &self,
        model: &ModelOptions,
        n_ubatch: u32,
        flash_attn: FlashAttention,
        threads: u32,
    ) -> CheckSetting {
        let n_ubatch = n_ubatch.min(self.n_ctx);
        let context = ContextOptions {
            n_ctx: self.n_ctx,
            calls: Calls::new(n_ubatch, n_ubatch),
            threads,
            flash_attn,
            type_k: self.run.type_k,
            type_v: self.run.type_v,
            ..ContextOptions::default()
        };
        let is_slow = n_ubatch <= 8 || threads < self.run.threads;
        CheckSetting {
            settings: settings_of(model, &context, &self.devices),
            windows: if is_slow {
                self.few_windows()
            } else {
                0..self.n_windows
            },
            model: model.clone(),
            context,
        }
    }

    /// Several windows at once, as `-np` decodes them: on the CPU in one physical batch, each with a cache of
    /// its own; on a device in one cache. `None` if there are not several.
    fn windows_together(
        &self,
        model: &ModelOptions,
        flash_attn: FlashAttention,
    ) -> Option<CheckSetting> {
        let mut cell = self.cell(model, MAX_N_UBATCH, flash_attn, self.run.threads);
        let context = &mut cell.context;
        context.n_seq = self.n_together;
        context.has_own_caches = *model == ModelOptions::on_cpu();
        let n_batch = self.n_ctx.saturating_mul(self.n_together);
        let n_ubatch = if context.has_own_caches {
            n_batch
        } else {
            MAX_N_UBATCH.min(n_batch)
        };
        context.calls = Calls::new(n_batch, n_ubatch);
        cell.settings = settings_of(model, context, &self.devices);
        (self.n_together > 1).then_some(cell)
    }

    /// The cells of a model on one device: batches of all sizes, with flash attention, and without it unless
    /// values are quantized, for which llama.cpp needs it.
    fn kernels(&self, model: &ModelOptions) -> impl Iterator<Item = CheckSetting> {
        use FlashAttention::{Off, On};
        let run = self.run;
        let without_flash_attn = [MAX_N_UBATCH, 64, 8, 1].map(|n| (Off, n));
        let with_flash_attn = [MAX_N_UBATCH, 8, 1].map(|n| (On, n));
        without_flash_attn
            .into_iter()
            .chain(with_flash_attn)
            .filter(|(flash_attn, _)| *flash_attn == On || !run.type_v.is_quantized())
            .map(|(flash_attn, n)| self.cell(model, n, flash_attn, run.threads))
    }

    /// All settings but the plain ones, sorted by where the model lies; the user's own come last.
    pub fn all(&self) -> Vec<CheckSetting> {
        let (run, plain) = (self.run, self.plain());
        let flash_attn = plain.context.flash_attn;
        let mut cells: Vec<CheckSetting> = self.kernels(&ModelOptions::on_cpu()).collect();
        cells.push(self.cell(&ModelOptions::on_cpu(), MAX_N_UBATCH, flash_attn, 1));
        cells.extend(self.windows_together(&ModelOptions::on_cpu(), flash_attn));
        for device in &self.devices {
            let all_layers = ModelOptions {
                devices: vec![device.clone()],
                n_gpu_layers: GpuLayers::All,
                ..ModelOptions::default()
            };
            cells.extend(self.kernels(&all_layers));
            cells.extend(self.windows_together(&all_layers, flash_attn));
            let (mut half_of_layers, mut cache_on_host) = (all_layers.clone(), all_layers);
            half_of_layers.n_gpu_layers = GpuLayers::Count(self.n_layers.div_ceil(2));
            cache_on_host.no_kv_offload = true;
            cells.extend(
                [cache_on_host, half_of_layers]
                    .map(|model| self.cell(&model, MAX_N_UBATCH, flash_attn, run.threads)),
            );
        }
        cells.retain(|cell| cell.settings != plain.settings);
        // Windows can be shorter than batches.
        cells.dedup_by(|a, b| a.settings == b.settings);
        let n_ubatch = run.n_ubatch.unwrap_or(MAX_N_UBATCH);
        let own_flash_attn = run.flash_attn.unwrap_or_default();
        let mut yours = self.cell(&run.model, n_ubatch, own_flash_attn, run.threads);
        yours.settings.is_yours = true;
        cells.push(yours);
        cells
    }
}

/// Describes a way to run a model. `devices`: those that llama.cpp uses if the options name none, to
/// compute large batches even where they hold no layers.
fn settings_of(model: &ModelOptions, context: &ContextOptions, devices: &[String]) -> CellSettings {
    let device = match &model.devices[..] {
        _ if devices.is_empty() || model.is_on_cpu() => CPU.to_owned(),
        [] => devices.join(","),
        named => named.join(","),
    };
    CellSettings {
        device,
        n_gpu_layers: model.n_gpu_layers.to_string(),
        kv_offload: !model.no_kv_offload,
        n_ubatch: context.calls.n_ubatch,
        n_seq: context.n_seq.max(1),
        flash_attn: context.flash_attn.to_string(),
        threads: context.threads,
        type_k: context.type_k.to_string(),
        type_v: context.type_v.to_string(),
        placement: model.placement(),
        is_yours: false,
    }
}
