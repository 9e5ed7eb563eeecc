//! ggml's tensors, as graphs show them and as weights lie in memory; and its objects that compute rows from
//! hidden states, freed when they are dropped: arenas of descriptions, and the scheduler that spreads a graph
//! over devices.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;

use kl_formats::GgmlType;
use llama_cpp_sys_2 as sys;

use super::device::{BufferType, GgmlDevice};
use super::guard::{calls, guarded};

/// A tensor of a graph, for as long as the callback runs.
#[derive(Clone, Copy)]
pub(super) struct Node<'g> {
    tensor: NonNull<sys::ggml_tensor>,
    graph: PhantomData<&'g sys::ggml_tensor>,
}

/// A tensor of a loaded model's weights. The model keeps it, and it is valid as long as the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ModelTensor(pub(super) NonNull<sys::ggml_tensor>);

// SAFETY: a loaded model's weights change only by `replace`, while no context decodes, and llama.cpp
// itself reads them from any thread.
unsafe impl Send for ModelTensor {}
// SAFETY: as above.
unsafe impl Sync for ModelTensor {}

impl ModelTensor {
    /// The memory that holds it.
    pub(super) fn memory(self) -> Option<BufferType> {
        // SAFETY: the tensor is valid as long as the model, which this is used with, and so is its buffer.
        unsafe {
            let buffer = NonNull::new(self.0.as_ref().buffer)?;
            BufferType::new(sys::ggml_backend_buffer_get_type(buffer.as_ptr()))
        }
    }

    /// ggml's number of its type.
    pub(super) fn type_id(self) -> u32 {
        // SAFETY: the tensor is valid as long as the model, which this is used with.
        let tensor = unsafe { self.0.as_ref() };
        i64::from(tensor.type_) as u32
    }

    /// Checks whether another type needs no more memory than this one's contents.
    pub(super) fn has_room_for(self, kind: GgmlType, original: GgmlType) -> bool {
        // SAFETY: the tensor is valid, and so is its buffer; the descriptions exist during the call.
        let bytes = |kind: GgmlType| unsafe {
            let mut description = *self.0.as_ptr();
            set_type(&mut description, kind);
            sys::ggml_backend_buffer_get_alloc_size(description.buffer, &raw const description)
        };
        bytes(kind) <= bytes(original)
    }

    /// Gives the tensor a type and contents, in its own memory.
    ///
    /// # Safety
    /// No context of the model decodes, nor computes with a graph that was made before; there is room
    /// for the type, and `bytes` start with all of the tensor at that type.
    pub(super) unsafe fn replace(self, kind: GgmlType, bytes: &[u8]) -> Result<(), String> {
        // SAFETY: as required. The tensor is in a buffer, and nothing else refers to it now.
        unsafe {
            let tensor = &mut *self.0.as_ptr();
            debug_assert!(tensor.view_src.is_null());
            set_type(tensor, kind);
            // Backends that read past the end of rows clear what is there.
            let status = sys::ggml_backend_buffer_init_tensor(tensor.buffer, tensor);
            let n_bytes = sys::ggml_nbytes(tensor);
            if status != sys::GGML_STATUS_SUCCESS || bytes.len() < n_bytes {
                return Err(format!("its memory cannot be used for {kind}"));
            }
            guarded(|| calls::ggml_backend_tensor_set(tensor, bytes.as_ptr().cast(), 0, n_bytes))
        }
    }
}

/// Describes a tensor of the same shape that has another type: rows follow each other without gaps.
fn set_type(tensor: &mut sys::ggml_tensor, kind: GgmlType) {
    tensor.type_ = kind.id as sys::ggml_type;
    tensor.nb[0] = kind.block_bytes as usize;
    tensor.nb[1] = tensor.nb[0] * (tensor.ne[0] as usize / kind.block as usize);
    tensor.nb[2] = tensor.nb[1] * tensor.ne[1] as usize;
    tensor.nb[3] = tensor.nb[2] * tensor.ne[2] as usize;
}

