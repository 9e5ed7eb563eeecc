//! Starts llama.cpp's backends, which are compiled in or libraries beside the program, and connects to
//! servers with ggml's RPC backend (`ggml/src/ggml-rpc` in llama.cpp).

use std::ffi::CString;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Mutex;
use std::time::Duration;

use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_sys_2 as sys;

use super::device::{RPC_BACKEND, function_of};
use super::guard::{calls, guarded};
use super::log::SERVERS;
use crate::EngineError;
use kl_system::locked;

/// Starts the backends. With the feature `dynamic-backends` this loads their libraries, once.
///
/// # Errors
/// If they have been started before, or no library for the CPU is found.
pub(super) fn start() -> Result<LlamaBackend, String> {
    // If no backend is registered, llama.cpp's own start searches the current folder too, where
    // anybody's libraries may lie. So ours are loaded before it.
    #[cfg(feature = "dynamic-backends")]
    libraries::load()?;
    #[cfg(all(target_arch = "x86_64", not(feature = "dynamic-backends")))]
    check_cpu()?;
    // The first call registers the backends that are compiled in.
    // SAFETY: returns a number.
    guarded(|| unsafe { calls::ggml_backend_reg_count() })?;
    LlamaBackend::init().map_err(|error| error.to_string())
}

/// Checks that the CPU has what ggml was compiled for, without which the process would end by a
/// signal. Without `target-cpu=native`, rustc compiles for any CPU of the architecture, but ggml
/// uses AVX2.
#[cfg(all(target_arch = "x86_64", not(feature = "dynamic-backends")))]
fn check_cpu() -> Result<(), String> {
    // SAFETY: returns a constant.
    let needs_avx2 = unsafe { llama_cpp_sys_2::ggml_cpu_has_avx2() } != 0;
    if needs_avx2 && !std::is_x86_feature_detected!("avx2") {
        return Err(
            "ggml was compiled for CPUs with AVX2, and this one has none: install kl again on this \
             machine, with RUSTFLAGS=-Ctarget-cpu=native in the environment"
                .to_owned(),
        );
    }
    Ok(())
}

#[cfg(feature = "dynamic-backends")]
mod libraries {
    use std::env;
    use std::ffi::CString;
    use std::fs;
    use std::path::Path;

    use llama_cpp_sys_2 as sys;

    use crate::DeviceKind;
    use crate::llama_cpp::device::GgmlDevice;
    use crate::llama_cpp::guard::{calls, guarded};
    use crate::llama_cpp::log::last_log_errors;

    /// The folder of the libraries if a package has put the program into the folder `bin` beside `lib`.
    const LIBRARY_FOLDER: &str = "lib/kl";

    /// The start of the names of all of ggml's libraries.
    const PREFIX: &str = if cfg!(windows) { "ggml-" } else { "libggml-" };

    /// Their ending, on macOS too (`backend_filename_extension` in `ggml-backend-reg.cpp`).
    const SUFFIX: &str = if cfg!(windows) { ".dll" } else { ".so" };

    /// Loads the backends that lie beside the program: the CPU library that suits this machine best, and
    /// each of the others. Searches the program's own folder, without symbolic links, then that of a
    /// package.
    pub(super) fn load() -> Result<(), String> {
        let program = env::current_exe().and_then(fs::canonicalize);
        let program =
            program.map_err(|error| format!("cannot find the program itself: {error}"))?;
        let folder = program.parent().unwrap_or(&program);
        let package = folder.parent().unwrap_or(folder).join(LIBRARY_FOLDER);
        for folder in [folder, &package] {
            load_all(folder);
            if GgmlDevice::of_kind(DeviceKind::Cpu).next().is_some() {
                return Ok(());
            }
        }
        Err(format!(
            "no library of ggml for this CPU ({PREFIX}cpu-*{SUFFIX}) in {} or {}: keep the program with the \
             libraries that it came with",
            folder.display(),
            package.display()
        ))
    }

