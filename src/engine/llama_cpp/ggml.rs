//! What of ggml's own interface the output head needs: devices, and the memory, graphs and
//! schedulers that are freed when they are dropped.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

use super::rpc;
use crate::engine::DeviceKind;

/// A device that ggml computes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Device(NonNull<sys::ggml_backend_device>);

// SAFETY: devices live as long as the process, and any thread may ask what they are.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// A kind of memory, of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BufferType(NonNull<sys::ggml_backend_buffer_type>);

/// A function that a backend has beside the common ones; null if there is no such backend.
pub(super) fn function_of(backend: &CStr, name: &CStr) -> *mut c_void {
    // SAFETY: both names end with NUL, and a registry lives as long as the process.
    unsafe {
        let registry = sys::ggml_backend_reg_by_name(backend.as_ptr());
        match registry.is_null() {
            true => std::ptr::null_mut(),
            false => sys::ggml_backend_reg_get_proc_address(registry, name.as_ptr()),
        }
    }
}

impl Device {
    /// All devices of the backends that were compiled in or loaded.
    pub(super) fn all() -> Vec<Self> {
        // SAFETY: the registry lives as long as the process, and so do its devices.
        unsafe {
            (0..sys::ggml_backend_dev_count())
                .filter_map(|i| NonNull::new(sys::ggml_backend_dev_get(i)))
                .map(Self)
                .collect()
        }
    }

    pub(super) fn name(self) -> String {
        // SAFETY: the device is valid, and so is its name.
        let name = unsafe { CStr::from_ptr(sys::ggml_backend_dev_name(self.0.as_ptr())) };
        name.to_string_lossy().into_owned()
    }

    /// What it is, and the memory that it has now.
    pub(super) fn describe(self) -> crate::engine::Device {
        // SAFETY: the device is valid, and so is its description.
        let description =
            unsafe { CStr::from_ptr(sys::ggml_backend_dev_description(self.0.as_ptr())) };
        let (mut free, mut total) = (0, 0);
        // SAFETY: the device is valid, and both numbers are ours.
        unsafe { sys::ggml_backend_dev_memory(self.0.as_ptr(), &mut free, &mut total) };
        crate::engine::Device {
            name: self.name(),
            description: description.to_string_lossy().trim().to_owned(),
            kind: match self.kind() {
                _ if self.is_remote() => DeviceKind::Remote,
                sys::GGML_BACKEND_DEVICE_TYPE_CPU => DeviceKind::Cpu,
                sys::GGML_BACKEND_DEVICE_TYPE_IGPU => DeviceKind::IntegratedGpu,
                sys::GGML_BACKEND_DEVICE_TYPE_ACCEL => DeviceKind::Accelerator,
                _ => DeviceKind::Gpu,
            },
            memory_free: free as u64,
            memory_total: total as u64,
            features: self.features(),
        }
    }

    /// What its backend was compiled to use.
    fn features(self) -> Vec<String> {
        let function = self.function(c"ggml_backend_get_features");
        let mut features = Vec::new();
        // SAFETY: a function of this name has this type. It returns a list that ends with a null name
        // and lives as long as the process, as do the texts in it.
        unsafe {
            let function: sys::ggml_backend_get_features_t = std::mem::transmute(function);
            let registry = sys::ggml_backend_dev_backend_reg(self.0.as_ptr());
            let mut next = function.map_or(std::ptr::null_mut(), |list| list(registry));
            while !next.is_null() && !(*next).name.is_null() {
                let text = |text| CStr::from_ptr(text).to_string_lossy();
                let (name, value) = (text((*next).name), text((*next).value));
                features.push(match value.as_ref() {
                    "1" => name.into_owned(),
                    value => format!("{name}={value}"),
                });
                next = next.add(1);
            }
        }
        features
    }

    pub(super) fn as_ptr(self) -> sys::ggml_backend_dev_t {
        self.0.as_ptr()
    }

    /// What tells the hardware apart, where several backends have it as a device.
    pub(super) fn hardware_id(self) -> Option<String> {
        // SAFETY: the properties are plain values and pointers, which may be null, and the device is
        // valid, and so are its texts.
        unsafe {
            let mut props = std::mem::zeroed::<sys::ggml_backend_dev_props>();
            sys::ggml_backend_dev_get_props(self.0.as_ptr(), &raw mut props);
            let id = props.device_id;
            (!id.is_null()).then(|| CStr::from_ptr(id).to_string_lossy().into_owned())
        }
    }