impl Deref for Node<'_> {
    type Target = sys::ggml_tensor;

    fn deref(&self) -> &sys::ggml_tensor {
        // SAFETY: `new` requires that it points to a tensor that does not change.
        unsafe { self.tensor.as_ref() }
    }
}

impl<'g> Node<'g> {
    /// # Safety
    /// `tensor` is null, or points to a tensor that does not change during `'g`, nor do those that
    /// it is computed from.
    pub(super) unsafe fn new(tensor: *mut sys::ggml_tensor) -> Option<Self> {
        let graph = PhantomData;
        NonNull::new(tensor).map(|tensor| Self { tensor, graph })
    }

    /// The operation's name, for messages.
    pub(super) fn op_name(self) -> String {
        // SAFETY: the tensor is valid, and the name is one of ggml's constants.
        let name = unsafe { CStr::from_ptr(sys::ggml_op_desc(self.tensor.as_ptr())) };
        name.to_string_lossy().into_owned()
    }

    /// ggml's number of its type. C's enums are signed with some compilers.
    pub(super) fn type_id(self) -> u32 {
        i64::from(self.type_) as u32
    }

    /// A parameter of the operation that is an f32.
    pub(super) fn f32_param(self, i: usize) -> f32 {
        f32::from_ne_bytes(self.op_params[i].to_ne_bytes())
    }

    /// Returns the operands of the operation, each with its index.
    pub(super) fn inputs(self) -> impl Iterator<Item = (usize, Self)> {
        let n = self.src.len();
        (0..n).filter_map(move |i| Some((i, self.input(i)?)))
    }

    /// Returns an operand of the operation.
    pub(super) fn input(self, i: usize) -> Option<Self> {
        // SAFETY: `new` requires the same of the inputs as of the tensor itself.
        unsafe { Self::new(self.src[i]) }
    }

    /// The name as ggml has it, of a copy too.
    fn own_name(self) -> &'g CStr {
        // SAFETY: a tensor's name is in the tensor, and ends with NUL.
        unsafe { CStr::from_ptr(self.tensor.as_ref().name.as_ptr()) }
    }

    pub(super) fn is_named(self, name: &str) -> bool {
        self.own_name().to_bytes() == name.as_bytes()
    }

    /// The name; of a copy that was made for another device, that of the original.
    pub(super) fn name(self) -> String {
        let name = self.own_name().to_string_lossy();
        original(&name).unwrap_or(&name).to_owned()
    }

    /// Checks whether it was copied for another device.
    pub(super) fn is_copy(self) -> bool {
        original(&self.own_name().to_string_lossy()).is_some()
    }

    /// The tensor, if it is one of a model's weights and not a copy of one, computed, or given to the
    /// graph.
    pub(super) fn as_weight(self) -> Option<ModelTensor> {
        let buffer = NonNull::new(self.buffer)?;
        // SAFETY: a tensor's buffer is valid as long as the tensor.
        let usage = unsafe { sys::ggml_backend_buffer_get_usage(buffer.as_ptr()) };
        let is_weight = usage == sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
        (self.op == sys::GGML_OP_NONE && is_weight).then_some(ModelTensor(self.tensor))
    }

    /// Appends the elements to `out`, if they are f32 and lie one after the other in memory.
    pub(super) fn read(self, out: &mut Vec<f32>) -> Result<(), String> {
        let tensor = &*self;
        // SAFETY: a view's source is valid as long as the view.
        let source = unsafe { tensor.view_src.as_ref() }.unwrap_or(tensor);
        // SAFETY: the tensor is valid.
        let is_plain = unsafe { sys::ggml_is_contiguous(self.tensor.as_ptr()) };
        if tensor.type_ != sys::GGML_TYPE_F32
            || !is_plain
            || source.buffer.is_null()
            || tensor.data.is_null()
        {
            return Err(format!("the tensor {} cannot be read", self.name()));
        }
        let start = out.len();
        let n = tensor.ne.iter().product::<i64>().max(0) as usize;
        out.resize(start + n, 0.0);
        let values = &mut out[start..];
        // SAFETY: the tensor has a buffer and n contiguous f32, as many as `values`.
        guarded(|| unsafe {
            calls::ggml_backend_tensor_get(
                self.tensor.as_ptr(),
                values.as_mut_ptr().cast(),
                0,
                size_of_val(values),
            );
        })
    }

    /// Replaces the elements of a tensor that [`read`](Self::read) could read, with as many.
    pub(super) fn write(self, values: &[f32]) {
        // SAFETY: the tensor has a buffer and as many contiguous f32 as `values`.
        unsafe {
            sys::ggml_backend_tensor_set(
                self.tensor.as_ptr(),
                values.as_ptr().cast(),
                0,
                size_of_val(values),
            );
        }
    }
}

