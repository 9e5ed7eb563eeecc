use std::process::ExitCode;

fn main() -> ExitCode {
    kl::cli::main(std::env::args_os())
}
