//! ggml's objects that compute rows from hidden states, freed when they are dropped: matrices in the
//! memory of a device, arenas of descriptions, and the scheduler that spreads a graph over devices.

use std::io::{self, Read};
use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

use super::device::{BufferType, GgmlDevice};

/// One of ggml's objects, which is freed when it is dropped.
struct Owned<T> {
    pointer: NonNull<T>,
    free: unsafe extern "C" fn(*mut T),
}

impl<T> Owned<T> {
    /// Takes an object over; `None` for null.
    ///
    /// # Safety
    /// The pointer is null, or points to an object that `free` frees and nothing else does.
    unsafe fn new(pointer: *mut T, free: unsafe extern "C" fn(*mut T)) -> Option<Self> {
        NonNull::new(pointer).map(|pointer| Self { pointer, free })
    }

    fn as_ptr(&self) -> *mut T {
        self.pointer.as_ptr()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: `new` requires it, and nothing uses the object after this.
        unsafe { (self.free)(self.as_ptr()) }
    }
}

/// A matrix's type and size: `n_rows` rows of `n_embd` elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    pub(super) kind: sys::ggml_type,
    pub(super) n_embd: i64,
    pub(super) n_rows: i64,
}

impl Matrix {
    pub(super) fn of_f32(n_embd: i64, n_rows: i64) -> Self {
        Self {
            kind: sys::GGML_TYPE_F32,
            n_embd,
            n_rows,
        }
    }

    /// Checks whether a device can multiply a matrix like this, in this memory, with many states.
    pub(super) fn can_be_multiplied_by(self, device: GgmlDevice, memory: BufferType) -> bool {
        /// The number of states that llama.cpp asks for when it chooses a weight's memory.
        const N_STATES: i64 = 512;
        let Some(arena) = Arena::new() else {
            return false;
        };
        // SAFETY: the arena has room for the tensors. The buffer is a dummy without memory that
        // outlives the question, as in llama.cpp's weight_buft_supported.
        unsafe {
            let weight = arena.tensor(self);
            let states = arena.tensor(Self::of_f32(self.n_embd, N_STATES));
            let product = sys::ggml_mul_mat(arena.as_ptr(), weight.as_ptr(), states.as_ptr());
            let dummy = sys::ggml_backend_buft_alloc_buffer(memory.as_ptr(), 0);
            (*weight.as_ptr()).buffer = dummy;
            let can = sys::ggml_backend_dev_supports_op(device.as_ptr(), product);
            sys::ggml_backend_buffer_free(dummy);
            can
        }
    }
}

/// Holds the descriptions of a few tensors and a graph, not their data.
pub(super) struct Arena(Owned<sys::ggml_context>);

impl Arena {
    /// Most tensors of an arena, and most of a graph, those of other arenas among them.
    pub(super) const MAX_TENSORS: usize = 64;

