//! llama.cpp's log: shown on request, and its last errors kept, since its functions report failure
//! without a reason.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use llama_cpp_2::{LogOptions, send_logs_to_tracing};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// How many of the log's last errors are kept.
const KEPT_ERRORS: usize = 4;

/// Whether the system has refused to lock weights into memory, which llama.cpp does not treat as
/// an error.
static LOCK_FAILED: AtomicBool = AtomicBool::new(false);

static LAST_ERRORS: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// Sends llama.cpp's log to stderr if `verbose`, and keeps its last errors either way.
pub fn follow_log(verbose: bool) {
    // A second call, as in tests, keeps the first subscriber.
    let _ = tracing::subscriber::set_global_default(Log { verbose });
    send_logs_to_tracing(LogOptions::default());
}

/// Whether the system has refused to lock a model's weights into memory.
#[must_use]
pub fn lock_has_failed() -> bool {
    LOCK_FAILED.load(Ordering::Relaxed)
}

/// Takes the last errors out of llama.cpp's log, in one line.
#[must_use]
pub(super) fn last_log_errors() -> String {
    let line = last_errors().drain(..).collect::<Vec<_>>().join("; ");
    if line.is_empty() {
        "it gave no reason (-v shows its log)".to_owned()
    } else {
        line
    }
}

fn last_errors() -> MutexGuard<'static, VecDeque<String>> {
    LAST_ERRORS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes llama.cpp's messages, which are events; spans are refused.
struct Log {
    verbose: bool,
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
    }

    fn event(&self, event: &Event<'_>) {
        let level = *event.metadata().level();
        // Of warnings, one counts without `-v` too.
        if level > Level::INFO || (!self.verbose && level > Level::WARN) {
            return;
        }
        let mut message = Message::default();
        event.record(&mut message);
        let text = message.0.trim_end();
        if text.contains("failed to mlock") {
            LOCK_FAILED.store(true, Ordering::Relaxed);
        }
        if self.verbose {
            // A closed stderr must not stop the work.
            let _ = writeln!(std::io::stderr(), "{text}");
        }
        if level == Level::ERROR && !text.is_empty() {
            let mut kept = last_errors();
            if kept.len() == KEPT_ERRORS {
                kept.pop_front();
            }
            kept.push_back(text.to_owned());
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.0.push_str(value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.0, "{value:?}");
        }
    }
}
