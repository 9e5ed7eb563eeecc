//! Loading a file: what is there is continued, and nothing is used before its hash is that of the hub.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, bail};
use indicatif::HumanBytes;
use sha1::Sha1;
use sha2::Sha256;
use sha2::digest::{Digest as _, DynDigest};

use super::cache::mark_of;
use super::client::{Body, Client, broken};
use super::{Fault, Hub, HubFile, Step, Watch};

/// How often a caller can stop what waits.
pub const TICK: Duration = Duration::from_millis(200);

/// The bytes that are read at once.
const BLOCK: usize = 1 << 18;

/// How loading a file ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loaded {
    /// It was there.
    WasThere,
    /// This many bytes of it were loaded: fewer than its size if an earlier run had begun.
    Now { bytes: u64 },
    /// The caller stopped it. What is there is continued the next time.
    Stopped,
}

impl Hub {
    /// Makes sure that a file is whole in the cache, at [`path_of`](Self::path_of). `mark`: set to let
    /// [`discard`](Self::discard) remove it later, in this run or another; a file that was there without
    /// a mark gets none, and one loaded without a mark loses it.
    ///
    /// # Errors
    /// If it cannot be loaded or stored. What arrived stays, and the next call continues it, unless its
    /// hash is wrong.
    pub fn load(&self, file: &HubFile, mark: bool, watch: &Watch) -> Result<Loaded> {
        let (path, blob) = (self.path_of(file), self.blob(file));
        let is_whole = |path| fs::metadata(path).is_ok_and(|metadata| metadata.len() == file.size);
        let keep = || {
            if mark {
                Ok(())
            } else {
                remove(fs::remove_file(mark_of(&blob)))
            }
        };
        if is_whole(&path) {
            keep()?;
            return Ok(Loaded::WasThere);
        }
        let Some(_lock) = self.lock(file, watch)? else {
            return Ok(Loaded::Stopped);
        };
        let cannot = || {
            format!(
                "{}: cannot be stored in {}",
                file.path,
                self.cache.display()
            )
        };
        let mut loaded = Loaded::WasThere;
        keep()?;
        if !is_whole(&blob) {
            fs::create_dir_all(blob.parent().with_context(cannot)?).with_context(cannot)?;
            if mark {
                File::create(mark_of(&blob)).with_context(cannot)?;
            }
            loaded = self.load_blob(file, watch)?;
        }
        if loaded != Loaded::Stopped {
            self.link(file).with_context(cannot)?;
        }
        Ok(loaded)
    }

    fn load_blob(&self, file: &HubFile, watch: &Watch) -> Result<Loaded> {
        let Some(mut partial) = Partial::open(self, file, watch)? else {
            return Ok(Loaded::Stopped);
        };
        let mut bytes = 0;
        let mut patience = Patience::new(self.wait);
        loop {
            let before = partial.length;
            let received = self.receive(file, &mut partial, watch, &mut bytes);
            if partial.length > before {
                patience = Patience::new(self.wait);
            }
            match received {
                Ok(flow) if flow.is_break() => return Ok(Loaded::Stopped),
                Ok(_) => break,
                Err(fault) => {
                    let flow = patience.wait(fault, watch);
                    let flow =
                        flow.map_err(|fault| Error::from(fault).context(file.path.clone()))?;
                    if flow.is_break() {
                        return Ok(Loaded::Stopped);
                    }
                }
            }
        }
        partial.finish(self, file)?;
        Ok(Loaded::Now { bytes })
    }

    /// Receives what is missing, in another thread, so that silence of the server stops nothing else.
    fn receive(
        &self,
        file: &HubFile,
        partial: &mut Partial,
        watch: &Watch,
        bytes: &mut u64,
    ) -> Result<ControlFlow<()>, Fault> {
        const WAITING_BLOCKS: usize = 4;
        if partial.length == file.size {
            return Ok(ControlFlow::Continue(()));
        }
        let url = format!(
            "/{}/resolve/{}/{}",
            file.repository,
            file.commit,
            escaped(&file.path)
        );
        let (sender, receiver) = sync_channel(WAITING_BLOCKS);
        let (client, name, from) = (self.client.clone(), file.repository.clone(), partial.length);
        let thread = thread::Builder::new().name("hub".to_owned());
        let sent = thread.spawn(move || send(&client, &name, &url, from, &sender));
        sent.map_err(|error| Fault::Lasting(error.into()))?;
        loop {
            match receiver.recv_timeout(TICK) {
                Ok(Ok(Piece::Start(at))) if at != partial.length => partial.restart(file)?,
                Ok(Ok(Piece::Start(_))) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Ok(Piece::Bytes(block))) => {
                    *bytes += block.len() as u64;
                    partial.write(file, &block)?;
                }
                Ok(Err(fault)) => return Err(fault),
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if watch(Step::There(partial.length)).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            if partial.length == file.size {
                return Ok(ControlFlow::Continue(()));
            }
        }
        let (there, size) = (HumanBytes(partial.length), HumanBytes(file.size));
        Err(Fault::Passing(
            format!("the connection ended after {there} of {size}"),
            None,
        ))
    }
}

/// What arrives of a file.
enum Piece {
    /// The bytes that follow start at this one.
    Start(u64),
    Bytes(Vec<u8>),
}

