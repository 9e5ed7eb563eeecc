//! A tensor of a graph that llama.cpp is computing, as its callback shows it.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::ptr::NonNull;

use kl_formats::GgmlType;
use llama_cpp_sys_2 as sys;

use super::device::BufferType;

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
        // SAFETY: the tensor is valid as long as the model, which this is used with.
        unsafe { BufferType::of(self.0) }
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
    /// for the type, and `bytes` are all of the tensor at that type.
    pub(super) unsafe fn replace(self, kind: GgmlType, bytes: &[u8]) -> Result<(), String> {
        // SAFETY: as required. The tensor is in a buffer, and nothing else refers to it now.
        unsafe {
            let tensor = &mut *self.0.as_ptr();
            debug_assert!(tensor.view_src.is_null());
            set_type(tensor, kind);
            // Backends that read past the end of rows clear what is there.
            let status = sys::ggml_backend_buffer_init_tensor(tensor.buffer, tensor);
            if status != sys::GGML_STATUS_SUCCESS || sys::ggml_nbytes(tensor) != bytes.len() {
                return Err(format!("its memory cannot be used for {kind}"));
            }
            sys::ggml_backend_tensor_set(tensor, bytes.as_ptr().cast(), 0, bytes.len());
        }
        Ok(())
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

impl<'g> Node<'g> {
    /// # Safety
    /// `tensor` is null, or points to a tensor that does not change during `'g`, nor do those that
    /// it is computed from.
    pub(super) unsafe fn new(tensor: *mut sys::ggml_tensor) -> Option<Self> {
        let graph = PhantomData;
        NonNull::new(tensor).map(|tensor| Self { tensor, graph })
    }

    fn get(self) -> &'g sys::ggml_tensor {
        // SAFETY: `new` requires that it points to a tensor that does not change.
        unsafe { self.tensor.as_ref() }
    }

    pub(super) fn op(self) -> sys::ggml_op {
        self.get().op
    }

    /// The operation's name, for messages.
    pub(super) fn op_name(self) -> String {
        // SAFETY: the tensor is valid, and the name is one of ggml's constants.
        let name = unsafe { CStr::from_ptr(sys::ggml_op_desc(self.tensor.as_ptr())) };
        name.to_string_lossy().into_owned()
    }

    /// ggml's number of its type. C's enums are signed with some compilers.
    pub(super) fn type_id(self) -> u32 {
        i64::from(self.get().type_) as u32
    }

    /// Elements in each dimension, the innermost first.
    pub(super) fn shape(self) -> [i64; 4] {
        self.get().ne
    }

    /// An integer parameter of the operation.
    pub(super) fn param(self, i: usize) -> i32 {
        self.get().op_params[i]
    }

    /// A parameter that is an f32.
    pub(super) fn f32_param(self, i: usize) -> f32 {
        f32::from_ne_bytes(self.param(i).to_ne_bytes())
    }

    /// Returns the operands of the operation, each with its index.
    pub(super) fn inputs(self) -> impl Iterator<Item = (usize, Self)> {
        let n = self.get().src.len();
        (0..n).filter_map(move |i| Some((i, self.input(i)?)))
    }

    /// Returns an operand of the operation.
    pub(super) fn input(self, i: usize) -> Option<Self> {
        // SAFETY: `new` requires the same of the inputs as of the tensor itself.
        unsafe { Self::new(self.get().src[i]) }
    }

    /// The name as ggml has it, of a copy too.
    fn own_name(self) -> &'g CStr {
        // SAFETY: a tensor's name is in the tensor, and ends with NUL.
        unsafe { CStr::from_ptr(self.get().name.as_ptr()) }
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
        let buffer = NonNull::new(self.get().buffer)?;
        // SAFETY: a tensor's buffer is valid as long as the tensor.
        let usage = unsafe { sys::ggml_backend_buffer_get_usage(buffer.as_ptr()) };
        let is_weight = usage == sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
        (self.op() == sys::GGML_OP_NONE && is_weight).then_some(ModelTensor(self.tensor))
    }

    /// Appends the elements to `out`, if they are f32 and lie one after the other in memory.
    pub(super) fn read(self, out: &mut Vec<f32>) -> Result<(), String> {
        let tensor = self.get();
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
        unsafe {
            sys::ggml_backend_tensor_get(
                self.tensor.as_ptr(),
                values.as_mut_ptr().cast(),
                0,
                size_of_val(values),
            );
        }
        Ok(())
    }
}

/// The original's name in that of a copy, which ggml's scheduler names `backend#original#copy`.
fn original(name: &str) -> Option<&str> {
    let (_, rest) = name.split_once('#')?;
    rest.rsplit_once('#').map(|(original, _)| original)
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
