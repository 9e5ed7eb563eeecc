//! Computes rows from hidden states: ggml multiplies an output head with them as llama.cpp does in its
//! own graph, on the device where llama.cpp would put it.

use std::fmt::Display;
use std::io::{self, Read};

use kl_formats::{GgmlType, HeadStep, States};
use llama_cpp_sys_2 as sys;

use super::LlamaCppModel;
use super::backends::TURN;
use super::context::check_threads;
use super::device::{BufferType, GgmlDevice};
use super::ggml::{Arena, MatrixShape, ModelTensor, Owned, Scheduler};
use super::guard::{calls, guarded};
use super::log::last_log_errors;
use crate::{DeviceKind, EngineError, Head, Model as _};
use kl_system::locked;

/// Bytes of the matrix that are read at once.
const PIECE_BYTES: usize = 16 << 20;

/// An output head, ready to compute rows.
pub(super) struct HeadProduct<'m> {
    n_embd: usize,
    n_vocab: usize,
    /// The matrix: a model's, or that of `own`.
    matrix: *mut sys::ggml_tensor,
    own: Option<DeviceMatrix>,
    /// The steps that follow the product, with the values of each step that has some.
    steps: Vec<(HeadStep, Option<DeviceMatrix>)>,
    device: GgmlDevice,
    scheduler: Scheduler,
    /// Rows that an accelerator has computed.
    rows: Vec<f32>,
    /// The model whose matrix may be used.
    _model: Option<&'m LlamaCppModel<'m>>,
}

/// A graph that computes rows from states, described in an arena. Its data lies in the scheduler's memory.
struct Graph {
    states: *mut sys::ggml_tensor,
    rows: *mut sys::ggml_tensor,
    graph: *mut sys::ggml_cgraph,
}

// SAFETY: nothing in it is bound to a thread, and all of it is used through one owner. A model's
// matrix is only read.
unsafe impl Send for HeadProduct<'_> {}

impl<'m> HeadProduct<'m> {
    /// Loads the head of stored states: its matrix is the one of `model`, if that is the same, or else is
    /// read from `section` to where the model's own lies; without a model, to the CPU.
    pub(super) fn new(
        states: &States,
        section: &mut dyn Read,
        threads: u32,
        model: Option<&'m LlamaCppModel<'m>>,
    ) -> Result<Self, EngineError> {
        check_threads(threads)?;
        let matrix = matrix(states)?;
        let name = &states.head.type_name;
        let place = place(matrix, model)
            .ok_or_else(|| fault(format!("no device multiplies matrices of type {name}")))?;
        let model_tensor = model.and_then(|model| model.shared_head(states));
        let own = if model_tensor.is_none() {
            Some(DeviceMatrix::read(matrix, place, section)?)
        } else {
            // The values of its steps follow the matrix.
            if states.then.iter().any(|step| step.n_values() > 0) {
                let mut matrix = (&mut *section).take(states.head.bytes);
                io::copy(&mut matrix, &mut io::sink()).map_err(EngineError::ReadHead)?;
            }
            None
        };
        let shared = model_tensor.map(|ModelTensor(tensor)| tensor.as_ptr());
        let mut steps = Vec::new();
        for &step in &states.then {
            let values = MatrixShape::of_f32(step.n_values().into(), 1);
            let read = (step.n_values() > 0).then(|| {
                let found = place.device.buffer_type();
                let memory = found.ok_or_else(|| fault("its device has no memory"))?;
                DeviceMatrix::read(values, Place { memory, ..place }, section)
            });
            steps.push((step, read.transpose()?));
        }
        // The devices that compute, in the order in which llama.cpp prefers them: the CPU last.
        let mut devices = model.map_or(Vec::new(), |model| model.gpus.clone());
        devices.extend(GgmlDevice::of_kind(DeviceKind::Accelerator));
        devices.extend(GgmlDevice::of_kind(DeviceKind::Cpu).take(1));
        let op_offload = model.is_none_or(|model| !model.facts.options.no_op_offload);
        let tensor = own.as_ref().map(|own| own.tensor).or(shared);
        let no_start = || fault(format!("ggml does not start: {}", last_log_errors()));
        Ok(Self {
            n_embd: matrix.n_embd as usize,
            n_vocab: matrix.n_rows as usize,
            matrix: tensor.ok_or_else(no_start)?,
            steps,
            device: place.device,
            scheduler: Scheduler::new(&devices, threads, op_offload).ok_or_else(no_start)?,
            own,
            rows: Vec::new(),
            _model: model,
        })
    }

