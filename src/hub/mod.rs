//! Models by name: the repositories of a Hugging Face hub, and the cache that their files share with
//! other programs.
//!
//! A [`Hub`] lists a [`Repository`], which finds the files that a name means, and the hub loads them into
//! the cache of `huggingface_hub`, where llama.cpp and Python find them too.
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
mod wait;

pub use cache::of_folder;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Error, Result, anyhow, ensure};
use serde::Deserialize;

use client::Client;
use wait::Patience;

/// A hub, and this user's cache of it.
pub struct Hub {
    client: Client,
    /// The folder that has a folder for each repository.
    cache: PathBuf,
    is_offline: bool,
    /// The time before a request is repeated for the first time.
    wait: Duration,
}

/// The files of a repository at a commit.
#[derive(Debug)]
pub struct Repository {
    /// `user/repo`, and whether these are only the files that the cache has: for messages.
    name: String,
    /// In the hub's order.
    files: Vec<HubFile>,
}

/// A file of a repository at a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubFile {
    /// `user/repo`.
    pub repository: String,
    /// 40 hexadecimal digits.
    pub commit: String,
    /// In the repository, with `/`. It stays within a folder that it is joined to.
    pub path: String,
    /// In bytes.
    pub size: u64,
    /// In hexadecimal digits: the SHA-256 of a large file, git's hash of a small one.
    pub digest: String,
}

/// A step of a hub's work, as its caller is told.
#[derive(Debug, Clone, Copy)]
pub enum HubStep<'a> {
    /// This number of bytes of the file is there.
    There(u64),
    /// A line about what the hub waits for, or what it does instead.
    Says(&'a str),
}

/// The function that is told each step, and returns true to stop. It is not called while a server is
/// silent: each answer may take 10 s, or `HF_HUB_DOWNLOAD_TIMEOUT`.
pub type HubWatch<'a> = dyn Fn(HubStep) -> bool + 'a;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
enum HubFault {
    /// It may be tried again, after this time if the hub asks for one.
    #[error("{0}: repeat the call later")]
    Passing(String, Option<Duration>),
    /// Trying again will not help.
    #[error(transparent)]
    Lasting(#[from] Error),
    #[error("interrupted: what is there of it stays, and is continued the next time")]
    Stopped,
}

impl Hub {
    /// The hub and the cache that the environment names, as `huggingface_hub` reads it: `HF_ENDPOINT`,
    /// `HF_TOKEN` or the token's file, `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`, `HF_HUB_OFFLINE`,
    /// `HF_HUB_DOWNLOAD_TIMEOUT`. `variable` returns the value of one.
    ///
    /// # Errors
    /// If no folder for the cache is known, or the hub's address makes no sense.
    pub fn from_environment(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        const SILENCE_S: u64 = 10;
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let folder = |name: &str| set(name).map(PathBuf::from);
        let user = folder("HOME").or_else(|| folder("USERPROFILE"));
        let caches = folder("XDG_CACHE_HOME").or_else(|| Some(user?.join(".cache")));
        let found = folder("HF_HOME").or_else(|| Some(caches?.join("huggingface")));
        let home = found.context("HF_HOME: is not set: set it to a folder for models")?;
        let given = set("HF_TOKEN").or_else(|| fs::read_to_string(home.join("token")).ok());
        let token = given.map(|token| token.trim().to_owned());
        let endpoint = set("HF_ENDPOINT").unwrap_or("https://huggingface.co".to_owned());
        let is_address = endpoint.starts_with("http://") || endpoint.starts_with("https://");
        ensure!(is_address, "HF_ENDPOINT: '{endpoint}' lacks https://");
        let silence_s = set("HF_HUB_DOWNLOAD_TIMEOUT").and_then(|text| text.parse().ok());
        let offline = set("HF_HUB_OFFLINE").unwrap_or_default().to_uppercase();
        Ok(Self {
            client: Client::new(
                endpoint.trim_end_matches('/'),
                token.filter(|token| !token.is_empty()),
                Duration::from_secs(silence_s.unwrap_or(SILENCE_S)),
            ),
            cache: folder("HF_HUB_CACHE").unwrap_or_else(|| home.join("hub")),
            is_offline: ["1", "ON", "YES", "TRUE"].contains(&offline.as_str()),
            wait: Duration::from_secs(1),
        })
    }

    /// The files of `user/repo` at the newest commit of its main branch. Offline, or where the hub does
    /// not answer, those that the cache has.
    ///
    /// # Errors
    /// A repository that does not exist, or that this user may not read; a hub that does not answer, where the
    /// cache has no files of the repository.
    pub fn repository(&self, name: &str, watch: &HubWatch) -> Result<Repository> {
        let is_name = names::is_repository(name);
        ensure!(is_name, "'{name}' is not a repository's USER/REPO");
        let why = if self.is_offline {
            "HF_HUB_OFFLINE is set".to_owned()
        } else {
            match self.listed(name, watch) {
                Err(HubFault::Passing(why, _)) => why,
                done => return Ok(done?),
            }
        };
        let none = || format!("{name}: {why}, and the cache has no file of it");
        let cached = self.cached(name).with_context(none)?;
        let line = format!("{name}: {why}: only the cache is used");
        watch(HubStep::Says(&line));
        Ok(cached)
    }

    /// The files that the hub lists.
    fn listed(&self, name: &str, watch: &HubWatch) -> Result<Repository, HubFault> {
        let odd = |what: &str| anyhow!("{name}: the hub lists {what}, so nothing is loaded");
        let url = format!("/api/models/{name}/revision/main?blobs=true");
        let mut patience = Patience::new(self.wait);
        let listing: Listing = loop {
            match self.client.json(name, &url) {
                Err(fault @ HubFault::Passing(_, Some(_))) => patience.wait(fault, 0, watch)?,
                done => break done?,
            }
        };
        let stated = Some(listing.sha).filter(|commit| is_hash(commit, 40));
        let commit = stated.ok_or_else(|| odd("no commit of 'main'"))?;
        let files = listing.siblings.into_iter().map(|file| {
            let digest = file.lfs.map_or(file.blob_id, |lfs| lfs.sha256);
            let is_sound = is_hash(&digest, 40) || is_hash(&digest, 64);
            if !is_sound || !names::is_safe(&file.path) {
                let path = file.path;
                return Err(odd(&format!("a file '{path}' that is not sound")));
            }
            Ok(HubFile {
                repository: name.to_owned(),
                commit: commit.clone(),
                path: file.path,
                size: file.size,
                digest,
            })
        });
        Ok(Repository {
            name: name.to_owned(),
            files: files.collect::<Result<_>>()?,
        })
    }
}

/// The hub's answer to `/api/models/USER/REPO/revision/main?blobs=true`.
#[derive(Deserialize)]
struct Listing {
    /// The commit.
    sha: String,
    siblings: Vec<Sibling>,
}

/// A file of a [`Listing`].
#[derive(Deserialize)]
struct Sibling {
    #[serde(rename = "rfilename")]
    path: String,
    size: u64,
    /// Git's hash; of a large file, that of a pointer to it.
    #[serde(rename = "blobId")]
    blob_id: String,
    lfs: Option<Lfs>,
}

/// The identity of a large file.
#[derive(Deserialize)]
struct Lfs {
    sha256: String,
}

/// True for a hash of `length` hexadecimal digits.
fn is_hash(text: &str, length: usize) -> bool {
    let is_digit = |c: char| matches!(c, '0'..='9' | 'a'..='f');
    text.len() == length && text.chars().all(is_digit)
}

#[cfg(test)]
mod tests;
