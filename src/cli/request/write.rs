//! `-w`: writes a reference.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use super::{Request, Session};
use crate::cli::say_new;
use crate::commands::settings::WriteSettings;
use crate::commands::{self, Written};
use crate::report::notable_core_wait;
use crate::report::number::{count_of, duration, per_second, percent, short_kld};

#[derive(Debug)]
pub struct WriteRequest(pub WriteSettings);

impl Request for WriteRequest {
    fn inputs(&self) -> Vec<&Path> {
        self.0.input.files()
    }

    fn run(&self, session: &Session) -> Result<ExitCode> {
        let written = commands::write(&self.0, &session.engine, &session.terminal())?;
        show_written(&written, session.quiet);
        Ok(ExitCode::SUCCESS)
    }
}

fn show_written(written: &Written, quiet: bool) {
    let (timing, wall_s) = (&written.timing, written.file.wall_s);
    let took = |what: &str, time: Duration| format!("{what} {}", duration(time.as_secs_f64()));
    let mut parts = Vec::new();
    let input = timing.input.unwrap_or_default();
    parts.push(took("tokenize", input.tokenize));
    if let Some(time) = input.generate.filter(|_| written.n_generated > 0) {
        let rate = written.n_generated as f64 / time.as_secs_f64();
        let pace = format!("{} tokens/s", per_second(rate));
        parts.push(format!("{} at {pace}", took("generate", time)));
    }
    parts.extend([
        took("decode", timing.decode),
        took("encode", timing.score),
        took("write", timing.write),
    ]);
    parts.extend(written.checked.map(|_| took("check", written.check_time)));
    let busy = timing.device.as_ref().map(|device| device.busy_share);
    parts.extend(busy.map(|share| format!("device busy {}", percent(share))));
    let in_windows_s = wall_s - input.generate.unwrap_or_default().as_secs_f64();
    let tokens_per_s = per_second(written.n_tokens as f64 / in_windows_s);
    let speed = format!(" ({}), {tokens_per_s} tokens/s", parts.join(", "));
    say_new(&written.file, "", &speed, quiet);
    if quiet || written.file.was_whole {
        return;
    }
    let core_wait_s = timing.core_wait.map(|waited| waited.as_secs_f64());
    if let Some(waited_s) = notable_core_wait(core_wait_s, wall_s) {
        let waited = duration(waited_s);
        say!("the cores were busy with other work: this run waited {waited} for one");
    }
    // There are none where only the end of the file was missing.
    if let Some(checked) = written.checked.filter(|checked| checked.n_rows > 0) {
        let rows = count_of(checked.n_rows, "row");
        let mut found = "all to the bit".to_owned();
        if !checked.is_exact() {
            found = format!("at most {} nats off", short_kld(checked.max_kld));
        }
        say!("checked {rows}, computed from the hidden states: {found}");
    }
}
