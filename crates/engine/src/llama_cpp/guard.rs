//! Calls of llama.cpp and ggml that may throw an exception of C++. Rust cannot catch one, and the bindings declare
//! that none comes; so [`calls`] declares these functions again, and [`guarded`] runs them through `shim.cpp`, which
//! catches what they throw.

use std::ffi::{CStr, c_char, c_void};

/// Bytes of an exception's message that are kept.
const MESSAGE_BYTES: usize = 512;

unsafe extern "C" {
    fn kl_guarded(
        call: unsafe extern "C-unwind" fn(*mut c_void),
        data: *mut c_void,
        message: *mut c_char,
        size: usize,
    ) -> bool;
}

/// The functions, which must be called inside of [`guarded`] alone.
pub(super) mod calls {
    use std::ffi::{CStr, c_char, c_int, c_void};

    use llama_cpp_sys_2 as sys;

    unsafe extern "C-unwind" {
        pub fn llama_model_load_from_file(
            path: *const c_char,
            params: sys::llama_model_params,
        ) -> *mut sys::llama_model;
        pub fn llama_init_from_model(
            model: *mut sys::llama_model,
            params: sys::llama_context_params,
        ) -> *mut sys::llama_context;
        pub fn llama_decode(context: *mut sys::llama_context, batch: sys::llama_batch) -> i32;
        pub fn llama_get_logits_ith(context: *mut sys::llama_context, i: i32) -> *mut f32;
        pub fn llama_memory_clear(memory: sys::llama_memory_t, data: bool);
        pub fn llama_memory_seq_rm(
            memory: sys::llama_memory_t,
            sequence: sys::llama_seq_id,
            from: sys::llama_pos,
            to: sys::llama_pos,
        ) -> bool;
        pub fn llama_tokenize(
            vocab: *const sys::llama_vocab,
            text: *const c_char,
            text_len: i32,
            tokens: *mut sys::llama_token,
            n_tokens_max: i32,
            add_special: bool,
            parse_special: bool,
        ) -> i32;
        pub fn llama_token_to_piece(
            vocab: *const sys::llama_vocab,
            token: sys::llama_token,
            bytes: *mut c_char,
            n_bytes_max: i32,
            lstrip: i32,
            special: bool,
        ) -> i32;
        pub fn llama_model_quantize(
            from: *const c_char,
            to: *const c_char,
            params: *const sys::llama_model_quantize_params,
        ) -> u32;
        pub fn llama_rs_fit_params(
            path: *const c_char,
            model: *mut sys::llama_model_params,
            context: *mut sys::llama_context_params,
            tensor_split: *mut f32,
            overrides: *mut sys::llama_model_tensor_buft_override,
            margins: *mut usize,
            n_ctx_min: u32,
            extra: *const c_void,
            log_level: sys::ggml_log_level,
        ) -> c_int;
        pub fn llama_sampler_chain_init(
            params: sys::llama_sampler_chain_params,
        ) -> *mut sys::llama_sampler;
        pub fn llama_sampler_chain_add(
            chain: *mut sys::llama_sampler,
            sampler: *mut sys::llama_sampler,
        );
        pub fn llama_sampler_init_top_k(k: i32) -> *mut sys::llama_sampler;
        pub fn llama_sampler_init_top_p(p: f32, min_keep: usize) -> *mut sys::llama_sampler;
        pub fn llama_sampler_init_min_p(p: f32, min_keep: usize) -> *mut sys::llama_sampler;
        pub fn llama_sampler_init_temp(temp: f32) -> *mut sys::llama_sampler;
        pub fn llama_sampler_init_dist(seed: u32) -> *mut sys::llama_sampler;
        pub fn llama_sampler_apply(
            sampler: *mut sys::llama_sampler,
            candidates: *mut sys::llama_token_data_array,
        );
        pub fn ggml_backend_reg_count() -> usize;
        pub fn ggml_backend_dev_memory(
            device: sys::ggml_backend_dev_t,
            free: *mut usize,
            total: *mut usize,
        );
        pub fn ggml_backend_dev_get_props(
            device: sys::ggml_backend_dev_t,
            props: *mut sys::ggml_backend_dev_props,
        );
        pub fn ggml_backend_dev_init(
            device: sys::ggml_backend_dev_t,
            params: *const c_char,
        ) -> sys::ggml_backend_t;
        pub fn ggml_backend_sched_new(
            backends: *mut sys::ggml_backend_t,
            buffer_types: *mut sys::ggml_backend_buffer_type_t,
            n_backends: c_int,
            graph_size: usize,
            parallel: bool,
            op_offload: bool,
        ) -> sys::ggml_backend_sched_t;
        pub fn ggml_backend_sched_reset(scheduler: sys::ggml_backend_sched_t);
        pub fn ggml_backend_sched_alloc_graph(
            scheduler: sys::ggml_backend_sched_t,
            graph: *mut sys::ggml_cgraph,
        ) -> bool;
        pub fn ggml_backend_sched_graph_compute(
            scheduler: sys::ggml_backend_sched_t,
            graph: *mut sys::ggml_cgraph,
        ) -> sys::ggml_status;
        pub fn ggml_backend_alloc_ctx_tensors_from_buft(
            context: *mut sys::ggml_context,
            memory: sys::ggml_backend_buffer_type_t,
        ) -> sys::ggml_backend_buffer_t;
        pub fn ggml_backend_tensor_set(
            tensor: *mut sys::ggml_tensor,
            data: *const c_void,
            offset: usize,
            size: usize,
        );
        pub fn ggml_backend_tensor_get(
            tensor: *const sys::ggml_tensor,
            data: *mut c_void,
            offset: usize,
            size: usize,
        );
        /// Counts the memory of a context, in `shim.cpp`.
        pub fn kl_check_pattern(pattern: *const c_char);
        pub fn kl_context_bytes(context: *const sys::llama_context, computes: bool) -> u64;
        #[cfg(test)]
        pub fn kl_throw(message: *const c_char);
    }
    #[cfg(feature = "dynamic-backends")]
    unsafe extern "C-unwind" {
        pub fn ggml_backend_load_all_from_path(path: *const c_char);
        pub fn ggml_backend_load(path: *const c_char) -> sys::ggml_backend_reg_t;
    }

