//! The output head of stored hidden states: ggml multiplies them as llama.cpp does in its own graph.

use std::io::Read;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::PoisonError;

use kl_formats::{GgmlType, HeadStep, States};
use llama_cpp_sys_2 as sys;

use super::ggml::Scheduler;
use super::ggml::{Arena, Matrix, Weight};
use super::node::ModelTensor;
use super::placement::{Place, Placement};
use super::rpc;
use crate::engine::{DeviceKind, EngineError, Head, last_log_errors};

/// Bytes of the matrix that are read at once.
const PIECE_BYTES: usize = 16 << 20;

/// Most steps after the product. Besides the matrix, the states and their product, each step may
/// bring two tensors, its values and its result: all of them fit in the graph.
const MAX_STEPS: usize = (Arena::MAX_TENSORS - 3) / 2;

/// An output head, ready to compute rows.
pub struct LlamaCppHead<'m> {
    n_embd: usize,
    n_vocab: usize,
    /// The matrix: a model's, or that of `own`.
    matrix: NonNull<sys::ggml_tensor>,
    /// The steps that follow the product, with the values of each step that has some.
    steps: Vec<(HeadStep, Option<Weight>)>,
    device: String,
    /// True if that is a server's.
    is_remote: bool,
    graph: Option<Graph>,
    scheduler: Scheduler,
    own: Option<Weight>,
    /// Rows that an accelerator has computed.
    rows: Vec<f32>,
    /// The model whose matrix it may be.
    model: PhantomData<&'m ModelTensor>,
}

/// The graph for a number of states, whose data lies in the scheduler's memory.
struct Graph {
    n: usize,
    states: NonNull<sys::ggml_tensor>,
    rows: NonNull<sys::ggml_tensor>,
    graph: NonNull<sys::ggml_cgraph>,
    _arena: Arena,
}

// SAFETY: nothing in it is bound to a thread, and all of it is used through one owner. A model's
// matrix is only read.
unsafe impl Send for LlamaCppHead<'_> {}

impl<'m> LlamaCppHead<'m> {
    /// Prepares a head: its matrix is `shared`, or read from `section` into memory that `placement`
    /// chooses.
    pub(super) fn new(
        states: &States,
        section: &mut dyn Read,
        threads: u32,
        placement: &Placement,
        shared: Option<&'m ModelTensor>,
    ) -> Result<Self, EngineError> {
        let matrix = matrix(states)?;
        if states.then.len() > MAX_STEPS {
            return Err(fault(format!("{} steps follow it", states.then.len())));
        }
        let name = &states.head.type_name;
        let place = placement
            .choose(matrix)
            .ok_or_else(|| fault(format!("no device multiplies matrices of type {name}")))?;
        let (tensor, own) = match shared {
            Some(&ModelTensor(tensor)) => {
                // The values of its steps follow it, if there are any.
                if states.then.iter().any(|step| step.n_values() > 0) {
                    let mut matrix = section.take(states.head.bytes);
                    std::io::copy(&mut matrix, &mut std::io::sink())
                        .map_err(EngineError::ReadHead)?;
                }
                (tensor, None)
            }
            None => {
                let own = read_matrix(matrix, &place, section)?;
                (own.tensor, Some(own))
            }
        };
        let steps = states.then.iter();
        let steps = steps.map(|&step| Ok((step, read_values(step, matrix, &place, section)?)));
        let scheduler = Scheduler::new(&placement.devices(), threads, !placement.no_op_offload)
            .ok_or_else(|| fault(format!("ggml does not start: {}", last_log_errors())))?;
        Ok(Self {
            n_embd: matrix.n_embd as usize,
            n_vocab: matrix.n_rows as usize,
            matrix: tensor,
            steps: steps.collect::<Result<_, EngineError>>()?,
            device: place.device.name(),
            is_remote: place.device.kind() == DeviceKind::Remote,
            graph: None,
            scheduler,
            own,
            rows: Vec::new(),
            model: PhantomData,
        })
    }

    /// Builds the graph for `n` states, unless it is there already.
    fn prepare(&mut self, n: usize) -> Result<&Graph, EngineError> {
        if self.graph.as_ref().is_some_and(|graph| graph.n != n) {
            self.graph = None;
        }
        let graph = match self.graph.take() {
            Some(graph) => graph,
            None => self.build(n)?,
        };
        Ok(self.graph.insert(graph))
    }

