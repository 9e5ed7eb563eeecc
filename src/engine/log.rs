//! llama.cpp's log: shown where asked for, and its last errors kept, since its functions return
//! no reasons, only null.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Mutex;

use llama_cpp_2::{LogOptions, send_logs_to_tracing};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

const KEPT_ERRORS: usize = 4;

static LAST_ERRORS: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// Sends llama.cpp's log to stderr if `verbose`, and keeps its last errors either way.
pub fn follow_log(verbose: bool) {
    // A second call (tests) finds the subscriber in place, which is as well.
    let _ = tracing_subscriber::registry()
        .with(LogLayer { verbose })
        .try_init();
    send_logs_to_tracing(LogOptions::default());
}

/// The last errors of llama.cpp's log, taken out of it, in one line.
#[must_use]
pub fn last_log_errors() -> String {
    let mut kept = LAST_ERRORS
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let line = kept.drain(..).collect::<Vec<_>>().join("; ");
    if line.is_empty() {
        "it gave no reason (-v shows its log)".to_owned()
    } else {
        line
    }
}

struct LogLayer {
    verbose: bool,
}

impl<S: Subscriber> Layer<S> for LogLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = *event.metadata().level();
        if level > Level::INFO || (!self.verbose && level > Level::ERROR) {
            return;
        }
        let mut message = Message::default();
        event.record(&mut message);
        let text = message.0.trim_end();
        if self.verbose {
            // Where nobody reads the log any more, the work goes on.
            let _ = writeln!(std::io::stderr(), "{text}");
        }
        if level == Level::ERROR && !text.is_empty() {
            let mut kept = LAST_ERRORS
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            if kept.len() == KEPT_ERRORS {
                kept.pop_front();
            }
            kept.push_back(text.to_owned());
        }
    }
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
