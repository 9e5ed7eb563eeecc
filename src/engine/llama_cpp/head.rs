//! Computes rows from hidden states: ggml multiplies an output head with them as llama.cpp does in its
//! own graph, on the device where llama.cpp would put it.

use std::io::{self, ErrorKind, Read};
use std::marker::PhantomData;
use std::ptr::NonNull;

use kl_formats::{GgmlType, HeadStep, States};
use llama_cpp_sys_2 as sys;

use super::backends::TURN;
use super::device::{BufferType, GgmlDevice};
use super::ggml::{Arena, DeviceMatrix, Matrix, ModelTensor, Scheduler};
use super::log::last_log_errors;
use crate::engine::{DeviceKind, EngineError, Head};
use crate::lock::locked;

/// Bytes of the matrix that are read at once.
const PIECE_BYTES: usize = 16 << 20;

/// Most steps after the product. Besides the matrix, the states and their product, each step may
/// bring two tensors, its values and its result: all of them fit in the graph.
const MAX_STEPS: usize = (Arena::MAX_TENSORS - 3) / 2;

/// An output head, ready to compute rows.
pub(super) struct HeadProduct<'m> {
    n_embd: usize,
    n_vocab: usize,
    /// The matrix: a model's, or that of `own`.
    matrix: NonNull<sys::ggml_tensor>,
    own: Option<DeviceMatrix>,
    /// The steps that follow the product, with the values of each step that has some.
    steps: Vec<(HeadStep, Option<DeviceMatrix>)>,
    device: GgmlDevice,
    graph: Option<Graph>,
    scheduler: Scheduler,
    /// Rows that an accelerator has computed.
    rows: Vec<f32>,
    /// The model whose matrix may be used.
    model: PhantomData<&'m ModelTensor>,
}

/// A graph that computes rows from `n` states. Its data lies in the scheduler's memory.
struct Graph {
    n: usize,
    states: NonNull<sys::ggml_tensor>,
    rows: NonNull<sys::ggml_tensor>,
    graph: NonNull<sys::ggml_cgraph>,
    _arena: Arena,
}

// SAFETY: nothing in it is bound to a thread, and all of it is used through one owner. A model's
// matrix is only read.
unsafe impl Send for HeadProduct<'_> {}

impl<'m> HeadProduct<'m> {
    /// Loads a head: its matrix is `shared`, or read from `section` into memory that `placement`
    /// chooses.
    pub(super) fn new(
        states: &States,
        section: &mut dyn Read,
        threads: u32,
        placement: &HeadPlacement,
        shared: Option<&'m ModelTensor>,
    ) -> Result<Self, EngineError> {
        let matrix = matrix(states)?;
        let n_steps = states.then.len();
        if n_steps > MAX_STEPS {
            return Err(fault(format!("{n_steps} steps follow it")));
        }
        let name = &states.head.type_name;
        let place = placement
            .choose(matrix)
            .ok_or_else(|| fault(format!("no device multiplies matrices of type {name}")))?;
        let own = if shared.is_none() {
            Some(read_matrix(matrix, &place, section)?)
        } else if states.then.iter().any(|step| step.n_values() > 0) {
            // The values of its steps follow the matrix.
            let mut matrix = (&mut *section).take(states.head.bytes);
            io::copy(&mut matrix, &mut io::sink()).map_err(EngineError::ReadHead)?;
            None
        } else {
            None
        };
        let tensor = own.as_ref().map(|own| own.tensor);
        let tensor = tensor.or(shared.map(|ModelTensor(tensor)| *tensor));
        let mut steps = Vec::new();
        for &step in &states.then {
            let n_values = i64::from(step.n_values());
            if n_values > 1 && n_values != matrix.n_rows {
                let n_rows = matrix.n_rows;
                let what = format!("a step has {n_values} values for {n_rows} entries");
                return Err(fault(what));
            }
            let read = (n_values > 0).then(|| {
                let place = Place::plain(place.device);
                let place = place.ok_or_else(|| fault("its device has no memory".to_owned()))?;
                read_matrix(Matrix::of_f32(n_values, 1), &place, section)
            });
            steps.push((step, read.transpose()?));
        }
        let no_start = || fault(format!("ggml does not start: {}", last_log_errors()));
        let scheduler = Scheduler::new(&placement.devices(), threads, !placement.no_op_offload);
        Ok(Self {
            n_embd: matrix.n_embd as usize,
            n_vocab: matrix.n_rows as usize,
            matrix: tensor.ok_or_else(no_start)?,
            steps,
            device: place.device,
            graph: None,
            scheduler: scheduler.ok_or_else(no_start)?,
            own,
            rows: Vec::new(),
            model: PhantomData,
        })
    }

