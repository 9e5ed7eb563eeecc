//! Places an output head as llama.cpp places a model's own, so that the same kernels compute it.

use super::device::{BufferType, GgmlDevice};
use super::ggml::Matrix;
use crate::engine::DeviceKind;

/// The devices that an output head may lie on and be computed by.
#[derive(Clone, Debug, Default)]
pub(super) struct HeadPlacement {
    /// The GPUs that may compute it.
    pub(super) gpus: Vec<GgmlDevice>,
    /// The GPU whose memory holds it; `None` for the CPU's.
    pub(super) home: Option<GgmlDevice>,
    /// True if the CPU computes all that lies in its memory; else a GPU may compute large batches.
    pub(super) no_op_offload: bool,
}

/// The memory for a matrix, and the device that multiplies it there.
pub(super) struct Place {
    pub(super) device: GgmlDevice,
    pub(super) memory: BufferType,
    /// True if its kernels want the weights in another order, so that all of them are written at once.
    pub(super) is_reordered: bool,
}

impl HeadPlacement {
    /// The first memory that can hold a matrix to multiply with (`make_cpu_buft_list`,
    /// `make_gpu_buft_list` and `select_weight_buft` in llama.cpp's sources).
    pub(super) fn choose(&self, matrix: Matrix) -> Option<Place> {
        let cpus = || GgmlDevice::of_kind(DeviceKind::Cpu);
        let libraries = GgmlDevice::of_kind(DeviceKind::Accelerator);
        let plain = |device: GgmlDevice| {
            device.buffer_type().map(|memory| Place {
                device,
                memory,
                is_reordered: false,
            })
        };
        let of_cpu = cpus().find_map(GgmlDevice::buffer_type);
        let libraries = libraries
            .filter_map(plain)
            .filter(|place| Some(place.memory) != of_cpu);
        // With a GPU, llama.cpp prefers memory of the CPU that the GPU reads fast, and if the file is
        // mapped, as it is by default, uses the CPU's plain memory in its place.
        let mut hosts = (self.gpus.iter()).filter_map(|&gpu| Some((gpu, gpu.host_buffer_type()?)));
        let is_hosted =
            (hosts.next()).is_some_and(|(gpu, memory)| matrix.can_be_multiplied_by(gpu, memory));
        let reordered = cpus().take(1).filter(|_| !is_hosted).flat_map(|device| {
            let memories = device.extra_buffer_types().into_iter();
            memories.map(move |memory| Place {
                device,
                memory,
                is_reordered: true,
            })
        });
        let mut places = (self.home.and_then(plain).into_iter())
            .chain(libraries)
            .chain(reordered)
            .chain(cpus().filter_map(plain));
        places.find(|place| matrix.can_be_multiplied_by(place.device, place.memory))
    }

    /// The devices that compute, in the order in which llama.cpp prefers them: the CPU last.
    pub(super) fn devices(&self) -> Vec<GgmlDevice> {
        let libraries = GgmlDevice::of_kind(DeviceKind::Accelerator);
        let cpu = GgmlDevice::of_kind(DeviceKind::Cpu).take(1);
        self.gpus
            .iter()
            .copied()
            .chain(libraries)
            .chain(cpu)
            .collect()
    }
}