    fn load_all(folder: &Path) {
        let path = c_path(folder);
        // SAFETY: the path ends with a NUL byte. What is loaded came with the program. A library that throws is
        // not loaded.
        let _ = guarded(|| unsafe { calls::ggml_backend_load_all_from_path(path.as_ptr()) });
        // ggml silently skips what cannot be loaded, such as where the driver of a GPU is missing.
        // Loaded by itself, such a library leaves the reason in the log.
        let files = fs::read_dir(folder).into_iter().flatten().flatten();
        for library in files.map(|file| file.path()) {
            let name = library.file_name().and_then(|name| name.to_str());
            let backend = name.and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX));
            let is_left_out = |backend: &str| {
                backend != "base" && !backend.starts_with("cpu") && !is_loaded(backend)
            };
            if backend.is_some_and(is_left_out) {
                let path = c_path(&library);
                // SAFETY: as above. The null that ggml returns then is not an error here.
                let _ = guarded(|| unsafe { calls::ggml_backend_load(path.as_ptr()) });
            }
        }
        // These errors are not the reason for a later one.
        let _ = last_log_errors();
    }

    /// Checks whether there is a backend of this name, in any case of letters.
    fn is_loaded(backend: &str) -> bool {
        let name = CString::new(backend).unwrap_or_default();
        // SAFETY: the name ends with a NUL byte, and the registry lives as long as the process.
        unsafe { !sys::ggml_backend_reg_by_name(name.as_ptr()).is_null() }
    }

    /// A path that the system knows, and so has no NUL byte.
    fn c_path(path: &Path) -> CString {
        CString::new(path.as_os_str().as_encoded_bytes()).unwrap_or_default()
    }
}

/// The time that a server may take to accept a connection, and to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The version of ggml's RPC protocol, major and minor (`RPC_PROTO_MAJOR_VERSION` in
/// `ggml-rpc.h`): a server of another major version, or of a newer minor one, is refused.
const PROTOCOL: [u8; 2] = [7, 0];

/// Locked while a graph is handed to servers, whichever model or head it belongs to. ggml notes the
/// last graph of a device before it sends it (`ggml_backend_rpc_graph_compute`): if two threads do
/// that at once, a server may repeat the wrong one.
pub(super) static TURN: Mutex<()> = Mutex::new(());

/// Connects to a server, `HOST:PORT`, and registers its devices after those of earlier servers. Does
/// nothing if it is connected already.
///
/// # Errors
/// What is wrong with the address, or with what answers there.
pub(super) fn add_server(endpoint: &str) -> Result<(), EngineError> {
    let fails = |what: String| EngineError::Setup(format!("--rpc {endpoint}: {what}"));
    if locked(&SERVERS).iter().any(|known| known == endpoint) {
        return Ok(());
    }
    let function = function_of(RPC_BACKEND, calls::ADD_SERVER);
    // SAFETY: a function of this name has this type.
    let found: Option<calls::AddServer> = unsafe { std::mem::transmute(function) };
    let missing = "this kl was built without ggml's RPC backend: build it again with GGML_RPC=ON in the environment";
    let add_server = found.ok_or_else(|| fails(missing.to_owned()))?;
    let addresses = resolve(endpoint).map_err(fails)?;
    // The server would not answer: it serves one connection at a time, and ggml will hold that one.
    let is_same = |known: &&String| {
        let known = resolve(known).unwrap_or_default();
        addresses.iter().any(|address| known.contains(address))
    };
    if let Some(known) = locked(&SERVERS).iter().find(is_same) {
        let what = format!("is the same server as {known}: name it once");
        return Err(fails(what));
    }
    check(&addresses).map_err(fails)?;
    let name = CString::new(endpoint).map_err(|error| fails(error.to_string()))?;
    // SAFETY: the function copies the name, and returns null or a registry that lives as long as the
    // process.
    unsafe {
        let registry = guarded(|| add_server(name.as_ptr())).map_err(fails)?;
        sys::ggml_backend_register(registry);
        if registry.is_null() {
            return Err(fails("the server has no device".to_owned()));
        }
    }
    locked(&SERVERS).push(endpoint.to_owned());
    Ok(())
}

