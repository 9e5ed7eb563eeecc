//! A hub on the loopback address, for tests: repositories are folders, and faults are switched on.
//!
//! It answers as huggingface.co does: large files from a server of their own (another port), to which it
//! redirects, others by a redirect to a path.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use sha1::{Digest as _, Sha1};
use sha2::Sha256;

/// A fault of a server in its answer to one request.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Answers with this status, and with this header, such as `Retry-After: 1`.
    Answers(u16, &'static str),
    /// Closes the connection after so many bytes of the body.
    CutsAfter(u64),
    /// Sends nothing more after so many bytes of the body.
    SilentAfter(u64),
    /// Sends bytes with one changed.
    Changes,
    /// Ends the body so many bytes early, and states that length.
    Shortens(u64),
    /// Sends more bytes than the file has.
    Lengthens,
    /// Sends the whole file, whatever part is asked for.
    IgnoresRange,
    /// Sends a part that begins so many bytes before the one that is asked for, and says so.
    SendsEarlierPart(u64),
    /// Answers with this text.
    Says(String),
}

/// A hub whose repositories are the folders `USER/REPO` of a folder.
pub struct FakeHub {
    /// For `HF_ENDPOINT`.
    pub endpoint: String,
    state: Arc<State>,
}

struct State {
    folder: PathBuf,
    /// The address of the server of large files.
    cdn: String,
    endpoint: String,
    served: Mutex<BTreeMap<String, u64>>,
    requests: Mutex<Vec<(String, bool)>>,
    faults: Mutex<Vec<(String, Fault)>>,
    digests: Mutex<BTreeMap<PathBuf, (u64, String)>>,
    bytes_per_s: AtomicU64,
}

impl FakeHub {
    /// Serves the folders `USER/REPO` of `folder`.
    pub fn serve(folder: &Path) -> Self {
        let (hub, cdn) = (listen(), listen());
        let endpoint = address(&hub);
        let state = Arc::new(State {
            folder: folder.to_owned(),
            cdn: address(&cdn),
            endpoint: endpoint.clone(),
            served: Mutex::default(),
            requests: Mutex::default(),
            faults: Mutex::default(),
            digests: Mutex::default(),
            bytes_per_s: AtomicU64::new(u64::MAX),
        });
        for (listener, is_hub) in [(hub, true), (cdn, false)] {
            let state = Arc::clone(&state);
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let state = Arc::clone(&state);
                    thread::spawn(move || state.connection(stream, is_hub));
                }
            });
        }
        Self { endpoint, state }
    }

    /// The next request whose path contains `path` meets a fault; for several, in this order.
    pub fn fault(&self, path: &str, fault: Fault) {
        let mut faults = self.state.faults.lock().unwrap();
        faults.push((path.to_owned(), fault));
    }

    /// The bytes that were sent of a file, `USER/REPO/PATH`.
    pub fn served(&self, path: &str) -> u64 {
        let served = self.state.served.lock().unwrap();
        served.get(path).copied().unwrap_or(0)
    }

    /// The requests so far, such as `GET /path from 1000`, and whether they had a token.
    pub fn requests(&self) -> Vec<(String, bool)> {
        self.state.requests.lock().unwrap().clone()
    }

    /// Files are sent at this rate to each client.
    pub fn slow_down(&self, bytes_per_s: u64) {
        self.state.bytes_per_s.store(bytes_per_s, Ordering::Relaxed);
    }
}

/// A request, as far as it matters.
struct Request {
    is_head: bool,
    path: String,
    from: u64,
    has_token: bool,
}

impl State {
    fn connection(&self, mut stream: TcpStream, is_hub: bool) {
        while let Ok(Some(request)) = read_request(&mut stream) {
            let method = if request.is_head { "HEAD" } else { "GET" };
            let mut line = format!("{method} {}", request.path);
            if request.from > 0 {
                line += &format!(" from {}", request.from);
            }
            let mut requests = self.requests.lock().unwrap();
            requests.push((line, request.has_token));
            drop(requests);
            let answered = if is_hub {
                self.answer(&mut stream, &request)
            } else {
                let path = request.path.split('?').next().unwrap();
                let path = unescaped(path.strip_prefix("/cdn/").unwrap());
                self.send_file(&mut stream, &request, &path)
            };
            if answered.is_err() {
                return;
            }
        }
    }