    /// Describes the graph for `n` states, and takes memory for its data.
    fn build(&self, arena: &Arena, n: usize) -> Result<Graph, EngineError> {
        // SAFETY: the arena has room for the states, the product and a few steps. All tensors are
        // valid, and their sizes fit: formats checks those of a file. Without room, ggml aborts; it
        // never returns null.
        unsafe {
            let context = arena.as_ptr();
            let states = arena.tensor(MatrixShape::of_f32(self.n_embd as i64, n as i64));
            sys::ggml_set_input(states);
            let mut rows = sys::ggml_mul_mat(context, self.matrix, states);
            for (step, values) in &self.steps {
                let values = values.as_ref().map(|values| values.tensor);
                rows = match (step, values) {
                    (HeadStep::Scale { factor, bias }, _) => {
                        sys::ggml_scale_bias(context, rows, *factor, *bias)
                    }
                    (HeadStep::Tanh, _) => sys::ggml_tanh(context, rows),
                    (HeadStep::Add { .. }, Some(values)) => sys::ggml_add(context, rows, values),
                    (HeadStep::Mul { .. }, Some(values)) => sys::ggml_mul(context, rows, values),
                    (_, None) => return Err(fault("a step has no values")),
                };
            }
            sys::ggml_set_output(rows);
            let graph = sys::ggml_new_graph_custom(context, Arena::MAX_TENSORS, false);
            sys::ggml_build_forward_expand(graph, rows);
            let scheduler = self.scheduler.as_ptr();
            let allocated = guarded(|| {
                calls::ggml_backend_sched_reset(scheduler);
                calls::ggml_backend_sched_alloc_graph(scheduler, graph)
            });
            if allocated == Ok(true) {
                return Ok(Graph {
                    states,
                    rows,
                    graph,
                });
            }
        }
        Err(self.failed(&format!("has no memory for {n} rows")))
    }

    fn failed(&self, what: &str) -> EngineError {
        fault(format!("{} {what}: {}", self.device(), last_log_errors()))
    }
}

impl Head for HeadProduct<'_> {
    fn rows(&mut self, states: &[f32]) -> Result<&[f32], EngineError> {
        let n = states.len() / self.n_embd;
        if states.len() != n * self.n_embd {
            let (n, n_embd) = (states.len(), self.n_embd);
            return Err(fault(format!(
                "{n} numbers are not states of {n_embd} each"
            )));
        }
        if n == 0 {
            return Ok(&[]);
        }
        let is_remote = self.device.kind() == DeviceKind::Remote;
        let _turn = is_remote.then(|| locked(&TURN));
        let arena = Arena::new().ok_or_else(|| self.failed("has no memory"))?;
        let graph = self.build(&arena, n)?;
        // SAFETY: the graph has memory, and its first tensor has as many f32 as `states`.
        let status = guarded(|| unsafe {
            let data = states.as_ptr().cast();
            calls::ggml_backend_tensor_set(graph.states, data, 0, size_of_val(states));
            calls::ggml_backend_sched_graph_compute(self.scheduler.as_ptr(), graph.graph)
        });
        if status != Ok(sys::GGML_STATUS_SUCCESS) {
            return Err(self.failed(&format!("could not compute {n} rows")));
        }
        let n_logits = n * self.n_vocab;
        // SAFETY: the rows are computed, n_logits f32 that lie one after the other. In the CPU's
        // memory they stay until the next graph, which borrows `self` mutably.
        unsafe {
            if sys::ggml_backend_buffer_is_host((*graph.rows).buffer) {
                let data = (*graph.rows).data.cast_const().cast();
                return Ok(std::slice::from_raw_parts(data, n_logits));
            }
            self.rows.resize(n_logits, 0.0);
            let data = self.rows.as_mut_ptr().cast();
            let n_bytes = n_logits * size_of::<f32>();
            guarded(|| calls::ggml_backend_tensor_get(graph.rows, data, 0, n_bytes))
                .map_err(|exception| fault(format!("{}: {exception}", self.device())))?;
        }
        Ok(&self.rows)
    }

    fn device(&self) -> String {
        self.device.name()
    }

    fn is_shared(&self) -> bool {
        self.own.is_none()
    }
}

