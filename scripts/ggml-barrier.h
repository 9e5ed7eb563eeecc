// How ggml's threads wait for each other after each operation of a graph: they spin for a moment, then
// sleep. scripts/llama-cpp.cmake puts this into ggml-cpu.c, in front of ggml_barrier.
//
// ggml's own threads spin until the last one arrives. If that one has no core, because another program
// has it, the others keep theirs busy for nothing until the scheduler takes them away: two evaluations at
// once took 5 to 60 times as long as one. benches/RESULTS.md has the figures. Which thread computes what, and so
// every result, is the same either way.

// As long as a sleeping thread takes to run again, about: by then sleeping costs no more than spinning.
#define GGML_BARRIER_SPIN_US 50

// Threads that sleep at a barrier, of all pools: most barriers find none, and need no lock.
static atomic_int ggml_barrier_n_sleeping;

// Waits until n_barrier_passed is no longer n_passed.
static void ggml_barrier_wait(struct ggml_threadpool * tp, int n_passed) {
    const int64_t start = ggml_time_us();
    do {
        for (int i = 0; i < 16; i++) {
            if (atomic_load_explicit(&tp->n_barrier_passed, memory_order_relaxed) != n_passed) {
                return;
            }
            ggml_thread_cpu_relax();
        }
    } while (ggml_time_us() - start < GGML_BARRIER_SPIN_US);

    // The last thread passes the barrier and then looks for sleepers; this one counts itself as a sleeper
    // and then looks at the barrier. In this order, one of the two sees the other.
    atomic_fetch_add(&ggml_barrier_n_sleeping, 1);
    ggml_mutex_lock_shared(&tp->mutex);
    while (atomic_load(&tp->n_barrier_passed) == n_passed) {
        ggml_cond_wait(&tp->cond, &tp->mutex);
    }
    ggml_mutex_unlock_shared(&tp->mutex);
    atomic_fetch_sub(&ggml_barrier_n_sleeping, 1);
}

// Wakes those that sleep, after n_barrier_passed has changed.
static void ggml_barrier_wake(struct ggml_threadpool * tp) {
    if (atomic_load(&ggml_barrier_n_sleeping) == 0) {
        return;
    }
    // Holding the lock, so that no thread is between looking at the barrier and falling asleep.
    ggml_mutex_lock(&tp->mutex);
    ggml_cond_broadcast(&tp->cond);
    ggml_mutex_unlock(&tp->mutex);
}