    fn answer(&self, stream: &mut TcpStream, request: &Request) -> io::Result<()> {
        match self.take_fault(request, true) {
            Some(Fault::Answers(status, header)) => {
                return send(stream, request, status, &[header], b"{}");
            }
            Some(Fault::Says(text)) => {
                return send(stream, request, 200, &[], text.as_bytes());
            }
            _ => {}
        }
        let path = request.path.split('?').next().unwrap();
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let repository = match parts[..] {
            ["api", "models", user, name, ..] | [user, name, "resolve", ..] => {
                format!("{user}/{name}")
            }
            ["api", "resolve-cache", "models", user, name, _, ..] => {
                let file = unescaped(&parts[6..].join("/"));
                return self.send_file(stream, request, &format!("{user}/{name}/{file}"));
            }
            _ => String::new(),
        };
        if repository.is_empty() || !self.folder.join(&repository).is_dir() {
            let status = if request.has_token { 404 } else { 401 };
            let code = "X-Error-Code: RepoNotFound";
            return send(stream, request, status, &[code], b"{}");
        }
        let files = self.files(&repository);
        let commit = self.commit(&repository, &files);
        match parts[..] {
            [.., "revision", "main"] => {
                let siblings = files.iter().map(|file| self.sibling(&repository, file));
                let siblings = siblings.collect::<Vec<Value>>();
                let listing = json!({"id": repository, "sha": commit, "siblings": siblings});
                send(stream, request, 200, &[], listing.to_string().as_bytes())
            }
            _ => {
                let file = unescaped(&parts[4..].join("/"));
                if !files.contains(&file) {
                    return send(stream, request, 404, &["X-Error-Code: EntryNotFound"], b"");
                }
                let (digest, escaped) = (self.digest(&repository, &file), parts[4..].join("/"));
                let to = if is_large(&file) {
                    format!("{}/cdn/{repository}/{escaped}?signature=x", self.cdn)
                } else {
                    format!("/api/resolve-cache/models/{repository}/{commit}/{escaped}")
                };
                let size = self.folder.join(&repository).join(&file).metadata()?.len();
                let headers = [
                    format!("Location: {to}"),
                    format!("X-Repo-Commit: {commit}"),
                    format!("ETag: \"{digest}\""),
                    format!("X-Linked-Etag: \"{digest}\""),
                    format!("X-Linked-Size: {size}"),
                ];
                let headers = headers.iter().map(String::as_str).collect::<Vec<_>>();
                let status = if is_large(&file) { 302 } else { 307 };
                send(stream, request, status, &headers, b"")
            }
        }
    }

    fn send_file(&self, stream: &mut TcpStream, request: &Request, path: &str) -> io::Result<()> {
        let mut bytes = fs::read(self.folder.join(path))?;
        let (at, _) = path.match_indices('/').nth(1).unwrap();
        let (repository, file) = (&path[..at], &path[at + 1..]);
        let size = bytes.len();
        let mut from = usize::try_from(request.from).unwrap();
        let fault = self.take_fault(request, false);
        let mut end = u64::MAX;
        match &fault {
            Some(Fault::Answers(status, header)) => {
                return send(stream, request, *status, &[*header], b"");
            }
            Some(Fault::CutsAfter(n) | Fault::SilentAfter(n)) => end = *n,
            Some(Fault::Changes) => *bytes.last_mut().unwrap() ^= 1,
            Some(Fault::Shortens(n)) => bytes.truncate(size - usize::try_from(*n).unwrap()),
            Some(Fault::Lengthens) => bytes.extend([0; 1000]),
            Some(Fault::IgnoresRange) => from = 0,
            Some(Fault::SendsEarlierPart(n)) => from -= usize::try_from(*n).unwrap(),
            Some(Fault::Says(_)) | None => {}
        }
        let body = &bytes[from.min(bytes.len())..];
        let digest = self.digest(repository, file);
        let commit = self.commit(repository, &self.files(repository));
        let (mut status, mut range) = (200, "Accept-Ranges: bytes".to_owned());
        if from > 0 {
            let last = bytes.len().max(1) - 1;
            (status, range) = (206, format!("Content-Range: bytes {from}-{last}/{size}"));
        }
        let etag = format!("ETag: \"{digest}\"");
        let commit = format!("X-Repo-Commit: {commit}");
        let head = head(status, &[&range, &etag, &commit], body.len());
        stream.write_all(head.as_bytes())?;
        if request.is_head {
            return Ok(());
        }
        let body = &body[..usize::try_from(end).unwrap_or(usize::MAX).min(body.len())];
        const PIECES_PER_S: u64 = 20;
        let rate = self.bytes_per_s.load(Ordering::Relaxed);
        let piece = usize::try_from(rate / PIECES_PER_S)
            .unwrap()
            .clamp(1, 1 << 16);
        for piece in body.chunks(piece) {
            stream.write_all(piece)?;
            let mut served = self.served.lock().unwrap();
            *served.entry(path.to_owned()).or_default() += piece.len() as u64;
            drop(served);
            if rate < u64::MAX {
                thread::sleep(Duration::from_secs_f64(piece.len() as f64 / rate as f64));
            }
        }
        match fault {
            Some(Fault::SilentAfter(_)) => {
                // Until the client closes the connection.
                let _ = stream.read(&mut [0]);
                Err(io::ErrorKind::ConnectionAborted.into())
            }
            Some(Fault::CutsAfter(_)) => Err(io::ErrorKind::ConnectionAborted.into()),
            _ => Ok(()),
        }
    }

