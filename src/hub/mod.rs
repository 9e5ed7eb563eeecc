//! Models by name: the repositories of a Hugging Face hub, and the cache that their files share with
//! other programs.
//!
//! A [`Hub`] lists a [`Repository`], that finds the files that a name means, and the hub loads them into
//! the cache of huggingface_hub, where `llama.cpp` and Python find them too.
//!
//! No input may make it panic: clippy denies what could, and each exception states why it cannot.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing
    )
)]

mod cache;
#[cfg(feature = "hub")]
mod client;
#[cfg(not(feature = "hub"))]
#[path = "without_client.rs"]
mod client;
#[cfg(test)]
mod fake;
mod load;
mod names;

pub use load::Loaded;

use std::ffi::OsString;
use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use serde::Deserialize;

use client::Client;

/// A hub, and this user's cache of it.
pub struct Hub {
    client: Client,
    /// The folder that holds a folder for each repository.
    cache: PathBuf,
    is_offline: bool,
    /// The time before a request is repeated; it doubles with each repetition.
    wait: Duration,
}

/// The files of a repository at a commit.
#[derive(Debug)]
pub struct Repository {
    /// `user/repo`.
    pub name: String,
    /// 40 hexadecimal digits.
    pub commit: String,
    /// In the hub's order, by path.
    files: Vec<HubFile>,
    /// True if these are the files that the cache holds, because the hub was not asked.
    is_cached: bool,
}

/// A file of a repository at a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubFile {
    /// `user/repo`.
    pub repository: String,
    /// 40 hexadecimal digits.
    pub commit: String,
    /// In the repository, with `/`; safe to join to a folder.
    pub path: String,
    /// In bytes.
    pub size: u64,
    /// Of a large file its SHA-256, of others git's hash of a blob, in hexadecimal digits; of a file that
    /// the cache alone names, the name of its blob.
    pub digest: String,
}

/// What a caller is told while a hub is at work.
#[derive(Debug, Clone, Copy)]
pub enum Step<'a> {
    /// So many bytes of the file are there.
    There(u64),
    /// A line about what the hub waits for, or what it does instead.
    Says(&'a str),
}

/// Is told each step, and at least twice a second; says whether to stop.
pub type Watch<'a> = dyn Fn(Step) -> ControlFlow<()> + 'a;

/// A request that failed.
enum Fault {
    /// No connection was made.
    Unreachable(String),
    /// It may be repeated, after this time if the hub asks for one.
    Passing(String, Option<Duration>),
    /// Repeating it will not help.
    Lasting(Error),
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Unreachable(why) | Fault::Passing(why, _) => anyhow!(why),
            Fault::Lasting(error) => error,
        }
    }
}