    /// The name of the backend that has it.
    pub(super) fn backend(self) -> &'static CStr {
        // SAFETY: the device is valid, and its registry and the name of that live as long as the
        // process.
        unsafe {
            let registry = sys::ggml_backend_dev_backend_reg(self.0.as_ptr());
            CStr::from_ptr(sys::ggml_backend_reg_name(registry))
        }
    }

    fn kind(self) -> sys::ggml_backend_dev_type {
        // SAFETY: the device is valid.
        unsafe { sys::ggml_backend_dev_type(self.0.as_ptr()) }
    }

    pub(super) fn is_cpu(self) -> bool {
        self.kind() == sys::GGML_BACKEND_DEVICE_TYPE_CPU
    }

    /// Whether it is a GPU, with memory of its own or integrated in the CPU.
    pub(super) fn is_gpu(self) -> bool {
        self.is_discrete() || self.kind() == sys::GGML_BACKEND_DEVICE_TYPE_IGPU
    }

    /// Whether it is a GPU with memory of its own.
    pub(super) fn is_discrete(self) -> bool {
        self.kind() == sys::GGML_BACKEND_DEVICE_TYPE_GPU
    }

    /// Whether it computes on the CPU's memory, as a BLAS library does.
    pub(super) fn is_library(self) -> bool {
        self.kind() == sys::GGML_BACKEND_DEVICE_TYPE_ACCEL
    }

    /// Whether it is a server's, whatever computes there; ggml takes it for a GPU.
    pub(super) fn is_remote(self) -> bool {
        self.backend() == rpc::BACKEND
    }

    /// Whether several devices make it up.
    pub(super) fn is_made_up(self) -> bool {
        self.kind() == sys::GGML_BACKEND_DEVICE_TYPE_META
    }

    pub(super) fn buffer_type(self) -> Option<BufferType> {
        // SAFETY: the device is valid.
        let found = unsafe { sys::ggml_backend_dev_buffer_type(self.0.as_ptr()) };
        NonNull::new(found).map(BufferType)
    }

    /// Memory of the CPU that this device reads faster than the rest.
    pub(super) fn host_buffer_type(self) -> Option<BufferType> {
        // SAFETY: the device is valid.
        let found = unsafe { sys::ggml_backend_dev_host_buffer_type(self.0.as_ptr()) };
        NonNull::new(found).map(BufferType)
    }

    /// A function that this device's backend has beside the common ones.
    fn function(self, name: &CStr) -> *mut c_void {
        // SAFETY: the device is valid, and so is its registry.
        unsafe {
            let registry = sys::ggml_backend_dev_backend_reg(self.0.as_ptr());
            sys::ggml_backend_reg_get_proc_address(registry, name.as_ptr())
        }
    }

    /// Memory in which the CPU keeps weights in another order, for faster kernels.
    pub(super) fn extra_buffer_types(self) -> Vec<BufferType> {
        let function = self.function(c"ggml_backend_dev_get_extra_bufts");
        // SAFETY: a function of this name has this type. It returns null, or a list that ends with
        // null and lives as long as the process.
        unsafe {
            let function: sys::ggml_backend_dev_get_extra_bufts_t = std::mem::transmute(function);
            let Some(mut next) = function.map(|list| list(self.0.as_ptr())) else {
                return Vec::new();
            };
            let mut found = Vec::new();
            while !next.is_null()
                && let Some(buffer_type) = NonNull::new(*next)
            {
                found.push(BufferType(buffer_type));
                next = next.add(1);
            }
            found
        }
    }

    /// Whether it can multiply a matrix of this type and size that lies in this memory with many
    /// states.
    pub(super) fn can_multiply(self, matrix: Matrix, memory: BufferType) -> bool {
        /// How many states llama.cpp asks for when it chooses a weight's memory.
        const N_STATES: i64 = 512;
        let Some(arena) = Arena::new() else {
            return false;
        };
        // SAFETY: the arena has room for the tensors. The buffer is a dummy without memory that
        // outlives the question, as in llama.cpp's weight_buft_supported.
        unsafe {
            let weight = matrix.tensor(&arena);
            let states = arena.tensor(sys::GGML_TYPE_F32, matrix.n_embd, N_STATES);
            let product = sys::ggml_mul_mat(arena.as_ptr(), weight.as_ptr(), states.as_ptr());
            let dummy = sys::ggml_backend_buft_alloc_buffer(memory.0.as_ptr(), 0);
            (*weight.as_ptr()).buffer = dummy;
            let can = sys::ggml_backend_dev_supports_op(self.0.as_ptr(), product);
            sys::ggml_backend_buffer_free(dummy);
            can
        }
    }
}

impl BufferType {
    /// ggml's pointer to a kind of memory, which lives as long as the process.
    pub(super) fn new(pointer: sys::ggml_backend_buffer_type_t) -> Option<Self> {
        NonNull::new(pointer).map(Self)
    }

    /// The kind of memory that holds a tensor; `None` for one without data.
    ///
    /// # Safety
    /// The tensor is valid.
    pub(super) unsafe fn of(tensor: NonNull<sys::ggml_tensor>) -> Option<Self> {
        // SAFETY: the tensor is valid, and so is its buffer.
        unsafe {
            let buffer = NonNull::new(tensor.as_ref().buffer)?;
            NonNull::new(sys::ggml_backend_buffer_get_type(buffer.as_ptr())).map(Self)
        }
    }

