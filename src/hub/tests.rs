use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::ops::ControlFlow;
use std::time::Duration;

use tempfile::TempDir;

use super::fake::{FakeHub, Fault};
use super::{Hub, HubFile, Loaded, Repository, Step};

/// A hub that serves some models, and an empty cache.
struct Fixture {
    folder: TempDir,
    server: FakeHub,
    said: RefCell<String>,
}

/// Longer than a block.
const SIZE: usize = 3_000_000;

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (i, name) in [
            "M-Q4_K_M.gguf",
            "M-Q8_0.gguf",
            "sub dir/M.IQ4_XS.gguf",
            "notes.txt",
        ]
        .iter()
        .enumerate()
        {
            let path = folder.path().join("served/me/M").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let bytes = (0..SIZE + i).map(|at| (at * (i + 7) / 5) as u8);
            fs::write(path, bytes.collect::<Vec<u8>>()).unwrap();
        }
        let server = FakeHub::serve(&folder.path().join("served"));
        Self {
            folder,
            server,
            said: RefCell::default(),
        }
    }

    fn hub_with(&self, variables: &[(&str, &str)]) -> Hub {
        let cache = self.folder.path().join("cache");
        let mut all = BTreeMap::from([
            ("HF_ENDPOINT", OsString::from(&self.server.endpoint)),
            ("HF_HUB_CACHE", cache.into()),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "1".into()),
            ("HOME", self.folder.path().into()),
        ]);
        all.extend(variables.iter().map(|(name, value)| (*name, value.into())));
        let mut hub = Hub::from_environment(&|name| all.get(name).cloned()).unwrap();
        hub.wait = Duration::from_millis(1);
        hub
    }

    fn hub(&self) -> Hub {
        self.hub_with(&[])
    }

    fn watch(&self, step: Step) -> ControlFlow<()> {
        if let Step::Says(line) = step {
            self.said.borrow_mut().push_str(line);
        }
        ControlFlow::Continue(())
    }

    fn repository(&self) -> Repository {
        self.hub()
            .repository("me/M", &|step| self.watch(step))
            .unwrap()
    }

    fn load(&self, file: &HubFile) -> anyhow::Result<Loaded> {
        self.hub().load(file, false, &|step| self.watch(step))
    }

    /// Checks that a file in the cache is that of the hub.
    #[track_caller]
    fn is_there(&self, file: &HubFile) {
        let served = fs::read(self.folder.path().join("served/me/M").join(&file.path)).unwrap();
        assert!(
            fs::read(self.hub().path_of(file)).unwrap() == served,
            "{}",
            file.path
        );
    }
}

#[test]
fn files_are_loaded_once() {
    let fixture = Fixture::new();
    let repository = fixture.repository();
    for file in &repository.files {
        let bytes = file.size;
        assert_eq!(fixture.load(file).unwrap(), Loaded::Now { bytes });
        assert_eq!(fixture.load(file).unwrap(), Loaded::WasThere);
        fixture.is_there(file);
        assert_eq!(fixture.server.served(&format!("me/M/{}", file.path)), bytes);
    }
    assert_eq!(repository.files.len(), 4);
}

#[test]
fn a_cut_download_is_continued() {
    let fixture = Fixture::new();
    let file = fixture.repository().model(None).unwrap().remove(0);
    fixture.server.fault("/cdn/", Fault::CutsAfter(1_000_000));
    fixture.server.fault("/cdn/", Fault::CutsAfter(500_000));
    assert_eq!(
        fixture.load(&file).unwrap(),
        Loaded::Now { bytes: file.size }
    );
    fixture.is_there(&file);
    assert_eq!(fixture.server.served("me/M/M-Q4_K_M.gguf"), file.size);
}