impl Hub {
    /// The hub and the cache that the environment names, as `huggingface_hub` reads it: `HF_ENDPOINT`,
    /// `HF_TOKEN` or the token's file, `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`, `HF_HUB_OFFLINE`,
    /// `HF_HUB_DOWNLOAD_TIMEOUT`. `variable`: the value of one.
    ///
    /// # Errors
    /// If no folder for the cache is named, or a value makes no sense.
    pub fn from_environment(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self> {
        const ENDPOINT: &str = "https://huggingface.co";
        const SILENCE_S: u64 = 10;
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let text = |name: &str| set(name).map(|value| value.to_string_lossy().trim().to_owned());
        let user = set("HOME")
            .or_else(|| set("USERPROFILE"))
            .map(PathBuf::from);
        let folder = |name: &str| {
            let path = PathBuf::from(set(name)?);
            match (path.strip_prefix("~"), &user) {
                (Ok(rest), Some(user)) => Some(user.join(rest)),
                _ => Some(path),
            }
        };
        let home = folder("HF_HOME")
            .or_else(|| Some(folder("XDG_CACHE_HOME")?.join("huggingface")))
            .or_else(|| Some(user.as_ref()?.join(".cache").join("huggingface")));
        let cache = folder("HF_HUB_CACHE")
            .or_else(|| folder("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| Some(home.as_ref()?.join("hub")))
            .context("HF_HOME: is not set, and neither is HOME: set it to the folder for models")?;
        let token_file = folder("HF_TOKEN_PATH").or_else(|| Some(home?.join("token")));
        let token = text("HF_TOKEN")
            .or_else(|| text("HUGGING_FACE_HUB_TOKEN"))
            .or_else(|| Some(fs::read_to_string(token_file?).ok()?.trim().to_owned()))
            .filter(|token| !token.is_empty());
        let is_true = |name: &str| {
            let value = text(name).unwrap_or_default().to_uppercase();
            ["1", "ON", "YES", "TRUE"].contains(&value.as_str())
        };
        let silence_s = match text("HF_HUB_DOWNLOAD_TIMEOUT") {
            Some(value) => (value.parse().ok().filter(|&s| s > 0)).with_context(|| {
                format!("HF_HUB_DOWNLOAD_TIMEOUT: '{value}' is not a number of seconds")
            })?,
            None => SILENCE_S,
        };
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        Ok(Self {
            client: Client::new(&endpoint, token, Duration::from_secs(silence_s))?,
            cache,
            is_offline: is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE"),
            wait: Duration::from_secs(1),
        })
    }

    /// The files of `user/repo` at the newest commit of its main branch. Offline, or where the hub does
    /// not answer, those that the cache holds.
    ///
    /// # Errors
    /// If there is no such repository, or it may not be read, or the hub does not answer and the cache
    /// has nothing of it.
    pub fn repository(&self, name: &str, watch: &Watch) -> Result<Repository> {
        ensure!(
            names::is_repository(name),
            "{name}: is not the name of a repository: give it as USER/REPO"
        );
        if self.is_offline {
            return self.cached(name).with_context(|| {
                format!("{name}: the cache has no file of it, and HF_HUB_OFFLINE is set")
            });
        }
        let why = match self.listed(name, watch) {
            Ok(repository) => return Ok(repository),
            Err(Fault::Lasting(error)) => return Err(error),
            Err(Fault::Unreachable(why) | Fault::Passing(why, _)) => why,
        };
        let Some(repository) = self.cached(name) else {
            bail!("{name}: {why}, and the cache has no file of it");
        };
        let _ = watch(Step::Says(&format!(
            "{name}: {why}: only files of the cache are used"
        )));
        Ok(repository)
    }

    /// The files that the hub lists.
    fn listed(&self, name: &str, watch: &Watch) -> Result<Repository, Fault> {
        #[derive(Deserialize)]
        struct Refs {
            branches: Vec<Branch>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Branch {
            name: String,
            target_commit: String,
        }
        #[derive(Deserialize)]
        struct Entry {
            #[serde(rename = "type")]
            kind: String,
            path: String,
            #[serde(default)]
            size: u64,
            oid: String,
            lfs: Option<Lfs>,
        }
        #[derive(Deserialize)]
        struct Lfs {
            oid: String,
            size: u64,
        }
        let odd = |what: &str| {
            Fault::Lasting(anyhow!("{name}: the hub states {what}: nothing is loaded"))
        };
        let (refs, _): (Refs, _) = self.page(name, &format!("/api/models/{name}/refs"), watch)?;
        let main = refs
            .branches
            .into_iter()
            .find(|branch| branch.name == "main");
        let commit = main.ok_or_else(|| odd("no branch 'main'"))?.target_commit;
        if !is_hash(&commit, &[40]) {
            return Err(odd("a commit that is none"));
        }
        let mut files = Vec::new();
        let mut next = Some(format!("/api/models/{name}/tree/{commit}?recursive=true"));
        while let Some(url) = next {
            let entries: Vec<Entry>;
            (entries, next) = self.page(name, &url, watch)?;
            for entry in entries.into_iter().filter(|entry| entry.kind == "file") {
                let (digest, size) = match entry.lfs {
                    Some(lfs) => (lfs.oid, lfs.size),
                    None => (entry.oid, entry.size),
                };
                if !names::is_safe(&entry.path) || !is_hash(&digest, &[40, 64]) {
                    return Err(odd(&format!(
                        "a file '{}' that cannot be stored safely",
                        entry.path
                    )));
                }
                files.push(HubFile {
                    repository: name.to_owned(),
                    commit: commit.clone(),
                    path: entry.path,
                    size,
                    digest,
                });
            }
        }
        Ok(Repository {
            name: name.to_owned(),
            commit,
            files,
            is_cached: false,
        })
    }

    /// A page of the hub's JSON, and the address of the next one.
    fn page<T: for<'a> Deserialize<'a>>(
        &self,
        repository: &str,
        url: &str,
        watch: &Watch,
    ) -> Result<(T, Option<String>), Fault> {
        let mut patience = load::Patience::new(self.wait);
        loop {
            match self.client.json(repository, url) {
                Err(fault @ Fault::Passing(..)) => {
                    if patience.wait(fault, watch)?.is_break() {
                        return Err(Fault::Lasting(anyhow!("interrupted")));
                    }
                }
                done => return done,
            }
        }
    }
}

/// Returns true for a hash of one of these lengths in hexadecimal digits.
fn is_hash(text: &str, lengths: &[usize]) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    lengths.contains(&text.len()) && text.bytes().all(is_digit)
}

#[cfg(test)]
mod tests;