    pub(super) fn as_ptr(self) -> sys::ggml_backend_buffer_type_t {
        self.0.as_ptr()
    }

    pub(super) fn name(self) -> String {
        // SAFETY: the type is valid, and so is its name.
        let name = unsafe { CStr::from_ptr(sys::ggml_backend_buft_name(self.0.as_ptr())) };
        name.to_string_lossy().into_owned()
    }

    /// The device whose memory it is; `None` where ggml does not know.
    pub(super) fn device(self) -> Option<Device> {
        // SAFETY: the type is valid.
        let device = unsafe { sys::ggml_backend_buft_get_device(self.0.as_ptr()) };
        NonNull::new(device).map(Device)
    }
}

/// A matrix's type and size: n_vocab rows of n_embd elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    pub(super) kind: sys::ggml_type,
    pub(super) n_embd: i64,
    pub(super) n_rows: i64,
}

impl Matrix {
    /// # Safety
    /// The arena has room for another tensor.
    unsafe fn tensor(self, arena: &Arena) -> NonNull<sys::ggml_tensor> {
        // SAFETY: as required.
        unsafe { arena.tensor(self.kind, self.n_embd, self.n_rows) }
    }
}

/// Holds the descriptions of a few tensors and a graph, not their data.
pub(super) struct Arena(NonNull<sys::ggml_context>);

impl Arena {
    /// Tensors that fit, and most that a graph may have, those of other arenas among them.
    pub(super) const MAX_TENSORS: usize = 64;

    pub(super) fn new() -> Option<Self> {
        // SAFETY: no memory is passed, and the data of tensors lies elsewhere.
        unsafe {
            let graph = sys::ggml_graph_overhead_custom(Self::MAX_TENSORS, false);
            NonNull::new(sys::ggml_init(sys::ggml_init_params {
                mem_size: Self::MAX_TENSORS * sys::ggml_tensor_overhead() + graph,
                mem_buffer: std::ptr::null_mut(),
                no_alloc: true,
            }))
            .map(Self)
        }
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ggml_context {
        self.0.as_ptr()
    }

    /// # Safety
    /// The arena has room for another tensor.
    pub(super) unsafe fn tensor(
        &self,
        kind: sys::ggml_type,
        n: i64,
        n_rows: i64,
    ) -> NonNull<sys::ggml_tensor> {
        // SAFETY: ggml aborts where there is no room; it never returns null.
        unsafe { NonNull::new_unchecked(sys::ggml_new_tensor_2d(self.as_ptr(), kind, n, n_rows)) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: nothing uses it after this.
        unsafe { sys::ggml_free(self.as_ptr()) }
    }
}

/// A matrix in the memory of a device.
pub(super) struct Weight {
    pub(super) tensor: NonNull<sys::ggml_tensor>,
    buffer: NonNull<sys::ggml_backend_buffer>,
    _arena: Arena,
}

impl Weight {
    /// Takes memory for a matrix; `None` where there is too little.
    pub(super) fn allocate(matrix: Matrix, memory: BufferType) -> Option<Self> {
        let arena = Arena::new()?;
        // SAFETY: the arena is empty. The buffer is as large as the memory's type wants it for this
        // tensor, and outlives it.
        unsafe {
            let tensor = matrix.tensor(&arena);
            let bytes = sys::ggml_backend_buft_get_alloc_size(memory.0.as_ptr(), tensor.as_ptr());
            let buffer = sys::ggml_backend_buft_alloc_buffer(memory.0.as_ptr(), bytes);
            let weight = Self {
                tensor,
                buffer: NonNull::new(buffer)?,
                _arena: arena,
            };
            // The scheduler computes on the device that holds the weights.
            let usage = sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
            sys::ggml_backend_buffer_set_usage(buffer, usage);
            let base = sys::ggml_backend_buffer_get_base(buffer);
            let status = sys::ggml_backend_tensor_alloc(buffer, tensor.as_ptr(), base);
            (status == sys::GGML_STATUS_SUCCESS).then_some(weight)
        }
    }

    pub(super) fn bytes(&self) -> usize {
        // SAFETY: the tensor is valid.
        unsafe { sys::ggml_nbytes(self.tensor.as_ptr()) }
    }

    /// Copies bytes of the matrix, from `offset` on.
    ///
    /// # Panics
    /// If they reach past its end.
    pub(super) fn set(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset.checked_add(bytes.len());
        assert!(end.is_some_and(|end| end <= self.bytes()));
        // SAFETY: the bytes lie within the tensor.
        unsafe {
            let data = bytes.as_ptr().cast();
            sys::ggml_backend_tensor_set(self.tensor.as_ptr(), data, offset, bytes.len());
        }
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        // SAFETY: nothing uses it after this.
        unsafe { sys::ggml_backend_buffer_free(self.buffer.as_ptr()) }
    }
}

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
            let backend = sys::ggml_backend_dev_init(device.0.as_ptr(), std::ptr::null());
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