    /// Builds the graph for `n` states. The previous graph must not be used after this.
    fn build(&self, n: usize) -> Result<Graph, EngineError> {
        let no_memory = || {
            let (device, reason) = (self.device(), last_log_errors());
            fault(format!("no memory for {n} rows on {device}: {reason}"))
        };
        let arena = Arena::new().ok_or_else(no_memory)?;
        // SAFETY: the arena has room for the states, the product and a few steps. All tensors are
        // valid, and their sizes fit: `matrix` and `read_values` have checked them.
        unsafe {
            let context = arena.as_ptr();
            let states = arena.tensor(Matrix::of_f32(self.n_embd as i64, n as i64));
            sys::ggml_set_input(states.as_ptr());
            let mut rows = sys::ggml_mul_mat(context, self.matrix.as_ptr(), states.as_ptr());
            for (step, values) in &self.steps {
                let values = values.as_ref().map(|values| values.tensor.as_ptr());
                rows = match (step, values) {
                    (HeadStep::Scale { factor, bias }, _) => {
                        sys::ggml_scale_bias(context, rows, *factor, *bias)
                    }
                    (HeadStep::Tanh, _) => sys::ggml_tanh(context, rows),
                    (HeadStep::Add { .. }, Some(values)) => sys::ggml_add(context, rows, values),
                    (HeadStep::Mul { .. }, Some(values)) => sys::ggml_mul(context, rows, values),
                    (_, None) => return Err(fault("a step has no values".to_owned())),
                };
            }
            sys::ggml_set_output(rows);
            let graph = sys::ggml_new_graph_custom(context, Arena::MAX_TENSORS, false);
            sys::ggml_build_forward_expand(graph, rows);
            sys::ggml_backend_sched_reset(self.scheduler.as_ptr());
            if !sys::ggml_backend_sched_alloc_graph(self.scheduler.as_ptr(), graph) {
                return Err(no_memory());
            }
            Ok(Graph {
                n,
                states,
                rows: NonNull::new(rows).ok_or_else(no_memory)?,
                graph: NonNull::new(graph).ok_or_else(no_memory)?,
                _arena: arena,
            })
        }
    }
}

