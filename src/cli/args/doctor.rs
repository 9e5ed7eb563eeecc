//! The flags of `kl doctor`.

use super::values::server_address;

/// Show how kl was built and what it runs on, for reports of problems
///
/// Prints versions, backends, devices, CPU, memory, disks, limits, and the environment variables that
/// change what llama.cpp does; -v prints the same before a run. Exits with code 1 if it finds a
/// problem, which a line PROBLEM states.
#[derive(clap::Args, Debug)]
pub struct DoctorArgs {
    /// Servers (llama.cpp's ggml-rpc-server) to try
    #[arg(long, value_name = "HOST:PORT,...", value_parser = server_address, value_delimiter = ',')]
    pub rpc: Vec<String>,
}
