//! The device that the tests run on.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[allow(dead_code, reason = "an example of its own")]
#[path = "../../fixtures/rpc_server.rs"]
mod rpc_server;

/// Names the device to test.
const FLAGS: &str = "KL_TEST_DEVICE_FLAGS";

/// Set in a process that is to serve.
const SERVE: &str = "KL_TEST_SERVE";

/// A server on this machine, in a process of its own. It serves one program at a time, so each test
/// starts its own.
pub struct Server {
    process: Child,
    pub address: String,
}

impl Server {
    /// Starts a server on any free port.
    pub fn start() -> Self {
        Self::start_at("127.0.0.1:0")
    }

    /// Starts a server, and waits until it accepts connections.
    pub fn start_at(address: &str) -> Self {
        // This binary again, with the one test that serves.
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "device::serve", "--ignored", "--nocapture"]);
        command.env(SERVE, address).stdin(Stdio::piped());
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        // Killed with the test, should this one fail.
        let mut server = Self {
            process,
            address: String::new(),
        };
        let mut lines = lines.map(Result::unwrap);
        // The test harness prints lines of its own first.
        let is_address = |line: &String| line.starts_with("127.0.0.1:");
        server.address = lines
            .find(is_address)
            .expect("the server prints its address");
        let deadline = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(&server.address).is_err() {
            let address = &server.address;
            let ended = server.process.try_wait().unwrap();
            assert_eq!(ended, None, "the server at {address} has ended");
            assert!(Instant::now() < deadline, "{address} does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
        // Else the server would block as soon as the pipe is full.
        std::thread::spawn(move || lines.for_each(drop));
        server
    }

    /// The process's id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Ends the process at once.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Not a test: what the process of a [`Server`] does.
#[test]
#[ignore = "serves until it is killed"]
fn serve() {
    let Ok(address) = std::env::var(SERVE) else {
        return;
    };
    // The other end of this pipe is closed when the tests end, however they do.
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    let (host, port) = address.split_once(':').unwrap();
    let args = ["--host", host, "--port", port, "--threads", "1"];
    let Err(message) = rpc_server::serve(&args.map(str::to_owned));
    panic!("{message}");
}

/// The device of one test.
pub struct Device {
    /// The flags that choose it; without `-ngl`.
    pub flags: String,
    _servers: Vec<Server>,
}

impl Device {
    pub fn new() -> Self {
        match std::env::var(FLAGS) {
            Ok(flags) => Self {
                flags,
                _servers: Vec::new(),
            },
            Err(_) => {
                let servers = [Server::start(), Server::start()];
                Self {
                    flags: rpc_flags(&servers),
                    _servers: servers.into(),
                }
            }
        }
    }

    /// The flags that put all layers on the device.
    pub fn all_layers(&self) -> String {
        format!("{} -ngl 99", self.flags)
    }
}

/// The flags that split a model over two servers.
pub fn rpc_flags(servers: &[Server; 2]) -> String {
    let [first, second] = servers.each_ref().map(|server| &server.address);
    format!("--rpc {first},{second} -dev RPC0,RPC1 -ts 1,1 -sm layer")
}

/// Whether the tests are to run on servers of their own, and not on another device.
pub fn has_servers() -> bool {
    std::env::var(FLAGS).is_err()
}

/// How far a device may be from the CPU: the KLD of a row of the f16 model, and the change of a
/// q8_0's mean KLD, in nats.
pub struct Bounds {
    pub row: f64,
    pub mean: f64,
}

/// Servers here run the CPU's own kernels, which add in another order.
const SERVERS: Bounds = Bounds {
    row: 1e-4,
    mean: 2e-6,
};

/// A GPU may compute in half precision: Mesa's driver moves a row by up to 1.1e-3, a mean by 6e-5.
const GPU: Bounds = Bounds {
    row: 1e-2,
    mean: 1e-3,
};

/// The bounds of the device that is tested.
pub fn bounds() -> Bounds {
    if has_servers() { SERVERS } else { GPU }
}