impl Head for HeadProduct<'_> {
    fn rows(&mut self, states: &[f32]) -> Result<&[f32], EngineError> {
        let (n_embd, n) = (self.n_embd, states.len() / self.n_embd);
        if states.len() != n * n_embd {
            let n = states.len();
            return Err(fault(format!(
                "{n} numbers are not states of {n_embd} each"
            )));
        }
        if n == 0 {
            return Ok(&[]);
        }
        let n_logits = n * self.n_vocab;
        let is_remote = self.device.kind() == DeviceKind::Remote;
        let _turn = is_remote.then(|| locked(&TURN));
        let graph = match self.graph.take().filter(|graph| graph.n == n) {
            Some(graph) => graph,
            None => self.build(n)?,
        };
        // SAFETY: the graph is allocated, and its first tensor has as many f32 as `states`.
        let status = unsafe {
            let data = states.as_ptr().cast();
            sys::ggml_backend_tensor_set(graph.states.as_ptr(), data, 0, size_of_val(states));
            sys::ggml_backend_sched_graph_compute(self.scheduler.as_ptr(), graph.graph.as_ptr())
        };
        if status != sys::GGML_STATUS_SUCCESS {
            let (device, reason) = (self.device(), last_log_errors());
            return Err(fault(format!(
                "{device} could not compute {n} rows: {reason}"
            )));
        }
        let rows = self.graph.insert(graph).rows;
        // SAFETY: the rows are computed, n_logits f32 that lie one after the other. In the CPU's
        // memory they stay until the next graph, which borrows `self` mutably.
        unsafe {
            if sys::ggml_backend_buffer_is_host(rows.as_ref().buffer) {
                let data = rows.as_ref().data.cast_const().cast();
                return Ok(std::slice::from_raw_parts(data, n_logits));
            }
            self.rows.resize(n_logits, 0.0);
            let data = self.rows.as_mut_ptr().cast();
            sys::ggml_backend_tensor_get(rows.as_ptr(), data, 0, n_logits * size_of::<f32>());
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

fn fault(what: String) -> EngineError {
    EngineError::StoredHead(what)
}

/// Checks the sizes that `states` state, and returns the matrix's.
fn matrix(states: &States) -> Result<Matrix, EngineError> {
    let head = &states.head;
    let kind = GgmlType::of(head.type_id).filter(|kind| kind.is_for_weights);
    let row_bytes = kind.and_then(|kind| kind.bytes(states.n_embd.into()));
    let n_rows = row_bytes
        .filter(|&bytes| bytes > 0 && head.bytes.is_multiple_of(bytes))
        .and_then(|bytes| i32::try_from(head.bytes / bytes).ok())
        .filter(|&n_rows| n_rows > 0)
        .ok_or_else(|| {
            let (name, bytes, n_embd) = (&head.type_name, head.bytes, states.n_embd);
            fault(format!(
                "type {name}, {bytes} bytes and n_embd {n_embd} do not go together"
            ))
        })?;
    Ok(Matrix {
        kind: head.type_id as sys::ggml_type,
        n_embd: states.n_embd.into(),
        n_rows: n_rows.into(),
    })
}

/// Reads a matrix into a device's memory, piece by piece where that is possible.
fn read_matrix(
    matrix: Matrix,
    place: &Place,
    section: &mut dyn Read,
) -> Result<DeviceMatrix, EngineError> {
    let mut weight = DeviceMatrix::allocate(matrix, place.memory).ok_or_else(|| {
        let (device, reason) = (place.device.name(), last_log_errors());
        fault(format!("no memory for it on {device}: {reason}"))
    })?;
    match weight.fill(section, place.piece_bytes) {
        Ok(()) => Ok(weight),
        Err(error) if error.kind() == ErrorKind::OutOfMemory => {
            Err(fault(format!("no memory to read it: {error}")))
        }
        Err(error) => Err(EngineError::ReadHead(error)),
    }
}

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
    /// Most bytes that are written at once: all where the kernels want the weights in another order.
    pub(super) piece_bytes: usize,
}

impl Place {
    /// A device's own memory.
    fn plain(device: GgmlDevice) -> Option<Self> {
        device.buffer_type().map(|memory| Self {
            device,
            memory,
            piece_bytes: PIECE_BYTES,
        })
    }
}

impl HeadPlacement {
    /// The first memory that can hold a matrix to multiply with (`make_cpu_buft_list`,
    /// `make_gpu_buft_list` and `select_weight_buft` in llama.cpp's sources).
    pub(super) fn choose(&self, matrix: Matrix) -> Option<Place> {
        let cpus = || GgmlDevice::of_kind(DeviceKind::Cpu);
        let of_cpu = cpus().find_map(GgmlDevice::buffer_type);
        let libraries = GgmlDevice::of_kind(DeviceKind::Accelerator)
            .filter_map(Place::plain)
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
                piece_bytes: usize::MAX,
            })
        });
        let mut places = (self.home.and_then(Place::plain).into_iter())
            .chain(libraries)
            .chain(reordered)
            .chain(cpus().filter_map(Place::plain));
        places.find(|place| matrix.can_be_multiplied_by(place.device, place.memory))
    }

    /// The devices that compute, in the order in which llama.cpp prefers them: the CPU last.
    pub(super) fn devices(&self) -> Vec<GgmlDevice> {
        let mut devices = self.gpus.clone();
        devices.extend(GgmlDevice::of_kind(DeviceKind::Accelerator));
        devices.extend(GgmlDevice::of_kind(DeviceKind::Cpu).take(1));
        devices
    }
}
