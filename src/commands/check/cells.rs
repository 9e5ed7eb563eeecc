//! The settings under which a model is checked: plain ones on the CPU, then one after another on each
//! device, and all of the user's together.

use std::ops::Range;

use kl_formats::Calls;

use crate::commands::settings::RunSettings;
use crate::engine::{CacheType, ContextOptions, FlashAttention, GpuLayers, ModelOptions};
use crate::report::check::{CPU, CellSettings};

/// Most tokens that a device computes at once: llama.cpp's own physical batch.
const LARGEST: u32 = 512;

/// A setting: where the model lies, and how it is run.
#[derive(Debug, Clone)]
pub struct Cell {
    pub settings: CellSettings,
    pub model: ModelOptions,
    pub context: ContextOptions,
    /// The windows that are run: where one takes long, a quarter of them.
    pub windows: Range<usize>,
}

impl Cell {
    /// Whether it runs the model of the plain settings.
    pub fn is_plain_model(&self) -> bool {
        self.settings.device == CPU && !self.settings.is_yours
    }

    /// The way to run it.
    pub fn run(&self, run: &RunSettings) -> RunSettings {
        RunSettings {
            model: self.model.clone(),
            ..run.clone()
        }
    }

    /// Whether both run a model that lies in the same place.
    pub fn has_model_of(&self, other: &Self) -> bool {
        let place = |cell: &Self| {
            let of = cell.settings.clone();
            (of.device, of.n_gpu_layers, of.kv_offload, of.is_yours)
        };
        place(self) == place(other)
    }

    /// The same with the noise of rounding.
    pub fn with_noise(&self) -> Self {
        let mut noisy = self.clone();
        noisy.context.is_noisy = true;
        noisy
    }

    /// The same in the largest batches, whose nodes have the same names.
    pub fn on_plain_batches(&self) -> Self {
        let mut plain = self.clone();
        let n_ubatch = LARGEST.min(self.context.n_ctx);
        plain.context.calls = Calls::new(n_ubatch, n_ubatch);
        plain
    }
}

/// What all settings have in common.
pub struct Cells<'c> {
    pub run: &'c RunSettings,
    pub n_ctx: u32,
    pub n_windows: usize,
    /// Layers that can be offloaded, of which the output layer is one.
    pub n_layers: u32,
    /// The devices that can hold layers, by name.
    pub devices: Vec<String>,
}

impl Cells<'_> {
    /// The plain settings, on the CPU: one batch after another of as many tokens as llama.cpp computes at
    /// once, without flash attention unless the cache needs it.
    pub fn plain(&self) -> Cell {
        let flash_attn = if self.needs_flash_attention() {
            FlashAttention::On
        } else {
            FlashAttention::Off
        };
        self.cell(&on_cpu(), LARGEST, flash_attn, self.run.threads)
    }

    /// llama.cpp keeps values in quantized types for flash attention only.
    fn needs_flash_attention(&self) -> bool {
        use CacheType::{Bf16, F16, F32};
        ![F32, F16, Bf16].contains(&self.run.type_v)
    }

    /// A quarter of the windows: those of settings that are slow, and those whose layers are compared.
    pub fn few_windows(&self) -> Range<usize> {
        0..self.n_windows.div_ceil(4)
    }

    fn cell(
        &self,
        model: &ModelOptions,
        n_ubatch: u32,
        flash_attn: FlashAttention,
        threads: u32,
    ) -> Cell {
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
        let is_slow = n_ubatch <= 8 || threads == 1 && self.run.threads > 1;
        Cell {
            settings: CellSettings::new(model, &context, &self.devices),
            model: model.clone(),
            context,
            windows: if is_slow {
                self.few_windows()
            } else {
                0..self.n_windows
            },
        }
    }

    /// The cells of one place: batches of all sizes, with and without flash attention.
    fn kernels(&self, model: &ModelOptions) -> Vec<Cell> {
        let (on, off) = (FlashAttention::On, FlashAttention::Off);
        let all = [
            (off, 512),
            (off, 64),
            (off, 8),
            (off, 1),
            (on, 512),
            (on, 8),
            (on, 1),
        ];
        let all = all
            .into_iter()
            .filter(|(flash_attn, _)| *flash_attn == on || !self.needs_flash_attention());
        let cells = all.map(|(flash_attn, n)| self.cell(model, n, flash_attn, self.run.threads));
        let mut cells: Vec<Cell> = cells.collect();
        // Windows can be shorter than batches.
        cells.dedup_by(|a, b| a.settings == b.settings);
        cells
    }

    /// All settings but the plain ones, those of one place after the other.
    pub fn all(&self) -> Vec<Cell> {
        let plain = self.plain();
        let mut cells = self.kernels(&on_cpu());
        if self.run.threads > 1 {
            cells.push(self.cell(&on_cpu(), LARGEST, plain.context.flash_attn, 1));
        }
        for device in &self.devices {
            let whole = ModelOptions {
                devices: vec![device.clone()],
                n_gpu_layers: GpuLayers::All,
                ..ModelOptions::default()
            };
            cells.extend(self.kernels(&whole));
            let half = GpuLayers::Count(self.n_layers.div_ceil(2));
            for model in [
                ModelOptions {
                    no_kv_offload: true,
                    ..whole.clone()
                },
                ModelOptions {
                    n_gpu_layers: half,
                    ..whole.clone()
                },
            ] {
                cells.push(self.cell(&model, LARGEST, plain.context.flash_attn, self.run.threads));
            }
        }
        cells.retain(|cell| cell.settings != plain.settings);
        let n_ubatch = self.run.n_ubatch.unwrap_or(LARGEST).min(self.n_ctx);
        let mut users = Cell {
            model: self.run.model.clone(),
            ..plain
        };
        users.context.calls = Calls::new(n_ubatch, n_ubatch);
        users.context.flash_attn = self.run.flash_attn.unwrap_or_default();
        users.settings = CellSettings {
            is_yours: true,
            ..CellSettings::new(&users.model, &users.context, &self.devices)
        };
        cells.push(users);
        cells
    }
}

/// The CPU alone.
pub fn on_cpu() -> ModelOptions {
    ModelOptions {
        devices: vec!["none".to_owned()],
        ..ModelOptions::default()
    }
}