    /// The first fault for a request; on the hub itself only answers, unless it sends a file.
    fn take_fault(&self, request: &Request, answers_only: bool) -> Option<Fault> {
        let mut faults = self.faults.lock().unwrap();
        let is_meant = |(path, fault): &(String, Fault)| {
            let is_answer = matches!(fault, Fault::Answers(..) | Fault::Says(_));
            request.path.contains(path) && (!answers_only || is_answer)
        };
        let at = faults.iter().position(is_meant)?;
        Some(faults.remove(at).1)
    }

    /// The paths in a repository, sorted.
    fn files(&self, repository: &str) -> Vec<String> {
        let root = self.folder.join(repository);
        let (mut files, mut folders) = (Vec::new(), vec![root.clone()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let path = path.strip_prefix(&root).unwrap().to_str();
                    files.push(path.unwrap().to_owned());
                }
            }
        }
        files.sort();
        files
    }

    /// A commit that changes with the files.
    fn commit(&self, repository: &str, files: &[String]) -> String {
        let line = |file: &String| format!("{file} {}\n", self.digest(repository, file));
        hex(&Sha1::digest(files.iter().map(line).collect::<String>()))
    }

    /// As the hub states it of a file.
    fn digest(&self, repository: &str, file: &str) -> String {
        let path = self.folder.join(repository).join(file);
        let size = path.metadata().unwrap().len();
        let mut digests = self.digests.lock().unwrap();
        if let Some((_, digest)) = digests.get(&path).filter(|(of, _)| *of == size) {
            return digest.clone();
        }
        let bytes = fs::read(&path).unwrap();
        let digest = if is_large(file) {
            hex(&Sha256::digest(&bytes))
        } else {
            hex(&Sha1::new_with_prefix(format!("blob {size}\0"))
                .chain_update(&bytes)
                .finalize())
        };
        digests.insert(path, (size, digest.clone()));
        digest
    }

    /// A file as the hub lists it.
    fn sibling(&self, repository: &str, file: &str) -> Value {
        let path = self.folder.join(repository).join(file);
        let (digest, size) = (
            self.digest(repository, file),
            path.metadata().unwrap().len(),
        );
        let mut sibling = json!({"rfilename": file, "size": size, "blobId": digest});
        if is_large(file) {
            sibling["blobId"] = json!(hex(&Sha1::digest(&digest)));
            sibling["lfs"] = json!({"sha256": digest, "size": size, "pointerSize": 135});
        }
        sibling
    }
}

fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

fn address(listener: &TcpListener) -> String {
    format!("http://{}", listener.local_addr().unwrap())
}

/// As `.gitattributes` of a model's repository has it.
fn is_large(file: &str) -> bool {
    file.ends_with(".gguf") || file.ends_with(".gz")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unescaped(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        let mut digit = || char::from(rest.next().unwrap()).to_digit(16).unwrap() as u8;
        bytes.push(if byte == b'%' {
            digit() << 4 | digit()
        } else {
            byte
        });
    }
    String::from_utf8(bytes).unwrap()
}

fn head(status: u16, headers: &[&str], length: usize) -> String {
    let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    format!("HTTP/1.1 {status} Fake\r\n{lines}Content-Length: {length}\r\n\r\n")
}

fn send(
    stream: &mut TcpStream,
    request: &Request,
    status: u16,
    headers: &[&str],
    body: &[u8],
) -> io::Result<()> {
    let mut headers: Vec<&str> = headers.to_vec();
    headers.retain(|line| !line.is_empty());
    stream.write_all(head(status, &headers, body.len()).as_bytes())?;
    if request.is_head {
        Ok(())
    } else {
        stream.write_all(body)
    }
}

fn read_request(stream: &mut TcpStream) -> io::Result<Option<Request>> {
    let (mut text, mut block) = (Vec::new(), [0; 4096]);
    loop {
        let n = stream.read(&mut block)?;
        if n == 0 {
            return Ok(None);
        }
        text.extend(&block[..n]);
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        if request.parse(&text).unwrap().is_partial() {
            continue;
        }
        let header = |name: &str| {
            let mut headers = request.headers.iter();
            let found = headers.find(|header| header.name.eq_ignore_ascii_case(name))?;
            Some(std::str::from_utf8(found.value).unwrap())
        };
        let from = header("Range").and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
        return Ok(Some(Request {
            is_head: request.method == Some("HEAD"),
            path: request.path.unwrap().to_owned(),
            from: from.map_or(0, |(from, _)| from.parse().unwrap()),
            has_token: header("Authorization").is_some(),
        }));
    }
}