/// Checks that the server that answers is one that ggml can use: ggml itself would end the process.
fn check(addresses: &[SocketAddr]) -> Result<(), String> {
    let [own_major, own_minor] = PROTOCOL;
    Err(match hello(&connect(addresses)?) {
        Ok([major, minor, _]) if major == own_major && minor <= own_minor => return Ok(()),
        Ok([major, minor, patch]) => format!(
            "the server has version {major}.{minor}.{patch} of ggml's RPC protocol, this kl {own_major}.{own_minor}: use a server of the llama.cpp that kl was built with"
        ),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            format!(
                "the server does not answer within {} s: it serves one program at a time, so wait until no other uses it",
                PATIENCE.as_secs()
            )
        }
        Err(error) => format!(
            "what answers is not a server of ggml's RPC protocol {own_major}.{own_minor} ({error}): start llama.cpp's ggml-rpc-server there"
        ),
    })
}

/// Opens a connection to a server.
fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, String> {
    let mut refused = "the host has no IPv4 address, and ggml uses IPv4 only".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => refused = error.to_string(),
        }
    }
    Err(format!(
        "cannot be reached ({refused}): check the address, that llama.cpp's ggml-rpc-server runs there, and that no other program uses it"
    ))
}

/// The addresses of a server that ggml can use.
fn resolve(endpoint: &str) -> Result<Vec<SocketAddr>, String> {
    let got = endpoint.to_socket_addrs();
    let all = got.map_err(|error| format!("the host is not known ({error}): check its name"))?;
    Ok(all.filter(SocketAddr::is_ipv4).collect())
}

/// Greets a server and returns its version of the protocol (`negotiate_hello` in `ggml-rpc.cpp`): a
/// command, the length of what follows, and the abilities of the connection, none of
/// which is needed; the answer has a length too, then three bytes of the version, and a padding.
fn hello(mut stream: &TcpStream) -> io::Result<[u8; 3]> {
    const HELLO: u8 = 14;
    const ABILITIES: [u8; 24] = [0; 24];
    const ANSWER_LENGTH: u64 = 4 + ABILITIES.len() as u64;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = (ABILITIES.len() as u64).to_le_bytes();
    stream.write_all(&[&[HELLO][..], &length, &ABILITIES].concat())?;
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    if u64::from_le_bytes(length) != ANSWER_LENGTH {
        return Err(io::Error::new(ErrorKind::InvalidData, "an unknown answer"));
    }
    let mut answer = [0; ANSWER_LENGTH as usize];
    stream.read_exact(&mut answer)?;
    let [major, minor, patch, ..] = answer;
    Ok([major, minor, patch])
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Checks a server that sends these bytes and then closes the connection.
    fn check_answer(answer: Vec<u8>) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 33]).unwrap();
            stream.write_all(&answer).unwrap();
        });
        let checked = check(&[address]);
        server.join().unwrap();
        checked
    }

    fn answer(major: u8, minor: u8) -> Vec<u8> {
        let mut answer = 28_u64.to_le_bytes().to_vec();
        answer.extend([major, minor, 9, 0]);
        answer.extend([0; 24]);
        answer
    }

    #[test]
    fn a_server_of_the_same_version_will_do() {
        assert_eq!(check_answer(answer(7, 0)), Ok(()));
        for (major, minor) in [(6, 0), (8, 0), (7, 1)] {
            let error = check_answer(answer(major, minor)).unwrap_err();
            let version = format!("the server has version {major}.{minor}.9 ");
            assert!(error.starts_with(&version), "{error}");
        }
    }

    #[test]
    fn what_is_no_such_server_is_refused() {
        for answer in [b"".as_slice(), b"SSH-2.0-OpenSSH_9.2\r\n", &[28, 0, 0]] {
            let error = check_answer(answer.to_vec()).unwrap_err();
            assert!(error.starts_with("what answers is not a server"), "{error}");
        }
    }

    #[test]
    fn a_wrong_address_is_refused() {
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
        for (endpoint, what) in [
            ("", "is not known"),
            ("host", "is not known"),
            ("host:65536", "is not known"),
            ("[::1]:50052", "IPv4 only"),
            (&nobody.unwrap().to_string(), "cannot be reached"),
        ] {
            let connected = resolve(endpoint).and_then(|addresses| connect(&addresses));
            let error = connected.unwrap_err();
            assert!(error.contains(what), "{endpoint}: {error}");
        }
    }
}
