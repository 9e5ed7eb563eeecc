//! Threads, where the system may allow few: `ulimit -u`, a container's pids limit, systemd's `TasksMax`.
//!
//! Rayon's pool and ggml would end the process if they cannot start a thread. So the program starts the pool's threads
//! itself, and keeps some of those that the system allows for everything else; and it tries how many ggml could start.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle, available_parallelism, sleep};
use std::time::Duration;

use rayon::{ThreadBuilder, ThreadPoolBuilder};

/// Threads of a run beside the pool's and those that decode: one for each context, for reading or writing, for signals,
/// for the progress bar, for loading models by name and for a long text.
const OTHERS: usize = 6;

/// The time that the system may take to count a thread as ended.
const PATIENCE: Duration = Duration::from_millis(20);

/// True once the pool has no thread of its own: parallel work is done by the main thread, and no other may be started,
/// which would wait for it.
static IS_ALONE: AtomicBool = AtomicBool::new(false);

/// Starts Rayon's pool, with a thread for each core, or with as many as the system allows while `n_decoding` decode;
/// with none where it allows no other thread at all. To be called on the main thread, before any other is started.
pub fn start_pool(n_decoding: usize) {
    let wanted = std::env::var("RAYON_NUM_THREADS").ok();
    let wanted = wanted.and_then(|n| n.parse().ok()).filter(|n| *n > 0);
    let n_pool = wanted.unwrap_or_else(|| available_parallelism().map_or(1, usize::from));
    let reserved = n_decoding + OTHERS;
    let mut waiting = start_waiting(n_pool + reserved);
    let is_limited = waiting.len() < n_pool + reserved;
    let n_pool = match waiting.len() {
        0 => 0,
        n => n.saturating_sub(reserved).clamp(1, n_pool),
    };
    let threads_of_pool = waiting.split_off(waiting.len() - n_pool);
    end(waiting);
    if is_limited {
        sleep(PATIENCE);
    }
    let mut threads_of_pool = threads_of_pool.into_iter();
    let pool = ThreadPoolBuilder::new();
    // Without a pool of its own, Rayon would start one when it is first used.
    let started = if n_pool == 0 {
        IS_ALONE.store(true, Ordering::Relaxed);
        pool.num_threads(1).use_current_thread().build_global()
    } else {
        let give = |work: ThreadBuilder| {
            let thread = threads_of_pool.next().ok_or(io::ErrorKind::WouldBlock)?;
            thread
                .work
                .send(work)
                .map_err(|_| io::ErrorKind::BrokenPipe)?;
            Ok(())
        };
        pool.num_threads(n_pool).spawn_handler(give).build_global()
    };
    // A second call, as in tests, keeps the first pool.
    let _ = started;
}

/// A thread that waits for work, and ends if it gets none.
struct Waiting {
    work: Sender<ThreadBuilder>,
    thread: JoinHandle<()>,
}

/// Starts as many threads as the system allows, at most `n`.
fn start_waiting(n: usize) -> Vec<Waiting> {
    let start = || {
        let (work, given) = channel::<ThreadBuilder>();
        let run = move || given.into_iter().take(1).for_each(ThreadBuilder::run);
        let thread = Builder::new().spawn(run).ok()?;
        Some(Waiting { work, thread })
    };
    (0..n).map_while(|_| start()).collect()
}

fn end(threads: Vec<Waiting>) {
    for Waiting { work, thread } in threads {
        drop(work);
        let _ = thread.join();
    }
}

/// Counts the threads that the system allows now, up to `n`.
pub fn allowed(n: usize) -> usize {
    if IS_ALONE.load(Ordering::Relaxed) {
        return 0;
    }
    let started = start_waiting(n);
    let n_started = started.len();
    end(started);
    n_started
}

/// Checks that the system allows another thread, for a library that panics without one.
///
/// # Errors
/// If it does not: what to do.
pub fn one_more() -> Result<(), NoThread> {
    if allowed(1) > 0 {
        return Ok(());
    }
    Err(NoThread("it cannot be started".to_owned()))
}

/// Starts a thread.
///
/// # Errors
/// If the system allows none: what to do.
pub fn spawn<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, NoThread> {
    ready()?;
    Builder::new().spawn(work).map_err(NoThread::from)
}

/// Starts a thread that ends within `scope`.
///
/// # Errors
/// If the system allows none: what to do.
pub fn spawn_scoped<'scope, 'env, T: Send + 'scope>(
    scope: &'scope Scope<'scope, 'env>,
    stack: Option<usize>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, NoThread> {
    ready()?;
    let mut builder = Builder::new();
    if let Some(stack) = stack {
        builder = builder.stack_size(stack);
    }
    builder.spawn_scoped(scope, work).map_err(NoThread::from)
}

/// Waits a moment for a thread that has just ended, if the system allows no other.
fn ready() -> Result<(), NoThread> {
    if IS_ALONE.load(Ordering::Relaxed) {
        return Err(NoThread("none beside the first".to_owned()));
    }
    if allowed(1) == 0 {
        sleep(PATIENCE);
    }
    Ok(())
}

/// Explains that the system allows only `n` of the threads that `--threads` asks for, the first included.
pub fn too_few(threads: u32, n: usize) -> String {
    format!(
        "--threads {threads}: the system allows this process only {n} of them: use --threads {n}, or {ADVICE}"
    )
}

/// The advice where the system allows too few threads.
pub const ADVICE: &str = "close other programs or raise the limit (ulimit -u, a container's pids limit, systemd's TasksMax)";

/// No thread can be started: a limit of the system's, and how to raise it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the system allows this process no further thread ({0}): {ADVICE}")]
pub struct NoThread(String);

impl From<io::Error> for NoThread {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}
