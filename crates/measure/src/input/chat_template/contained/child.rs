//! The process that renders: it serves one template.

use std::any::Any;
use std::io::{self, Write, stdin, stdout};
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;

use super::frame::{Frame, FrameReader};
use crate::input::chat_template::renderer::Renderer;

/// The argument that makes the program such a process. It is for `kl` alone, so that neither help nor
/// completions have it.
pub const COMMAND: &str = "__render-chat-template";

/// The stack: eight times that of a main thread. Compiling recurses with the nesting of a template.
const STACK: usize = 64 << 20;

/// The memory that a template may use beyond what the program has when it starts. A prompt of the greatest
/// length, 64 MiB, needs four times as much.
const MEMORY: u64 = 512 << 20;
pub const MEMORY_IN_WORDS: &str = "512 MiB";

/// Serves the requests on stdin, until it ends.
pub fn serve() -> ExitCode {
    limit_memory();
    // What fails is told by the answer.
    panic::set_hook(Box::new(|_| ()));
    let (sender, requests) = mpsc::channel::<Frame>();
    let worker = thread::Builder::new().stack_size(STACK).spawn(move || {
        let mut template = None;
        while let Ok(request) = requests.recv() {
            if answer(&mut template, &request).is_err() {
                break;
            }
        }
    });
    let mut template = None;
    let mut reader = FrameReader::default();
    while let Ok(request) = reader.read_whole(&mut stdin()) {
        // Where no second thread is allowed, this one works, with the stack that it has.
        let done = match &worker {
            Ok(_) => sender.send(request).is_ok(),
            Err(_) => answer(&mut template, &request).is_ok(),
        };
        if !done {
            break;
        }
    }
    // The parent has ended, or does not want more: what is being rendered is not needed.
    std::process::exit(0)
}

/// Answers a request: the first one is a template, all others are conversations.
fn answer(template: &mut Option<Renderer>, request: &Frame) -> io::Result<()> {
    let answered = panic::catch_unwind(AssertUnwindSafe(|| rendered(template, &request.body)));
    let answered = answered.unwrap_or_else(|panic| {
        let what = message(&*panic).replace('\n', " ");
        Err(format!("Jinja's engine has failed: {what}"))
    });
    let mut stdout = stdout().lock();
    stdout.write_all(&Frame::of_answer(answered).bytes())?;
    stdout.flush()
}

fn rendered(template: &mut Option<Renderer>, request: &[u8]) -> Result<String, String> {
    match template {
        None => {
            let source = serde_json::from_slice(request).map_err(|error| error.to_string())?;
            *template = Some(Renderer::new(&source).map_err(|error| error.to_string())?);
            Ok(String::new())
        }
        Some(template) => {
            let conversation =
                serde_json::from_slice(request).map_err(|error| error.to_string())?;
            template
                .render(&conversation)
                .map_err(|error| error.to_string())
        }
    }
}

/// The text of a panic.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic")
}

/// Limits this process's memory, and keeps it from writing a core file.
#[cfg(unix)]
fn limit_memory() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = |bytes: u64| Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    // What cannot be limited is bounded by time alone.
    let _ = setrlimit(Resource::Core, limit(0));
    let _ = setrlimit(Resource::Data, limit(used_memory() + MEMORY + STACK as u64));
}

#[cfg(not(unix))]
fn limit_memory() {}

/// The memory that counts for the limit, in bytes, where the system (Linux) reports it.
#[cfg(unix)]
fn used_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let data = status.lines().find_map(|line| line.strip_prefix("VmData:"));
    let kilobytes = data.and_then(|data| data.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.unwrap_or(0) << 10
}