    fn build(&self, n: usize) -> Result<Graph, EngineError> {
        let no_memory = || {
            let (rows, reason) = (n, last_log_errors());
            fault(format!(
                "no memory for {rows} rows on {}: {reason}",
                self.device
            ))
        };
        let arena = Arena::new().ok_or_else(no_memory)?;
        // SAFETY: the arena has room for the states, the product and a few steps. All tensors are
        // valid, and their sizes fit: `matrix` and `read_values` have checked them. The graph that
        // the scheduler held before is not used after this.
        unsafe {
            let context = arena.as_ptr();
            let states = arena.tensor(sys::GGML_TYPE_F32, self.n_embd as i64, n as i64);
            sys::ggml_set_input(states.as_ptr());
            let mut rows = sys::ggml_mul_mat(context, self.matrix.as_ptr(), states.as_ptr());
            for (step, values) in &self.steps {
                rows = match (step, values) {
                    (HeadStep::Scale { factor, bias }, _) => {
                        sys::ggml_scale_bias(context, rows, *factor, *bias)
                    }
                    (HeadStep::Tanh, _) => sys::ggml_tanh(context, rows),
                    (HeadStep::Add { .. }, Some(values)) => {
                        sys::ggml_add(context, rows, values.tensor.as_ptr())
                    }
                    (HeadStep::Mul { .. }, Some(values)) => {
                        sys::ggml_mul(context, rows, values.tensor.as_ptr())
                    }
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

impl Head for LlamaCppHead<'_> {
    fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    fn rows(&mut self, states: &[f32]) -> Result<&[f32], EngineError> {
        if !states.len().is_multiple_of(self.n_embd) {
            let (n, n_embd) = (states.len(), self.n_embd);
            return Err(fault(format!(
                "{n} numbers are not states of {n_embd} each"
            )));
        }
        let n = states.len() / self.n_embd;
        if n == 0 {
            return Ok(&[]);
        }
        let n_logits = n * self.n_vocab;
        let scheduler = self.scheduler.as_ptr();
        let turn = || rpc::TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let _turn = self.is_remote.then(turn);
        let graph = self.prepare(n)?;
        let rows = graph.rows;
        // SAFETY: the graph is allocated, and its first tensor has as many f32 as `states`.
        let status = unsafe {
            let data = states.as_ptr().cast();
            sys::ggml_backend_tensor_set(graph.states.as_ptr(), data, 0, size_of_val(states));
            sys::ggml_backend_sched_graph_compute(scheduler, graph.graph.as_ptr())
        };
        if status != sys::GGML_STATUS_SUCCESS {
            let (device, reason) = (&self.device, last_log_errors());
            return Err(fault(format!(
                "{device} could not compute {n} rows: {reason}"
            )));
        }
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

    fn device(&self) -> &str {
        &self.device
    }

    fn is_shared(&self) -> bool {
        self.own.is_none()
    }
}

fn fault(what: String) -> EngineError {
    EngineError::StoredHead(what)
}

/// The matrix that `states` describe, whose sizes are checked.
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
) -> Result<Weight, EngineError> {
    let mut weight = Weight::allocate(matrix, place.memory).ok_or_else(|| {
        let (device, reason) = (place.device.name(), last_log_errors());
        fault(format!("no memory for it on {device}: {reason}"))
    })?;
    let n_bytes = weight.bytes();
    let piece_bytes = match place.is_reordered {
        true => n_bytes,
        false => n_bytes.min(PIECE_BYTES),
    };
    let mut piece = Vec::new();
    piece
        .try_reserve_exact(piece_bytes)
        .map_err(|error| fault(format!("no memory to read it: {error}")))?;
    piece.resize(piece_bytes, 0);
    let mut offset = 0;
    while offset < n_bytes {
        let piece = &mut piece[..piece_bytes.min(n_bytes - offset)];
        section.read_exact(piece).map_err(EngineError::ReadHead)?;
        weight.set(offset, piece);
        offset += piece.len();
    }
    Ok(weight)
}

/// Reads the values of a step, if it has some.
fn read_values(
    step: HeadStep,
    matrix: Matrix,
    place: &Place,
    section: &mut dyn Read,
) -> Result<Option<Weight>, EngineError> {
    let n_values = match step {
        HeadStep::Scale { .. } | HeadStep::Tanh => return Ok(None),
        HeadStep::Add { n_values } | HeadStep::Mul { n_values } => i64::from(n_values),
    };
    if n_values != 1 && n_values != matrix.n_rows {
        return Err(fault(format!(
            "a step has {n_values} values for {} entries",
            matrix.n_rows
        )));
    }
    let values = Matrix {
        kind: sys::GGML_TYPE_F32,
        n_embd: n_values,
        n_rows: 1,
    };
    let memory = place.device.buffer_type();
    let memory = memory.ok_or_else(|| fault(format!("{} has no memory", place.device.name())))?;
    let place = Place {
        memory,
        is_reordered: false,
        ..*place
    };
    read_matrix(values, &place, section).map(Some)
}
