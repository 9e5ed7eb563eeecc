//! Spreads graphs over devices: ggml's scheduler and backends, freed when they are dropped.

use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

use super::device::Device;
use super::matrix::Arena;

/// Devices that are ready to compute, the CPU last, and what spreads a graph over them.
pub(super) struct Scheduler {
    inner: NonNull<sys::ggml_backend_sched>,
    _backends: Vec<Backend>,
}

impl Scheduler {
    /// Starts the devices, of which the last must be the CPU; `None` if one does not start. With
    /// `op_offload`, GPUs may compute large batches where the weights lie in the CPU's memory.
    pub(super) fn new(devices: &[Device], threads: u32, op_offload: bool) -> Option<Self> {
        let backends = devices
            .iter()
            .map(|&device| Backend::start(device, threads));
        let backends: Vec<Backend> = backends.collect::<Option<_>>()?;
        let mut pointers: Vec<_> = backends.iter().map(|backend| backend.0.as_ptr()).collect();
        // SAFETY: the backends are valid and outlive the scheduler, with the memory that each
        // prefers.
        let inner = unsafe {
            sys::ggml_backend_sched_new(
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
                pointers.len() as i32,
                Arena::MAX_TENSORS,
                false,
                op_offload,
            )
        };
        Some(Self {
            inner: NonNull::new(inner)?,
            _backends: backends,
        })
    }

    pub(super) fn as_ptr(&self) -> sys::ggml_backend_sched_t {
        self.inner.as_ptr()
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // SAFETY: nothing uses it after this.
        unsafe { sys::ggml_backend_sched_free(self.inner.as_ptr()) }
    }
}

/// A device that is ready to compute.
struct Backend(NonNull<sys::ggml_backend>);

impl Backend {
    fn start(device: Device, threads: u32) -> Option<Self> {
        // SAFETY: the device is valid, and a function of this name has this type.
        unsafe {
            let backend = sys::ggml_backend_dev_init(device.as_ptr(), std::ptr::null());
            let backend = Self(NonNull::new(backend)?);
            let function = device.function(c"ggml_backend_set_n_threads");
            let function: sys::ggml_backend_set_n_threads_t = std::mem::transmute(function);
            if let Some(set_n_threads) = function {
                set_n_threads(backend.0.as_ptr(), threads as i32);
            }
            Some(backend)
        }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // SAFETY: nothing uses it after this: the scheduler is dropped first.
        unsafe { sys::ggml_backend_free(self.0.as_ptr()) }
    }
}