    pub(super) fn new() -> Option<Self> {
        // SAFETY: no memory is passed, and the data of tensors lies elsewhere.
        unsafe {
            let graph = sys::ggml_graph_overhead_custom(Self::MAX_TENSORS, false);
            let context = sys::ggml_init(sys::ggml_init_params {
                mem_size: Self::MAX_TENSORS * sys::ggml_tensor_overhead() + graph,
                mem_buffer: std::ptr::null_mut(),
                no_alloc: true,
            });
            Owned::new(context, sys::ggml_free).map(Self)
        }
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ggml_context {
        self.0.as_ptr()
    }

    /// Describes a matrix in this arena.
    ///
    /// # Safety
    /// The arena has room for another tensor.
    pub(super) unsafe fn tensor(&self, matrix: Matrix) -> NonNull<sys::ggml_tensor> {
        let (kind, n_embd, n_rows) = (matrix.kind, matrix.n_embd, matrix.n_rows);
        // SAFETY: without room, ggml aborts; it never returns null.
        unsafe {
            let tensor = sys::ggml_new_tensor_2d(self.as_ptr(), kind, n_embd, n_rows);
            NonNull::new_unchecked(tensor)
        }
    }
}

/// A matrix in the memory of a device.
pub(super) struct DeviceMatrix {
    pub(super) tensor: NonNull<sys::ggml_tensor>,
    _buffer: Owned<sys::ggml_backend_buffer>,
    _arena: Arena,
}

impl DeviceMatrix {
    /// Takes memory for a matrix; `None` where there is too little.
    pub(super) fn allocate(matrix: Matrix, memory: BufferType) -> Option<Self> {
        let arena = Arena::new()?;
        // SAFETY: the arena is empty. The buffer is as large as the memory's type wants it for this
        // tensor, and outlives it.
        unsafe {
            let tensor = arena.tensor(matrix);
            let bytes = sys::ggml_backend_buft_get_alloc_size(memory.as_ptr(), tensor.as_ptr());
            let buffer = sys::ggml_backend_buft_alloc_buffer(memory.as_ptr(), bytes);
            let weight = Self {
                tensor,
                _buffer: Owned::new(buffer, sys::ggml_backend_buffer_free)?,
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

    /// Reads it from `section`, in pieces of at most `piece_bytes`.
    pub(super) fn fill(&mut self, section: &mut dyn Read, piece_bytes: usize) -> io::Result<()> {
        // SAFETY: the tensor is valid.
        let n_bytes = unsafe { sys::ggml_nbytes(self.tensor.as_ptr()) };
        let mut piece = Vec::new();
        piece.try_reserve_exact(n_bytes.min(piece_bytes))?;
        piece.resize(n_bytes.min(piece_bytes), 0);
        let mut offset = 0;
        while offset < n_bytes {
            let piece = &mut piece[..piece_bytes.min(n_bytes - offset)];
            section.read_exact(piece)?;
            // SAFETY: the piece lies within the tensor.
            unsafe {
                let data = piece.as_ptr().cast();
                sys::ggml_backend_tensor_set(self.tensor.as_ptr(), data, offset, piece.len());
            }
            offset += piece.len();
        }
        Ok(())
    }
}

/// Spreads a graph over devices that are ready to compute, the CPU last.
pub(super) struct Scheduler {
    inner: Owned<sys::ggml_backend_sched>,
    _backends: Vec<Owned<sys::ggml_backend>>,
}

impl Scheduler {
    /// Starts the devices, the CPU last; `None` if one does not start. With
    /// `op_offload`, GPUs may compute large batches where the weights lie in the CPU's memory.
    pub(super) fn new(devices: &[GgmlDevice], threads: u32, op_offload: bool) -> Option<Self> {
        let start = |&device| start_backend(device, threads);
        let backends = devices.iter().map(start).collect::<Option<Vec<_>>>()?;
        let mut pointers: Vec<_> = backends.iter().map(Owned::as_ptr).collect();
        // SAFETY: the backends are valid and outlive the scheduler, with the memory that each
        // prefers.
        let inner = unsafe {
            let scheduler = sys::ggml_backend_sched_new(
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
                pointers.len() as i32,
                Arena::MAX_TENSORS,
                false,
                op_offload,
            );
            Owned::new(scheduler, sys::ggml_backend_sched_free)?
        };
        Some(Self {
            inner,
            _backends: backends,
        })
    }

    pub(super) fn as_ptr(&self) -> sys::ggml_backend_sched_t {
        self.inner.as_ptr()
    }
}

/// Makes a device ready to compute.
fn start_backend(device: GgmlDevice, threads: u32) -> Option<Owned<sys::ggml_backend>> {
    // SAFETY: the device is valid, and a function of this name has this type.
    unsafe {
        let backend = sys::ggml_backend_dev_init(device.as_ptr(), std::ptr::null());
        let backend = Owned::new(backend, sys::ggml_backend_free)?;
        let function = device.function(c"ggml_backend_set_n_threads");
        let function: sys::ggml_backend_set_n_threads_t = std::mem::transmute(function);
        if let Some(set_n_threads) = function {
            set_n_threads(backend.as_ptr(), threads as i32);
        }
        Some(backend)
    }
}