    /// The type of `ggml_backend_rpc_add_server`.
    pub type AddServer = unsafe extern "C-unwind" fn(*const c_char) -> sys::ggml_backend_reg_t;

    /// Its name.
    pub const ADD_SERVER: &CStr = c"ggml_backend_rpc_add_server";
}

/// Runs `call`, and returns the message of the exception if it throws one: memory that cannot be had is named in the
/// words that the advice on errors looks for.
pub(super) fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    let mut job = Job {
        call: Some(call),
        result: None,
    };
    let mut message: [c_char; MESSAGE_BYTES] = [0; MESSAGE_BYTES];
    // SAFETY: the job lives until this returns, and `run` is given its type. The message has room for its bytes.
    let is_whole = unsafe {
        let data = (&raw mut job).cast();
        kl_guarded(run_of(&job), data, message.as_mut_ptr(), MESSAGE_BYTES)
    };
    if is_whole && let Some(result) = job.result {
        return Ok(result);
    }
    // SAFETY: `shim.cpp` ends the message with a NUL byte, and it was all zeros.
    let message = unsafe { CStr::from_ptr(message.as_ptr()) }.to_string_lossy();
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    Err(match &*line {
        "std::bad_alloc" | "std::bad_array_new_length" => "out of memory".to_owned(),
        _ => line,
    })
}

struct Job<F, T> {
    call: Option<F>,
    result: Option<T>,
}

/// The function that runs a job of this type.
fn run_of<F: FnOnce() -> T, T>(_: &Job<F, T>) -> unsafe extern "C-unwind" fn(*mut c_void) {
    run::<F, T>
}

/// Runs a job.
///
/// # Safety
/// `job` points to a job of this type.
unsafe extern "C-unwind" fn run<F: FnOnce() -> T, T>(job: *mut c_void) {
    // SAFETY: as required.
    let job = unsafe { &mut *job.cast::<Job<F, T>>() };
    job.result = job.call.take().map(|call| call());
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;

    #[test]
    fn an_exception_becomes_a_line() {
        let thrown = |message: &str| {
            let message = CString::new(message).unwrap();
            // SAFETY: the message ends with a NUL byte, and `guarded` catches the exception.
            guarded(|| unsafe { calls::kl_throw(message.as_ptr()) })
        };
        assert_eq!(guarded(|| 7), Ok(7));
        let two_lines = thrown("no token for\na byte");
        assert_eq!(two_lines, Err("no token for a byte".to_owned()));
        assert_eq!(thrown("std::bad_alloc"), Err("out of memory".to_owned()));
        assert_eq!(
            thrown(&"x".repeat(9999)).unwrap_err().len(),
            MESSAGE_BYTES - 1
        );
    }
}
