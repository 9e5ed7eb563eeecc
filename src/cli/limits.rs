//! The limits that the system sets to this process.

/// Allows as many open files as the system lets this process have: a model may be split into more than the 1024
/// that most shells allow, and llama.cpp keeps all of them open. Where that is refused, the limit stays, and
/// what needs more says so.
#[cfg(unix)]
pub fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    /// What macOS accepts at most where its hard limit is none (`OPEN_MAX`).
    const MOST_ON_MACOS: u64 = 10_240;
    let hard = getrlimit(Resource::Nofile).maximum;
    for soft in [hard, Some(MOST_ON_MACOS)] {
        let mut limit = getrlimit(Resource::Nofile);
        // None is no limit.
        let is_higher = limit
            .current
            .is_some_and(|now| soft.is_none_or(|soft| soft > now));
        limit.current = soft;
        if !is_higher || setrlimit(Resource::Nofile, limit).is_ok() {
            return;
        }
    }
}

/// Other systems have no such limit.
#[cfg(not(unix))]
pub fn raise_open_files() {}
