//! ggml's devices and their memory, which live as long as the process.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

use super::guard::{calls, guarded};
use crate::{DeviceKind, memory};

/// The name of the RPC backend in ggml's registry.
pub(super) const RPC_BACKEND: &CStr = c"RPC";

/// ggml's handle of a device; [`Device`](crate::Device) describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GgmlDevice(NonNull<sys::ggml_backend_device>);

// SAFETY: devices live as long as the process, and any thread may ask what they are.
unsafe impl Send for GgmlDevice {}
// SAFETY: as above.
unsafe impl Sync for GgmlDevice {}

/// ggml's handle of a kind of memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BufferType(NonNull<sys::ggml_backend_buffer_type>);

/// A copy of one of ggml's texts.
///
/// # Safety
/// It points to a text that ends with a NUL byte.
unsafe fn text(text: *const c_char) -> String {
    // SAFETY: as required.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// The names of all backends that were compiled in or loaded.
pub(super) fn backends() -> Vec<String> {
    // SAFETY: registries live as long as the process, and so do their names.
    unsafe {
        (0..sys::ggml_backend_reg_count())
            .map(|i| text(sys::ggml_backend_reg_name(sys::ggml_backend_reg_get(i))))
            .collect()
    }
}

/// The names of devices.
pub(super) fn names(devices: &[GgmlDevice]) -> Vec<String> {
    devices.iter().map(|device| device.name()).collect()
}

/// A function that a backend offers beyond the common ones; null if the backend is absent.
pub(super) fn function_of(backend: &CStr, name: &CStr) -> *mut c_void {
    // SAFETY: both names end with NUL, and a registry lives as long as the process.
    unsafe {
        let registry = sys::ggml_backend_reg_by_name(backend.as_ptr());
        if registry.is_null() {
            return std::ptr::null_mut();
        }
        sys::ggml_backend_reg_get_proc_address(registry, name.as_ptr())
    }
}

impl GgmlDevice {
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

    /// All devices of a kind.
    pub(super) fn of_kind(kind: DeviceKind) -> impl Iterator<Item = Self> {
        let all = Self::all().into_iter();
        all.filter(move |device| device.kind() == kind)
    }

    pub(super) fn name(self) -> String {
        // SAFETY: the device is valid, and so is its name.
        unsafe { text(sys::ggml_backend_dev_name(self.0.as_ptr())) }
    }

    /// Describes the device, with the memory that is free now.
    pub(super) fn describe(self) -> crate::Device {
        // SAFETY: the device is valid, and so is its description.
        let description = unsafe { text(sys::ggml_backend_dev_description(self.0.as_ptr())) };
        let (mut free, mut total) = (0, 0);
        // SAFETY: the device is valid, and both numbers are ours. A device that cannot answer has no memory.
        let asked = guarded(|| unsafe {
            calls::ggml_backend_dev_memory(self.0.as_ptr(), &raw mut free, &raw mut total);
        });
        (free, total) = asked.map_or((0, 0), |()| (free, total));
        // ggml reports all of the CPU's memory as free.
        if let (DeviceKind::Cpu, Some(available)) = (self.kind(), memory::available()) {
            free = usize::try_from(available).map_or(free, |available| available.min(total));
        }
        crate::Device {
            name: self.name(),
            description: description.trim().to_owned(),
            kind: self.kind(),
            memory_free: free as u64,
            memory_total: total as u64,
            features: self.features(),
        }
    }

    /// Lists the instructions that its backend was compiled to use.
    fn features(self) -> Vec<String> {
        let function = self.function(c"ggml_backend_get_features");
        // SAFETY: a function of this name has this type. It returns a list that ends with a null name
        // and lives as long as the process, as do the texts in it.
        unsafe {
            let function: sys::ggml_backend_get_features_t = std::mem::transmute(function);
            let list = function.map(|list| list(self.registry()));
            let Some(list) = list.filter(|list| !list.is_null()) else {
                return Vec::new();
            };
            let all = (0..).map(|i| *list.add(i));
            let features = all.take_while(|feature| !feature.name.is_null());
            features
                .map(|feature| match &*text(feature.value) {
                    "1" => text(feature.name),
                    value => format!("{}={value}", text(feature.name)),
                })
                .collect()
        }
    }

    pub(super) fn as_ptr(self) -> sys::ggml_backend_dev_t {
        self.0.as_ptr()
    }

    /// Returns an id of the hardware, the same in each backend that has it as a device.
    pub(super) fn hardware_id(self) -> Option<String> {
        // SAFETY: the properties are plain values and pointers, which may be null, and the device is
        // valid, and so are its texts.
        unsafe {
            let mut props = std::mem::zeroed::<sys::ggml_backend_dev_props>();
            guarded(|| calls::ggml_backend_dev_get_props(self.0.as_ptr(), &raw mut props)).ok()?;
            let id = props.device_id;
            (!id.is_null()).then(|| text(id))
        }
    }

    fn registry(self) -> sys::ggml_backend_reg_t {
        // SAFETY: the device is valid.
        unsafe { sys::ggml_backend_dev_backend_reg(self.0.as_ptr()) }
    }

    /// The name of the backend that has it.
    pub(super) fn backend(self) -> &'static CStr {
        // SAFETY: the registry and its name live as long as the process.
        unsafe { CStr::from_ptr(sys::ggml_backend_reg_name(self.registry())) }
    }

    /// The device's kind: a server's device is remote, whatever computes there. One that is made up of
    /// several counts as an accelerator.
    pub(super) fn kind(self) -> DeviceKind {
        // SAFETY: the device is valid.
        match unsafe { sys::ggml_backend_dev_type(self.0.as_ptr()) } {
            _ if self.backend() == RPC_BACKEND => DeviceKind::Remote,
            sys::GGML_BACKEND_DEVICE_TYPE_CPU => DeviceKind::Cpu,
            sys::GGML_BACKEND_DEVICE_TYPE_GPU => DeviceKind::Gpu,
            sys::GGML_BACKEND_DEVICE_TYPE_IGPU => DeviceKind::IntegratedGpu,
            _ => DeviceKind::Accelerator,
        }
    }

    pub(super) fn buffer_type(self) -> Option<BufferType> {
        // SAFETY: the device is valid.
        BufferType::new(unsafe { sys::ggml_backend_dev_buffer_type(self.0.as_ptr()) })
    }

    /// Memory of the CPU that this device reads faster than the rest.
    pub(super) fn host_buffer_type(self) -> Option<BufferType> {
        // SAFETY: the device is valid.
        BufferType::new(unsafe { sys::ggml_backend_dev_host_buffer_type(self.0.as_ptr()) })
    }

    /// A function that this device's backend offers beyond the common ones.
    pub(super) fn function(self, name: &CStr) -> *mut c_void {
        // SAFETY: the device's registry is valid.
        unsafe { sys::ggml_backend_reg_get_proc_address(self.registry(), name.as_ptr()) }
    }

    /// The kinds of memory in which the CPU keeps weights in another order, for faster kernels; none if
    /// ggml was compiled with AMX, whose kernels come first in its list and end the process
    /// (docs/DESIGN.md).
    pub(super) fn extra_buffer_types(self) -> Vec<BufferType> {
        let function = self.function(c"ggml_backend_dev_get_extra_bufts");
        // SAFETY: a function of this name has this type. It returns null, or a list that ends with
        // null and lives as long as the process.
        let found: Vec<BufferType> = unsafe {
            let function: sys::ggml_backend_dev_get_extra_bufts_t = std::mem::transmute(function);
            let list = function.map(|list| list(self.0.as_ptr()));
            let list = list.filter(|list| !list.is_null()).into_iter();
            list.flat_map(|list| (0..).map_while(move |i| BufferType::new(*list.add(i))))
                .collect()
        };
        if found.iter().any(|memory| memory.name() == "AMX") {
            return Vec::new();
        }
        found
    }
}

impl BufferType {
    /// Wraps ggml's pointer, whose target lives as long as the process; `None` for null.
    pub(super) fn new(pointer: sys::ggml_backend_buffer_type_t) -> Option<Self> {
        NonNull::new(pointer).map(Self)
    }

    pub(super) fn as_ptr(self) -> sys::ggml_backend_buffer_type_t {
        self.0.as_ptr()
    }

    pub(super) fn name(self) -> String {
        // SAFETY: the type is valid, and so is its name.
        unsafe { text(sys::ggml_backend_buft_name(self.0.as_ptr())) }
    }

    /// The name of its device, or its own where ggml does not know one.
    pub(super) fn device_name(self) -> String {
        let device = self.device().map(GgmlDevice::name);
        device.unwrap_or_else(|| self.name())
    }

    /// The device whose memory it is; `None` where ggml does not know.
    pub(super) fn device(self) -> Option<GgmlDevice> {
        // SAFETY: the type is valid.
        let device = unsafe { sys::ggml_backend_buft_get_device(self.0.as_ptr()) };
        NonNull::new(device).map(GgmlDevice)
    }
}
