//! Renders a template in a process of its own, because a template comes inside a file from a stranger, and
//! counting its steps does not bound what a step costs: one can nest a value until comparing it overflows the
//! stack, or double a list until memory ends.
//!
//! The process is this program again, with a word for its only argument (`COMMAND`). It compiles the template
//! once, renders the conversations that it gets on stdin, and writes the texts to stdout. It limits its own
//! memory and stack (`child`); the parent waits for each answer so long and no longer, and kills it then.
//! Whatever happens there is an error in one line. It ends when its stdin does, so never after its parent.
//!
//! It is started for a template, not for a prompt: 200 prompts take 10 ms longer than without it.

mod child;
mod frame;

use std::cell::RefCell;
use std::env;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::TemplateError;
use super::request::{Conversation, TemplateSource};
pub use child::{COMMAND, serve};
use frame::{Frame, FrameReader, Reading};

/// The longest that compiling a template, or rendering one prompt, may take. Published templates take
/// milliseconds; with both, `kl` ends within 20 seconds.
const DEADLINE: Duration = Duration::from_secs(8);

/// The time between two looks at whether the user wants to stop.
const PATIENCE: Duration = Duration::from_millis(50);

/// The most that is read of the process's last words.
const MAX_LAST_WORDS: u64 = 4096;

/// What to do about a template that was stopped while it rendered a prompt. Callers of what compiles one say so.
const ADVICE: &str =
    "; choose another template with --chat-template-file, or use --no-chat-template";

/// True if the user wants to stop.
type ShouldStop = fn() -> bool;

static SHOULD_STOP: OnceLock<ShouldStop> = OnceLock::new();

/// From now on, templates are rendered in processes of their own: this program, called with [`COMMAND`], must
/// call [`serve`]. They are killed when `should_stop` says so.
pub fn contain_templates(should_stop: ShouldStop) {
    SHOULD_STOP.get_or_init(|| should_stop);
}

/// A template in a process of its own.
#[derive(Debug)]
pub struct ContainedTemplate {
    state: RefCell<State>,
    should_stop: ShouldStop,
}

#[derive(Debug)]
enum State {
    Running(Process),
    /// The process has ended, for this reason.
    Ended(String),
}

impl ContainedTemplate {
    /// Starts the process, and lets it compile the template; `None` if templates are not to be rendered in
    /// processes: see [`contain_templates`].
    ///
    /// # Errors
    /// If no process can be started, or the template is not valid Jinja or exceeds its limits.
    pub fn start(template: &TemplateSource<'_>) -> Result<Option<Self>, TemplateError> {
        let Some(&should_stop) = SHOULD_STOP.get() else {
            return Ok(None);
        };
        let process = Process::start().map_err(|error| {
            TemplateError(format!(
                "the process that renders it cannot be started: {error}: allow one more process (ulimit -u, the container's pids limit)"
            ))
        })?;
        let contained = Self {
            state: RefCell::new(State::Running(process)),
            should_stop,
        };
        contained.ask(template, "")?;
        Ok(Some(contained))
    }

    /// The text that the template makes of a conversation.
    ///
    /// # Errors
    /// If the template refuses the messages, fails or exceeds its limits. After it has exceeded them once, all
    /// that follows is refused.
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<String, TemplateError> {
        self.ask(conversation, ADVICE)
    }

    /// The reason why it was stopped, and what to do; `None` where it was not. Nothing else is rendered then.
    pub fn stopped(&self) -> Option<String> {
        match &*self.state.borrow() {
            State::Running(_) => None,
            State::Ended(why) => Some(format!("{why}{ADVICE}")),
        }
    }

    /// Sends a request, and waits for its answer. Where there is none, `advice` says what to do.
    fn ask(&self, request: &impl Serialize, advice: &str) -> Result<String, TemplateError> {
        let mut state = self.state.borrow_mut();
        let process = match &mut *state {
            State::Running(process) => process,
            State::Ended(why) => return Err(TemplateError(format!("{why}{advice}"))),
        };
        let why = match process.answer(request, self.should_stop) {
            Ok(answer) => return answer,
            Err(Fault::Stopped) => "interrupted".to_owned(),
            Err(fault) => format!("it was stopped: {}", process.last_words(&fault)),
        };
        let error = TemplateError(format!("{why}{advice}"));
        *state = State::Ended(why);
        Err(error)
    }
}

