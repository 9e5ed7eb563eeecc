//! An allocator with a limit, so that a bomb is a finding: the process ends with "memory allocation
//! failed".

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[global_allocator]
static LIMITED: Limited = Limited;

static USED: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

struct Limited;

/// Runs `f`, which may never have more than `bytes` allocated. Other threads count too.
pub fn limited<T>(bytes: usize, f: impl FnOnce() -> T) -> T {
    LIMIT.store(USED.load(Relaxed) + bytes, Relaxed);
    let value = f();
    LIMIT.store(usize::MAX, Relaxed);
    value
}

// SAFETY: every call goes to the system allocator, or returns null past the limit, as is allowed.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match take(layout.size()) {
            // SAFETY: the caller's promises are passed on.
            true => unsafe { System.alloc(layout) },
            false => std::ptr::null_mut(),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match take(layout.size()) {
            // SAFETY: as above.
            true => unsafe { System.alloc_zeroed(layout) },
            false => std::ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Old and new memory exist at once while the contents are copied.
        if !take(size) {
            return std::ptr::null_mut();
        }
        USED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }
}

/// Counts `bytes` as used, unless they are too many.
fn take(bytes: usize) -> bool {
    let used = USED.fetch_add(bytes, Relaxed).saturating_add(bytes);
    // A panic may print its message.
    let fits = used <= LIMIT.load(Relaxed) || std::thread::panicking();
    if !fits {
        USED.fetch_sub(bytes, Relaxed);
        LIMIT.store(usize::MAX, Relaxed); // for the message
    }
    fits
}