fn fault(what: impl Display) -> EngineError {
    EngineError::Setup(format!("the output head cannot be used: {what}"))
}

/// Checks the sizes that `states` state, and returns the matrix's.
fn matrix(states: &States) -> Result<MatrixShape, EngineError> {
    let (head, n_embd) = (&states.head, states.n_embd);
    let kind = GgmlType::of(head.type_id).filter(|kind| kind.is_for_weights);
    let row_bytes = kind.and_then(|kind| kind.bytes(n_embd.into()));
    let valid = row_bytes.filter(|&bytes| bytes > 0 && head.bytes.is_multiple_of(bytes));
    match valid.map(|bytes| i32::try_from(head.bytes / bytes)) {
        Some(Ok(n_rows @ 1..)) => Ok(MatrixShape {
            kind: head.type_id as sys::ggml_type,
            n_embd: n_embd.into(),
            n_rows: n_rows.into(),
        }),
        _ => {
            let (name, bytes) = (&head.type_name, head.bytes);
            Err(fault(format!(
                "type {name}, {bytes} bytes and n_embd {n_embd} do not go together"
            )))
        }
    }
}

/// A matrix in the memory of a device.
struct DeviceMatrix {
    tensor: *mut sys::ggml_tensor,
    _buffer: Owned<sys::ggml_backend_buffer>,
    _arena: Arena,
}

impl DeviceMatrix {
    /// Reads a matrix from `section` into a device's memory.
    fn read(
        matrix: MatrixShape,
        place: Place,
        section: &mut dyn Read,
    ) -> Result<Self, EngineError> {
        let no_memory = || {
            let (device, reason) = (place.device.name(), last_log_errors());
            fault(format!("no memory for it on {device}: {reason}"))
        };
        let arena = Arena::new().ok_or_else(no_memory)?;
        // SAFETY: the arena is empty, and its tensor gets a buffer of its own, which outlives it. The
        // scheduler computes on the device that holds the weights.
        let (tensor, buffer, n_bytes) = unsafe {
            let tensor = arena.tensor(matrix);
            let (context, memory) = (arena.as_ptr(), place.memory.as_ptr());
            let alloc = || calls::ggml_backend_alloc_ctx_tensors_from_buft(context, memory);
            let buffer = guarded(alloc).map_err(|_| no_memory())?;
            let owned = Owned::new(buffer, sys::ggml_backend_buffer_free).ok_or_else(no_memory)?;
            let usage = sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
            sys::ggml_backend_buffer_set_usage(buffer, usage);
            (tensor, owned, sys::ggml_nbytes(tensor))
        };
        let mut piece = Vec::new();
        let n_at_once = n_bytes.min(place.piece_bytes);
        piece
            .try_reserve_exact(n_at_once)
            .map_err(|_| no_memory())?;
        piece.resize(n_at_once, 0);
        for offset in (0..n_bytes).step_by(place.piece_bytes) {
            let piece = &mut piece[..n_at_once.min(n_bytes - offset)];
            section.read_exact(piece).map_err(EngineError::ReadHead)?;
            // SAFETY: the piece lies within the tensor.
            let written = guarded(|| unsafe {
                let data = piece.as_ptr().cast();
                calls::ggml_backend_tensor_set(tensor, data, offset, piece.len());
            });
            written.map_err(fault)?;
        }
        Ok(Self {
            tensor,
            _buffer: buffer,
            _arena: arena,
        })
    }
}

