//! Starts llama.cpp's backends: those compiled in, or libraries that lie beside the program.

use llama_cpp_2::llama_backend::LlamaBackend;

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
    LlamaBackend::init().map_err(|error| error.to_string())
}

/// Checks that the CPU has what ggml was compiled for, without which the process would end by a
/// signal. Without `target-cpu=native`, rustc compiles for any CPU of the architecture, but ggml
/// uses AVX2.
#[cfg(all(target_arch = "x86_64", not(feature = "dynamic-backends")))]
fn check_cpu() -> Result<(), String> {
    // SAFETY: returns a constant.
    let needs_avx2 = unsafe { llama_cpp_sys_2::ggml_cpu_has_avx2() } != 0;
    match needs_avx2 && !std::is_x86_feature_detected!("avx2") {
        true => Err(
            "ggml was compiled for CPUs with AVX2, and this one has none: install kl again on this \
             machine, with RUSTFLAGS=-Ctarget-cpu=native in the environment"
                .to_owned(),
        ),
        false => Ok(()),
    }
}

#[cfg(feature = "dynamic-backends")]
mod libraries {
    use std::env;
    use std::ffi::CString;
    use std::fs;
    use std::path::{Path, PathBuf};

    use llama_cpp_sys_2 as sys;

    use crate::engine::DeviceKind;
    use crate::engine::llama_cpp::device::GgmlDevice;
    use crate::engine::llama_cpp::log::last_log_errors;

    /// The folder of the libraries if a package has put the program into `bin`.
    const LIBRARY_FOLDER: &str = "../lib/kl";

    /// The start of the names of all of ggml's libraries.
    const PREFIX: &str = if cfg!(windows) { "ggml-" } else { "libggml-" };

    /// Their ending, on macOS too (`backend_filename_extension` in `ggml-backend-reg.cpp`).
    const SUFFIX: &str = if cfg!(windows) { ".dll" } else { ".so" };

    /// Loads the backends that lie beside the program: of the CPU the library that suits this machine
    /// best, and each of the others.
    pub(super) fn load() -> Result<(), String> {
        let folders = folders()?;
        for folder in &folders {
            load_all(folder)?;
            if GgmlDevice::of_kind(DeviceKind::Cpu).next().is_some() {
                return Ok(());
            }
        }
        let searched = folders.iter().map(|folder| folder.display().to_string());
        Err(format!(
            "no library of ggml for this CPU ({PREFIX}cpu-*{SUFFIX}) in {}: keep the program with the \
             libraries that it came with",
            searched.collect::<Vec<_>>().join(" or ")
        ))
    }

    /// The folders to search: the program's own, without symbolic links, then that of a package.
    fn folders() -> Result<[PathBuf; 2], String> {
        let program = env::current_exe().and_then(fs::canonicalize);
        let program =
            program.map_err(|error| format!("cannot find the program itself: {error}"))?;
        let folder = program.parent().unwrap_or(&program);
        let library_folder = folder.join(LIBRARY_FOLDER);
        let library_folder = fs::canonicalize(&library_folder).unwrap_or(library_folder);
        Ok([folder.to_owned(), library_folder])
    }

    fn load_all(folder: &Path) -> Result<(), String> {
        let path = c_path(folder)?;
        // SAFETY: the path ends with a NUL byte. What is loaded came with the program.
        unsafe { sys::ggml_backend_load_all_from_path(path.as_ptr()) };
        for library in left_out(folder) {
            // ggml silently skips what cannot be loaded, such as where the driver of a GPU is missing.
            // Loaded by itself, such a library leaves the reason in the log. The null that ggml
            // returns then is not an error here.
            let path = c_path(&library)?;
            // SAFETY: as above.
            unsafe { sys::ggml_backend_load(path.as_ptr()) };
        }
        // These errors are not the reason for a later one.
        let _ = last_log_errors();
        Ok(())
    }

    /// The folder's libraries whose backends have not been loaded, except the CPU's variants.
    fn left_out(folder: &Path) -> Vec<PathBuf> {
        let files = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut libraries: Vec<PathBuf> = files.map(|file| file.path()).collect();
        libraries.retain(|library| {
            let name = library.file_name().and_then(|name| name.to_str());
            let backend = name
                .and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX))
                .filter(|backend| *backend != "base" && !backend.starts_with("cpu"));
            backend.is_some_and(|backend| !is_loaded(backend))
        });
        libraries
    }

    /// Returns true if there is a backend of this name, in any case of letters.
    fn is_loaded(backend: &str) -> bool {
        // SAFETY: the name ends with a NUL byte, and the registry lives as long as the process.
        CString::new(backend)
            .is_ok_and(|name| !unsafe { sys::ggml_backend_reg_by_name(name.as_ptr()) }.is_null())
    }

    fn c_path(path: &Path) -> Result<CString, String> {
        CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| format!("{}: is no path that ggml can open", path.display()))
    }
}