/// The original's name in that of a copy, which ggml's scheduler names `backend#original#copy`.
fn original(name: &str) -> Option<&str> {
    let (_, rest) = name.split_once('#')?;
    rest.rsplit_once('#').map(|(original, _)| original)
}

/// One of ggml's objects, which is freed when it is dropped.
pub(super) struct Owned<T> {
    pointer: NonNull<T>,
    free: unsafe extern "C" fn(*mut T),
}

impl<T> Owned<T> {
    /// Takes an object over; `None` for null.
    ///
    /// # Safety
    /// The pointer is null, or points to an object that `free` frees and nothing else does.
    pub(super) unsafe fn new(pointer: *mut T, free: unsafe extern "C" fn(*mut T)) -> Option<Self> {
        NonNull::new(pointer).map(|pointer| Self { pointer, free })
    }

    pub(super) fn as_ptr(&self) -> *mut T {
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
pub(super) struct MatrixShape {
    pub(super) kind: sys::ggml_type,
    pub(super) n_embd: i64,
    pub(super) n_rows: i64,
}

impl MatrixShape {
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
            let product = sys::ggml_mul_mat(arena.as_ptr(), weight, states);
            let dummy = sys::ggml_backend_buft_alloc_buffer(memory.as_ptr(), 0);
            (*weight).buffer = dummy;
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
    /// The arena has room for another tensor: without it, ggml aborts. It never returns null.
    pub(super) unsafe fn tensor(&self, matrix: MatrixShape) -> *mut sys::ggml_tensor {
        let (kind, n_embd, n_rows) = (matrix.kind, matrix.n_embd, matrix.n_rows);
        // SAFETY: as required.
        unsafe { sys::ggml_new_tensor_2d(self.as_ptr(), kind, n_embd, n_rows) }
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
        // SAFETY: the device is valid, and a function of this name has this type.
        let start = |device: &GgmlDevice| unsafe {
            let init = || calls::ggml_backend_dev_init(device.as_ptr(), std::ptr::null());
            let started = guarded(init).ok()?;
            let backend = Owned::new(started, sys::ggml_backend_free)?;
            let function = device.function(c"ggml_backend_set_n_threads");
            let function: sys::ggml_backend_set_n_threads_t = std::mem::transmute(function);
            function.inspect(|set_n_threads| set_n_threads(backend.as_ptr(), threads as i32));
            Some(backend)
        };
        let backends = devices.iter().map(start).collect::<Option<Vec<_>>>()?;
        let mut pointers: Vec<_> = backends.iter().map(Owned::as_ptr).collect();
        // SAFETY: the backends are valid and outlive the scheduler, with the memory that each
        // prefers.
        let inner = unsafe {
            let new = || {
                calls::ggml_backend_sched_new(
                    pointers.as_mut_ptr(),
                    std::ptr::null_mut(),
                    pointers.len() as i32,
                    Arena::MAX_TENSORS,
                    false,
                    op_offload,
                )
            };
            Owned::new(guarded(new).ok()?, sys::ggml_backend_sched_free)?
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

#[cfg(test)]
mod tests {
    use super::original;

    #[test]
    fn copies_are_named_after_their_original() {
        assert_eq!(original("CPU#result_norm#0"), Some("result_norm"));
        assert_eq!(original("result_norm"), None);
        assert_eq!(original("a#b"), None);
    }
}