/// The memory for a matrix, and the device that multiplies it there.
#[derive(Clone, Copy)]
struct Place {
    device: GgmlDevice,
    memory: BufferType,
    /// Most bytes that are written at once: all where the kernels want the weights in another order.
    piece_bytes: usize,
}

/// The first memory that can hold a matrix to multiply with, beside the layers of a model: what its own head
/// has, or else what llama.cpp would choose (`make_cpu_buft_list`, `make_gpu_buft_list` and
/// `select_weight_buft` in llama.cpp's sources).
fn place(matrix: MatrixShape, model: Option<&LlamaCppModel<'_>>) -> Option<Place> {
    let plain = |device: GgmlDevice| {
        device.buffer_type().map(|memory| Place {
            device,
            memory,
            piece_bytes: PIECE_BYTES,
        })
    };
    let cpus: Vec<GgmlDevice> = GgmlDevice::of_kind(DeviceKind::Cpu).collect();
    let cpu_memory = cpus.iter().find_map(|cpu| cpu.buffer_type());
    let home = model.and_then(LlamaCppModel::head_gpu).and_then(plain);
    let mut places: Vec<Place> = home.into_iter().collect();
    let libraries = GgmlDevice::of_kind(DeviceKind::Accelerator).filter_map(plain);
    places.extend(libraries.filter(|place| Some(place.memory) != cpu_memory));
    // With a GPU, llama.cpp prefers memory of the CPU that the GPU reads fast, and if the file is
    // mapped, as it is by default, uses the CPU's plain memory in its place.
    let mut gpus = model.map_or(&[][..], |model| &model.gpus).iter();
    let host = gpus.find_map(|&gpu| Some((gpu, gpu.host_buffer_type()?)));
    if !host.is_some_and(|(gpu, memory)| matrix.can_be_multiplied_by(gpu, memory)) {
        let reordered = cpus.iter().take(1).flat_map(|&device| {
            let memories = device.extra_buffer_types().into_iter();
            memories.map(move |memory| Place {
                device,
                memory,
                piece_bytes: usize::MAX,
            })
        });
        places.extend(reordered);
    }
    places.extend(cpus.into_iter().filter_map(plain));
    let mut places = places.into_iter();
    places.find(|place| matrix.can_be_multiplied_by(place.device, place.memory))
}

impl LlamaCppModel<'_> {
    /// The model's own matrix, if it is the same as that of `states` and can be used in place: not where
    /// it may be exchanged.
    fn shared_head(&self, states: &States) -> Option<ModelTensor> {
        let (stored, (own, tensor)) = (&states.head, self.head_tensor().ok()?);
        let is_alike = !self.facts.options.is_exchangeable
            && (own.type_id, own.n_embd) == (stored.type_id, states.n_embd)
            && tensor.bytes == stored.bytes
            && self.head_sha256().ok()? == stored.sha256;
        // Only llama.cpp can use weights on a device that is made up of several, as with -sm tensor.
        // Libraries compute with weights in the CPU's memory.
        let is_within_reach = |weight: &ModelTensor| {
            let device = weight.memory().and_then(BufferType::device);
            device.is_none_or(|device| device.kind() != DeviceKind::Accelerator)
        };
        own.weight
            .filter(|weight| is_alike && is_within_reach(weight))
    }

    /// The GPU whose memory holds the model's own head; one that was not found lies with the layers.
    fn head_gpu(&self) -> Option<GgmlDevice> {
        let gpu = match self.found_head().ok().and_then(|head| head.weight) {
            Some(weight) => {
                let memory = weight.memory()?;
                let device = memory.device()?;
                // Some memory of the CPU's counts as a device's that reads it faster.
                (device.host_buffer_type() != Some(memory)).then_some(device)
            }
            None => (self.gpus.first().copied()).filter(|_| self.facts.is_offloaded),
        };
        gpu.filter(|device| device.kind().is_gpu())
    }
}