/// Why there is no answer.
enum Fault {
    /// The user wants to stop.
    Stopped,
    /// The time is up.
    Late,
    /// The process has ended, or does not write what it should.
    Lost(io::Error),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Lost(error)
    }
}

/// The running process. It is killed when this is dropped.
#[derive(Debug)]
struct Process {
    child: Child,
    requests: ChildStdin,
    answers: ChildStdout,
}

impl Process {
    fn start() -> io::Result<Self> {
        let mut started = Err(io::ErrorKind::NotFound.into());
        for program in programs() {
            started = command(program).spawn();
            if started.is_ok() {
                break;
            }
        }
        let mut child = started?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(requests), Some(answers)) => Ok(Self {
                child,
                requests,
                answers,
            }),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Sends a request and reads the answer: a text, or why there is none.
    fn answer(
        &mut self,
        request: &impl Serialize,
        should_stop: ShouldStop,
    ) -> Result<Result<String, TemplateError>, Fault> {
        let json = serde_json::to_vec(request).map_err(io::Error::from)?;
        // The process reads before it works, so that this does not block.
        self.requests.write_all(&Frame::request(json).bytes())?;
        self.requests.flush()?;
        let end = Instant::now() + DEADLINE;
        let mut reader = FrameReader::default();
        loop {
            if should_stop() {
                return Err(Fault::Stopped);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Fault::Late);
            }
            if !can_be_read(&self.answers, left.min(PATIENCE))? {
                continue;
            }
            if let Reading::Whole(frame) = reader.read(&mut self.answers)? {
                let (is_text, text) = frame.answer()?;
                return Ok(if is_text {
                    Ok(text)
                } else {
                    Err(TemplateError(text))
                });
            }
        }
    }

    /// Ends the process, and says what happened to it.
    fn last_words(&mut self, fault: &Fault) -> String {
        if matches!(fault, Fault::Late) {
            return format!("it was still running after {} s", DEADLINE.as_secs());
        }
        let _ = self.child.kill();
        let status = self.child.wait();
        let mut words = Vec::new();
        if let Some(stderr) = self.child.stderr.take() {
            let _ = stderr.take(MAX_LAST_WORDS).read_to_end(&mut words);
        }
        let words = String::from_utf8_lossy(&words);
        if words.contains("memory allocation") {
            format!("it needs more than {} of memory", child::MEMORY_IN_WORDS)
        } else if words.contains("overflowed its stack") {
            "it is nested too deep for the stack".to_owned()
        } else {
            let status = status.map_or_else(|error| error.to_string(), in_words);
            let Fault::Lost(error) = fault else {
                return status;
            };
            format!("the process that renders it ended early ({status}; {error})")
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn in_words(status: ExitStatus) -> String {
    status.to_string()
}

/// The paths of this program. The first one exists even if the file was deleted or replaced.
fn programs() -> impl Iterator<Item = PathBuf> {
    let running = cfg!(target_os = "linux").then(|| PathBuf::from("/proc/self/exe"));
    running.into_iter().chain(env::current_exe().ok())
}

/// The variables that a program needs to start; a template needs none.
const VARIABLES: [&str; 5] = [
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "DYLD_FALLBACK_LIBRARY_PATH",
    "PATH",
    "SystemRoot",
];

fn command(program: PathBuf) -> Command {
    let mut command = Command::new(program);
    let kept = VARIABLES
        .into_iter()
        .filter_map(|name| Some((name, env::var_os(name)?)));
    let kept: Vec<(&str, OsString)> = kept.collect();
    command.arg(COMMAND).env_clear().envs(kept);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt;
        // Ctrl-C is for the parent, which ends this one when it has decided to.
        command.process_group(0).arg0("kl");
    }
    command
}

/// True if there is something to read, or the end, within this time.
#[cfg(unix)]
fn can_be_read(pipe: &ChildStdout, time: Duration) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let time = Timespec::try_from(time).map_err(|_| io::ErrorKind::InvalidInput)?;
    match poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&time)) {
        Ok(n) => Ok(n > 0),
        // A signal: the caller looks whether it asks to stop.
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// True: on this system the parent waits for each answer, however long that takes.
#[cfg(not(unix))]
fn can_be_read(_: &ChildStdout, _: Duration) -> io::Result<bool> {
    Ok(true)
}