/// Sends what the hub answers, until nobody receives it.
fn send(
    client: &Client,
    repository: &str,
    url: &str,
    from: u64,
    to: &SyncSender<Result<Piece, Fault>>,
) {
    let body = client.body(repository, url, from);
    let Body { from, mut reader } = match body {
        Ok(body) => body,
        Err(fault) => return drop(to.send(Err(fault))),
    };
    let mut is_wanted = to.send(Ok(Piece::Start(from))).is_ok();
    while is_wanted {
        let mut block = vec![0; BLOCK];
        let piece = match reader.read(&mut block) {
            Ok(0) => return,
            Ok(n) => {
                block.truncate(n);
                Ok(Piece::Bytes(block))
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(broken(&error)),
        };
        is_wanted = piece.is_ok();
        is_wanted &= to.send(piece).is_ok();
    }
}

/// A file that is being loaded, as `HASH.incomplete` beside its blob.
struct Partial {
    file: File,
    path: std::path::PathBuf,
    length: u64,
    hash: Box<dyn DynDigest>,
}

impl Partial {
    /// Opens what is there, and hashes it; `None` if the caller stops that.
    fn open(hub: &Hub, file: &HubFile, watch: &Watch) -> Result<Option<Self>> {
        let path = hub.blob(file).with_extension("incomplete");
        let cannot = || format!("{}: cannot be written", path.display());
        let mut options = OpenOptions::new();
        let opened = options
            .create(true)
            .read(true)
            .append(true)
            .open(&path)
            .with_context(cannot)?;
        let mut partial = Self {
            file: opened,
            path: path.clone(),
            length: 0,
            hash: hash_of(file),
        };
        let mut block = vec![0; BLOCK];
        loop {
            let n = partial.file.read(&mut block).with_context(cannot)?;
            partial.length += n as u64;
            partial.hash.update(block.get(..n).unwrap_or_default());
            if n == 0 {
                break;
            }
            if watch(Step::There(partial.length)).is_break() {
                return Ok(None);
            }
        }
        if partial.length > file.size {
            partial.restart(file).map_err(Error::from)?;
        }
        Ok(Some(partial))
    }

    fn restart(&mut self, file: &HubFile) -> Result<(), Fault> {
        let cut = self.file.set_len(0);
        cut.with_context(|| format!("{}: cannot be written", self.path.display()))
            .map_err(Fault::Lasting)?;
        self.length = 0;
        self.hash = hash_of(file);
        Ok(())
    }

    fn write(&mut self, file: &HubFile, block: &[u8]) -> Result<(), Fault> {
        let room = usize::try_from(file.size - self.length).unwrap_or(usize::MAX);
        let block = block.get(..room).unwrap_or(block);
        self.file.write_all(block).map_err(|error| {
            Fault::Lasting(
                anyhow!(error).context(format!("{}: cannot be written", self.path.display())),
            )
        })?;
        self.length += block.len() as u64;
        self.hash.update(block);
        Ok(())
    }

    /// Checks the hash, and gives the file its name.
    fn finish(self, hub: &Hub, file: &HubFile) -> Result<()> {
        let digest = self.hash.finalize();
        let found: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        if found != file.digest {
            remove(fs::remove_file(&self.path))?;
            bail!(
                "{}: was loaded with another hash than the hub states, and is removed: repeat the call",
                file.path
            );
        }
        self.file
            .sync_all()
            .and_then(|()| fs::rename(&self.path, hub.blob(file)))
            .with_context(|| format!("{}: cannot be written", self.path.display()))
    }
}

/// The hash that the hub states of a file, to be computed.
fn hash_of(file: &HubFile) -> Box<dyn DynDigest> {
    const SHA_256_DIGITS: usize = 64;
    if file.digest.len() == SHA_256_DIGITS {
        return Box::new(Sha256::new());
    }
    // Git hashes a blob with its length before it.
    Box::new(Sha1::new_with_prefix(format!("blob {}\0", file.size)))
}

/// Accepts that what is to be removed is not there.
fn remove(removed: io::Result<()>) -> Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// A path as a part of an address.
fn escaped(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let escape = |byte: u8| {
        if is_plain(byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    path.bytes().map(escape).collect()
}

/// How often a request is repeated, and when.
pub struct Patience {
    repeated: u32,
    wait: Duration,
}

impl Patience {
    pub fn new(wait: Duration) -> Self {
        Self { repeated: 0, wait }
    }

    /// Waits before a request is repeated.
    ///
    /// # Errors
    /// The fault, if it is not to be repeated, or was often enough.
    pub fn wait(&mut self, fault: Fault, watch: &Watch) -> Result<ControlFlow<()>, Fault> {
        const MOST: u32 = 5;
        /// What a hub may ask for.
        const LONGEST: Duration = Duration::from_secs(600);
        let (why, after) = match &fault {
            Fault::Lasting(_) => return Err(fault),
            Fault::Passing(why, Some(after)) => (why, *after),
            Fault::Passing(why, None) | Fault::Unreachable(why) => {
                (why, self.wait * 2_u32.pow(self.repeated))
            }
        };
        if self.repeated == MOST || after > LONGEST {
            return Err(fault);
        }
        self.repeated += 1;
        let said = watch(Step::Says(&format!(
            "{why}: trying again in {} s",
            after.as_secs()
        )));
        let until = Instant::now() + after;
        let mut flow = said;
        while flow.is_continue() && Instant::now() < until {
            thread::sleep(TICK.min(until.saturating_duration_since(Instant::now())));
            flow = watch(Step::Says(""));
        }
        Ok(flow)
    }
}
